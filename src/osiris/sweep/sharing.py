"""Which runs of a grid have the same first task: it is trained by one of them and taken by the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from osiris.evaluation.fingerprint import digest
from osiris.sweep.grid import GridDirectory, GridRun


def first_task_files(directory: GridDirectory, runs: Sequence[GridRun]) -> dict[GridRun, Path]:
    """GRID/first-tasks/KEY.pt for every unfinished run that shares its first task with another one, or that finds it
    trained already."""
    from osiris.framework.composition import resolve
    from osiris.training.first_task import identity

    groups: dict[str, list[GridRun]] = defaultdict(list)
    for run in runs:
        kept = None if directory.finished(run) else identity(run.config, resolve(run.config.method))
        if kept is not None:
            groups[digest(kept)].append(run)
    folder = directory.path.resolve() / "first-tasks"
    shared = {folder / f"{key}.pt": group for key, group in groups.items()}
    return {run: path for path, group in shared.items() if len(group) > 1 or path.exists() for run in group}


def remove_unneeded(directory: GridDirectory, files: dict[GridRun, Path]) -> None:
    """The first tasks of finished runs; each is as large as a checkpoint."""
    needed = {path for run, path in files.items() if not directory.finished(run)}
    for path in set(files.values()) - needed:
        path.unlink(missing_ok=True)
    folder = directory.path / "first-tasks"
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
