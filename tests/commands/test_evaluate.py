"""`osiris evaluate` as a user types it, on tinyworld at smoke size."""

import csv
import io
import json
import re
import shutil
from pathlib import Path

import pytest

import osiris
from osiris.cli import main
from osiris.commands.evaluate import parse
from osiris.evaluation.config import BASELINES
from osiris.files import load_metadata
from osiris.reporting.comparison import main_table
from osiris.reporting.studies import studies
from osiris.reporting.tables import Number
from osiris.runs.run import load_runs
from osiris.training import evaluating
from pictures import write_pictures
from tiny_runs import arguments, episode, newest


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, arrays: str) -> Path:
    """A finished run of three tasks; its encoder has a stem of stride 2."""
    out = tmp_path_factory.mktemp("runs") / "run"
    assert main(arguments(arrays, out)) == 0
    return out


def scores(out: Path, name: str) -> dict:
    """The numbers in a file, without the key by which they are used again."""
    return numbers_in(out / f"{name}.safetensors")


def own_scores(run: Path, task: int) -> dict:
    return numbers_in(episode(run, task).evaluation)


def numbers_in(path: Path) -> dict:
    numbers = load_metadata(path)["numbers"]
    return {field: value for field, value in numbers.items() if field != "key"}


def evaluated(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many encoders were evaluated by a call, not read from files."""
    calls, original = [], evaluating.evaluate_encoder
    with monkeypatch.context() as context:
        context.setattr(evaluating, "evaluate_encoder", lambda *args: calls.append(0) or original(*args))
        assert main(["evaluate", *arguments]) == 0
    return len(calls)


def test_the_run_gives_the_defaults_wherever_it_stands(run: Path, arrays: str) -> None:
    for argv in ([str(run), "--k", "5"], ["--k", "5", str(run)]):
        _, args, _ = parse(argv)
        assert (args.data.benchmark, args.protocol.k, args.threads) == (arrays, 5, 1)


def test_a_run_a_checkpoint_and_the_file_as_an_encoder_agree(run: Path, tmp_path: Path, capsys) -> None:
    assert main(["evaluate", str(run), "--out", str(tmp_path / "run")]) == 0
    own = json.loads((run / "metrics.json").read_text())
    again = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert again["protocols"] == own["protocols"] and again["fingerprint"] == own["fingerprint"]
    checkpoint = episode(run, 2).weights
    assert main(["evaluate", str(checkpoint), "--out", str(tmp_path / "one")]) == 0
    assert scores(tmp_path / "one", "task-02") == own_scores(run, 2)
    config = json.loads((run / "config.json").read_text())["config"]
    protocol = ["--benchmark", config["data"]["benchmark"], "--k", "3", "--threads", "1", "--device", "cpu"]
    assert main(["evaluate", "--encoder", str(checkpoint), *protocol, "--out", str(tmp_path / "file")]) == 0
    assert scores(tmp_path / "file", "encoder") == own_scores(run, 2)
    assert "class-agnostic" in capsys.readouterr().out


def test_a_probe_that_is_measured_afterwards_is_a_protocol_of_the_run(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    before = (copied / "metrics.json").read_bytes()
    assert main(["compare", str(copied), "--protocol", "class-agnostic-probe"]) != 0
    assert "`osiris evaluate RUN --protocols class-agnostic class-agnostic-probe` adds them" in capsys.readouterr().err
    assert main(["evaluate", str(copied), "--probe"]) == 0
    assert (copied / "metrics.json").read_bytes() == before
    plain, probed = load_runs([run])[0], load_runs([copied])[0]
    added = set(probed.metrics.protocols) - set(plain.metrics.protocols)
    assert added == {"class-agnostic-probe", "task-aware-probe"}
    assert {name: probed.metrics[name] for name in plain.metrics.protocols} == plain.metrics.protocols
    hits = probed.hits("class-agnostic-probe")
    assert hits is not None and 100 * hits[0].mean() == pytest.approx(probed.metrics["class-agnostic-probe"].A)
    capsys.readouterr()
    assert main(["compare", str(copied), "--protocol", "class-agnostic-probe", "--format", "csv"]) == 0
    assert f"{probed.metrics['class-agnostic-probe'].A:.1f}" in capsys.readouterr().out
    assert main(["report", str(copied), "--out", str(tmp_path / "report")]) == 0
    assert "class-agnostic linear probe" in (tmp_path / "report" / "report.html").read_text()


def test_numbers_of_other_weights_are_not_added(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    assert main(["evaluate", str(copied), "--probe"]) == 0
    path = next((copied / "evaluations").glob("*/metrics.json"))
    record = json.loads(path.read_text())
    matrix = record["protocols"]["class-agnostic"]["accuracy_matrix"]
    record["protocols"]["class-agnostic"]["accuracy_matrix"] = [[100 - value for value in row] for row in matrix]
    path.write_text(json.dumps(record))
    assert "class-agnostic-probe" not in load_runs([copied])[0].metrics.protocols
    assert "is left out" in capsys.readouterr().err


def test_training_with_the_probe_gives_what_evaluate_gives(run: Path, arrays: str, tmp_path: Path) -> None:
    out = tmp_path / "probed"
    assert main([*arguments(arrays, out), "--probe"]) == 0
    assert main(["evaluate", str(run), "--probe", "--out", str(tmp_path / "after")]) == 0
    trained = json.loads((out / "metrics.json").read_text())
    after = json.loads((tmp_path / "after" / "metrics.json").read_text())
    assert trained["protocols"] == after["protocols"] and "task-aware-probe" in trained["protocols"]


def test_an_unfinished_run_is_not_compared_with_finished_ones(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = Path(shutil.copytree(run, tmp_path / "part"))
    for name, task in (("without-the-first", 1), ("unfinished", 3)):
        episode(part, task).weights.unlink()
        assert main(["evaluate", str(part), "--out", str(tmp_path / name)]) == 0
        assert load_runs([tmp_path / name])[0].metrics.complete == (task == 1)
    assert main(["compare", str(run), str(tmp_path / "unfinished"), "--by", "run"]) == 2
    assert "let it finish" in capsys.readouterr().err.replace("\n", " ")


def test_tasks_in_another_order_have_no_forgetting(run: Path, arrays: str, tmp_path: Path) -> None:
    """A[t, i] is after task t of the run: with other tasks, or in another order, F, K and T mean nothing."""
    moved = shutil.copyfile(arrays.partition(":")[2], tmp_path / "moved.npz")
    cases = {
        "shuffled": ["--shuffle-tasks", "1"],
        "fewer": ["--test-per-class", "2"],
        "moved": ["--benchmark", f"arrays:{moved}"],
    }
    for name, options in cases.items():
        assert main(["evaluate", str(run), *options, "--out", str(tmp_path / name)]) == 0
        (evaluated,) = load_runs([tmp_path / name])
        values = evaluated.metrics["class-agnostic"].values()
        assert values["A"] is not None and evaluated.metrics.complete
        assert [values[letter] is None for letter in "FKT"] == [name == "shuffled"] * 3


def test_numbers_are_used_again_only_for_the_same_weights_data_and_protocol(
    run: Path, arrays: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    weights = Path(shutil.copyfile(episode(run, 1).weights, "weights.safetensors"))
    given = ["--encoder", str(weights), "--benchmark", arrays, "--threads", "1"]
    assert [evaluated([*given, "--k", "3"], monkeypatch) for _ in range(2)] == [1, 0]
    shutil.copyfile(episode(run, 2).weights, weights)
    assert [evaluated([*given, "--k", "3"], monkeypatch) for _ in range(2)] == [1, 0]
    found = [scores(folder, "encoder") for folder in Path("evaluations").iterdir()]
    assert len(found) == 2, "a file of the same name does not replace the numbers of another"
    assert all(own_scores(run, task) in found for task in (1, 2))
    assert [evaluated([*given, "--k", k, "--out", "out"], monkeypatch) for k in "3355"] == [1, 0, 1, 0]


def test_numbers_of_a_run_are_not_replaced(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "other"
    place.mkdir()
    shutil.copyfile(episode(run, 1).evaluation, place / "task-01.safetensors")
    assert main(["evaluate", str(run), "--k", "5", "--out", str(place)]) == 2
    assert "choose another --out" in capsys.readouterr().err.replace("\n", " ")


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
    assert list(loaded.baseline_accuracies("class-agnostic")) == ["patches", "pixels"]
    (study,), _ = studies([loaded])
    rows = {str(row[0]): row for row in main_table(study, "class-agnostic").rows}
    assert {"patches", "untrained encoder"} <= rows.keys()
    assert Number(loaded.baseline_accuracies("class-agnostic")["pixels"]) in rows["pixels"]


@pytest.mark.parametrize("other", [["--k", "5"], ["--test-per-class", "2"]])
def test_a_baseline_on_other_data_is_not_kept_with_the_run(
    other: list[str], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    assert main(["evaluate", str(copy), "--baseline", "pixels"]) == 0
    assert "reports" not in capsys.readouterr().err
    before = (copy / "baselines.json").read_bytes()
    assert main(["evaluate", str(copy), "--baseline", "pixels", *other]) == 0
    assert (copy / "baselines.json").read_bytes() == before
    assert "its reports will not show these numbers of pixels" in capsys.readouterr().err.replace("\n", " ")


def test_every_way_to_evaluate_sets_the_threads(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pictures(tmp_path / "labelled" / "a", 3, seed=0)
    write_pictures(tmp_path / "labelled" / "b", 3, seed=1)
    for number, way in enumerate(([], ["--compatibility"], ["--reference", str(tmp_path / "labelled")])):
        given = list[int]()
        monkeypatch.setattr("torch.set_num_threads", given.append)
        out = ["--out", str(tmp_path / str(number))]
        assert main(["evaluate", str(run), *way, "--threads", "3", *([] if number == 2 else out)]) == 0
        assert given == [3]


def test_compatibility_is_kept_with_the_run_and_compared(run: Path, tmp_path: Path, capsys) -> None:
    assert main(["evaluate", str(run), "--compatibility", "--out", str(tmp_path)]) == 0
    (loaded,) = load_runs([run])
    assert loaded.compatibility is None, "it went elsewhere"
    assert main(["compare", str(run)]) == 0
    assert "R@10" not in capsys.readouterr().out
    assert main(["evaluate", str(run), "--compatibility"]) == 0
    shown = capsys.readouterr().out
    path = run / "compatibility.json"
    assert path.read_bytes() == (tmp_path / "compatibility.json").read_bytes(), "the same numbers at every call"
    record = osiris.compatibility(run, out=tmp_path / "python")
    (loaded,) = load_runs([run])
    assert loaded.compatibility == record and 0 < (record.raw.mean_recall or 0) < (record.mapped.mean_recall or 0) < 100
    assert (record.queries, record.gallery, record.map_images) == (24, 42, 42)
    matrices = record.raw.recall, record.mapped.recall
    pairs = [pair for rows in zip(*matrices) for pair in zip(*rows)]
    assert len(pairs) == 3 and all(f"{raw:.0f} / {mapped:.0f}" in shown for raw, mapped in pairs)
    assert all(f"{value:.1f}" in shown for value in record.values().values() if value is not None)
    assert main(["compare", str(run), "--format", "csv"]) == 0
    out, err = capsys.readouterr()
    (row,) = (row for row in csv.DictReader(io.StringIO(out)) if row["method"] == "osiris-d")
    assert {name: float(row[name]) for name in record.values()} == record.values()
    assert "24 queries, 42 images in the index, 42 for each map" in err


def test_compatibility_needs_the_weights_after_every_task(run: Path, tmp_path: Path, capsys) -> None:
    for number, gone in enumerate(([1], [2], [2, 3])):
        copy = Path(shutil.copytree(run, tmp_path / str(number)))
        for task in gone:
            episode(copy, task).weights.unlink()
        assert main(["evaluate", str(copy), "--compatibility"]) == 2
        assert re.search(r"after all tasks.*has the weights of task-0", capsys.readouterr().err.replace("\n", " "))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "give one of"),
        (["--baseline", "pixels", "--encoder", "x:y"], "give one of"),
        (["--baseline", "pixels"], "choose the data with --benchmark"),
        (["--encoder", "nothere.pt", "--benchmark", "nothere"], "nothere.pt is not a file"),
        (["nowhere"], "does not exist"),
        (["{run}/.."], r"is a folder of 1 runs; evaluate one of them, such as .*run\."),
        (["{run}/episodes"], "is not a run directory"),
        (["{state}"], r"is the training state of a run; give .*weights.safetensors"),
        (["--encoder", "{state}", "--benchmark", "nothere"], "is the training state of a run"),
        (["{run}", "--arch", "resnet18"], "leave them out here"),
        (["{run}", "--compatibility", "--test-per-class", "2"], "is not the data .* with --out"),
        (["{run}", "--compatibility", "--baseline", "pixels"], "--baseline changes nothing with --compatibility"),
        (["{weights}", "--compatibility"], "give its directory"),
        (["{run}", "--compatibility", "--reference", "x"], "not both"),
        (["{run}", "--out", "{run}/config.json/x"], "config.json is a file. Choose another --out"),
    ],
)
def test_refusals_come_before_the_data_is_loaded(given, message, run: Path, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("osiris.data.load.load_benchmark", lambda _: pytest.fail("the data was loaded"))
    places = {"run": run, "state": newest(run), "weights": episode(run, 2).weights}
    assert main(["evaluate", *(part.format(**places) for part in given)]) == 2
    assert re.search(message, capsys.readouterr().err.replace("\n", " "))
