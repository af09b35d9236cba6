"""`osiris reproduce FILE.csv`: do the runs of a file of results still give its numbers?"""

import csv
from pathlib import Path

import pytest

from osiris.cli import main
from osiris.grids.repeat import cheapest, recorded


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, arrays: str) -> Path:
    """results.csv of a sweep over three seeds."""
    out = tmp_path_factory.mktemp("repeat") / "grid"
    given = ["--methods", "ft", "--seeds", "0", "1", "2", "--benchmarks", arrays, "--preset", "smoke"]
    assert main(["sweep", *given, "--set", "epochs=1", "memory_size=12", "batch_size=12", "--out", str(out)]) == 0
    return out / "results.csv"


def changed(results: Path, to: Path, by: float) -> Path:
    """The same file, with another A in the rows of seed 0."""
    with results.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["A"] = str(float(row["A"]) + by * (row["seed"] == "0"))
    with to.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return to


def test_the_same_numbers_and_others(results: Path, tmp_path: Path, capsys) -> None:
    again = ["--out", str(tmp_path / "again"), "--check"]
    assert main(["reproduce", str(results), *again]) == 0
    printed = capsys.readouterr().out
    assert "the same" in printed and printed.count("smoke") == 0 and printed.count("class-agnostic") == 0
    forged = changed(results, tmp_path / "forged.csv", 200.0)
    assert main(["reproduce", str(forged), *again]) == 2, "further from the other seeds than two deviations"
    captured = capsys.readouterr()
    assert "another number" in captured.out and "1 of 1 runs give other numbers" in captured.err


def test_one_run_of_each_benchmark_is_chosen_by_cost() -> None:
    runs = recorded(Path(__file__).parents[2] / "docs" / "results" / "runs.csv")
    chosen = cheapest([run for run in runs if run.benchmark in ("tinyworld", "split-cifar100-20")])
    assert [run.benchmark for run in chosen] == ["split-cifar100-20", "tinyworld"]
    assert all(run.seed in (1, 5) and run.method in ("d1-only", "ft", "offline") for run in chosen), chosen


def test_what_is_refused(results: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "bad.csv").write_text("a\n1\n")
    for arguments, message in (
        ([str(tmp_path / "bad.csv"), "--check"], "is not a results.csv of osiris sweep"),
        (["table2", "--check"], "--check needs a file of results"),
        ([str(results), "--check", "--benchmark", "nowhere"], "unknown benchmark 'nowhere'"),
    ):
        assert main(["reproduce", *arguments, "--out", str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err
