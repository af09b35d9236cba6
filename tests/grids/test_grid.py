"""Grids as data: combinations, names, settings, TOML, and the plan."""

import shlex
import time
from pathlib import Path

import pytest
import torch

from osiris.cli import main
from osiris.commands import train as train_command
from osiris.errors import UserError
from osiris.framework.methods import READINGS, ZOO
from osiris.grids import plan
from osiris.grids.attempts import training_command as launch_command
from osiris.grids.grid import Grid, GridDirectory, GridRun, parse_settings, read_grids

GRID = Grid(("ft", "osiris-d/no-past"), ("tinyworld", "split-cifar100-5"), (0, 1), "smoke", {"norm": ("gn", "bn")})


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSIRIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(plan, "PROBE_SECONDS", 0.0)


def test_every_combination_once_seed_after_seed():
    runs = GRID.runs()
    assert len(runs) == len({run.name for run in runs}) == 2 * 2 * 2 * 2
    assert [run.seed for run in runs] == [0] * 8 + [1] * 8
    assert runs[1].name == "tinyworld-osiris-d-no-past-norm-gn-smoke-seed0"


@pytest.mark.whole
@pytest.mark.parametrize(
    "settings",
    [
        {"memory_size": "40", "learning_rate": "0.05", "k": "3"},
        {"norm": "bn", "blocks": "1 1 1 1"},
        {"compile": "true"},
        {"init": "w.pt"},
        {"objective": "swav(clusters=9)", "past": "replay+distil", "preset": "fast"},
        {"encoder": "resnet34", "view_size": "24", "data_dir": "some where"},
        {"protocols": "task-aware", "validation": "true", "class_order": "seed:3"},
    ],
)
@pytest.mark.parametrize("method", ["osiris-d", "osiris-d/no-past"])
def test_the_config_of_a_run_is_that_of_its_command_and_of_its_file(
    method: str, settings: dict[str, str], tmp_path: Path
):
    run = GridRun(method, "tinyworld", 3, settings.pop("preset", "smoke"), tuple(settings.items()))
    assert train_command.parse(run.arguments).settings == run.config
    directory = GridDirectory(tmp_path / "a grid", [run])
    for damaged in (None, "", '{"config": {}}', '{"config": 3}'):
        if damaged is not None:
            directory.config(run).write_text(damaged)
        directory.write_configs([run])
        typed = launch_command(directory, run)
        assert typed[1:4] == ["-m", "osiris", "train"] and "--method" not in typed
        args = train_command.parse(typed[4:])
        assert args.settings == run.config and args.out == directory.folder(run) and args.quiet


def test_every_run_of_the_zoo_can_be_started_from_a_file(tmp_path: Path):
    grid = Grid((*ZOO, *READINGS), preset="smoke", seeds=(5,))
    directory = GridDirectory(tmp_path, grid.runs())
    directory.write_configs(directory.runs)
    for run in directory.runs:
        assert train_command.parse(launch_command(directory, run)[4:]).settings == run.config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": ("40",)}, "unknown option 'memory'. Did you mean 'memory_size'"),
        ({"memory_size": ("many",)}, "--memory-size .*: give a whole number"),
        ({"norm": ("in",)}, "unknown --norm"),
        ({"epochs": ("0",)}, "--epochs 0: give a whole number of at least 1"),
        ({"epochs": ()}, "at least one value for epochs"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_runs(settings, message: str):
    with pytest.raises(UserError, match=message):
        Grid(("ft",), settings=settings).check()


def test_a_benchmark_that_does_not_exist_is_refused_before_anything_runs():
    with pytest.raises(UserError, match="Did you mean 'tinyworld'"):
        Grid(("ft",), ("tinyworld", "tinywold")).check()


def test_settings_on_the_command_line():
    assert parse_settings(["memory-size=200, 500", "norm=bn"]) == {"memory_size": ("200", "500"), "norm": ("bn",)}
    with pytest.raises(UserError, match="NAME=VALUE"):
        parse_settings(["memory_size"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('methods = "ft"', r"Expected `array`, got `str` - at `\$.methods`"),
        ("set = 3", r"`set` is not a table; write, for example, set ="),
        ('methods = ["ft"]\n[[grid]]\nset = [3]', "`set` is not a table"),
        ("grid = 3", r"write each one below a line \[\[grid\]\]"),
        ('grid = ["a"]', r"write each one below a line \[\[grid\]\]"),
        ("grid = {methods = 3}", r"write each one below a line \[\[grid\]\]"),
        ("\xff\x00", "cannot read the grid .*codec can't decode"),
        ("set = " + "[" * 100_000, "cannot read the grid"),
    ],
)
def test_a_grid_file_that_is_wrong_is_refused_in_one_line(text: str, message: str, tmp_path: Path):
    (tmp_path / "grid.toml").write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=message):
        read_grids(tmp_path / "grid.toml")


