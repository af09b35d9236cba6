"""A local copy of the hub's parquet files: where it is, and whether it is whole."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from osiris.data.cache import Entry, cache_root, entry_key, open_entry
from osiris.data.known import KnownDataset
from osiris.errors import UserError

SHARD = re.compile(r"^(?P<split>[a-z]+)-(?P<index>\d{5})-of-(?P<total>\d{5})(-[0-9a-f]+)?\.parquet$")
MAGIC = b"PAR1"
TAIL = 1 << 16
SAVED = ("state.json", "dataset_dict.json")
"""What `datasets` leaves in the folder of a data set that was saved to disk."""


@dataclass(frozen=True)
class LocalCopy:
    """The shards of the training and test split, complete."""

    root: Path
    files: dict[str, tuple[Path, ...]]
    """Split of the hub's data set -> its shards in order."""

    def fingerprint(self) -> list[str]:
        """Of names, sizes and the parquet footers (which hold offsets and statistics): quick, and equal for a copy."""
        parts: list[str] = []
        for split in sorted(self.files):
            for path in self.files[split]:
                size = path.stat().st_size
                with path.open("rb") as file:
                    file.seek(max(0, size - TAIL))
                    parts.append(f"{split} {path.name} {size} {hashlib.sha256(file.read()).hexdigest()}")
        return parts


def find_local_copy(known: KnownDataset, data_dir: Path | None) -> LocalCopy | None:
    """From `--data-dir`, else from OSIRIS_DATA. A directory given by name must hold the data; OSIRIS_DATA may not."""
    variable = os.environ.get("OSIRIS_DATA")
    root = data_dir if data_dir is not None else Path(variable) if variable else None
    if root is None:
        return None
    root = root.expanduser()
    if not root.is_dir():
        where = "--data-dir" if data_dir is not None else "OSIRIS_DATA"
        raise UserError(f"{where}: {root} is not a directory. {layout(known)}")
    for directory in candidates(known, root):
        files = _shards(known, directory)
        if files:
            return _checked(known, directory, files)
    if data_dir is None:
        return None  # OSIRIS_DATA holds other data sets: this one comes from the hub
    found = sorted(path.name for path in root.iterdir())[:8]
    raise UserError(f"{root} does not hold {known.name}: it has {', '.join(found) or 'no files'}. {layout(known)}")


def known_key(known: KnownDataset, copy: LocalCopy | None, size: int) -> str:
    """Its place in the cache: a local copy by its content, the hub's by its name."""
    fingerprint = ["hub", known.repository] if copy is None else copy.fingerprint()
    return entry_key(known.name, *fingerprint, str(size))


def cached_known(known: KnownDataset, copy: LocalCopy | None, size: int) -> Entry | None:
    """Its entry in the cache. Without a local copy, one that was filled from a complete copy elsewhere will do."""
    entry = open_entry(known_key(known, copy, size))
    if entry is not None or copy is not None:
        return entry
    for directory in sorted(cache_root().glob(f"{known.name}-*")):
        entry = open_entry(directory.name)
        if entry is not None and entry.manifest.get("size") == size and is_complete(known, entry):
            return entry
    return None


def is_complete(known: KnownDataset, entry: Entry) -> bool:
    whole = {"train": known.train_per_class, "test": known.test_per_class}
    return entry.manifest.get("dataset") == known.name and all(
        len(counts) == known.class_count and set(counts.values()) == {whole[part]}
        for part, counts in entry.manifest["class_counts"].items()
    )


def resolve_place(name: str, data_dir: Path | None) -> str:
    """Where a `dataset:NAME` is: on this disk as named, in --data-dir, below OSIRIS_DATA, else on the hub."""
    if Path(name).expanduser().exists():
        return name
    if data_dir is not None:
        if not data_dir.expanduser().is_dir():
            raise UserError(f"--data-dir: {data_dir} is not a directory.")
        below = [data_dir.expanduser() / part for part in (name, name.split("/")[-1])]
        named = next((path for path in below if path.is_dir()), None)
        return str(named or _one_dataset(data_dir.expanduser(), name))
    if name.startswith(("/", "./", "../", "~")):
        raise UserError(f"{name} does not exist.")
    variable = os.environ.get("OSIRIS_DATA")
    below = [Path(variable).expanduser() / part for part in (name, name.split("/")[-1])] if variable else []
    return next((str(path) for path in below if path.is_dir()), name)


def _one_dataset(folder: Path, name: str) -> Path:
    """Refuse a folder of several saved data sets: none of them has the name that was asked for."""

    def saved(path: Path) -> bool:
        return any((path / one).exists() for one in SAVED)

    inside = [path.name for path in sorted(folder.iterdir()) if saved(path)]
    if inside and not saved(folder):
        raise UserError(f"--data-dir {folder} does not hold {name}, but the data sets {', '.join(inside)}.")
    return folder


def candidates(known: KnownDataset, root: Path) -> list[Path]:
    """The data set's folder or its parent, with the hub's own subfolder or without."""
    below = known.repository.split("/")[1]
    names = ["", "data", below, known.name, f"{known.name}/data", f"{below}/data", f"{known.name}/{known.name}"]
    return list(dict.fromkeys(root / name for name in names))


def layout(known: KnownDataset) -> str:
    return (
        f"Expected {known.train_split}-00000-of-*.parquet and {known.test_split}-00000-of-*.parquet in it or in its "
        f"subfolder {known.name}/: the parquet files of https://huggingface.co/datasets/{known.repository}."
    )


def _shards(known: KnownDataset, directory: Path) -> dict[str, list[tuple[int, int, Path]]]:
    shards: dict[str, list[tuple[int, int, Path]]] = {}
    if not directory.is_dir():
        return shards
    for path in sorted(directory.iterdir()):
        match = SHARD.match(path.name)
        if match and match["split"] in (known.train_split, known.test_split):
            shards.setdefault(match["split"], []).append((int(match["index"]), int(match["total"]), path))
    return shards


def _checked(known: KnownDataset, root: Path, shards: dict[str, list[tuple[int, int, Path]]]) -> LocalCopy:
    files: dict[str, tuple[Path, ...]] = {}
    for split in (known.train_split, known.test_split):
        if split not in shards:
            raise UserError(f"{root} has no {split} files of {known.name}: half a download? {layout(known)}")
        total = shards[split][0][1]
        if [index for index, _, _ in shards[split]] != list(range(total)):
            have = ", ".join(path.name for _, _, path in shards[split])
            raise UserError(f"{root} should have {total} {split} file(s) of {known.name} and has only {have}.")
        files[split] = tuple(path for _, _, path in shards[split])
        for path in files[split]:
            check_parquet(path)
    return LocalCopy(root, files)


def check_parquet(path: Path) -> None:
    """A parquet file ends with its magic number: a broken-off download does not."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(48)
        file.seek(max(0, size - 4))
        tail = file.read()
    if head.startswith(b"version https://git-lfs"):
        raise UserError(f"{path} is a Git LFS pointer, not the data. Run `git lfs pull` there, or download the file.")
    if head[:4] != MAGIC or tail != MAGIC or size < 12:
        raise UserError(f"{path} is not a whole parquet file ({size:,} bytes): half a download? Fetch it again.")
