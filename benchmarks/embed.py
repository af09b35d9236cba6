"""How fast `Learner.embed` is, beside the bare forward pass of the encoder, and how decoding scales over the cores.

    python benchmarks/embed.py [--preset fast] [--images 2048] [--size 32] [--repeats 5]

Decoded images: the two sides take turns on one thread and are measured in CPU time, so that other work on the machine
matters little; the ratio is the median over the turns. The target is 1.1 or less. Files: JPEG images of 256 pixels,
decoded with one thread and with one per core, in seconds on the clock (only meaningful on an idle machine).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from PIL import Image

import osiris
from osiris.augment.views import normalise
from osiris.data import images as decoding
from osiris.evaluation.embedder import BATCH, Embedder


def cpu_seconds(work) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def decoded_images(embedder: Embedder, images: np.ndarray, repeats: int) -> tuple[float, float]:
    """(images per CPU second of the bare encoder, CPU time of embed over that of the bare encoder)"""
    batches = [
        normalise(torch.from_numpy(images[start : start + BATCH]), embedder.mean, embedder.std)
        for start in range(0, len(images), BATCH)
    ]

    def bare() -> None:
        with torch.no_grad():
            for batch in batches:
                embedder.encoder(batch)

    rows = [(cpu_seconds(bare), cpu_seconds(lambda: embedder(images))) for _ in range(repeats + 1)][1:]
    return len(images) / statistics.median(one for one, _ in rows), statistics.median(
        other / one for one, other in rows
    )


def files(embedder: Embedder, count: int, folder: Path) -> dict[int, float]:
    """Threads -> seconds to decode so many JPEG files."""
    random = np.random.default_rng(0)
    for number in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (16, 16, 3), dtype=np.uint8))
        coarse.resize((256, 256), Image.Resampling.BICUBIC).save(folder / f"{number:05d}.jpg", quality=90)
    paths = sorted(folder.iterdir())
    seconds = {}
    for threads in sorted({1, decoding.core_count()}):
        with mock.patch.object(decoding, "core_count", lambda threads=threads: threads):
            started = time.perf_counter()
            for _ in decoding.decode_all(lambda rows: [paths[row] for row in rows], count, embedder.image_size):
                pass
            seconds[threads] = time.perf_counter() - started
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    images = np.random.default_rng(0).integers(0, 256, (args.images, 3, args.size, args.size), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as place:
        learner = osiris.Learner(Path(place) / "state", "ft", args.preset, epochs=1, image_size=args.size)
        learner.observe(images[:256])
        embedder = Embedder(learner.run.checkpoint())
        rate, ratio = decoded_images(embedder, images, args.repeats)
        (Path(place) / "files").mkdir()
        seconds = files(embedder, 400, Path(place) / "files")
    print(f"bare encoder ({args.preset}, {args.size} pixels): {rate:.0f} images per CPU second")
    print(f"embed / bare encoder, decoded images: {ratio:.3f} (target: at most 1.1)")
    print("decoding 400 JPEG files: " + ", ".join(f"{value:.2f} s with {n} thread(s)" for n, value in seconds.items()))


if __name__ == "__main__":
    main()
