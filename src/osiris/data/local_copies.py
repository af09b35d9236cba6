"""Local copies of the hub's files: where they are, and whether they are complete."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from osiris.data.names import KnownDataset
from osiris.errors import UserError

LocalCopy = dict[str, list[Path]]
"""Split -> its parquet files in order."""
TAIL = 1 << 16


def find_local_copy(known: KnownDataset, data_dir: Path | None) -> LocalCopy | None:
    """In `--data-dir`, else in OSIRIS_DATA. The former must hold the data set; the latter may hold others only."""
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
            for path in paths:
                check_parquet(path)
        if all(copy.values()):
            return copy
    if data_dir is None:
        return None
    names = sorted(path.name for path in root.iterdir())[:8]
    raise UserError(f"{root} does not hold {known.name}: it has {', '.join(names) or 'no files'}. {layout}")


def fingerprint(copy: LocalCopy) -> tuple[str, ...]:
    """From names, sizes and the parquet footers (offsets and statistics): quick, and equal for a copy."""
    parts: list[str] = []
    for split, paths in sorted(copy.items()):
        for path in paths:
            size = path.stat().st_size
            with path.open("rb") as file:
                file.seek(max(0, size - TAIL))
                parts.append(f"{split} {path.name} {size} {hashlib.sha256(file.read()).hexdigest()}")
    return tuple(parts)


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
