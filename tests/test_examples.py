"""Every script in examples/ that trains with osiris runs at smoke size. The one that does not: test_one_page.py. The
notebook runs on a few images."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from make_notebook import code_cells, outputs_of, run_cell

NOTEBOOK = Path(__file__).parents[1] / "examples" / "first_steps.ipynb"
ALONE = "osiris_d_on_one_page"
EXAMPLES = [path for path in sorted((Path(__file__).parents[1] / "examples").glob("*.py")) if path.stem != ALONE]


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example(script: Path, tmp_path: Path) -> None:
    """In a process of its own: the classes that a script defines would be known to all later tests."""
    alone = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), "smoke"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=alone)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("runs/*/metrics.json")) and done.stdout


def test_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells run; a run, a table and a learner show themselves, with pictures."""
    monkeypatch.chdir(tmp_path)
    text, names, made = NOTEBOOK.read_text(encoding="utf-8"), {}, []
    assert len(text) < 300_000 and text.count("per_class = 50") == 1
    for number, cell in enumerate(code_cells(json.loads(text)), 1):
        source = "".join(cell["source"]).replace("per_class = 50", "per_class = 6")
        made.append(json.dumps(outputs_of(run_cell(source, names), number)))
    run, table, learner, features = made
    assert "<table" in run and "data:image/png" in run and "<table" in table
    assert "labelled images:" in learner and "data:image/png" in learner and "(1, " in features
