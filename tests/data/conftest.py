"""Every test gets a cache of its own; real data is looked for only by the tests that are marked so."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache_directory(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.node.get_closest_marker("real_data"):  # decoded once for all tests
        return Path(os.environ["OSIRIS_CACHE"])
    monkeypatch.setenv("OSIRIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OSIRIS_DATA", raising=False)
    return tmp_path / "cache"
