"""Runs on the disk, the tables made of them, and the commands `compare` and `paper`."""

import csv
import io
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet
import pytest
from safetensors.numpy import save_file

from osiris.cli import main
from osiris.commands.list import TABLES
from osiris.errors import UserError
from osiris.paper.published import benchmarks, document, published, published_ablation
from osiris.reporting.comparison import comparison_table, published_table
from osiris.reporting.tables import Column, Number, Table, show
from osiris.runs.run import load_runs

FINGERPRINT = {
    **{"benchmark": "split-cifar100-20", "train_images": 50000, "bank_images": 50000, "test_images": 200},
    **{"image_size": [32, 32], "split": "", "tasks": 2, "task_order": "", "temperature": 0.1, "random_encoders": 0},
    "encoder": {},
}
HEALTH = {"dimension": 8, "feature_deviation": 0.1, "spread": 0.3, "effective_rank": 4.0}
SCORES = {
    **{"labelled": True, "bank_size": 4, "test_size": 4},
    "health": HEALTH | {"uniformity": None, "alignment": None},
}
LABEL = np.arange(200, dtype=np.int32) % 4
TASK = LABEL // 2


def write_run(
    folder: Path, method: str, seed: int, accuracy: float, *, k: int = 200, arrays: bool = True, **more
) -> Path:
    """A finished run of two tasks that was right on `accuracy` percent of the test images."""
    continual = method != "offline"
    rows = [[60.0, 20.0], [accuracy, accuracy]] if continual else [[accuracy, accuracy]]
    metrics = {"continual": continual, "accuracy_matrix": rows, "random_baseline": [5, 5], "A": accuracy, "C": 70.0}
    metrics |= {"F": 60 - accuracy if continual else None, "K": 9.0 if continual else None, "T": None}
    record = {
        "method": method,
        "benchmark": "split-cifar100-20",
        "seed": seed,
        "continual": continual,
        "complete": True,
        "task_names": ["task 1", "task 2"],
        "environments": [],
        "labelled": True,
        "fingerprint": FINGERPRINT | {"hash": f"hash{k}", "k": k},
        "protocols": {"class-agnostic": metrics},
        "task_level": [70.0],
        "evaluations": [SCORES, SCORES],
    } | more
    path = folder / f"{method.replace('/', '-')}-{seed}"
    path.mkdir(parents=True)
    (path / "metrics.json").write_text(json.dumps(record))
    if arrays:
        right = (np.arange(200) // 4 * 2 + seed) % 100 < accuracy
        predicted = np.where(right, LABEL, (LABEL + 1) % 4).astype(np.int32)
        tensors = {"label": LABEL, "task": TASK, "prediction.class-agnostic": predicted}
        save_file(tensors, path / "task-02.safetensors")
        for name in ("task-01", "task-09-features"):
            save_file({"label": np.zeros(1)}, path / f"{name}.safetensors")
    return path


@pytest.fixture
def runs(tmp_path) -> Path:
    for seed, accuracy in enumerate((44.0, 46.0, 45.0)):
        write_run(tmp_path, "ft", seed, (44.0, 45.5, 45.5)[seed])
        write_run(tmp_path, "osiris-d", seed, accuracy + 6)
        write_run(tmp_path, "offline", seed, accuracy + 8)
    return tmp_path


def by_method(made: Table) -> dict[str, tuple]:
    return {str(row[0]): row for row in made.rows}


def test_methods_over_seeds_with_marks_and_tests(runs):
    made = comparison_table(load_runs([runs]))
    rows = by_method(made)
    assert "class-agnostic" in made.title and "hash200" in made.title
    assert list(rows) == ["untrained encoder", "ft", "osiris-d", "offline"] and rows["ft"][1] == "3"
    assert rows["untrained encoder"][1:3] == ("", Number(5.0)), "features that were not learned"
    assert rows["osiris-d"][2] == Number(51.0, 1.0, "best") and rows["ft"][2].mean == 45.0
    assert rows["offline"][2] == Number(53.0, 1.0, None) and rows["offline"][3] == Number(None)
    assert rows["osiris-d"][3].mark == "best"  # less forgetting is better
    assert rows["osiris-d"][-2:] == ("", "")
    assert rows["ft"][-1].printed == "0.002", "paired over the three seeds"
    difference = rows["ft"][-2]
    assert difference.interval[0] < difference.mean < difference.interval[1] < 0


def test_rows_are_tested_against_the_one_named(runs):
    made = comparison_table(load_runs([runs]), against="ft")
    rows = by_method(made)
    assert made.columns[-2].name == "A - A of ft" and rows["ft"][-2:] == ("", "")
    assert rows["osiris-d"][-1] == by_method(comparison_table(load_runs([runs])))["ft"][-1]
    assert rows["osiris-d"][-2].printed == "+6.0" and rows["offline"][-2].printed == "+8.0"
    assert any(note.startswith("compared with ft: the difference in A") for note in made.notes)
    with pytest.raises(UserError, match=r"unknown row 'osiris'\. Did you mean 'osiris-d'"):
        comparison_table(load_runs([runs]), against="osiris")


def test_one_method_with_different_settings_has_several_rows(runs):
    """Their mean would mix different settings, which seeds are not."""
    for seed in range(3):
        for name, merge in ((f"ft-{seed}", 1), (f"merged/ft-{seed}", 0.5)):
            path = runs / name if merge == 1 else write_run(runs / "merged", "ft", seed, 42.0)
            (path / "config.json").write_text(json.dumps({"config": {"learning": {"merge": merge}}}))
    made = comparison_table(load_runs([runs]), against="ft (merge=1)")
    rows = by_method(made)
    assert [name for name in rows if name.startswith("ft")] == ["ft (merge=0.5)", "ft (merge=1)"]
    assert rows["ft (merge=0.5)"][2].mean == 42.0 and rows["ft (merge=1)"][2].mean == 45.0
    assert comparison_table(load_runs([runs]), against="osiris-d").columns[-2].name == "A - A of osiris-d"
    with pytest.raises(UserError, match=r"several rows; name one: ft \(merge=0\.5\), ft \(merge=1\)"):
        comparison_table(load_runs([runs]), against="ft")


def test_one_seed_has_no_deviation_and_no_t_test_but_an_interval_over_images(tmp_path):
    paths = [write_run(tmp_path, "ft", 0, 40.0), write_run(tmp_path, "er", 0, 60.0)]
    made = comparison_table(load_runs(paths))
    rows = by_method(made)
    assert rows["ft"][2] == Number(40.0) and rows["ft"][-2].printed == "-20.0"
    notes = " ".join(made.notes)
    assert "nothing is said about other seeds" in notes and "t-test" not in notes
    with pytest.raises(UserError, match="needs two seeds of each method"):
        comparison_table(load_runs(paths), varying="both")


def test_without_arrays_or_company_the_columns_disappear(tmp_path):
    made = comparison_table(load_runs([write_run(tmp_path, "ft", 0, 40.0, arrays=False)]))
    assert [column.name for column in made.columns] == ["method", "seeds", "A", "F", "K", "C", "T"]


def test_damaged_baselines_do_not_refuse_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path, "ft", 0, 40.0)
    (run / "baselines.json").write_text("{")
    table = comparison_table(load_runs([tmp_path]))
    assert "ft" in [str(row[0]) for row in table.rows]
    said = " ".join(capsys.readouterr().err.split())
    assert "baselines.json" in said and "Its baselines are left out" in said


