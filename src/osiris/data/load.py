"""Benchmarks by name or from a user's own images. No torch at import: `osiris list benchmarks` must answer quickly."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from osiris.conversion import converted
from osiris.data import arrays, folder, huggingface, tinyworld
from osiris.data.cache import Entry, bytes_on_disk, cached_entry
from osiris.data.catalogue import (
    BENCHMARKS,
    DATASETS,
    BenchmarkName,
    choose_tasks,
    packaged_order,
    parse_name,
    tiny_imagenet_environments,
)
from osiris.data.config import BenchmarkConfig
from osiris.data.source import Rows, Source, Values, make_source
from osiris.data.tinyworld.walk import walk_labels
from osiris.errors import UserError

if TYPE_CHECKING:
    from osiris.data.benchmark import Benchmark
    from osiris.data.dataset import Dataset


def load_benchmark(config: BenchmarkConfig) -> Benchmark:
    """The benchmark that `config` names, with its images in the cache or in memory."""
    if config.stream is not None:
        from osiris.data.stream import parse

        parse(config.stream)  # a mistake is reported before anything is decoded
    name = parse_name(config.benchmark)
    if name.order in WALKS:
        return _walk(name, config)
    if name.task_count is None and config.class_order is not None:
        raise UserError(
            f"--class-order needs tasks made of classes: use split-{name.text}-N to divide {name.place} into N tasks."
        )
    from osiris.data.benchmark import by_episode
    from osiris.data.dataset import load_dataset

    source = open_source(name, config)
    dataset = load_dataset(source, config)
    if name.task_count is None:
        return as_stream(by_episode(name.text, dataset, config), config, source, dataset)
    return as_stream(_by_class(name, dataset, config), config, source, dataset)


def _by_class(name: BenchmarkName, dataset: Dataset, config: BenchmarkConfig) -> Benchmark:
    from osiris.data.benchmark import by_class

    assert name.task_count is not None
    if name.order == "own" and config.class_order is None:
        return by_class(name.text, dataset, tinyworld.TASKS, config, tinyworld.ENVIRONMENTS, tinyworld.TASK_NAMES)
    published = name.kind == "known" and name.place != "tinyworld"
    packaged = packaged_order(name.place, name.order) if published else None
    aliases = dataset.known.class_ids if dataset.known and published else ()
    chosen = choose_tasks(name.text, dataset.class_names, aliases, name.task_count, packaged, config.class_order)
    structured = name.text == "structured-tiny-imagenet" and config.class_order is None
    return by_class(name.text, dataset, chosen, config, tiny_imagenet_environments() if structured else ())


def as_stream(
    benchmark: Benchmark, config: BenchmarkConfig, source: Source | None = None, dataset: Dataset | None = None
) -> Benchmark:
    """The benchmark in the order of `--stream`, if there is one. `time` and `name` of image files: `folder.places`."""
    if config.stream is None or benchmark.order is not None:
        return benchmark
    from osiris.data.images import Subset
    from osiris.data.stream import ordered

    place, notices = None, []
    if config.stream in ("time", "name") and source is not None and dataset is not None:
        images = benchmark.train.images
        assert isinstance(images, Subset)
        table = source.read_table()
        files = table.read(dataset.rows["row"][images.indices.numpy()].tolist()) if source.origin else []
        if files:
            place, notices = folder.places([Path(str(file)) for file in files], by_time=config.stream == "time")
    stream = ordered(benchmark, config.stream, config.stream_seed, place)
    return replace(stream, notices=(*stream.notices, *notices))


def _walk(name: BenchmarkName, config: BenchmarkConfig) -> Benchmark:
    """A film of tinyworld as the training images; bank and test are its stills."""
    import torch

    from osiris.data.benchmark import Split
    from osiris.data.dataset import load_dataset

    base = load_benchmark(replace(config, benchmark="tinyworld", stream=None))
    count, by_task = config.frames or tinyworld.FRAMES, WALKS[name.order]
    frames = load_dataset(tinyworld.walk_source(count, by_task), replace(config, validation=False))
    label = torch.from_numpy(walk_labels(count, by_task))
    task = torch.tensor([next(t for t, labels in enumerate(base.tasks) if one in labels) for one in range(40)])
    train = Split(frames.images, task[label], label)
    digest = hashlib.sha256(f"{base.checksum} {frames.checksum}".encode() + label.numpy().tobytes()).hexdigest()
    benchmark = replace(base, name=name.text, train=train, checksum=digest, contents=(), location=frames.location)
    from osiris.data.stream import ordered

    chosen = config.stream or ("shuffled" if name.order == "walk:shuffled" else "time")
    return ordered(benchmark, chosen, config.stream_seed)


WALKS = {"walk": False, "walk:ordered": True, "walk:shuffled": False}
"""The films by the order in their name, and whether their stations are visited task after task."""


def open_source(name: BenchmarkName, config: BenchmarkConfig) -> Source:
    """Find the data without reading it."""
    if name.place == "tinyworld" and name.kind == "known":
        return tinyworld.tinyworld_source(config)
    if name.kind == "folder":
        return folder.folder_source(Path(name.place), by_class=name.task_count is not None)
    if name.kind == "arrays":
        return arrays.file_source(Path(name.place))
    if name.kind == "known":
        return huggingface.known_source(DATASETS[name.place], config)
    return huggingface.dataset_source(name.place, config)


def benchmark_from(
    images: Any,
    *,
    episodes: Values | None = None,
    labels: Values | None = None,
    test: Any = None,
    class_names: Sequence[str] | None = None,
    name: str | None = None,
    image_size: int | None = None,
    strict: bool = False,
) -> Benchmark:
    """A benchmark made of your own images; each episode is a task.

    Args:
        images: One of
            - a folder, laid out as for `folder:PATH` (its subfolders are the episodes);
            - a list of image files;
            - an array or tensor [N, H, W, 3], [N, 3, H, W] or [N, H, W], uint8 or floats in [0, 1];
            - a map-style torch `Dataset` whose items are an image or (image, label);
            - a Hugging Face `Dataset` or `DatasetDict`.
        episodes: One number, string or date per image; episodes are learned in sorted order. For Hugging Face data also
            the name of a column. Default: all images are one episode.
        labels: One class per image, used only for evaluation. For Hugging Face data also the name of a column.
        test: Test images: of the same kind as `images`, or a tuple (images, labels) or (images, labels, episodes).
            Default: a fifth of each class, if there are labels.
        class_names: If given, `labels` are positions in it.
        name: What to call the benchmark.
        image_size: Side of the square that images are scaled and cropped to. Default: the median short side, at most
            224 pixels.
        strict: Raise an error for an image that cannot be decoded, instead of skipping it.

    Returns:
        The benchmark; its `notices` tell what was left out or changed.
    """
    return _by_episode(_own_source(images, name, episodes, labels, test, class_names), image_size, strict)


def _by_episode(source: Source, image_size: int | None, strict: bool) -> Benchmark:
    from osiris.data.benchmark import by_episode
    from osiris.data.dataset import load_dataset

    config = BenchmarkConfig(source.name, image_size=image_size, strict=strict)
    converted(vars(config), BenchmarkConfig)  # refuses a size out of range
    return by_episode(source.name, load_dataset(source, config), config)


def episode_source(images: Any, name: str) -> tuple[Source, list[str]]:
    """All images as one episode, in order and without labels: anything that `benchmark_from` takes, or one image file;
    of a folder, all images at any depth. Also returns notices about files that are not images."""
    notices: list[str] = []
    if isinstance(images, str | Path) and Path(images).expanduser().is_dir():
        listing = folder.Listing(Path(images))
        images, notices = listing.paths(), listing.notices()
        if not images:
            raise UserError(f"{listing.root} has no images. {' '.join(notices)}".rstrip())
    elif isinstance(images, str | Path):
        images = [images]
    labelled = _own_source(images, name)
    key = None if labelled.key is None else (*labelled.key, f"one episode: {name}")
    source = replace(labelled, read_table=lambda: labelled.read_table().as_one_episode(name), key=key)
    return replace(source, episode=True), notices


def episode_from(images: Any, name: str, image_size: int | None = None, strict: bool = False) -> Benchmark:
    """The images of `episode_source` as a benchmark of one task."""
    source, notices = episode_source(images, name)
    benchmark = _by_episode(source, image_size, strict)
    return replace(benchmark, notices=(*notices, *benchmark.notices))


def _own_source(
    images: Any,
    name: str | None,
    episodes: Values | None = None,
    labels: Values | None = None,
    test: Any = None,
    class_names: Sequence[str] | None = None,
) -> Source:
    if isinstance(images, str | Path):
        if any(value is not None for value in (episodes, labels, class_names)):
            raise UserError("a folder's subfolders are its episodes and classes: leave out episodes and labels.")
        source = folder.folder_source(Path(images), test=None if test is None else Path(test))
        return replace(source, name=name or source.name)
    first = next(iter(images.values())) if isinstance(images, Mapping) else images
    if hasattr(first, "features") and hasattr(first, "select_columns"):
        splits = huggingface.splits_of(images) | ({} if test is None else {"test": test})
        name = name or "dataset"
        return Source(name, lambda: huggingface.splits_table(name, splits, None, labels, episodes), None)
    name = name or "images"
    train, test_rows = _rows(images, name, labels, episodes), None
    if test is not None:
        test_images, *values = test if isinstance(test, tuple) else (test,)
        test_rows = _rows(test_images, f"{name} (test)", *values)
    return make_source(name, train, test_rows, class_names)


def _rows(images: Any, name: str, labels: Values | None = None, episodes: Values | None = None) -> Rows:
    if isinstance(images, list | tuple) and images and isinstance(images[0], str | Path):
        return folder.path_rows([Path(path).expanduser().absolute() for path in images], labels, episodes)
    if hasattr(images, "__len__") and hasattr(images, "__getitem__"):
        return arrays.image_rows(images, name, labels, episodes)
    raise UserError(
        f"{name}: expected a folder, a list of paths, an array, a tensor, or a data set with a length, not "
        f"{type(images).__name__}."
    )


class BenchmarkDescription(NamedTuple):
    """A row of `osiris list benchmarks`."""

    name: str
    about: str
    tasks: int
    classes: int
    image_size: int
    train_images: int
    test_images: int
    bytes_on_disk: int | None
    present: str


def describe_benchmarks() -> list[BenchmarkDescription]:
    """Tasks, classes, images, size on disk of each named benchmark, and whether its data is on this machine."""
    descriptions = []
    for name in BENCHMARKS.values():
        known = DATASETS[name.place]
        train, test = known.class_count * known.train_per_class, known.class_count * known.test_per_class
        entry, present = (None, "rendered by code") if not known.repository else presence(name, BenchmarkConfig())
        if entry is not None:
            counts = entry.manifest["train_count"], entry.manifest["test_count"]
            present += "" if counts == (train, test) else ", a part only"
            train, test = counts
        assert name.task_count is not None
        size = None if entry is None or entry.directory is None else bytes_on_disk(entry.directory)
        counts = (name.task_count, known.class_count, known.size, train, test, size)
        descriptions.append(BenchmarkDescription(name.text, name.about, *counts, present))
    return descriptions


def presence(name: BenchmarkName, config: BenchmarkConfig) -> tuple[Entry | None, str]:
    """The cache entry of a data set of the hub, and in words whether the data is on this machine."""
    try:
        source = open_source(name, config)
    except UserError as error:
        return None, f"damaged: {error}"
    entry = cached_entry(source, config)
    if entry is not None:
        return entry, "cached"
    return None, "local files, not yet cached" if source.local else "no: fetched from the hub when needed"


def is_at_hand(config: BenchmarkConfig) -> bool:
    """Whether loading needs no download and decodes nothing. A received config may name any path of this machine, so
    images are read only if they are in the cache already. Arrays need no decoding."""
    name = parse_name(config.benchmark)
    if name.kind == "arrays":
        return Path(name.place).suffix in (".npy", ".npz")
    return name.place == "tinyworld" or (name.kind != "dataset" and presence(name, config)[0] is not None)
