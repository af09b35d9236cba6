"""Runs become studies: grouped by protocol, labelled by what differs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from osiris.reporting.claims_section import scale_of
from osiris.reporting.comparison import comparison_table, main_table
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


def copy_with(real: Path, out: Path, seed: int, **options: dict[str, object]) -> Path:
    shutil.copytree(real, out)
    config = json.loads((out / "config.json").read_text())
    for section, values in options.items():
        config["config"][section] |= values
    (out / "config.json").write_text(json.dumps(config))
    metrics = json.loads((out / "metrics.json").read_text())
    (out / "metrics.json").write_text(json.dumps(metrics | {"seed": seed}))
    return out


def test_settings_that_do_not_fit_into_a_label_are_not_mixed(real_runs: dict[str, Path], tmp_path: Path):
    values = ((8, 0.03, 16), (8, 0.03, 20), (9, 0.05, 16))
    for seed, (batch, rate, memory) in enumerate(values):
        learning: dict[str, object] = {"batch_size": batch, "learning_rate": rate, "memory_size": memory}
        copy_with(real_runs["osiris-d"], tmp_path / str(seed), seed, learning=learning)
    (study,), _ = studies(load_runs([tmp_path]))
    assert len(study.by_label) == 3 and all(len(label) <= 44 for label in study.by_label)
    notes = "\n".join(main_table(study, "class-agnostic").notes)
    for label in study.by_label:
        assert f"{label}: osiris-d (batch_size=" in notes
    assert "memory_size=20)" in notes


def test_the_scale_is_that_of_all_runs(real_runs: dict[str, Path], tmp_path: Path):
    for name, epochs in (("ft", 1), ("osiris-d", 2)):
        path = copy_with(real_runs[name], tmp_path / name, 0, learning={"epochs": epochs}) / "config.json"
        record = json.loads(path.read_text())
        record["config"]["preset"] = "fast"
        path.write_text(json.dumps(record))
    (study,), _ = studies(load_runs([tmp_path]))
    assert "1 or 2 epochs per task (the paper's: 200)" in scale_of(study)
    (study,), _ = studies(load_runs([tmp_path / "ft"]))
    assert "1 epoch per task (the paper's: 200)" in scale_of(study)


@pytest.mark.parametrize(
    "options",
    [{"engine": {"init": "a.safetensors"}}, {"engine": {"precision": "bf16"}}, {"encoder": {"normalise": "half"}}],
)
def test_runs_that_began_or_computed_otherwise_are_not_mixed(options, real_runs: dict[str, Path], tmp_path: Path):
    copy_with(real_runs["ft"], tmp_path / "a", 0)
    copy_with(real_runs["ft"], tmp_path / "b", 1, **options)
    (study,), _ = studies(load_runs([tmp_path]))
    assert len(study.by_label) == 2
    assert any("differs" in note for note in comparison_table(load_runs([tmp_path])).notes)


def test_a_run_that_was_repeated_with_more_measurements_counts_once(real_runs: dict[str, Path], tmp_path: Path):
    """As in a grid that was first run without --evaluate-every."""
    whole = copy_with(real_runs["ft"], tmp_path / "b", 0)
    plain = copy_with(real_runs["ft"], tmp_path / "a", 0, evaluation={"evaluate_every": None})
    metrics = json.loads((plain / "metrics.json").read_text())
    (plain / "metrics.json").write_text(json.dumps(metrics | {"curve": []}))
    (study,), (line,) = studies(load_runs([plain, whole]))
    assert [run.path for run in study.runs] == [whole] and str(plain) in line
    metrics["protocols"]["class-agnostic"]["A"] += 1
    (plain / "metrics.json").write_text(json.dumps(metrics))
    (study,), lines = studies(load_runs([plain, whole]))
    assert len(study.runs) == 2 and not lines, "other numbers: another run"


def test_points_lie_on_the_axis_of_tasks(real_runs: dict[str, Path]):
    (study,), _ = studies(load_runs([real_runs["osiris-d"]]))
    run = study.runs[0]
    course = Course.of(run, "class-agnostic")
    assert run.steps == dict.fromkeys(range(1, 11), 3)
    assert (np.diff(course.x) >= 0).all() and course.x[-1] == 10 and course.x[0] == pytest.approx(2 / 3)
    assert len(course.x) == 20
    assert course.accuracy[-1].tolist() == run.metrics["class-agnostic"].accuracy_matrix[-1]
    assert run.uses_memory and run.command.startswith("a call in Python")


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