def test_methods_with_different_seeds_are_compared_on_those_they_share(tmp_path):
    """Seed 1 is easy for every method: the mean of er is the highest, but on the shared seed it is below ft."""
    for method, seed, accuracy in (("ft", 0, 30.0), ("ft", 1, 50.0), ("er", 1, 45.0)):
        write_run(tmp_path, method, seed, accuracy)
    table = comparison_table(load_runs([tmp_path]))
    differences = {row[0]: row[-2] for row in table.rows}
    assert str(getattr(differences["ft"], "printed", "")).startswith("+"), differences
    assert any("different seeds" in note for note in table.notes)
    same = comparison_table(load_runs([tmp_path / "ft-1", tmp_path / "er-1"]))
    assert not any("different seeds" in note for note in same.notes)


def test_what_is_refused(runs):
    write_run(runs / "other", "er", 0, 40.0, k=20)
    with pytest.raises(UserError, match=r"(?s)different protocols.*k: 20 in .*er-0; 200 in .*and 8 more"):
        comparison_table(load_runs([runs / "other", runs]))
    shutil.rmtree(runs / "other")
    write_run(runs / "more", "ft", 0, 40.0)
    with pytest.raises(UserError, match=r"both ft with seed 0.*--by run"):
        comparison_table(load_runs([runs]))
    assert len(comparison_table(load_runs([runs]), by="run").rows) == 10 + 1
    unfinished = write_run(runs / "unfinished", "er", 0, 40.0, complete=False, evaluations=[SCORES])
    with pytest.raises(UserError, match="finished 1 of 2 tasks"):
        comparison_table(load_runs([unfinished]))
    with pytest.raises(UserError, match=r"no numbers under the protocol 'task-aware'; it has class-agnostic"):
        comparison_table(load_runs([runs / "ft-1"]), "task-aware")
    with pytest.raises(UserError, match="does not exist"):
        load_runs([runs / "nowhere"])
    (runs / "empty").mkdir()
    with pytest.raises(UserError, match=r"no metrics\.json"):
        load_runs([runs / "empty"])


