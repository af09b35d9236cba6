"""Any data set that Hugging Face `datasets` can read, from the hub or from the disk, as own data.

Images, labels and episodes are columns. The warm path knows the data set by its files' names, sizes and times (a hub's
by its name) and never imports `datasets`.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from osiris.data.config import BenchmarkConfig
from osiris.data.decode import Encoded
from osiris.data.fetch import fetch, one_line, raise_if_disk_full
from osiris.data.local import check_parquet
from osiris.data.records import Catalogue, Records, natural
from osiris.errors import UserError

TEST_SPLITS = ("test", "validation", "valid", "val")
READERS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".arrow": "arrow"}


def table_fingerprint(name: str, config: BenchmarkConfig) -> list[str]:
    """What distinguishes this table from others, without opening it."""
    columns = [str(column) for column in (config.image_column, config.label_column, config.episode_column)]
    path = Path(name).expanduser()
    if not path.exists():
        return ["hub", name, *columns]
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    stamps = [f"{file.relative_to(path)} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]
    return ["local", hashlib.sha256("\n".join(stamps).encode(errors="surrogateescape")).hexdigest(), *columns]


def list_table(name: str, config: BenchmarkConfig) -> Catalogue:
    """The columns of the training and test split; the images stay where they are until they are read."""
    splits = _open(name)
    notices: list[str] = []
    train, test = _choose_splits(name, splits, notices)
    image = _image_column(name, train, config.image_column)
    label = _label_column(name, train, config.label_column)
    episode = _require(name, train, config.episode_column, "--episode-column")
    class_names, labels = _labels(name, train, label)
    episode_names, episodes = _episodes(name, train, episode, notices)
    test_records = None
    if test is not None:
        test_records = _test_records(name, test, (image, label, episode), class_names, episode_names, notices)
    if test_records is not None and test_records.episode is None and len(episode_names) > 1:
        notices.append("the test part has no episodes: a fifth of the training images is used for testing instead.")
        test_records = None
    content = hashlib.sha256(f"{train._fingerprint} {test._fingerprint if test else ''}".encode()).hexdigest()
    return Catalogue(
        name=name,
        source=name,
        train=_records(train, image, "train", labels, episodes),
        test=test_records,
        class_names=class_names,
        episode_names=episode_names,
        content=content,
        notices=tuple(notices),
    )


def _open(name: str) -> dict[str, Any]:
    """Split name -> data set, with random access."""
    path = Path(name).expanduser()
    if not path.exists():
        repository, _, configuration = name.partition("@")
        opened = fetch(repository, configuration or None)
    else:
        import datasets

        for file in [path] if path.suffix == ".parquet" else sorted(path.rglob("*.parquet")) if path.is_dir() else []:
            check_parquet(file)
        try:
            opened = _open_local(path, datasets)
        except UserError:
            raise
        except Exception as error:  # `datasets` wraps what its readers raise in several types
            raise_if_disk_full(error)
            raise UserError(f"cannot read {path} as a data set: {one_line(error)}") from error
    return dict(opened) if hasattr(opened, "items") else {"train": opened}


def _open_local(path: Path, datasets: Any) -> Any:
    if path.is_dir():
        saved = (path / "dataset_dict.json").exists() or (path / "state.json").exists()
        return datasets.load_from_disk(str(path)) if saved else datasets.load_dataset(str(path))
    if path.suffix.lower() not in READERS:
        raise UserError(f"{path}: give a folder or a file of these kinds: {', '.join(READERS)}.")
    return datasets.load_dataset(READERS[path.suffix.lower()], data_files=str(path))


def _choose_splits(name: str, splits: dict[str, Any], notices: list[str]) -> tuple[Any, Any]:
    train_name = "train" if "train" in splits else next(iter(splits))
    test_name = next((split for split in TEST_SPLITS if split in splits and split != train_name), None)
    unused = [split for split in splits if split not in (train_name, test_name)]
    if unused:
        notices.append(f"{name}: the split(s) {', '.join(unused)} are not used.")
    if not len(splits[train_name]):
        raise UserError(f"{name}: the split {train_name!r} is empty.")
    test = splits[test_name] if test_name is not None and len(splits[test_name]) else None
    return splits[train_name], test


def _require(name: str, table: Any, column: str | None, flag: str) -> str | None:
    if column is not None and column not in table.features:
        raise UserError(f"{flag} {column!r}: {name} has only the columns {', '.join(table.features)}.")
    return column


def _image_column(name: str, table: Any, column: str | None) -> str:
    import datasets

    if column is not None:
        _require(name, table, column, "--image-column")
        return column
    images = [key for key, feature in table.features.items() if isinstance(feature, datasets.Image)]
    if len(images) != 1:
        have = ", ".join(images or table.features)
        raise UserError(f"{name} has {len(images) or 'no'} image columns: choose one with --image-column ({have}).")
    return images[0]


def _label_column(name: str, table: Any, column: str | None) -> str | None:
    if column is not None:
        return _require(name, table, column, "--label-column")
    return "label" if "label" in table.features else None


def _labels(name: str, table: Any, column: str | None) -> tuple[tuple[str, ...], np.ndarray | None]:
    if column is None:
        return (), None
    values = table[column][:]
    if any(value is None for value in values):
        raise UserError(f"{name}: some rows have no {column!r}. Fill them in, or choose another --label-column.")
    names = getattr(table.features[column], "names", None)
    if names is not None:
        return _used_classes(name, column, names, values)
    if isinstance(values[0], float | list | dict):
        raise UserError(f"{name}: the column {column!r} does not hold classes (it has {values[0]!r}).")
    distinct = sorted(set(values), key=lambda value: natural(value) if isinstance(value, str) else value)
    number = {value: position for position, value in enumerate(distinct)}
    return tuple(str(value) for value in distinct), np.asarray([number[value] for value in values], dtype=np.int64)


def _used_classes(
    name: str, column: str, names: Sequence[str], values: Sequence[int]
) -> tuple[tuple[str, ...], np.ndarray | None]:
    labels = np.asarray(values, dtype=np.int64)
    if labels.min() < 0 or labels.max() >= len(names):
        raise UserError(f"{name}: the column {column!r} has labels outside of its {len(names)} classes (-1: unknown).")
    return tuple(names), labels


def _episodes(
    name: str, table: Any, column: str | None, notices: list[str]
) -> tuple[tuple[str, ...], np.ndarray | None]:
    if column is None:
        return ("all",), np.zeros(len(table), dtype=np.int64)
    values = [_episode_value(value) for value in table[column][:]]
    if any(value is None for value in values):
        raise UserError(f"{name}: some rows have no {column!r}. Every image needs an episode.")
    distinct = sorted(set(values), key=lambda value: natural(value) if isinstance(value, str) else value)
    if len(distinct) == len(values) and len(values) > 10:
        raise UserError(
            f"{name}: every row has another {column!r}: choose a coarser column, such as a date or a place."
        )
    names = getattr(table.features[column], "names", None)
    shown = tuple(str(names[value]) if names is not None else str(value) for value in distinct)
    if any(isinstance(value, datetime.date) for value in distinct):
        notices.append(f"each day of {column!r} is an episode: {shown[0]} to {shown[-1]}.")
    number = {value: position for position, value in enumerate(distinct)}
    return shown, np.asarray([number[value] for value in values], dtype=np.int64)


def _episode_value(value: Any) -> Any:
    """A moment belongs to its day."""
    return value.date() if isinstance(value, datetime.datetime) else value


def _test_records(
    name: str,
    test: Any,
    columns: tuple[str, str | None, str | None],
    class_names: tuple[str, ...],
    episode_names: tuple[str, ...],
    notices: list[str],
) -> Records | None:
    image, label, episode = columns
    if label is None or label not in test.features:
        notices.append(f"{name}: the test part has no labels and is not used.")
        return None
    names, numbers = _labels(name, test, label)
    assert numbers is not None
    labels = _renumber(name, "class", names, numbers, class_names)
    if episode is None or episode not in test.features:
        episodes = np.zeros(len(test), dtype=np.int64) if len(episode_names) == 1 else None
    else:
        days, numbers = _episodes(name, test, episode, [])
        assert numbers is not None
        episodes = _renumber(name, "episode", days, numbers, episode_names)
    return _records(test, image, "test", labels, episodes)


def _renumber(name: str, kind: str, given: Sequence[str], numbers: np.ndarray, known: Sequence[str]) -> np.ndarray:
    """Numbers by the test part's names -> numbers by the training part's names."""
    position = {each: index for index, each in enumerate(known)}
    strange = [each for each in given if each not in position]
    if strange:
        raise UserError(f"{name}: the test part has the {kind} {strange[0]!r}, which has no training images.")
    return np.asarray([position[each] for each in given], dtype=np.int64)[numbers]


def _records(table: Any, column: str, part: str, label: np.ndarray | None, episode: np.ndarray | None) -> Records:
    import datasets

    try:
        images = table.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    except Exception as error:
        raise UserError(f"the column {column!r} does not hold images or paths of images: {one_line(error)}") from None

    def read(numbers: Sequence[int]) -> list[Encoded]:
        values = images[list(numbers)][column]
        return [value["bytes"] or (Path(value["path"]) if value["path"] else b"") for value in values]

    return Records(len(table), read, lambda number: f"{part} row {number}", label, episode)
