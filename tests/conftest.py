"""For all tests: one thread, so that results do not depend on the machine; one cache, so that data is decoded once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tiny_runs import write_arrays

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Nothing of a test run lands in the user's own cache."""
    folder, before = tmp_path_factory.mktemp("cache"), os.environ.get("OSIRIS_CACHE")
    os.environ["OSIRIS_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["OSIRIS_CACHE"]
    else:
        os.environ["OSIRIS_CACHE"] = before
    shutil.rmtree(folder, ignore_errors=True)


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
