"""Local copies of the hub's files: where they are, and whether they are complete."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from osiris.data.names import KnownDataset
from osiris.errors import UserError

SHARD = re.compile(r"^(?P<split>[a-z]+)-(?P<index>\d{5})-of-(?P<total>\d{5})(-[0-9a-f]+)?\.parquet$")
TAIL = 1 << 16


@dataclass(frozen=True)
class LocalCopy:
    """All parquet files of the training and test split."""

    root: Path
    files: dict[str, tuple[Path, ...]]

    def fingerprint(self) -> tuple[str, ...]:
        """From names, sizes and the parquet footers (offsets and statistics): quick, and equal for a copy."""
        parts: list[str] = []
        for split, paths in sorted(self.files.items()):
            for path in paths:
                size = path.stat().st_size
                with path.open("rb") as file:
                    file.seek(max(0, size - TAIL))
                    parts.append(f"{split} {path.name} {size} {hashlib.sha256(file.read()).hexdigest()}")
        return tuple(parts)


def find_local_copy(known: KnownDataset, data_dir: Path | None) -> LocalCopy | None:
    """In `--data-dir`, else in OSIRIS_DATA. The former must hold the data set; the latter may hold others only."""
    variable = os.environ.get("OSIRIS_DATA")
    if data_dir is None and not variable:
        return None
    root = (data_dir or Path(variable or "")).expanduser()
    repository = known.repository.split("/")[1]
    layout = (
        f"Expected train-00000-of-*.parquet and {known.test_split}-00000-of-*.parquet in it or in its subfolder "
        f"{known.name}/: the parquet files of https://huggingface.co/datasets/{known.repository}."
    )
    if not root.is_dir():
        raise UserError(f"{'OSIRIS_DATA' if data_dir is None else '--data-dir'}: {root} is not a directory. {layout}")
    for below in ("", "data", repository, known.name, f"{known.name}/data", f"{repository}/data", f"{known.name}/" * 2):
        shards = _shards(known, root / below)
        if shards:
            return LocalCopy(root / below, _complete(known, root / below, shards, layout))
    if data_dir is None:
        return None
    names = sorted(path.name for path in root.iterdir())[:8]
    raise UserError(f"{root} does not hold {known.name}: it has {', '.join(names) or 'no files'}. {layout}")


def _shards(known: KnownDataset, directory: Path) -> dict[str, list[tuple[int, int, Path]]]:
    """Split -> (number, how many there should be, path) of its files."""
    shards: dict[str, list[tuple[int, int, Path]]] = {}
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        match = SHARD.match(path.name)
        if match and match["split"] in ("train", known.test_split):
            shards.setdefault(match["split"], []).append((int(match["index"]), int(match["total"]), path))
    return shards


def _complete(
    known: KnownDataset, root: Path, shards: dict[str, list[tuple[int, int, Path]]], layout: str
) -> dict[str, tuple[Path, ...]]:
    for split in ("train", known.test_split):
        if split not in shards:
            raise UserError(f"{root} has no {split} files of {known.name}: is the download complete? {layout}")
        total = shards[split][0][1]
        if [index for index, _, _ in shards[split]] != list(range(total)):
            present = ", ".join(path.name for _, _, path in shards[split])
            raise UserError(f"{root} should have {total} {split} file(s) of {known.name} and has only {present}.")
        for _, _, path in shards[split]:
            check_parquet(path)
    return {split: tuple(path for _, _, path in rows) for split, rows in shards.items()}


def check_parquet(path: Path) -> None:
    """A parquet file starts and ends with PAR1; an interrupted download does not."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(48)
        file.seek(max(0, size - 4))
        tail = file.read()
    if head.startswith(b"version https://git-lfs"):
        raise UserError(f"{path} is a Git LFS pointer, not the data. Run `git lfs pull` there, or download the file.")
    if head[:4] != b"PAR1" or tail != b"PAR1" or size < 12:
        raise UserError(f"{path} is not a complete parquet file ({size:,} bytes). Download it again.")


def resolve_place(name: str, data_dir: Path | None) -> str:
    """Where `dataset:NAME` is: a local path, --data-dir or a folder in it, a folder in OSIRIS_DATA, or the hub."""
    root = data_dir or Path(os.environ.get("OSIRIS_DATA") or os.devnull)
    places = [Path(name), root / name, root / name.split("/")[-1], *([] if data_dir is None else [data_dir])]
    present = next((str(place) for place in places if place.expanduser().exists()), None)
    if present is None and (data_dir is not None or name.startswith(("/", "./", "../", "~"))):
        raise UserError(f"{data_dir or name} does not exist.")
    return present or name
