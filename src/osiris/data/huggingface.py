"""Data sets that Hugging Face `datasets` can read, from the hub or from disk: images, labels, episodes are columns.

`datasets` is slow to import, so this happens only when there is something to decode.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from osiris.console import notice
from osiris.data.catalogue import KnownDataset
from osiris.data.config import BenchmarkConfig
from osiris.data.source import Encoded, Rows, Source, Table, Values, hash_lines, make_table, stamp
from osiris.errors import UserError

LocalCopy = dict[str, list[Path]]
"""Split -> its parquet files in order."""
TAIL = 1 << 16
"""Bytes at the end of a parquet file that identify it: offsets and statistics."""
TEST_SPLITS = ("test", "validation", "valid", "val")
READERS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".arrow": "arrow"}


def dataset_source(place: str, config: BenchmarkConfig) -> Source:
    """`dataset:NAME` with the columns that the options name."""
    place = resolve_place(place, config.data_dir)
    columns = (config.image_column, config.label_column, config.episode_column)
    path = Path(place).expanduser()
    found, origin = ("hub", place), ""
    if path.exists():
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        found = ("local", hash_lines([f"{file.relative_to(path)} {stamp(file)}" for file in files]))
        origin = str(path.resolve())
    key = (*found, *map(str, columns))
    return Source(place, lambda: splits_table(place, _open(place), *columns), key, origin=origin)


def known_source(known: KnownDataset, config: BenchmarkConfig) -> Source:
    """CIFAR-100 or Tiny-ImageNet: from a local copy of the hub's parquet files, else from the hub."""
    copy = find_local_copy(known, config.data_dir)
    key = ("hub", known.repository) if copy is None else copy_key(copy)

    def read_table() -> Table:
        splits = _read_parquet(copy) if copy is not None else fetch(known.repository)
        parts = {"train": splits["train"], "test": splits[known.test_split]}
        table = splits_table(known.name, parts, known.image_column, known.label_column, published=known.class_ids)
        return replace(table, class_names=known.class_names, episode=None, episode_names=())

    return Source(known.name, read_table, key, known, local=copy is not None)


def splits_table(
    name: str,
    splits: Mapping[str, Any],
    image_column: str | None = None,
    labels: Values | None = None,
    episodes: Values | None = None,
    published: Sequence[str] | None = None,
) -> Table:
    """The training and the test split. `labels` and `episodes` are columns, or values for the training split;
    `published`: the classes of a known data set, which a copy of it must have."""
    notices: list[str] = []
    train_name = "train" if "train" in splits else next(iter(splits))
    test_name = next((split for split in TEST_SPLITS if split in splits and split != train_name), None)
    train, test = splits[train_name], splits[test_name] if test_name and len(splits[test_name]) else None
    unused = [split for split in splits if split not in (train_name, test_name)]
    if unused:
        notices.append(f"{name}: the split(s) {', '.join(unused)} are not used.")
    image_column = image_column or _image_column(name, train)
    if labels is None and "label" in train.features:
        labels = "label"
    elif labels is None and published is None:
        others = ", ".join(column for column in train.features if column not in (image_column, episodes))
        if others:
            notices.append(
                f"{name}: there are no labels, as no column is called `label`. If one of its other columns ({others}) "
                "has them, give --label-column."
            )
    for column, option in ((image_column, "image"), (labels, "label"), (episodes, "episode")):
        if isinstance(column, str) and column not in train.features:
            flag = f"--{option}-column " if published is None else ""
            present = ", ".join(train.features)
            raise UserError(f"{flag}{column!r}: there is no such column. {name} has only the columns {present}.")
    class_names = getattr(train.features[labels], "names", None) if isinstance(labels, str) else None
    if published is not None and class_names not in (None, list(published)):
        raise UserError(
            f"the classes of this {name} are not the published ones: {', '.join(class_names[:6])}, ... Use "
            "split-dataset:PATH-N to load it as data of your own."
        )
    for column, what in ((labels, "labels"), (episodes, "episodes")):
        if test is not None and column is not None and not (isinstance(column, str) and column in test.features):
            notices.append(f"{name}: the split {test_name!r} has no {what} and is not used.")
            test = None
    split_rows = [
        _rows(table, image_column, part, _column(table, labels), _column(table, episodes, names=True))
        for table, part in ((train, "train"), (test, "test"))
        if table is not None
    ]
    return make_table(name, *split_rows, class_names=published or class_names, notices=notices)


