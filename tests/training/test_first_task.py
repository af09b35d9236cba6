"""A first task that is taken from a file leads to the same bits as one that is trained."""

from dataclasses import replace
from pathlib import Path

import pytest

import tiny_runs
from osiris.framework.composition import resolve
from osiris.framework.config import MethodConfig
from osiris.framework.methods import ZOO
from osiris.sweep.grid import Grid, GridDirectory
from osiris.training.config import Config
from osiris.training.first_task import identity
from quick import quick
from tiny_runs import assert_same_run, config, log, with_learning

OWN = {"ft", "offline", "d1-only", "der", "cromo", "minred", "cla-e", "cla-r", "cla-b"}
SHARED = sorted(set(ZOO) - OWN)


def train(chosen: Config, out: Path, first_task: Path | None = None) -> Path:
    tiny_runs.train(chosen, out, first_task=first_task)
    return out


def shareable(chosen: Config):
    return identity(chosen, resolve(chosen.method))


@pytest.fixture(scope="module")
def donated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("donor")
    train(config("ft"), folder / "run", folder / "first.pt")
    return folder / "first.pt"


@pytest.mark.parametrize("method", quick(("cassle", "ewc", "lump", "osiris-d", "pocon"), SHARED))
def test_every_method_continues_from_the_first_task_of_ft(
    method: str, donated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scratch = train(config(method), tmp_path / "scratch")
    capsys.readouterr()
    taken = train(config(method), tmp_path / "taken", donated)
    assert "the first task is taken" in capsys.readouterr().err
    assert_same_run(scratch, taken)
    assert log(scratch) == log(taken)


@pytest.mark.parametrize(("optimiser", "norm", "objective"), [("muon", "bn", None), ("adamw", "gn", "byol")])
def test_other_optimisers_norms_and_objectives(
    optimiser: str, norm: str, objective: str | None, tmp_path: Path
) -> None:
    def chosen(method: str) -> Config:
        base = replace(config(method, norm), method=MethodConfig(method, objective=objective))
        return with_learning(base, optimiser=optimiser)

    file = tmp_path / "first.pt"
    train(chosen("cassle"), tmp_path / "donor", file)
    taken, scratch = train(chosen("pocon"), tmp_path / "taken", file), train(chosen("pocon"), tmp_path / "scratch")
    assert_same_run(scratch, taken)


def test_what_the_first_task_depends_on() -> None:
    ft = shareable(config("ft"))
    assert ft is not None and all(shareable(config(method)) == ft for method in SHARED)
    assert shareable(replace(config("er"), preset="paper")) == ft
    assert all(shareable(config(method)) is None for method in ("offline", "d1-only", "cla-e", "cla-b"))
    others = [
        *(config(method) for method in ("der", "cromo", "minred", "cla-r")),
        with_learning(config("ft"), memory_size=13),
        replace(config("ft"), seed=1),
    ]
    others.append(replace(config("ft"), method=MethodConfig("ft", objective="dcl")))
    assert all(shareable(other) not in (ft, None) for other in others)


@pytest.mark.parametrize("damage", ["other", "damaged"])
def test_a_file_that_does_not_fit_is_not_taken(
    damage: str, donated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "first.pt"
    file.write_bytes(donated.read_bytes() if damage == "other" else donated.read_bytes()[:-100])
    chosen = replace(config("er"), seed=3) if damage == "other" else config("er")
    train(chosen, tmp_path / "run", file)
    message = "seed is 0 there and 3 here" if damage == "other" else "is damaged"
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_runs_of_a_grid_that_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = GridDirectory(tmp_path)
    grid = Grid(("ft", "er", "der", "offline"), seeds=(0, 1), preset="smoke", settings={"memory_size": ("40", "50")})
    files = directory.first_task_files(grid.runs())
    assert {run.method for run in files} == {"ft", "er"} and len(set(files.values())) == 2 * 2
    first = next(iter(files.values()))
    first.parent.mkdir()
    first.touch()
    directory.remove_first_tasks(files)
    assert first.exists()
    alone = next(run for run, path in files.items() if path == first)
    assert directory.first_task_files([alone]) == {alone: first}, "left behind by an interrupted sweep"
    monkeypatch.setattr(GridDirectory, "finished", lambda self, run: True)
    directory.remove_first_tasks(files)
    assert not first.parent.exists()
