"""One pool of processes and one uninterrupted run of each method for the whole session."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fork_server import Pool
from fork_server import run as run_job
from tiny_runs import arguments


@pytest.fixture(scope="session")
def uninterrupted(arrays: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, int]]:
    """(run directory, number of moments) of a method's run from start to end, made once."""
    made: dict[tuple[str, ...], tuple[Path, int]] = {}

    def run(method: str, *more: str) -> tuple[Path, int]:
        key = (method, *more)
        if key not in made:
            folder = tmp_path_factory.mktemp("uninterrupted")
            typed = arguments(arrays, folder / "run", method, *more)
            code = run_job("doomed", folder / "output", arguments=typed, death=None, counted=str(folder / "count"))
            assert code == 0, (folder / "output").read_text()
            made[key] = folder / "run", int((folder / "count").read_text())
        return made[key]

    return run


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    return Pool(tmp_path_factory.mktemp("pool"))