def test_toml_parts_inherit_from_the_top(tmp_path: Path):
    path = tmp_path / "grid.toml"
    path.write_text(
        'preset = "smoke"\nseeds = [1, 2]\n[set]\nepochs = 1\n'
        '[[grid]]\nmethods = ["ft"]\n[[grid]]\nmethods = ["er"]\nseeds = [3]\nset = {memory_size = [40, 50]}\n'
    )
    first, second = read_grids(path)
    assert first == Grid(("ft",), seeds=(1, 2), preset="smoke", settings={"epochs": ("1",)})
    assert second.seeds == (3,) and second.settings == {"epochs": ("1",), "memory_size": ("40", "50")}
    path.write_text('method = ["ft"]')
    with pytest.raises(UserError, match="Did you mean 'methods'"):
        read_grids(path)


def test_a_grid_directory_grows_and_is_read_back(tmp_path: Path):
    directory = GridDirectory(tmp_path / "grid")
    directory.add(GRID.runs()[:2])
    directory.add(GRID.runs()[1:4])
    assert GridDirectory.read(tmp_path / "grid").runs == directory.runs == GRID.runs()[:4]
    with pytest.raises(UserError, match="share the folder"):
        directory.add([GridRun("osiris-d-no-past", "tinyworld", 0, "smoke", (("norm", "gn"),))])
    with pytest.raises(UserError, match=r"no grid\.json"):
        GridDirectory.read(tmp_path)


def test_a_plan_prints_commands_costs_and_nothing_else(own_cache, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["sweep", "--methods", "ft", "osiris-d", "--benchmarks", "split-cifar100-20", "--preset", "smoke"]
    arguments += ["--set", "memory_size=40,50", "--out", str(tmp_path / "a b"), "--plan"]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    commands = [shlex.split(line, comments=True) for line in first.splitlines()][:-1]
    assert len(commands) == 2 * 2 * 3
    for command in commands:
        assert (
            command[:2] == ["osiris", "train"] and train_command.parse(command[2:]).settings.learning.memory_size < 60
        )
    assert "FLOPs" in first and "12 runs" in first and not (tmp_path / "a b").exists()
    started = time.process_time()
    assert main(arguments) == 0 and time.process_time() - started < 1, "measured once, then cached"
    assert capsys.readouterr().out == first


def test_seeds_cost_the_same_and_are_counted_once(own_cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A plan of 20,000 seeds takes a second."""
    asked = list[GridRun]()
    monkeypatch.setattr(plan.Costs, "of", lambda _, run: asked.append(run))
    grid = Grid(("ft", "er"), seeds=tuple(range(20_000)), preset="smoke")
    plan.print_plan(GridDirectory(tmp_path, grid.runs()), jobs=1)
    assert [run.method for run in asked] == ["ft", "er"]


def test_the_cost_of_the_papers_ft_by_hand(own_cache):
    """50,000 images, 200 epochs, two views, forward and backward: 60 million passes; and 5 evaluations of 60,000."""
    run = GridRun("ft", "split-cifar100-5", 0, "paper")
    sizes = plan.sizes_of(run.config)
    assert sizes is not None and sizes == plan.Sizes([10_000] * 5, 50_000, 10_000, 32)
    costs = plan.Costs()
    assert costs.training_passes(run.config, sizes) == 50_000 * 200 * 2 * 3
    assert plan.evaluation_passes(run.config, sizes, 5) == 5 * 60_000
    tiny = plan.sizes_of(GridRun("ft", "structured-tiny-imagenet", 0, "paper").config)
    assert tiny is not None and tiny.train_per_task == [10_000] * 10 and tiny.side == 64
    assert plan.sizes_of(GridRun("ft", "folder:photos", 0, "fast").config) is None


def test_speed_is_measured_in_processor_time(own_cache, monkeypatch: pytest.MonkeyPatch):
    """The clock on the wall would count the work of other programs."""
    monkeypatch.setattr(plan.time, "perf_counter", lambda: pytest.fail("wall time"))
    monkeypatch.setattr("osiris.devices.choose_device", lambda name: torch.device("cpu"))
    assert plan.speed(GridRun("ft", "tinyworld", 0, "smoke").config, 16) > 0


def test_the_grid_of_the_published_results_can_start():
    grids = read_grids(Path(__file__).parents[2] / "docs" / "results" / "evidence.toml")
    for grid in grids:
        grid.check()
    runs = [run for grid in grids for run in grid.runs()]
    assert len(runs) == len({run.name for run in runs}) > 400