def test_different_training_is_said(runs, capsys):
    for name, epochs, weight in (("ft-0", 200, None), ("ft-1", 3, 0.5), ("osiris-d-0", 200, 0.7)):
        config = {
            "config": {"learning": {"epochs": epochs}, "method": {"past_weight": weight}, "engine": {"threads": epochs}}
        }
        (runs / name / "config.json").write_text(json.dumps(config))
    made = comparison_table(load_runs([runs]))
    show(Table.of(made.title, made.columns, made.rows, "[name] differs"), "csv")
    assert "note: [name] differs" in capsys.readouterr().err
    notes = "\n".join(made.notes)
    assert "learning.epochs differs: 200 in" in notes and "method.past_weight differs: None in" in notes
    assert "threads" not in notes and "0.7" not in notes


def test_the_paper_beside_ours(runs):
    write_run(runs, "osiris-d/no-cross", 0, 44.0)
    made = comparison_table(load_runs([runs]), with_paper=True)
    names = [str(row[0]) for row in made.rows]
    methods = ("ft", "osiris-d", "osiris-d/no-cross", "offline")
    assert names == ["untrained encoder", *(name for method in methods for name in (method, "  paper"))]
    assert made.rules == {1, 3, 5, 7}
    assert made.rows[4][2] == Number(50.1, 0.2) and made.rows[6][2] == Number(45.9, 0.1)
    assert any("ResNet-18" in note for note in made.notes)


def test_the_paper_stands_once_below_the_variants_of_a_method(runs):
    ft, osiris = (next(run for run in load_runs([runs]) if run.method == name) for name in ("ft", "osiris-d"))
    made = comparison_table([replace(ft, variant="merge=0.5"), ft, osiris], with_paper=True, with_baselines=False)
    assert [str(row[0]) for row in made.rows] == ["ft", "ft (merge=0.5)", "  paper", "osiris-d", "  paper"]
    assert made.rules == {3}


def test_a_benchmark_that_the_paper_does_not_have_is_shown_with_a_notice(tmp_path, capsys):
    write_run(tmp_path, "ft", 0, 44.0, benchmark="tinyworld")
    assert main(["compare", str(tmp_path), "--with-paper"]) == 0
    shown = capsys.readouterr()
    assert "44.0" in shown.out and "the paper has no class-agnostic numbers for tinyworld" in shown.err


def test_other_evaluations_inside_a_run_and_unfinished_runs_are_not_runs(runs, capsys):
    again = write_run(runs / "ft-0" / "evaluations", "ft", 0, 40.0)
    (runs / "unfinished").mkdir()
    (runs / "unfinished" / "config.json").write_text("{}")
    assert len(load_runs([runs])) == 9
    assert "unfinished" in capsys.readouterr().err
    assert len(load_runs(sorted(runs.iterdir()))) == 9, "osiris compare runs/*"
    with pytest.raises(UserError, match="none of these runs has finished"):
        load_runs([runs / "unfinished"])
    (alone,) = load_runs([again])
    assert alone.hits("class-agnostic") is not None


def test_arrays_that_were_cut_are_named(runs, capsys):
    path = runs / "ft-0" / "task-02.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["compare", str(runs), "--varying", "images"]) == 2
    assert f"{path} is damaged" in " ".join(capsys.readouterr().err.split())


