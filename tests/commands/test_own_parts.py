"""The plug-ins of examples/ as docs/your-own.md shows them: trained, killed and resumed, swept, compared, reported."""

import gc
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from osiris import cli
from osiris.framework.methods import OWN
from osiris.reporting.comparison import comparison_table
from osiris.reporting.tables import Number
from osiris.runs.run import load_runs
from tiny_runs import arguments, asked_to_stop

EXAMPLES = Path(__file__).parents[2] / "examples"
PARTS = {
    "--past": "own_method:Align",
    "--memory-policy": "own_policy:Fresh",
    "--objective": "own_objective:AlignUniform(strength=2)",
    "--views": "own_augmentation:Hidden(part=0.3)",
    "--metrics": "own_metric:Separation(images=500)",
}
KINDS = {"align", "fresh", "align-uniform", "hidden", "separation"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals_arrive: None) -> Iterator[Path]:
    """The examples are in the current directory."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)
    for path in EXAMPLES.glob("own_*.py"):
        shutil.copy(path, tmp_path / path.name)
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    """As in a new process: no module, and no class that another test has made."""
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]
    OWN.clear()
    sys.path_importer_cache.clear()
    gc.collect()


def options(*without: str) -> list[str]:
    return [word for flag, text in PARTS.items() if flag not in without for word in (flag, text)]


def train(arrays: str, out: str, *more: str, method: str = "er") -> int:
    return cli.main([*arguments(arrays, Path(out), method), *more])


def test_all_parts_train_resume_sweep_compare_and_report(here: Path, arrays: str, capsys) -> None:
    assert train(arrays, "whole", *options()) == 0
    record = json.loads(Path("whole", "config.json").read_text())
    (found,) = (run.config["method.source"] for run in load_runs(["whole"]))
    assert {one.split()[0] for one in found.split(", ")} == KINDS
    assert record["config"]["learning"]["views"] == "hidden(part=0.3)"
    with asked_to_stop(1, 1):
        assert train(arrays, "killed", *options()) == 75
    forget()
    capsys.readouterr()
    assert cli.main(["train", "--resume", "killed", "--quiet"]) == 2
    assert "which is named at each start: module:name" in capsys.readouterr().err
    for flag in PARTS:
        forget()
        assert cli.main(["train", "--resume", "killed", "--quiet", *options(flag)]) == 2, flag
        error = capsys.readouterr().err
        assert re.search(r"name it again|named at each start", error), (flag, error)
    assert cli.main(["train", "--resume", "killed", "--quiet", *options()]) == 0
    whole, killed = (json.loads(Path(run, "metrics.json").read_text()) for run in ("whole", "killed"))
    assert whole == killed and whole["evaluations"][-1]["own"]["separation"]["better"] == "higher"
    forget()
    rows = {str(row[0]): row for row in comparison_table(load_runs(["whole"])).rows}
    (name,) = (name for name in rows if name.startswith("er"))
    shown = rows[name][-1]
    assert isinstance(shown, Number) and shown.mean == pytest.approx(
        whole["evaluations"][-1]["own"]["separation"]["value"]
    )
    assert cli.main(["report", "whole", "--out", "report"]) == 0
    page = Path("report", "report.html").read_text()
    assert "separation" in page and "a metric of the user" in page


def test_a_changed_part_is_refused(here: Path, arrays: str, capsys) -> None:
    with asked_to_stop(1, 1):
        assert train(arrays, "killed", *options()) == 75
    for part, old, new in (
        ("own_policy", "filled // 3", "filled // 2"),
        ("own_augmentation", ", 0.0)", ", 1.0)"),
        ("own_metric", "return 100 *", "return 10 *"),
    ):
        path = here / f"{part}.py"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        forget()
        capsys.readouterr()
        assert cli.main(["train", "--resume", "killed", "--quiet", *options()]) == 2
        assert "the source of" in capsys.readouterr().err
        path.write_text(text)
    forget()
    assert cli.main(["train", "--resume", "killed", "--quiet", *options()]) == 0


def test_a_sweep_over_own_parts(here: Path, arrays: str, capsys) -> None:
    common = ["epochs=1", "memory_size=12", "batch_size=12"]
    sweep = ["sweep", "--methods", "er", "own_method:mine", "--seeds", "0", "--benchmarks", arrays, "--preset", "smoke"]
    sets = [*common, "views=own_augmentation:Hidden,paper", "metrics=own_metric:Separation"]
    assert cli.main([*sweep, "--set", *sets, "--out", "grid", "--jobs", "1"]) == 0
    runs = load_runs(["grid"])
    assert {(run.method, run.config["learning.views"]) for run in runs} == {
        (method, views) for method in ("er", "osiris-ad") for views in ("hidden", "paper")
    }
    assert all("separation" in run.metrics.evaluations[-1].own for run in runs)


def test_an_own_metric_afterwards(here: Path, arrays: str, capsys) -> None:
    assert train(arrays, "run", "--metrics", PARTS["--metrics"], method="ft") == 0
    forget()
    assert cli.main(["evaluate", "run", "--out", "plain"]) == 0
    captured = capsys.readouterr()
    assert "to measure it too, name it with --metrics module:name" in captured.err
    assert cli.main(["evaluate", "run", "--metrics", PARTS["--metrics"], "--out", "again"]) == 0
    assert "separation" in capsys.readouterr().out
    own, again = (json.loads(Path(run, "metrics.json").read_text()) for run in ("run", "again"))
    assert own["evaluations"][-1]["own"] == again["evaluations"][-1]["own"]


def test_an_own_readout(here: Path, arrays: str, capsys) -> None:
    fixed = ["--benchmark", arrays, "--preset", "smoke", "--quiet", "--k", "3", "--device", "cpu", "--threads", "1"]
    for name, readout in (("own", "own_readout:Principal"), ("joined", "joined")):
        assert cli.main(["train", "--method", "readout", "--readout", readout, "--out", name, *fixed]) == 0
    own, joined = (json.loads(Path(run, "metrics.json").read_text()) for run in ("own", "joined"))
    assert own["protocols"] != joined["protocols"]
    assert json.loads(Path("own", "config.json").read_text())["config"]["encoder"]["readout"] == "principal"
    forget()
    assert cli.main(["compare", "own", "joined", "--by", "run"]) == 0


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--views", "own_metric:Separation", "is not a class derived from osiris's Augmentation"),
        ("--views", "blurred", "unknown augmentation 'blurred'"),
        ("--memory-policy", "own_method:mine", "is not a class derived from osiris's Memory"),
        ("--memory-policy", "newest", "unknown memory policy 'newest'"),
        ("--metrics", "own_metric:Absent", "has no function 'Absent'"),
        ("--metrics", "own_metric:Separation(size=3)", "unknown option of separation 'size'"),
        ("--readout", "pca", "unknown readout map 'pca'"),
    ],
)
def test_what_is_wrong_is_said(here: Path, arrays: str, capsys, option: str, text: str, message: str) -> None:
    assert train(arrays, "wrong", option, text) == 2
    assert message in capsys.readouterr().err
    assert not Path("wrong").exists()
