"""osiris reproduce: the plan of every table and figure, and one chain carried out."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from osiris.cli import main
from osiris.commands import train as train_command
from osiris.reproduce import plan
from osiris.reproduce.recipes import RECIPES, planned_runs


@pytest.fixture(autouse=True)
def quick_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "PROBE_SECONDS", 0.0)


@pytest.mark.parametrize("target", RECIPES)
def test_every_plan_prints_commands_that_parse(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["reproduce", target, "--preset", "fast", "--plan", "--seeds", "0", "--out", str(tmp_path / "a b")]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    commands = [shlex.split(line, comments=True) for line in lines]
    commands = [command for command in commands if command]
    trains, reports = commands[:-1], commands[-1]
    assert len(trains) == len(planned_runs(RECIPES[target], "fast", (0,)))
    folders = []
    for command in trains:
        assert command[:2] == ["osiris", "train"]
        parsed = train_command.parse(command[2:])
        parsed.config.check()
        folders.append(str(parsed.out))
    assert reports[:2] == ["osiris", "report"] and reports[2 : 2 + len(folders)] == folders
    assert all("FLOPs" in line for line in lines if line.startswith("osiris train"))
    assert not (tmp_path / "a b").exists(), "a plan writes nothing"


def test_sizes_are_known_without_the_data():
    run = planned_runs(RECIPES["table2"], "paper", (0,))[0]
    sizes = plan.sizes_of(plan.config_of(run))
    assert sizes is not None
    assert sizes.train_per_task == [10_000] * 5 and (sizes.bank, sizes.test, sizes.side) == (50_000, 10_000, 32)
    tiny = planned_runs(RECIPES["table5"], "paper", (0,))[0]
    found = plan.sizes_of(plan.config_of(tiny))
    assert found is not None and found.train_per_task == [10_000] * 10 and found.side == 64


def test_flops_of_the_papers_ft_by_hand():
    """50,000 images, 200 epochs, two views, forward and backward: 60 million passes, and 5 evaluations."""
    run = next(one for one in planned_runs(RECIPES["table2"], "paper", (0,)) if one.method == "ft")
    config = plan.config_of(run)
    sizes = plan.sizes_of(config)
    assert sizes is not None and plan.evaluation_work(config, sizes, continual=True) == 5 * 60_000
    from osiris.framework.composition import resolve
    from osiris.framework.cost import encoder_work

    assert encoder_work(resolve(config.method), sizes.train_per_task, 200) == 50_000 * 200 * 2 * 3


def test_unknown_targets_and_seeds_are_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["reproduce", "table1", "--plan"]) == 2
    assert "table2" in capsys.readouterr().err
    assert main(["reproduce", "table2", "--plan", "--seeds", "1", "1"]) == 2


@pytest.mark.slow
def test_a_chain_from_nothing_to_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["reproduce", "table5", "--preset", "smoke", "--benchmark", "tinyworld", "--seeds", "0"]
    assert main([*arguments, "--out", str(tmp_path), "--workers", "1"]) == 0
    assert (tmp_path / "table5" / "tables" / "tinyworld-environments.csv").exists()
    assert "tinyworld-environments.md" in capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.json")}
    assert len(before) == 3 and main([*arguments, "--out", str(tmp_path), "--workers", "1"]) == 0
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.json")}, (
        "finished runs are kept"
    )