EXAMPLE = Table(
    "b_1, task-aware KNN",
    (Column("method"), Column("A", "higher"), Column("F", "lower")),
    (("er+", Number(-0.44, 0.02, "best"), Number(None)), ("a|b_c", Number(-0.04, None, "second"), Number(2.0))),
    ("50% & more",),
    frozenset({1}),
)


def test_text():
    text = EXAMPLE.text()
    assert "b_1, task-aware KNN" in text and "-0.4 ± 0.0 (1)" in text and " 0.0 (2)" in text and "A ↑" in text
    assert "(1) best, (2) second best" in text and "50% & more" in text


def test_markdown():
    lines = EXAMPLE.markdown().splitlines()
    assert lines[2:6] == [
        "| method | A ↑ | F ↓ |",
        "| --- | ---: | ---: |",
        "| er+ | **-0.4** ± 0.0 | - |",
        "| a\\|b_c | *0.0* | 2.0 |",
    ]
    hostile = "<b>&\\|![x](y)\nz"
    table = Table.of(hostile, [hostile], [(hostile,)], hostile).markdown().splitlines()
    plain = r"&lt;b>&amp;\\\|![x]\(y) z"
    assert table == [f"**{plain}**", "", f"| {plain} |", "| --- |", f"| {plain} |", "", f"- {plain}"]


def test_latex():
    lines = EXAMPLE.latex().splitlines()
    assert "booktabs" in lines[0]
    assert r"\caption{b\_1, task-aware KNN. Bold: best, underlined: second best of a column" in lines[2]
    assert r"50\% \& more." in lines[2]
    assert r"method & A ($\uparrow$) & F ($\downarrow$) \\" in lines
    assert r"er+ & \textbf{$-0.4$} {\tiny ($\pm$ 0.0)} & - \\" in lines
    assert lines[lines.index(r"er+ & \textbf{$-0.4$} {\tiny ($\pm$ 0.0)} & - \\") + 1] == r"\midrule"


def test_csv_keeps_every_digit(runs):
    rows = list(csv.DictReader(io.StringIO(EXAMPLE.csv())))
    assert rows[0] == {"method": "er+", "A": "-0.44", "A deviation": "0.02", "A mark": "best", "F": ""}
    rows = {row["method"]: row for row in csv.DictReader(io.StringIO(comparison_table(load_runs([runs])).csv()))}
    assert float(rows["ft"]["A - best A low"]) < float(rows["ft"]["A - best A"]) == -6.0
    assert 0.001 < float(rows["ft"]["p"]) < 0.003 and rows["osiris-d"]["p"] == ""


def test_a_table_is_a_data_frame(runs):
    pytest.importorskip("pandas")
    frame = comparison_table(load_runs([runs])).to_pandas()
    assert frame.set_index("method").loc["osiris-d", "A"] == 51.0 and frame["p"].notna().sum() == 2


def test_tidy_has_a_row_for_each_run_protocol_and_metric(runs, capsys):
    for name in ("numbers.csv", "numbers.parquet"):
        assert main(["compare", str(runs), "--out", str(runs / name)]) == 0
    rows = list(csv.DictReader((runs / "numbers.csv").open()))
    table = pyarrow.parquet.read_table(runs / "numbers.parquet").to_pylist()
    assert len(rows) == len(table) and {row["method"] for row in rows} == {"ft", "osiris-d", "offline"}
    accuracy = {(row["method"], row["seed"]): float(row["value"]) for row in rows if row["metric"] == "A"}
    assert len(accuracy) == 9 and accuracy["osiris-d", "0"] == 50.0
    assert {row["metric"] for row in rows if row["method"] == "offline"} == {"A", "C", "A[1,1]", "A[1,2]"}
    assert [row["value"] for row in table if row["metric"] == "A"] == list(accuracy.values())
    assert {(row["protocol"], row["fingerprint"]) for row in rows} == {("class-agnostic", "hash200")}
    assert main(["compare", str(runs), "--out", str(runs / "numbers.xlsx")]) == 2
    assert "ends in .csv or .parquet" in capsys.readouterr().err


