"""Benchmarks by name. No torch at import: `osiris list benchmarks` must answer quickly."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from osiris.data.config import BenchmarkConfig
from osiris.data.known import KNOWN
from osiris.errors import UserError, unknown

if TYPE_CHECKING:
    from osiris.data.assemble import Source
    from osiris.data.base import Benchmark


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
PATTERNS = ("split-DATASET-N",)
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
    if dataset in KNOWN:
        from osiris.data.hub import load_known

        return load_known(KNOWN[dataset], config)
    if dataset == "tinyworld":
        from osiris.data.drawn import load_tinyworld

        return load_tinyworld(config)
    raise unknown("benchmark", name, [*NAMED, *PATTERNS])


def _tinyworld(config: BenchmarkConfig) -> Benchmark:
    from osiris.data import assemble, orders, tinyworld
    from osiris.data.drawn import load_tinyworld

    source = load_tinyworld(config)
    tasks = tuple(tuple(task) for task in tinyworld.TASKS)
    environments = tinyworld.ENVIRONMENTS
    if config.class_order is not None:
        tasks = orders.choose_tasks("tinyworld", source.class_names, (), len(tasks), None, config.class_order)
        environments = ()
    return assemble.by_class("tinyworld", source, tasks, config, environments)
