"""For all tests: one thread, so that results do not depend on the machine; one cache, so that data is decoded once."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fork_server import default_signals
from osiris import console
from tiny_runs import write_arrays

torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    """Nothing of a test run lands in the user's own cache. The workers of `pytest -n 2` share one."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="osiris-test-cache-", ignore_cleanup_errors=True)
        config.add_cleanup(folder.cleanup)
        os.environ["OSIRIS_CACHE"] = folder.name


@pytest.fixture(scope="session", autouse=True)
def wide_messages() -> None:
    """Messages are not broken into lines, wherever the names of temporary folders end."""
    console.messages.width = 1000


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A worker runs whole files, and all files of a folder that shares trained runs or a pool of processes."""
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            folders = [parent.name for parent in item.path.parents if parent.name in ("report", "training")]
            item.add_marker(pytest.mark.xdist_group(folders[0] if folders else item.path.name))
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture
def signals_arrive() -> Iterator[None]:
    """SIGINT and SIGHUP do what they do in a terminal, also where the tests were started with nohup or in the
    background of a script, so that both are ignored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    default_signals()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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