def test_latex_has_no_hyphen_for_a_minus(runs):
    table = comparison_table(load_runs([runs]), against="osiris-d")
    cells = table.latex().splitlines()
    (row,) = (line for line in cells if line.startswith("ft &"))
    assert r"$-6.0$ {\tiny [$-7." in row and r"$<$ 0.001" in "\n".join(cells)
    assert table.latex().isascii()


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_compiles(runs, tmp_path):
    tables = [
        EXAMPLE,
        comparison_table(load_runs([runs]), with_paper=True),
        published_table("split-cifar100-20", "task-aware"),
    ]
    tables += [*json_tables(), Table.of("写真 φ −3 → “x”", ["été", "p"], [("2026-11 & 写真_1", "< 0.001")], "50% ± 1…")]
    body = "\n".join(table.latex() for table in tables)
    text = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n" + body + "\\end{document}\n"
    (tmp_path / "paper.tex").write_text(text)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and (tmp_path / "paper.pdf").exists(), done.stdout[-2000:]


def json_tables() -> list[Table]:
    """Those of `osiris list methods`, with arrows and ticks."""
    return msgspec.json.decode(TABLES.read_bytes(), type=list[Table])


def test_published_numbers_are_those_of_the_paper():
    assert benchmarks() == ["split-cifar100-5", "split-cifar100-20", "structured-cifar100", "structured-tiny-imagenet"]
    number = published("split-cifar100-20")["osiris-d"]["A"]
    assert (number.mean, number.deviation, number.count) == (50.1, 0.2, 3)
    assert published("structured-tiny-imagenet", "task-aware")["offline"].keys() == {"A", "C"}
    assert published_ablation("task-aware")["osiris-d"] == published("split-cifar100-20", "task-aware")["osiris-d"]
    numbers = [value for rows in document()["results"].values() for row in rows.values() for value in row]
    assert len(numbers) == 2 * (12 + 12 + 7 + 7)
    with pytest.raises(UserError, match="Did you mean 'split-cifar100-20'"):
        published("split-cifar-20")
    with pytest.raises(UserError, match="class-agnostic and task-aware"):
        published("split-cifar100-20", "task-aware-masked")


def test_published_marks_of_the_main_columns():
    made = by_method(published_table("split-cifar100-5", "class-agnostic"))
    assert (
        made["osiris-d"][1].mark == "best" and made["osiris-r"][1].mark == "second" and made["offline"][1].mark is None
    )
    assert made["der"][3].mark == "second"  # the paper underlines pocon's 9.3 below der's 9.6


@pytest.mark.parametrize("form", ["text", "markdown", "latex", "csv"])
def test_commands_print(runs, capsys, form):
    assert main(["compare", str(runs), "--format", form, "--with-paper"]) == 0
    printed = capsys.readouterr().out
    assert "51.0" in printed and "50.1" in printed
    assert main(["paper", "--protocol", "task-aware", "--format", form]) == 0
    printed = capsys.readouterr().out
    assert "86.7" in printed
    for kind in ("ablation", "environments"):
        assert main(["paper", "--table", kind, "--format", form]) == 0
    printed = capsys.readouterr().out
    assert "osiris-d/no-past" in printed


def notes(table: Table) -> str:
    return "\n".join(table.notes)


def test_runs_without_a_common_seed_are_independent_samples(tmp_path: Path) -> None:
    for seed, accuracy in ((0, 50.0), (1, 52.0)):
        write_run(tmp_path, "ft", seed, accuracy)
    for seed, accuracy in ((2, 60.0), (3, 62.0)):
        write_run(tmp_path, "er", seed, accuracy)
    table = comparison_table(load_runs([tmp_path]))
    text = notes(table)
    assert "t-test of independent samples, because no two seeds are shared" in text and "same seeds of" not in text
    write_run(tmp_path, "er", 0, 60.0)
    write_run(tmp_path, "er", 1, 63.0)
    text = notes(comparison_table(load_runs([tmp_path])))
    assert "no two seeds are shared" not in text and "the same seeds of both" in text
    write_run(tmp_path, "osiris-d", 5, 55.0)
    text = notes(comparison_table(load_runs([tmp_path])))
    assert "osiris-d: other test images, with these very runs (nothing is said about other seeds)" in text
    each = [notes(comparison_table(load_runs([tmp_path]), varying=one)) for one in ("seeds", "images", "both")]
    assert len(set(each)) == 3 and "random effects" in each[2]
