"""One fork server and one uninterrupted run of each method for the whole session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fork_server import ForkServer
from pool import Pool
from tiny_runs import arguments


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSIRIS_CACHE", str(tmp_path_factory.mktemp("cache")))
        server = ForkServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def uninterrupted(
    server: ForkServer, arrays: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Path, int]]:
    """(run directory, number of moments) of a method's run from start to end, made once."""
    made: dict[tuple[str, ...], tuple[Path, int]] = {}

    def run(method: str, *more: str) -> tuple[Path, int]:
        key = (method, *more)
        if key not in made:
            folder = tmp_path_factory.mktemp("uninterrupted")
            typed = arguments(arrays, folder / "run", method, *more)
            code = server.run("doomed", folder / "output", arguments=typed, death=None, counted=str(folder / "count"))
            assert code == 0, (folder / "output").read_text()
            made[key] = folder / "run", int((folder / "count").read_text())
        return made[key]

    return run


@pytest.fixture(scope="session")
def pool(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Pool:
    """It ends with the server, whose children its processes are."""
    return Pool(server, tmp_path_factory.mktemp("pool"))