def _column(table: Any, column: Values | None, names: bool = False) -> Values | None:
    """The values of a column; with `names`, those of a ClassLabel as text."""
    if not isinstance(column, str):
        return column
    values, texts = table[column][:], getattr(table.features[column], "names", None)
    if not names or texts is None:
        return values
    return [None if value is None or value < 0 else texts[value] for value in values]


def _image_column(name: str, table: Any) -> str:
    import datasets

    columns = [key for key, feature in table.features.items() if isinstance(feature, datasets.Image)]
    if len(columns) != 1:
        present = ", ".join(columns or table.features)
        raise UserError(f"{name} has {len(columns) or 'no'} image columns: choose with --image-column ({present}).")
    return columns[0]


def _rows(table: Any, column: str, part: str, labels: Values | None, episodes: Values | None = None) -> Rows:
    import datasets

    try:
        images = table.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    except Exception as error:
        raise UserError(f"the column {column!r} does not hold images or paths of images: {one_line(error)}") from None

    def read(rows: Sequence[int]) -> list[Encoded]:
        values: list[dict[str, Any]] = [value or {} for value in images[list(rows)][column]]
        return [value.get("bytes") or (Path(value["path"]) if value.get("path") else b"") for value in values]

    return Rows(len(table), read, lambda row: f"{part} row {row}", labels, episodes)


def _read_parquet(copy: LocalCopy) -> dict[str, Any]:
    """Read into memory, which avoids the second copy on disk that `datasets.load_dataset` makes."""
    import datasets
    import pyarrow
    import pyarrow.parquet
    from datasets.table import InMemoryTable

    splits: dict[str, Any] = {}
    for split, paths in copy.items():
        try:
            table = pyarrow.concat_tables([pyarrow.parquet.read_table(path) for path in paths])
        except (OSError, pyarrow.ArrowException) as error:
            raise UserError(f"cannot read {paths[0].parent}: {one_line(error)}. Download the files again.") from error
        splits[split] = datasets.Dataset(InMemoryTable(table))
    return splits


def _open(name: str) -> dict[str, Any]:
    """Split name -> data set with random access."""
    path = Path(name).expanduser()
    if not path.exists():
        repository, _, configuration = name.partition("@")
        return fetch(repository, configuration or None)
    import datasets

    for file in [path] if path.suffix == ".parquet" else sorted(path.rglob("*.parquet")) if path.is_dir() else []:
        check_parquet(file)
    try:
        if path.is_dir():
            saved = any((path / name).exists() for name in ("state.json", "dataset_dict.json"))
            opened = datasets.load_from_disk(str(path)) if saved else datasets.load_dataset(str(path))
        elif path.suffix.lower() in READERS:
            opened = datasets.load_dataset(READERS[path.suffix.lower()], data_files=str(path))
        else:
            raise UserError(f"{path}: give a folder or a file of these kinds: {', '.join(READERS)}.")
    except UserError:
        raise
    except Exception as error:  # `datasets` wraps the errors of its readers in several types
        raise UserError(f"cannot read {path} as a data set: {one_line(error)}") from error
    return splits_of(opened)


def splits_of(opened: Any) -> dict[str, Any]:
    return dict(opened) if isinstance(opened, Mapping) else {"train": opened}


def fetch(repository: str, configuration: str | None = None) -> dict[str, Any]:
    """Download a data set from the hub: split name -> data set."""
    from huggingface_hub import constants

    if not hub_reachable():  # use the hub's own cache without half a minute of retries
        os.environ["HF_HUB_OFFLINE"] = "1"  # for what is imported later
        constants.HF_HUB_OFFLINE = True
    import datasets
    from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError
    from huggingface_hub.errors import HfHubHTTPError

    notice(f"fetching {repository} from the Hugging Face hub")
    try:
        return splits_of(datasets.load_dataset(repository, configuration))
    except DatasetNotFoundError:
        raise UserError(f"the hub has no data set {repository!r} that you may read. Check the name.") from None
    except (OSError, HfHubHTTPError) as error:  # no connection, offline mode, or refused by a proxy
        folder = repository.split("/")[-1]
        raise UserError(
            f"could not download {repository} from the hub ({one_line(error)}). Without a network, get the data "
            f"by hand: on a connected machine run `hf download {repository} --repo-type dataset --local-dir {folder}`, "
            "copy the folder here and pass it with --data-dir, or set OSIRIS_DATA to the folder that contains it."
        ) from error
    except (ValueError, DatasetGenerationError) as error:  # several configurations, or unreadable files
        raise UserError(
            f"{repository}: {one_line(error)} (choose a configuration with dataset:{repository}@CONFIGURATION)"
        ) from None


