"""Benchmarks by name. No torch at import: `osiris list benchmarks` must answer quickly."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osiris.data.config import BenchmarkConfig
from osiris.data.known import (
    KNOWN,
    TINYWORLD_SIZE,
    TINYWORLD_TEST_PER_CLASS,
    TINYWORLD_TRAIN_PER_CLASS,
    KnownDataset,
)
from osiris.errors import UserError, unknown

if TYPE_CHECKING:
    from osiris.data.assemble import Source
    from osiris.data.base import Benchmark
    from osiris.data.cache import Entry


@dataclass(frozen=True)
class NamedBenchmark:
    """A data set and the order in which its classes come."""

    name: str
    dataset: str
    task_count: int
    order: str
    about: str


NAMED: dict[str, NamedBenchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        NamedBenchmark("tinyworld", "tinyworld", 0, "own", "drawn on the spot: for demos and tests"),
        NamedBenchmark("split-cifar100-5", "cifar100", 5, "random", "Table 2: 5 tasks of 20 random classes"),
        NamedBenchmark("split-cifar100-20", "cifar100", 20, "random", "Table 2: 20 tasks of 5 random classes"),
        NamedBenchmark("structured-cifar100", "cifar100", 10, "structured", "Table 3: 10 tasks of 2 superclasses"),
        NamedBenchmark("structured-tiny-imagenet", "tiny-imagenet", 10, "structured", "Table 3: indoor, city, wild"),
        NamedBenchmark("split-tiny-imagenet-10", "tiny-imagenet", 10, "random", "10 tasks of 20 random classes"),
    )
}
PATTERNS = ("split-DATASET-N", "folder:PATH", "dataset:NAME_OR_PATH", "arrays:FILE.npz")
OWN = ("folder", "dataset", "arrays")
SPLIT = re.compile(r"^split-(?P<dataset>.+)-(?P<tasks>\d+)$")


def load_benchmark(config: BenchmarkConfig) -> Benchmark:
    """The benchmark that `config` names, with its images in the cache or in memory."""
    name = config.benchmark
    if config.image_size is not None and not 8 <= config.image_size <= 1024:
        raise UserError(f"--image-size {config.image_size}: choose a side between 8 and 1024 pixels.")
    if name == "tinyworld":
        return _tinyworld(config)
    if name in NAMED:
        named = NAMED[name]
        return _by_class(name, named.dataset, named.task_count, named.order, config)
    kind, _, place = name.partition(":")
    if kind in OWN and place:
        return _by_episode(name, kind, place, config)
    match = SPLIT.match(name)
    if match:
        return _by_class(name, match["dataset"], int(match["tasks"]), "random", config)
    raise unknown("benchmark", name, [*NAMED, *PATTERNS])


def _by_class(name: str, dataset: str, task_count: int, order: str, config: BenchmarkConfig) -> Benchmark:
    from osiris.data import assemble, orders

    source = _source(name, dataset, config)
    default = orders.packaged_order(dataset, order) if dataset in KNOWN else None
    tasks = orders.choose_tasks(name, source.class_names, source.class_aliases, task_count, default, config.class_order)
    structured = dataset == "tiny-imagenet" and order == "structured" and config.class_order is None
    environments = orders.tiny_imagenet_environments() if structured else ()
    return assemble.by_class(name, source, tasks, config, environments)


def _source(name: str, dataset: str, config: BenchmarkConfig) -> Source:
    """DATASET of a `split-DATASET-N`."""
    if dataset in KNOWN:
        from osiris.data.hub import load_known

        return load_known(KNOWN[dataset], config)
    if dataset == "tinyworld":
        from osiris.data.drawn import load_tinyworld

        return load_tinyworld(config)
    kind, _, place = dataset.partition(":")
    if kind in OWN and place:
        return _own(kind, place, config, by_class=True)
    if "/" in dataset or Path(dataset).exists():  # a hub's OWNER/NAME, or a place on this disk
        return _own("dataset", dataset, config, by_class=True)
    raise unknown("benchmark", name, [*NAMED, *PATTERNS])


def _by_episode(name: str, kind: str, place: str, config: BenchmarkConfig) -> Benchmark:
    from osiris.data import assemble

    if config.class_order is not None:
        raise UserError(f"--class-order needs tasks made of classes: use split-{name}-N to cut {place} into N tasks.")
    return assemble.by_episode(name, _own(kind, place, config, by_class=False), config)


def _own(kind: str, place: str, config: BenchmarkConfig, by_class: bool) -> Source:
    if kind == "arrays":
        from osiris.data.arrays import load_arrays

        return load_arrays(Path(place), config)
    from osiris.data.own import load_own

    if kind == "folder":
        from osiris.data.folder import list_folder

        catalogue = list_folder(Path(place), by_class)
        return load_own(catalogue.name, [catalogue.content, f"by_class={by_class}"], lambda: catalogue, config)
    from osiris.data.local import resolve_place
    from osiris.data.tables import list_table, table_fingerprint

    place = resolve_place(place, config.data_dir)
    return load_own(place, table_fingerprint(place, config), lambda: list_table(place, config), config)


def _tinyworld(config: BenchmarkConfig) -> Benchmark:
    from osiris.data import assemble, orders, tinyworld
    from osiris.data.drawn import load_tinyworld

    source = load_tinyworld(config)
    tasks = tuple(tuple(task) for task in tinyworld.TASKS)
    environments = tinyworld.ENVIRONMENTS
    if config.class_order is not None:
        tasks = orders.choose_tasks("tinyworld", source.class_names, (), len(tasks), None, config.class_order)
        environments = ()
    names = tinyworld.TASK_NAMES if config.class_order is None else ()
    return assemble.by_class("tinyworld", source, tasks, config, environments, names)


def describe_benchmarks() -> list[dict[str, Any]]:
    """What `osiris list benchmarks` shows of each: tasks, classes, images, size on disk, whether the data is here."""
    return [_describe(named) for named in NAMED.values()]


def _describe(named: NamedBenchmark) -> dict[str, Any]:
    row: dict[str, Any] = {"name": named.name, "about": named.about}
    if named.dataset == "tinyworld":
        from osiris.data import tinyworld

        classes = len(tinyworld.CLASS_NAMES)
        images = (classes * TINYWORLD_TRAIN_PER_CLASS, classes * TINYWORLD_TEST_PER_CLASS)
        row |= {"tasks": len(tinyworld.TASKS), "classes": classes, "image_size": TINYWORLD_SIZE}
        return row | {
            "train_images": images[0],
            "test_images": images[1],
            "bytes": None,
            "present": "drawn on the spot",
        }
    known = KNOWN[named.dataset]
    entry, present = _presence(known)
    counts = {part: known.class_count * getattr(known, f"{part}_per_class") for part in ("train", "test")}
    if entry is not None:
        if entry.manifest["counts"] != counts:
            present += ", a part only"
        counts = entry.manifest["counts"]
    row |= {"tasks": named.task_count, "classes": known.class_count, "image_size": known.size}
    row |= {"train_images": counts["train"], "test_images": counts["test"]}
    return row | {"bytes": None if entry is None else entry.bytes_on_disk(), "present": present}


def _presence(known: KnownDataset) -> tuple[Entry | None, str]:
    from osiris.data.local import cached_known, find_local_copy

    try:
        copy = find_local_copy(known, None)
    except UserError as error:
        return None, f"damaged: {error}"
    entry = cached_known(known, copy, known.size)
    if entry is not None:
        return entry, "cached"
    return None, "no: fetched from the hub when needed" if copy is None else "local files, not yet cached"
