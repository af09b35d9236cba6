"""Runs become studies: grouped by protocol, labelled by what differs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from osiris.reporting.curves import Course
from osiris.reporting.studies import seeds_of, studies
from osiris.reporting.writer import stretches
from osiris.runs.run import load_runs


def test_runs_of_both_norms_are_one_study(many_runs: list[Path]):
    (study,), _ = studies(load_runs(many_runs))
    assert {run.norm for run in study.main} == {"gn"} and len(study.main) == 12 and len(study.runs) == 14
    assert list(study.by_label)[:3] == ["ft", "lump", "osiris-r"] and "offline" not in study.continual
    assert seeds_of(study.main) == "2 seeds" and [run.number for run in study.main] == list(range(1, 13))


def test_settings_that_differ_are_named(real_runs: dict[str, Path], tmp_path: Path):
    twin = tmp_path / "twin"
    shutil.copytree(real_runs["ft"], twin)
    config = json.loads((twin / "config.json").read_text())
    config["config"]["learning"]["epochs"] = 7
    (twin / "config.json").write_text(json.dumps(config))
    (study,), _ = studies(load_runs([real_runs["ft"], twin]))
    assert sorted(study.by_label) == ["ft (epochs=1)", "ft (epochs=7)"]


def test_points_lie_on_the_axis_of_tasks(real_runs: dict[str, Path]):
    (study,), _ = studies(load_runs([real_runs["osiris-d"]]))
    run = study.runs[0]
    course = Course.of(run, "class-agnostic")
    assert run.steps == dict.fromkeys(range(1, 11), 3)
    assert (np.diff(course.x) >= 0).all() and course.x[-1] == 10 and course.x[0] == pytest.approx(2 / 3)
    assert len(course.x) == 20
    assert course.accuracy[-1].tolist() == run.metrics["class-agnostic"].accuracy_matrix[-1]
    assert run.uses_memory and run.command.startswith("osiris")


def test_another_protocol_is_another_study(real_runs: dict[str, Path], tmp_path: Path):
    other = tmp_path / "other"
    shutil.copytree(real_runs["ft"], other)
    metrics = json.loads((other / "metrics.json").read_text())
    metrics["fingerprint"]["k"] = 99
    (other / "metrics.json").write_text(json.dumps(metrics))
    known, _ = studies(load_runs([real_runs["ft"], other]))
    assert [study.identifier for study in known] == ["tinyworld", "tinyworld-2"]


def test_a_cut_log_is_read_as_far_as_it_goes(real_runs: dict[str, Path], tmp_path: Path):
    cut = tmp_path / "cut"
    shutil.copytree(real_runs["ft"], cut)
    text = (cut / "log.jsonl").read_text()
    (cut / "log.jsonl").write_text(text[: len(text) - 30])
    (study,), _ = studies(load_runs([cut]))
    assert len(study.runs[0].log) == len(text.splitlines()) - 1


def test_numbers_of_commands_are_shown_as_ranges():
    assert stretches([3, 1, 2, 7, 8, 3]) == [[1, 3], [7, 8]] and stretches([5]) == [[5]] and stretches([]) == []
