"""Several runs side by side: what is missing is completed, a failure stops nobody else and is told at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from osiris.cli import main
from osiris.errors import UserError
from osiris.sweep import Job, run_jobs

SMOKE = ["--benchmark", "tinyworld", "--preset", "smoke", "--epochs", "1"]


def test_a_failing_job_stops_nobody_else(tmp_path: Path):
    good = Job("good", [*SMOKE, "--method", "ft"], tmp_path / "good")
    bad = Job("bad", [*SMOKE, "--method", "fft"], tmp_path / "bad")
    with pytest.raises(UserError, match=r"bad failed .*unknown method 'fft'"):
        run_jobs([bad, good], workers=1)
    assert good.finished and not bad.finished
    assert good.step["task"] == 10 and good.evaluation["task"] == 10

    before = (tmp_path / "good" / "metrics.json").stat().st_mtime_ns
    run_jobs([good])
    assert (tmp_path / "good" / "metrics.json").stat().st_mtime_ns == before


def test_the_command_refuses_an_unknown_method_before_anything_starts(tmp_path: Path, capsys):
    assert main(["sweep", "--methods", "ft", "osirisd", "--out", str(tmp_path / "runs")]) == 2
    assert "Did you mean 'osiris-d'?" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
