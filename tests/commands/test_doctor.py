"""`osiris doctor`: what is installed, and an exit code for what is missing."""

from __future__ import annotations

from importlib import metadata

import pytest

from osiris.cli import main


def test_missing_requirements_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert f"{metadata.version('torch')}" in printed and "device chosen by auto" in printed and "missing" not in printed
    requirements = ["torch>=2.6", "absent-package>=1", "absent-extra; extra == 'photos'"]
    monkeypatch.setattr(metadata, "requires", lambda name: requirements)
    assert main(["doctor"]) == 1
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "missing: install it with pip install osiris-ucl" in printed and "osiris-ucl[photos]" in printed