def one_line(error: BaseException) -> str:
    """The message of the error's first cause in one line (`datasets` wraps errors of the system in its own), with what
    to do about a full disk."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())[:300] or type(error).__name__
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return text
    from datasets.config import HF_DATASETS_CACHE

    return f"{text}: free some space in {HF_DATASETS_CACHE}, or set HF_HOME to a directory on a larger disk"


def hub_reachable() -> bool:
    """Whether the hub's name resolves. Behind a proxy this cannot be known, and the answer is yes."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    host = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").hostname or "huggingface.co"
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True


def find_local_copy(known: KnownDataset, data_dir: Path | None) -> LocalCopy | None:
    """Look for the files in `--data-dir`, which must hold them, else in OSIRIS_DATA, which may hold others only."""
    variable = os.environ.get("OSIRIS_DATA")
    if data_dir is None and not variable:
        return None
    root = (data_dir or Path(variable or "")).expanduser()
    layout = (
        f"Expected train-00000-of-*.parquet and {known.test_split}-00000-of-*.parquet in it or in its subfolder "
        f"{known.name}/: the parquet files of https://huggingface.co/datasets/{known.repository}."
    )
    if not root.is_dir():
        raise UserError(f"{'OSIRIS_DATA' if data_dir is None else '--data-dir'}: {root} is not a directory. {layout}")
    folders = ("", known.name, known.repository.split("/")[1])
    for place in [root / folder / data for folder in folders for data in ("", "data")]:
        copy = {split: sorted(place.glob(f"{split}-*-of-*.parquet")) for split in ("train", known.test_split)}
        for split, paths in copy.items():
            if not paths and any(copy.values()):
                raise UserError(f"{place} has no {split} files of {known.name}: is the download complete? {layout}")
            if paths and int(paths[0].stem.split("-of-")[1][:5]) != len(paths):
                raise UserError(
                    f"{place} has only {len(paths)} of the {split} files of {known.name} ({paths[0].name}): download "
                    "the others."
                )
        if all(copy.values()):
            return copy
    if data_dir is None:
        return None
    names = sorted(path.name for path in root.iterdir())[:8]
    raise UserError(f"{root} does not hold {known.name}: it has {', '.join(names) or 'no files'}. {layout}")


def copy_key(copy: LocalCopy) -> tuple[str, ...]:
    """Names, sizes and hashed footers (offsets and statistics) of the files: quick, and equal for a copy."""
    files = [(split, path) for split, paths in sorted(copy.items()) for path in paths]
    return tuple(f"{split} {path.name} {check_parquet(path)}" for split, path in files)


def check_parquet(path: Path) -> str:
    """Refuse a file that is not complete: it starts and ends with PAR1. Returns its size and the digest of its end."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(48)
        file.seek(max(0, size - TAIL))
        tail = file.read()
    if head.startswith(b"version https://git-lfs"):
        raise UserError(f"{path} is a Git LFS pointer, not the data. Run `git lfs pull` there, or download the file.")
    if head[:4] != b"PAR1" or tail[-4:] != b"PAR1" or size < 12:
        raise UserError(f"{path} is not a complete parquet file ({size:,} bytes). Download it again.")
    return f"{size} {hashlib.sha256(tail).hexdigest()}"


def resolve_place(name: str, data_dir: Path | None) -> str:
    """Where `dataset:NAME` is: a local path, --data-dir or a folder in it, a folder in OSIRIS_DATA, or the hub."""
    root = data_dir or Path(os.environ.get("OSIRIS_DATA") or os.devnull)
    places = [Path(name), root / name, root / name.split("/")[-1], *([] if data_dir is None else [data_dir])]
    present = next((str(place) for place in places if place.expanduser().exists()), None)
    if present is None and (data_dir is not None or name.startswith(("/", "./", "../", "~"))):
        raise UserError(f"{data_dir or name} does not exist.")
    return present or name
