"""For all tests: one thread, so that results do not depend on the machine; one cache, so that data is decoded once."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Read when the libraries are first imported. Nothing of a test run lands in the user's own cache, and a test that wants
# the network waits for nothing. The workers of `pytest -n 2` share one folder.
if "PYTEST_XDIST_WORKER" not in os.environ:
    FOLDER = tempfile.TemporaryDirectory(prefix="osiris-test-cache-", ignore_cleanup_errors=True)
    os.environ |= {"OSIRIS_CACHE": FOLDER.name, "HF_HOME": f"{FOLDER.name}/huggingface", "HF_HUB_OFFLINE": "1"}

import pytest
import torch

import fork_server
from fork_server import default_signals
from needs import DEAR, is_whole
from tiny_runs import write_arrays

torch.set_num_threads(1)
fork_server.no_fsync()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        assert isinstance(item, pytest.Function)
        if group := shared(item):
            item.add_marker(pytest.mark.xdist_group(group))
        if item.get_closest_marker("real_data") or is_whole(item.path, item.originalname, item.fixturenames):
            item.add_marker(pytest.mark.whole)
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))


def shared(item: pytest.Function) -> str | None:
    """What a case shares with others, so that one worker runs them all and makes it once: a fixture of the session that
    takes seconds, or those of its file. All other cases go to the worker that is free."""
    for name in DEAR:
        if name in item.fixturenames:
            return name
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    return item.path.name if any(fixture[-1].scope == "module" for fixture in fixtures) else None


@pytest.fixture
def signals_arrive() -> Iterator[None]:
    """SIGINT and SIGHUP do what they do in a terminal, also where the tests were started with nohup or in the
    background of a script, so that both are ignored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    default_signals()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """("fsync" or "replace", name of the file) in the order in which they happen."""
    events: list[tuple[str, str]] = []
    replace = Path.replace

    def fsync(descriptor: int) -> None:
        events.append(("fsync", Path(f"/proc/self/fd/{descriptor}").resolve().name))

    def replaced(path: Path, target: Path) -> Path:
        events.append(("replace", path.name))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replaced)
    return events


@pytest.fixture(scope="session")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three tasks of tiny images in a file, on which a run takes a second: the benchmark's name."""
    return write_arrays(tmp_path_factory.mktemp("arrays") / "tiny.npz")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the real images. Where OSIRIS_DATA is set, as in CI, a test on it fails rather than skips."""
    folder = os.environ.get("OSIRIS_DATA")
    if not folder:
        pytest.skip("OSIRIS_DATA is not set")
    return Path(folder)
