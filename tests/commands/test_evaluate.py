"""`osiris evaluate` as a user types it, on tinyworld at smoke size."""

import json
import re
from pathlib import Path

import pytest

from osiris.cli import main
from osiris.commands.evaluate import parse
from osiris.evaluation.config import BASELINES
from osiris.reporting.comparison import main_table
from osiris.reporting.studies import studies
from osiris.reporting.tables import Number
from osiris.runs.run import load_runs
from tiny_runs import arguments


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, arrays: str) -> Path:
    """A finished run of three tasks; its encoder has a stem of stride 2."""
    out = tmp_path_factory.mktemp("runs") / "run"
    assert main(arguments(arrays, out)) == 0
    return out


def scores(out: Path, name: str) -> dict:
    return json.loads((out / f"{name}.json").read_text())


def test_the_run_gives_the_defaults_wherever_it_stands(run: Path, arrays: str) -> None:
    for argv in ([str(run), "--k", "5"], ["--k", "5", str(run)]):
        args = parse(argv)
        assert (args.data.benchmark, args.protocol.k, args.threads) == (arrays, 5, 1)


def test_a_run_a_checkpoint_and_the_file_as_an_encoder_agree(run: Path, tmp_path: Path, capsys) -> None:
    assert main(["evaluate", str(run), "--out", str(tmp_path / "run")]) == 0
    own = json.loads((run / "metrics.json").read_text())
    again = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert again["protocols"] == own["protocols"] and again["fingerprint"] == own["fingerprint"]
    checkpoint = run / "checkpoints" / "task-02.safetensors"
    assert main(["evaluate", str(checkpoint), "--out", str(tmp_path / "one")]) == 0
    assert scores(tmp_path / "one", "task-02") == scores(run / "evaluation", "task-02")
    config = json.loads((run / "config.json").read_text())["config"]
    protocol = ["--benchmark", config["data"]["benchmark"], "--k", "3", "--threads", "1", "--device", "cpu"]
    assert main(["evaluate", "--encoder", str(checkpoint), *protocol, "--out", str(tmp_path / "file")]) == 0
    assert scores(tmp_path / "file", "encoder") == scores(run / "evaluation", "task-02")
    assert "class-agnostic" in capsys.readouterr().out


@pytest.mark.parametrize("name", BASELINES)
def test_baselines(name: str, arrays: str, tmp_path: Path, capsys) -> None:
    assert main(["evaluate", "--baseline", name, "--benchmark", arrays, "--k", "3", "--out", str(tmp_path)]) == 0
    accuracy = scores(tmp_path, name)["protocols"]["class-agnostic"]["accuracy"]
    assert sum(accuracy) / 3 > 30  # six classes that differ in colour
    assert name in capsys.readouterr().out


def test_a_baseline_on_the_data_of_a_run_is_kept_with_it(run: Path) -> None:
    for name in ("pixels", "patches"):
        assert main(["evaluate", str(run), "--baseline", name]) == 0
    (loaded,) = load_runs([run])
    assert list(loaded.baseline_accuracies("class-agnostic")) == ["patches", "pixels", "untrained encoder"]
    (study,), _ = studies([loaded])
    rows = {str(row[0]): row for row in main_table(study, "class-agnostic").rows}
    assert Number(loaded.baseline_accuracies("class-agnostic")["pixels"]) in rows["pixels"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "give one of"),
        (["--baseline", "pixels", "--encoder", "x:y"], "give one of"),
        (["--baseline", "pixels"], "choose the data with --benchmark"),
        (["--encoder", "nothere.pt", "--benchmark", "nothere"], "nothere.pt is not a file"),
        (["nowhere"], "does not exist"),
        (["{run}/.."], r"is a folder of 1 runs; evaluate one of them, such as .*run\."),
        (["{run}/checkpoints"], "is not a run directory"),
        (["{run}/checkpoints/latest.pt"], r"is the training state of a run; give .*task-XX.safetensors"),
        (["--encoder", "{run}/checkpoints/latest.pt", "--benchmark", "nothere"], "is the training state of a run"),
        (["{run}", "--arch", "resnet18"], "leave them out here"),
        (["{run}", "--out", "{run}/config.json/x"], "config.json is a file. Choose another --out"),
    ],
)
def test_refusals_come_before_the_data_is_loaded(given, message, run: Path, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("osiris.data.benchmarks.load_benchmark", lambda _: pytest.fail("the data was loaded"))
    assert main(["evaluate", *(part.replace("{run}", str(run)) for part in given)]) == 2
    assert re.search(message, capsys.readouterr().err.replace("\n", " "))
