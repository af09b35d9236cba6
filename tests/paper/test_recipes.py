"""osiris reproduce: the recipe of every table and figure, and one of them carried out."""

import shlex
from pathlib import Path

import pytest

from osiris.cli import main
from osiris.commands import train as train_command
from osiris.errors import UserError
from osiris.grids import plan
from osiris.grids.grid import Grid, GridRun
from osiris.paper.recipes import INTERVALS, RECIPES, find_recipe
from osiris.presets import PRESETS


def runs_of(name: str, seeds: tuple[int, ...] = (0,)) -> list[GridRun]:
    recipe = RECIPES[name]
    return Grid(recipe.methods, recipe.benchmarks, seeds, "fast", recipe.settings("fast")).runs()


def test_every_preset_has_its_intervals():
    assert INTERVALS.keys() == PRESETS.keys()


def test_every_table_and_figure_has_a_recipe():
    tables = {f"table{number}" for number in range(2, 9)}
    figures = {f"fig{number}" for number in range(2, 12)} | {"fig3a", "fig3b"}
    assert set(RECIPES) == tables | figures
    whole, *panels = (RECIPES[name] for name in ("fig3", "fig3a", "fig3b"))
    assert whole.files == panels[0].files + panels[1].files
    assert set(whole.methods) == set(panels[0].methods) | set(panels[1].methods) and whole.curves and whole.tracked


@pytest.mark.parametrize(
    ("name", "key"),
    [("table2", "table2"), ("Table 2", "table2"), ("tab2", "table2"), ("TABLE-2", "table2"), ("figure 3a", "fig3a")],
)
def test_names_are_forgiving(name: str, key: str):
    assert find_recipe(name) is RECIPES[key]


def test_unknown_targets_and_repeated_seeds_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match="fig3a"):
        find_recipe("fig3c")
    assert main(["reproduce", "table1", "--plan"]) == 2
    assert main(["reproduce", "table2", "--seeds", "1", "1", "--out", str(tmp_path)]) == 2


def test_tables_share_runs_where_they_are_equal():
    two, six, plain, curved, tracked = (
        {run.name for run in runs_of(name)} for name in ("table2", "table6", "table4", "fig3a", "fig3b")
    )
    assert two == six and len(runs_of("fig2", (0, 1))) == 4 * 2 * 2
    assert not plain & curved and not curved & tracked and not plain & tracked


@pytest.mark.parametrize("target", RECIPES)
def test_every_plan_prints_commands_that_parse(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(plan, "PROBE_SECONDS", 0.0)
    arguments = ["reproduce", target, "--preset", "fast", "--plan", "--seeds", "0", "--out", str(tmp_path / "a b")]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith("osiris")]
    assert len(commands) == len(runs_of(target))
    for command in commands:
        train_command.parse(command[2 : command.index("#")]).settings.check()
    assert not (tmp_path / "a b").exists(), "a plan writes nothing"


@pytest.mark.slow
def test_from_nothing_to_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["reproduce", "table5", "--preset", "smoke", "--benchmark", "tinyworld", "--seeds", "0"]
    arguments += ["--out", str(tmp_path), "--jobs", "1"]
    assert main(arguments) == 0
    assert (tmp_path / "table5" / "tables" / "tinyworld-environments.csv").exists()
    assert "tinyworld-environments.md" in capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.json")}
    assert len(before) == 3 and main(arguments) == 0
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.json")}
    assert before == after, "finished runs are kept"
