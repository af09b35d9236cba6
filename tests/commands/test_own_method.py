"""`module:name` for methods, terms and objectives: imported because it was typed, never because a file names it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import osiris
from osiris import cli
from osiris.framework.methods import OWN
from osiris.grids.grid import read_grids
from osiris.reporting.comparison import comparison_table
from osiris.runs.directory import read_config
from osiris.runs.run import load_runs
from tiny_runs import arguments, asked_to_stop

CODE = """
from dataclasses import replace
from pathlib import Path

import torch

from osiris import methods, terms
from osiris.framework.objectives import Ntxent

Path("imported").touch()
SCALE = 1.0


def distance(one, other):
    return (one - other).square().mean()


class Twin(terms.Term):
    '''The two views of an image of the memory are alike in h.'''

    kind = "twin"
    inputs = ("Y",)
    strength: float = 1.0
    space: terms.Space = "h"

    def loss(self, rep, context):
        one, other = rep("Y", head=self.space)
        return SCALE * self.strength * distance(one, other)


class Half(Ntxent):
    kind = "half"

    def loss(self, batch, tau):
        return 0.5 * super().loss(batch, tau)


class Nameless(terms.Term):
    def loss(self, rep, context):
        return rep("X", head="g").sum() * 0


mine = replace(methods.FT | methods.past(Twin(strength=0.5)), name="twins")
number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals_arrive: None) -> Iterator[Path]:
    """A module in the current directory."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files of one size and second would pass for each other
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mymethod.py").write_text(CODE)
    yield tmp_path / "mymethod.py"
    forget()


def forget() -> None:
    """As in a new process."""
    sys.modules.pop("mymethod", None)
    OWN.clear()
    sys.path_importer_cache.clear()


def train(arrays: str, out: str, *options: str, method: str = "mymethod:mine") -> int:
    return cli.main([*arguments(arrays, Path(out), method), *options])


def test_an_own_method_trains_resumes_and_is_compared(module: Path, arrays: str, capsys) -> None:
    with asked_to_stop(1, 1):
        assert train(arrays, "run") == 75
    assert "Give the same command again" in capsys.readouterr().err
    forget()
    Path("imported").unlink()
    assert cli.main(["train", "--resume", "run", "--quiet"]) == 2
    assert "'twins', a method of your own: name it again, --method module:name" in capsys.readouterr().err
    assert not Path("imported").exists(), "nothing that a file names is imported"
    assert cli.main(["train", "--resume", "run", "--quiet", "--method", "mymethod:mine"]) == 0
    forget()
    Path("imported").unlink()
    for command in (["compare", "run"], ["evaluate", "run"], ["status", "run"]):
        assert cli.main(command) == 0
    assert "twins" in capsys.readouterr().out and not Path("imported").exists()
    assert cli.main(["train", "--config", "run/config.json", "--out", "again", "--quiet"]) == 2
    assert "--method module:name" in capsys.readouterr().err
    config = ["--config", "run/config.json", "--method", "mymethod:mine"]
    assert cli.main(["train", *config, "--out", "again", "--quiet"]) == 0
    first, second = (json.loads(Path(run, "metrics.json").read_text()) for run in ("run", "again"))
    assert first["protocols"] == second["protocols"]


def test_own_terms_and_objectives_by_name(module: Path, arrays: str, capsys) -> None:
    own = ["--past", "mymethod:Twin:g(strength=0.25)+distil", "--objective", "mymethod:Half"]
    assert train(arrays, "run", *own, method="ft") == 0
    record = json.loads(Path("run", "config.json").read_text())
    assert record["config"]["method"]["past"] == "twin:g(strength=0.25)+distil"
    twin, objective = record["composition"]["past"][0], record["composition"]["objective"]
    assert (twin["kind"], twin["space"], twin["strength"]) == ("twin", "g", 0.25) and objective["kind"] == "half"
    assert {len(twin["source"]), len(objective["source"])} == {16} and "source" not in record["composition"]["past"][1]
    for wrong, message in (
        (["--past", "mymethod:number"], "is not a class derived from osiris's Term"),
        (["--past", "mymethod:Nameless"], "has no name of its own"),
        (["--objective", "mymethod:Twin"], "is not a class derived from osiris's Objective"),
        (["--method", "mymethod:number"], "give an osiris.Method"),
        (["--method", "mymethod:absent"], "has no function 'absent'"),
        (["--method", "nowhere:mine"], "Is the package installed"),
    ):
        assert train(arrays, "wrong", *wrong) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new"),
    [("one - other", "one + other"), ("SCALE = 1.0", "SCALE = 2.0"), ("* self.strength", "+ self.strength")],
)
def test_a_changed_body_is_refused_and_counts_as_another_row(
    old: str, new: str, module: Path, arrays: str, capsys
) -> None:
    assert train(arrays, "first", "--seed", "0") == 0
    with asked_to_stop(1, 1):
        assert train(arrays, "second", "--seed", "1") == 75
    module.write_text(CODE.replace(old, new))
    forget()
    capsys.readouterr()
    assert train(arrays, "second", "--seed", "1") == 2
    assert "the source of twin has changed since second began" in capsys.readouterr().err
    assert train(arrays, "second", "--seed", "1", "--new-source") == 0
    assert "goes on with the changed source of twin" in capsys.readouterr().err
    rows = {str(row[0]) for row in comparison_table(load_runs([Path("first"), Path("second")])).rows}
    assert sum(row.startswith("twins (source=twin ") for row in rows) == 2


def test_a_comment_elsewhere_in_the_module_changes_nothing(module: Path, arrays: str) -> None:
    with asked_to_stop(1, 1):
        assert train(arrays, "run") == 75
    module.write_text(CODE.replace("number = 3", "number = 4  # other"))
    forget()
    assert train(arrays, "run") == 0


def test_a_sweep_with_an_own_method(module: Path, arrays: str, capsys) -> None:
    small = {name: (value,) for name, value in zip(SMALL[::2], SMALL[1::2])}
    sys.path.insert(0, "")
    try:
        import mymethod  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.remove("")
    done = osiris.sweep([mymethod.mine, "ft"], [arrays], [0], "smoke", small, "grid", jobs=1)
    assert {(one.run.method, one.state) for one in done} == {("mymethod:mine", "done"), ("ft", "done")}
    assert "twins" in Path("grid/report/report.html").read_text()
    assert read_config(Path("grid/runs") / done[0].run.name).method.method == "twins"
    with pytest.raises(osiris.UserError, match="put it into a file of its own"):
        osiris.sweep([osiris.methods.FT | osiris.methods.past(osiris.terms.Distil())], [arrays])


SMALL = ("epochs", "1", "memory_size", "12", "batch_size", "12")


def test_a_grid_file_must_not_name_code(module: Path) -> None:
    for text in ('methods = ["mymethod:mine"]', 'methods = ["ft"]\nset = {past = "mymethod:Twin"}'):
        Path("grid.toml").write_text(text)
        with pytest.raises(osiris.UserError, match="names code, which a file must not"):
            read_grids(Path("grid.toml"))
    Path("grid.toml").write_text('methods = ["ft"]\nset = {past = "contrast:h"}')
    assert read_grids(Path("grid.toml"))
    assert not Path("imported").exists()
