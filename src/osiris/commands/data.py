"""`osiris data`: download and cache a benchmark ahead of time, verify it, and look at it."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text
from tyro.conf import Positional

from osiris.commands import parse_arguments
from osiris.console import console, notice, printable, say
from osiris.data.benchmark import Benchmark
from osiris.data.cache import bytes_on_disk, open_entry, stale_entries
from osiris.data.config import BenchmarkConfig
from osiris.data.load import load_benchmark
from osiris.data.thumbnails import store
from osiris.errors import UserError
from osiris.files import cache_directory, write_atomically
from osiris.reporting.benchmark_images import contact_sheet
from osiris.reporting.stream_picture import draw_order


@dataclass(frozen=True)
class Args(BenchmarkConfig):
    """Download a benchmark's data, decode it into the cache and show its tasks.

    On a cluster, run this where there is a network; training on nodes without one then finds the data in the cache.

    Examples:
        osiris data split-cifar100-20 --verify
        osiris data structured-tiny-imagenet --data-dir ~/downloads/tiny-imagenet
        osiris data folder:photos --show --out sheets
        osiris data tinyworld --stream blurred:0.3 --show
        osiris data --clean
    """

    benchmark: Positional[str] = ""
    """A benchmark (see `osiris list benchmarks`), `split-DATASET-N`, `folder:PATH`, `dataset:NAME`, `arrays:FILE`."""
    verify: bool = False
    """Compare every cached image with its checksum. Damaged data is decoded again."""
    show: bool = False
    """Write a contact sheet of each task: a row of images for every class; of a stream also a picture of its order."""
    out: Path = Path("contact-sheets")
    """Where the contact sheets go."""
    clean: bool = False
    """Remove cache entries that are not needed: observed, changed or removed folders, other versions of osiris."""


COLUMNS = 12
"""Images per row of a contact sheet."""
UNLABELLED_ROWS = 6


def data_command(argv: list[str]) -> int:
    args = parse_arguments(Args, argv, "data")
    if args.clean:
        _clean()
    if not args.benchmark:
        if args.clean:
            return 0
        raise UserError("name a benchmark, such as split-cifar100-20 (see `osiris list benchmarks`), or use --clean.")
    benchmark = load_benchmark(args)
    if args.verify and benchmark.location is not None and open_entry(benchmark.location.name, verify=True) is None:
        shutil.rmtree(benchmark.location)  # damaged: decode again
        benchmark = load_benchmark(args)
    notice(*benchmark.notices)
    console.print(_table(benchmark))
    place, (_, height, width) = benchmark.location, benchmark.train.images.shape
    test = "no" if benchmark.test is None else f"{len(benchmark.test):,}"
    cache = f"{place} ({bytes_on_disk(place) >> 20:,} MB)" if place else "none: the images are in memory"
    for line in (
        f"images    {width}x{height}, {len(benchmark.train):,} train, {test} test",
        f"classes   {benchmark.class_count or 'none: without labels accuracy cannot be computed'}",
        f"cache     {cache}",
        f"checksum  {benchmark.checksum}{' (verified)' if args.verify else ''}",
    ):
        say(line)
    if benchmark.order is not None:
        order, borders = benchmark.order, len(benchmark.order.starts)
        say(f"stream    {order.name}: {len(order.rows):,} images, {borders or 'no'} boundaries between tasks")
    if args.show:
        for path in write_contact_sheets(benchmark, args.out):
            say(f"wrote {path}")
        if benchmark.order is not None:
            path = args.out / f"{_stem(benchmark.name)}-{_stem(benchmark.order.name)}.png"
            draw_order(benchmark, path)
            say(f"wrote {path}")
    return 0


def _clean() -> None:
    entries = {directory: (bytes_on_disk(directory), reason) for directory, reason in stale_entries().items()}
    for directory, (size, reason) in entries.items():
        shutil.rmtree(directory)
        say(f"removed {directory.name} ({size >> 20:,} MB): {reason}")
    if store().exists():
        store().unlink()
        say(f"removed {store().name}: thumbnails of osiris map, which are made again when they are needed")
    total = sum(size for size, _ in entries.values()) >> 20
    say(f"{len(entries)} entries ({total:,} MB) were removed from {cache_directory()}")


def _table(benchmark: Benchmark):

    def text(value: str) -> Text:
        return Text(printable(value))

    environment = {task: name for name, tasks in benchmark.environments for task in tasks}
    table = Table("task", "train", "test", "classes", title=text(benchmark.name), title_justify="left")
    for task, labels in enumerate(benchmark.tasks):
        test = 0 if benchmark.test is None else int((benchmark.test.task == task).sum())
        name = benchmark.task_names[task] if benchmark.task_names else environment.get(task, "")
        names = ", ".join(benchmark.class_names[label] for label in labels)
        count = len(benchmark.training_indices(task))
        table.add_row(text(f"{task + 1} {name}".strip()), f"{count:,}", f"{test:,}", text(names or "unlabelled"))
    return table


def write_contact_sheets(benchmark: Benchmark, out: Path) -> list[Path]:
    """One PNG per task: a row for each class, or some rows of unlabelled images."""
    paths: list[Path] = []
    for task in range(benchmark.task_count):
        rows, names = _rows(benchmark, task)
        scale = max(1, 64 // benchmark.train.images.shape[2])
        sheet = contact_sheet(rows, names, scale)
        path = out / f"{_stem(benchmark.name)}-task-{task + 1:02d}.png"
        write_atomically(path, lambda temporary, sheet=sheet: sheet.save(temporary, format="PNG"))
        paths.append(path)
    return paths


def _stem(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-")


def _rows(benchmark: Benchmark, task: int):
    indices = benchmark.training_indices(task)
    if benchmark.train.label is None:
        chosen = [indices[start : start + COLUMNS] for start in range(0, COLUMNS * UNLABELLED_ROWS, COLUMNS)]
        chosen = [rows for rows in chosen if len(rows)]
        return [benchmark.train.images.take(rows) for rows in chosen], [""] * len(chosen)
    labels = benchmark.train.label[indices]
    chosen = [indices[labels == label][:COLUMNS] for label in benchmark.tasks[task]]
    names = [benchmark.class_names[label] for label in benchmark.tasks[task]]
    return [benchmark.train.images.take(rows) for rows in chosen], names
