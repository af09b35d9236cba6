"""The pictures of docs/streams.md: the film, and some orders.

python docs/make_stream_pictures.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from osiris.data.config import BenchmarkConfig
from osiris.data.load import load_benchmark
from osiris.data.stream import ordered
from osiris.data.tinyworld.walk import render_walk
from osiris.reporting.stream_picture import draw_order

PICTURES = Path(__file__).parent / "pictures"
FRAMES, STEP, SCALE = 440, 4, 4
ORDERS = ("blurred:0.3", "recurring:3", "si-blurry:50:10", "runs:16")


def film() -> None:
    """Every fourth frame, four times as large."""
    frames = render_walk(FRAMES)[::STEP].transpose(0, 2, 3, 1)
    large = [Image.fromarray(frame.repeat(SCALE, 0).repeat(SCALE, 1)).quantize(64) for frame in frames]
    large[0].save(PICTURES / "walk.gif", save_all=True, append_images=large[1:], duration=120, loop=0)


def orders() -> None:
    benchmark = load_benchmark(BenchmarkConfig("tinyworld"))
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.png" for number in range(len(ORDERS) + 1)]
        for text, path in zip(ORDERS, paths):
            draw_order(ordered(benchmark, text), path)
        draw_order(load_benchmark(BenchmarkConfig("walk", frames=4000)), paths[-1])
        parts = [np.asarray(Image.open(path).convert("RGB")) for path in paths]
    height = min(len(part) for part in parts)
    whole = Image.fromarray(np.concatenate([part[:height] for part in parts]))
    whole.resize((whole.width * 2 // 3, whole.height * 2 // 3), Image.Resampling.LANCZOS).save(
        PICTURES / "stream-orders.png", optimize=True
    )


if __name__ == "__main__":
    film()
    orders()
