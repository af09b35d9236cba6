"""How fast an index of 100,000 images is: opening, exact search, adding 100 images, and its memory.

    python benchmarks/index.py [--vectors 100000] [--dimension 1280] [--repeats 5] [--files]

Each measurement is a process of its own with one thread, in CPU time, so that other work on the machine matters little.
Plain NumPy is one array in a .npy file: opened with `np.load(mmap_mode="r")`, searched with `vectors @ query` and
`argpartition`. Targets: opened in 2 s, one query in 100 ms, memory at most 1.2 times the file, 100 more images in 2 s
besides their embedding. `--files` also makes a folder of that many empty files, so that adding includes listing it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import torch

from osiris.evaluation.embedder import EmbeddedBatch
from osiris.index.gallery import Gallery
from osiris.index.records import Version
from osiris.index.store import Index
from osiris.index.update import update

VERSION = Version(episode=1, digest="0" * 32)
PART = 4096
"""Rows that are added at a time, as `osiris index` does."""


class NoEncoder:
    """Its features cost nothing."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension

    def batches(self, read, count: int):
        yield EmbeddedBatch([*range(count)], torch.randn(count, self.dimension), {})


def make(folder: Path, count: int, dimension: int, files: bool) -> None:
    random = np.random.default_rng(0)
    vectors = np.lib.format.open_memmap(folder / "plain.npy", "w+", np.float32, (count, dimension))
    index = Index(folder / "state" / "index")
    (folder / "photos").mkdir()
    with index:
        for start in range(0, count, PART):
            stop = min(start + PART, count)
            rows = random.standard_normal((stop - start, dimension), dtype=np.float32)
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            vectors[start:stop] = rows
            names = [f"{folder}/photos/{number // 1000:03d}/{number:06d}.jpg" for number in range(start, stop)]
            stats = np.zeros((len(names), 2), np.int64)
            for row, name in enumerate(names) if files else ():
                Path(name).parent.mkdir(exist_ok=True)
                Path(name).touch()
                stats[row] = 0, Path(name).stat().st_mtime_ns
            index.append(VERSION, names, stats, rows)
    vectors.flush()


def resident() -> int:
    return psutil.Process().memory_info().rss


def measure(what: str, folder: Path, dimension: int) -> None:
    """In a process of its own; prints seconds to open, seconds of the first and of later queries, and memory."""
    queries = np.random.default_rng(1).standard_normal((11, dimension), dtype=np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    before, started = resident(), time.process_time()
    if what == "numpy":
        vectors = np.load(folder / "plain.npy", mmap_mode="r")

        def search(query: np.ndarray) -> np.ndarray:
            similarity = vectors @ query
            best = np.argpartition(similarity, -10)[-10:]
            return best[np.argsort(-similarity[best])]
    else:
        gallery = Gallery(Index(folder / "state" / "index"), VERSION)

        def search(query: np.ndarray) -> np.ndarray:
            return gallery.search(query[None], 10)[1][0]

    opened, seconds = time.process_time() - started, []
    for query in queries:
        started = time.process_time()
        found = search(query)
        seconds.append(time.process_time() - started)
    print(opened, seconds[0], statistics.median(seconds[1:]), resident() - before, *found)


def measured(what: str, folder: Path, dimension: int) -> list[float]:
    typed = [sys.executable, __file__, "--measure", what, "--folder", str(folder), "--dimension", str(dimension)]
    one_thread = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(typed, capture_output=True, text=True, check=True, env=one_thread)
    return [float(value) for value in done.stdout.split()]


def add(folder: Path, dimension: int, number: int) -> float:
    """CPU seconds to add 100 files whose features cost nothing."""
    place = folder / "photos" / f"new {number}"
    place.mkdir(parents=True)
    for file in range(100):
        (place / f"{file}.jpg").touch()
    index, started = Index(folder / "state" / "index"), time.process_time()
    done = update(index, [folder / "photos"], NoEncoder(dimension), VERSION)  # pyright: ignore[reportArgumentType]
    assert done.new == 100 and done.waiting == 0
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=1280)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--files", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--measure", choices=("index", "numpy"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        return measure(args.measure, args.folder, args.dimension)
    with tempfile.TemporaryDirectory(dir=args.folder) as place:
        folder = Path(place)
        make(folder, args.vectors, args.dimension, args.files)
        size = sum(file.stat().st_size for file in (folder / "state" / "index").iterdir())
        turns = [[measured(what, folder, args.dimension) for what in ("index", "numpy")] for _ in range(args.repeats)]
        assert all(ours[4:] == theirs[4:] for ours, theirs in turns), "both find the same"
        ours, theirs = ([statistics.median(column) for column in zip(*(turn[at] for turn in turns))] for at in (0, 1))
        print(f"{args.vectors:,} vectors of {args.dimension} numbers, {size / 2**20:.0f} MB, {os.cpu_count()} cores")
        for at, name in enumerate(("open", "first query", "query")):
            print(f"{name}: {1000 * ours[at]:.1f} ms CPU, NumPy {1000 * theirs[at]:.1f} ms")
        print(f"query / NumPy: {statistics.median(a[2] / b[2] for a, b in turns):.2f}")
        print(f"memory: {ours[3] / size:.2f} of the file, NumPy {theirs[3] / size:.2f}")
        seconds = [add(folder, args.dimension, number) for number in range(args.repeats)]
        print(f"adding 100 images, without embedding them: {statistics.median(seconds):.2f} s CPU")


if __name__ == "__main__":
    main()
