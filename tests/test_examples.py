"""Every script in examples/ that trains with osiris runs at smoke size. The one that does not: test_one_page.py."""

import runpy
import sys
from pathlib import Path

import pytest

ALONE = "osiris_d_on_one_page"
EXAMPLES = [path for path in sorted((Path(__file__).parents[1] / "examples").glob("*.py")) if path.stem != ALONE]


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script), "smoke"])
    runpy.run_path(str(script), run_name="__main__")
    assert list(tmp_path.glob("runs/*/metrics.json")) and capsys.readouterr().out
