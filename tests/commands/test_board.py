"""`osiris board`: what is listed, what stands apart, and forged numbers."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from osiris.cli import main
from osiris.evaluation.config import METRICS
from osiris.files import load_tensors, save_tensors
from osiris.grids.board import board_tables, command_of, of_file, of_paper, of_runs
from osiris.reporting.tables import Number
from osiris.runs.run import load_runs
from osiris.training.verify import check_claims
from tiny_runs import arguments, episode

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, arrays: str) -> Path:
    """Two methods, one of them with two seeds."""
    out = tmp_path_factory.mktemp("board")
    for method, seed in (("ft", 0), ("ft", 1), ("er", 0)):
        assert main([*arguments(arrays, out / f"{method}-{seed}", method), "--seed", str(seed)]) == 0
    return out


def test_one_table_for_each_protocol_with_budget_and_commands(runs: Path) -> None:
    loaded = load_runs([runs])
    tables = board_tables([of_runs(loaded, {run.path: check_claims(run)[0] for run in loaded})])
    assert len(tables) == len(loaded[0].metrics.protocols) == 3
    names = [column.name for column in tables[0].columns]
    rows = {str(row[0]): dict(zip(names, row)) for row in tables[0].rows}
    assert set(rows) == {"ft", "er"} and (rows["ft"]["seeds"], rows["er"]["seeds"]) == ("2", "1")
    accuracy = [run.metrics["class-agnostic"].A or 0.0 for run in loaded if run.method == "ft"]
    shown = rows["ft"]["A"]
    assert isinstance(shown, Number) and shown.mean == pytest.approx(sum(accuracy) / 2) and shown.deviation is not None
    assert (rows["ft"]["memory"], rows["er"]["memory"]) == ("0", "12") and rows["er"]["checked"] == "evaluations"
    assert "--method ft" in str(rows["ft"]["command of one seed"])


def test_what_cannot_be_compared_stands_apart(runs: Path, arrays: str, tmp_path: Path) -> None:
    assert main([*arguments(arrays, tmp_path / "other", "er"), "--k", "2"]) == 0
    loaded = load_runs([runs, tmp_path / "other"])
    tables = board_tables([of_runs(loaded, {run.path: "numbers" for run in loaded})])
    assert len(tables) == 6
    assert sorted(len(table.rows) for table in tables) == [1, 1, 1, 2, 2, 2]


def forge(run: Path, change: float = 20.0, consistent: bool = False) -> None:
    """Claim a higher accuracy: of A alone, or everywhere in metrics.json."""
    record = json.loads((run / "metrics.json").read_text())
    numbers = record["protocols"]["class-agnostic"]
    numbers["A"] += change
    if consistent:
        for after, scores in enumerate(record["evaluations"]):
            raised = [value + change for value in numbers["accuracy_matrix"][after]]
            numbers["accuracy_matrix"][after] = scores["protocols"]["class-agnostic"]["accuracy"] = raised
        numbers["T"] = None if numbers["T"] is None else numbers["T"] + change
    (run / "metrics.json").write_text(json.dumps(record))


def forge_evaluations(run: Path, change: float = 20.0) -> None:
    """The same in the file of every evaluation."""
    for task in (1, 2, 3):
        path = episode(run, task).evaluation
        tensors, metadata = load_tensors(path)
        scores = metadata["numbers"]["protocols"]["class-agnostic"]
        scores["accuracy"] = [value + change for value in scores["accuracy"]]
        save_tensors(path, tensors, metadata)


@pytest.mark.parametrize("depth", ["A", "metrics", "evaluations"])
def test_a_forged_run_is_not_listed(runs: Path, tmp_path: Path, capsys, depth: str) -> None:
    """Numbers that contradict each other, that differ from the evaluations, and that only the weights refute."""
    shutil.copytree(runs / "ft-0", tmp_path / "runs" / "honest")
    forged = tmp_path / "runs" / "forged"
    shutil.copytree(runs / "er-0", forged)
    forge(forged, consistent=depth != "A")
    if depth == "evaluations":
        forge_evaluations(forged)
        assert main(["board", str(tmp_path / "runs"), "--out", str(tmp_path / "board.md")]) == 0
        assert "| er |" in (tmp_path / "board.md").read_text(), "the forgery is complete, but for the weights"
    capsys.readouterr()
    verify = ["--verify"] if depth == "evaluations" else []
    assert main(["board", str(tmp_path / "runs"), "--out", str(tmp_path / "board.md"), *verify]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "1 of 2 runs are not listed" in error and "class-agnostic" in error and "forged is not listed" in error
    page = (tmp_path / "board.md").read_text()
    assert "| er |" not in page and "| ft |" in page


def test_verify_measures_the_weights_again(runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "board.html"
    before = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    assert main(["board", str(runs), "--out", str(page), "--verify"]) == 0
    text = page.read_text()
    assert "evaluated again from the weights" in text and "http:" not in text and "https:" not in text
    assert {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()} == before


def test_without_weights_a_run_cannot_be_verified(runs: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(runs / "ft-0", tmp_path / "ft")
    episode(tmp_path / "ft", 2).weights.unlink()
    assert main(["board", str(tmp_path / "ft"), "--out", str(tmp_path / "board.md"), "--verify"]) == 2
    assert "not listed" in capsys.readouterr().err
    assert main(["board", str(tmp_path / "ft"), "--out", str(tmp_path / "board.md")]) == 0


def test_files_of_numbers_and_the_paper(tmp_path: Path, capsys) -> None:
    runs = ROOT / "docs" / "results" / "runs.csv"
    tables = {table.title: table for table in board_tables([of_file(runs), of_paper()])}
    (ours,) = (
        table for title, table in tables.items() if title.startswith("split-cifar100-20, class-agnostic KNN (preset")
    )
    names = [column.name for column in ours.columns]
    rows = {str(row[0]): dict(zip(names, row)) for row in ours.rows}
    with runs.open(newline="") as file:
        wanted = [
            float(row["A"])
            for row in csv.DictReader(file)
            if (row["benchmark"], row["method"], row["settings"], row["protocol"])
            == ("split-cifar100-20", "er", "", "class-agnostic")
        ]
    shown = rows["er"]["A"]
    assert isinstance(shown, Number) and shown.mean == pytest.approx(sum(wanted) / len(wanted))
    assert rows["er"]["command of one seed"] == (
        "osiris train --method er --benchmark split-cifar100-20 --preset fast --seed 1"
    )
    assert any("ResNet-18" in title for title in tables)
    bad = tmp_path / "bad.csv"
    bad.write_text("a,b\n1,2\n")
    assert main(["board", str(bad), "--out", str(tmp_path / "board.md")]) == 2
    assert "is not a results.csv of osiris sweep" in capsys.readouterr().err
    assert main(["board", str(runs), "--out", str(tmp_path / "board.pdf")]) == 2


def test_the_board_of_the_results_is_made_from_files(tmp_path: Path) -> None:
    """docs/results/README.md has the command."""
    results = ROOT / "docs" / "results"
    command = 'osiris board docs/results/runs.csv --paper --title "All results" --out docs/results/board.md'
    assert command in (results / "README.md").read_text(encoding="utf-8")
    made = tmp_path / "board.md"
    assert main(["board", str(results / "runs.csv"), "--paper", "--title", "All results", "--out", str(made)]) == 0
    assert made.read_text(encoding="utf-8") == (results / "board.md").read_text(encoding="utf-8")


def test_a_run_of_a_grid_has_a_command_of_its_own(arrays: str, tmp_path: Path) -> None:
    given = ["--methods", "er", "--seeds", "3", "--benchmarks", arrays, "--preset", "smoke"]
    small = ["--set", "epochs=1", "memory_size=12", "batch_size=12"]
    assert main(["sweep", *given, *small, "--out", str(tmp_path / "grid"), "--jobs", "1"]) == 0
    (run,) = load_runs([tmp_path / "grid"])
    words = command_of(run).split()
    assert words[:4] == ["osiris", "train", "--method", "er"] and "--config" not in words
    assert main([*words[1:], "--out", str(tmp_path / "again"), "--threads", "1"]) == 0
    (again,) = load_runs([tmp_path / "again"])
    assert [again.metrics["class-agnostic"].values()[name] for name in METRICS] == [
        run.metrics["class-agnostic"].values()[name] for name in METRICS
    ]
