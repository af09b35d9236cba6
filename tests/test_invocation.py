"""What a run records about how it was made."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import osiris
from osiris.cli import main
from osiris.runs.run import load_runs
from tiny_runs import arguments

SCRIPT = """
import sys
import osiris

small = dict(width=4, epochs=1, memory_size=12, batch_size=12, projector_hidden=16, projector_output=8)
osiris.train("ft", sys.argv[1], preset="smoke", out="run", **small)
"""


def test_a_script_is_recorded_with_its_digest_and_arguments(arrays: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    subprocess.run([sys.executable, "script.py", arrays], cwd=tmp_path, check=True, capture_output=True)
    (entry,) = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert entry["command"] is None
    assert entry["call"].startswith(f"osiris.train(method='ft', benchmark='{arrays}', preset='smoke'")
    assert "memory_size=12" in entry["call"]
    assert entry["script"]["arguments"] == [arrays]
    assert entry["script"]["sha256"] == hashlib.sha256(SCRIPT.encode()).hexdigest()
    (run,) = load_runs([tmp_path / "run"])
    assert not run.repeatable and "script.py" in run.command and "osiris.train(" in run.command
    page = osiris.report(tmp_path / "run", tmp_path / "report").read_text()
    assert "does not say that they can be repeated" in page


def test_a_command_is_recorded_as_it_was_typed(arrays: str, tmp_path: Path) -> None:
    assert main(arguments(arrays, tmp_path / "run", "ft")) == 0
    (run,) = load_runs([tmp_path / "run"])
    assert run.repeatable and run.command.startswith("osiris train --method ft --benchmark ")
