"""The command line as a user types it."""

import json
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from itertools import product
from pathlib import Path

import pytest

from osiris.cli import COMMANDS, main
from osiris.commands import train as train_command
from osiris.errors import UserError
from osiris.framework.methods import ZOO
from osiris.paper.published import benchmarks
from quick import quick
from tiny_runs import arguments, write_arrays

SMOKE = ["--benchmark", "tinyworld", "--preset", "smoke", "--quiet"]


def metrics(path: Path) -> dict:
    return json.loads((path / "metrics.json").read_text())


def test_help_answers_within_a_second_and_names_every_command():
    started = os.times()
    result = subprocess.run([sys.executable, "-m", "osiris", "--help"], capture_output=True, text=True, check=True)
    ended = os.times()
    assert ended.children_user + ended.children_system - started.children_user - started.children_system < 1.0
    assert all(name in result.stdout for name in COMMANDS)
    examples = result.stdout.partition("examples:\n")[2].splitlines()
    assert examples[0].startswith("  osiris observe state photos/"), "own photos come first"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command, capsys):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "xamples:" in text and f"osiris {command}" in text
    assert not re.search(r"usage:.*\bPATH PATH\b", text), "positional arguments have names"
    assert not re.search(r"usage:.* \]", text), "no gaps in the usage"
    assert not re.search(r"\(default[^)]*\)\W*\(default", text), "a default is said once"


def test_help_of_train_shows_every_flag_of_its_examples(capsys):
    with pytest.raises(SystemExit):
        train_command.parse(["--help"])
    text = capsys.readouterr().out
    assert not re.search(r"default:\s*(None|False|\))|\{None\}\||--no-no-", text), "says nothing"
    assert "(default: osiris-d)" in text
    examples, _, options = text.partition("-h, --help")
    flags = set(re.findall(r"--[a-z-]+", examples))
    assert {"--resume", "--config"} < flags
    assert [flag for flag in flags if flag not in re.findall(r"^\W (--[a-z-]+)", options, flags=re.MULTILINE)] == []


def test_list_is_measured_once_and_then_needs_no_torch(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OSIRIS_CACHE", str(tmp_path))
    assert main(["list"]) == 0
    first = capsys.readouterr().out
    code = "import sys; from osiris.cli import main; main(['list']); sys.exit('torch' in sys.modules)"
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert again.stdout == first and "osiris-d" in first and "tinyworld" in first
    assert re.search(r"encoder family +resnet +resnet +resnet +fast", first) and re.search(
        r"norm +gn +gn +gn +-", first
    )
    assert main(["list", "presets", "--benchmark", "tinywold"]) == 2
    assert "Did you mean 'tinyworld'" in capsys.readouterr().err


NAMES = (*ZOO, "er+/plus-replay", "osiris-d/no-cross", "osiris-r/shared-space")
OBJECTIVES = ("dcl", "barlow", "vicreg", "byol", "simsiam", "mocov2+", "mocov3", "swav")


@pytest.mark.parametrize("method", quick(("osiris-d", "offline"), NAMES))
def test_every_method_trains_over_all_tasks_and_reports(method, tmp_path, capsys):
    assert main(["train", *SMOKE, "--method", method, "--out", str(tmp_path / "run")]) == 0
    entry = metrics(tmp_path / "run")["protocols"]["class-agnostic"]
    reported = {name for name in "AFKCT" if entry[name] is not None}
    assert reported == (set("AC") if method in ("offline", "d1-only") else set("AFKCT"))
    assert method in capsys.readouterr().out


@pytest.mark.parametrize(
    ("method", "objective"), quick({("cassle", "swav")}, product(("ft", "er", "cassle", "osiris-d"), OBJECTIVES))
)
def test_every_objective_trains(method, objective, arrays, tmp_path):
    """At a rate that suits the scale of all losses: at 0.05, VICReg diverges on this tiny benchmark."""
    options = ("--objective", objective, "--learning-rate", "0.001")
    assert main(arguments(arrays, tmp_path / "run", method, *options)) == 0
    assert metrics(tmp_path / "run")["method"] == f"{method}[objective={objective}]"
    assert metrics(tmp_path / "run")["protocols"]["class-agnostic"]["A"] is not None


def test_config_json_runs_the_run_again(arrays, tmp_path):
    composed = arguments(arrays, tmp_path / "a", "osiris-d", "--past", "replay+distil", "--cross-weight", "0.3")
    assert main(composed) == 0
    record = json.loads((tmp_path / "a" / "config.json").read_text())
    assert [term["kind"] for term in record["composition"]["past"]] == ["contrast", "distil"]
    assert main(["train", "--config", str(tmp_path / "a/config.json"), "--out", str(tmp_path / "b"), "--quiet"]) == 0
    assert (tmp_path / "a/metrics.json").read_bytes() == (tmp_path / "b/metrics.json").read_bytes()


def test_a_finished_run_is_left_alone_and_never_overwritten(arrays, tmp_path, capsys):
    run = tmp_path / "run"
    typed = arguments(arrays, run)
    (tmp_path / "text").write_text("no weights")
    assert main([*typed, "--init", str(tmp_path / "text")]) == 2, "weights that do not fit claim no directory"
    assert "Traceback" not in capsys.readouterr().err
    assert main(typed) == 0
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    assert main(typed) == 0
    assert "already finished" in capsys.readouterr().err
    assert main(arguments(arrays, run, "ft", "--seed", "1", "--evaluate-every", "4")) == 2
    error = capsys.readouterr().err
    assert "already contains a different run" in error and "method.method is 'osiris-d' there and 'ft' here" in error
    assert "seed is 0" in error and "evaluate_every is None" in error
    assert main(["train", "--resume", str(run), "--benchmark", "split-tinyworld-5"]) == 2
    assert "different run" in capsys.readouterr().err
    config = ["train", "--config", str(run / "config.json"), "--benchmark", "tinywold", "--out", str(tmp_path / "two")]
    assert main(config) == 2
    assert "tinywold" in capsys.readouterr().err
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--method", "osirs-d"], "Did you mean 'osiris-d'?"),
        (["--method", "osiris-d/no-crss"], "Did you mean 'no-cross'?"),
        (["--past", "distill"], "Did you mean 'distil'?"),
        (["--method", "ft", "--cross-weight", "1"], "changes nothing"),
        (["--epochs", "0"], "--epochs 0: give a whole number of at least 1."),
        (["--batch-size", "-3"], "--batch-size -3: give a whole number of at least 4."),
        (["--learning-rate", "-1"], "--learning-rate -1: give a number of at least 1e-12."),
        (["--width", "3"], "--width 3"),
        (["--memory-size", "10"], "the memory holds 10 images"),
        (["--cross-weight", "-1"], "--cross-weight -1: give a number of at least 0."),
        (["--k", "0"], "--k 0: give a whole number of at least 1."),
        (["--device", "tpu"], "unknown device"),
        (["--micro-batch", "0"], "--micro-batch 0: give a whole number of at least 1."),
        (["--track-overfitting", "0"], "--track-overfitting 0: give"),
        (["--threads", "0"], "--threads 0: give"),
        (["--family", "fast", "--norm", "bn"], "--norm bn needs --family resnet"),
        (["--norm", "bn", "--micro-batch", "4"], "--micro-batch would change the statistics of BatchNorm"),
    ],
)
def test_bad_input_gets_one_message_and_exit_code_2(given, message, tmp_path, capsys):
    assert main(["train", *SMOKE, *given, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert not (tmp_path / "run" / "metrics.json").exists()


def test_names_with_brackets_are_shown_as_they_are(tmp_path, capsys, monkeypatch):
    """They would be markup in a title: `[/b]` closes a tag that was never opened."""
    monkeypatch.chdir(tmp_path)
    Path("x[").mkdir()
    name, run = write_arrays(Path("x[/b].npz")), "x[/b] run"
    for command in (arguments(name, Path(run), "ft"), ["evaluate", run], ["status", run], ["doctor", "--out", run]):
        assert main(command) == 0
        assert "x[/b]" in "".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "given", [["--method", "osirs-d"], ["--past", "distill"], ["--epochs", "0"], ["--benchmark", "tinywold"]]
)
def test_a_wrong_argument_is_refused_before_anything_else_is_printed(given, tmp_path, capsys):
    assert main(["train", *given, "--device", "cpu", "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.startswith("osiris: ")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["train", "--benchmark", "tinywold", "--preset", "smoke"], "Did you mean 'tinyworld'?"),
        (["train", "--preset", "fastt"], "Did you mean 'fast'?"),
        (["trian"], "Did you mean 'train'?"),
        (["train", "--resume", "nowhere"], "nowhere is not a run directory"),
        (["train", "--config", "nowhere.json", "--preset", "fast"], "--preset cannot be combined"),
        (["train", "--config", "nowhere.json"], "nowhere.json does not exist"),
        (["train", "--config", "notes.txt"], "notes.txt cannot be read"),
        (["export", "nowhere"], "nowhere does not exist"),
        (["search", "nowhere", ".", "nowhere.jpg"], "nowhere.jpg does not exist"),
    ],
)
def test_unknown_names_and_missing_files(given, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("not JSON")
    assert main(given) == 2
    assert message in capsys.readouterr().err


def test_a_directory_with_other_files_and_an_unwritable_one_are_refused(tmp_path, capsys):
    (tmp_path / "letter.txt").write_text("dear diary")
    assert main(["train", *SMOKE, "--out", str(tmp_path)]) == 2
    assert "contains other files" in capsys.readouterr().err
    assert main(["train", *SMOKE, "--out", str(tmp_path / "letter.txt" / "run")]) == 2
    assert "cannot write to" in capsys.readouterr().err


@pytest.mark.real_data
@pytest.mark.parametrize("benchmark", quick({"structured-cifar100"}, benchmarks()))
def test_the_four_benchmarks_of_the_paper(benchmark, tmp_path, real_data):
    out = tmp_path / "run"
    assert main(["train", "--benchmark", benchmark, "--preset", "smoke", "--quiet", "--out", str(out)]) == 0
    tasks = {"split-cifar100-5": 5, "split-cifar100-20": 20}.get(benchmark, 10)
    assert len(metrics(out)["protocols"]["task-aware"]["accuracy_matrix"]) == tasks


def test_without_a_preset_the_device_and_the_number_of_images_decide(tmp_path, monkeypatch, capsys):
    from osiris.commands.train import parse
    from osiris.presets import configure

    (tmp_path / "week").mkdir()
    for number in range(200):
        (tmp_path / "week" / f"{number}.png").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="unknown benchmark 'folder:'"):
        configure("folder:", "fast")  # a folder that is not named is not the current one
    typed = ["--benchmark", f"folder:{tmp_path}", "--device", "cpu"]
    learning = parse(typed).settings.learning
    assert (learning.memory_size, learning.batch_size, learning.epochs) == (50, 46, 23)
    told = "fast, because there is no GPU: epochs 23, batch 46, memory 50 images."
    assert told in " ".join(capsys.readouterr().err.split())
    parse([*typed, "--epochs", "1"]).settings.check()
    assert parse([*typed, "--memory-size", "300"]).settings.learning.memory_size == 300
    assert parse(["--device", "cpu", "--preset", "smoke"]).settings.preset == "smoke"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    capsys.readouterr()
    assert parse(["--benchmark", "tinyworld"]).settings.preset == "paper"
    assert "paper, because there is a GPU (--preset gpu" in " ".join(capsys.readouterr().err.split())


def test_doctor_names_missing_requirements(monkeypatch, capsys):
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert f"{metadata.version('torch')}" in printed and "device chosen by auto" in printed and "missing" not in printed
    requirements = ["torch>=2.6", "absent-package>=1", "absent-extra; extra == 'photos'"]
    monkeypatch.setattr(metadata, "requires", lambda name: requirements)
    assert main(["doctor"]) == 1
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "missing: pip install -c constraints.txt -e . in" in printed and "-e '.[photos]'" in printed


@pytest.mark.parametrize(("cuda", "advice"), [(None, "install one with CUDA"), ("12.8", "update the driver")])
def test_doctor_finds_a_gpu_that_torch_cannot_use(cuda, advice, monkeypatch, capsys):
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if name == "nvidia-smi" else None)
    monkeypatch.setattr("torch.version.cuda", cuda)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["doctor"]) == 0
    assert advice in " ".join(capsys.readouterr().out.replace("│", " ").split())


@pytest.mark.parametrize("option", ["--image-size", "--epochs"])
@pytest.mark.parametrize("command", ["observe state photos", "train"])
def test_a_number_that_is_none_is_named_in_one_sentence(
    command: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), option, "big"]) == 2
    expected = f"osiris: {option} big: give a whole number.\n"
    assert capsys.readouterr().err == expected


@pytest.mark.skipif("glibc" not in platform.libc_ver(), reason="of glibc alone")
def test_commands_keep_the_memory_that_torch_frees():
    """Memory that was returned to the system faults again, page by page."""
    script = """
import resource, torch
from osiris.cli import keep_freed_memory
keep_freed_memory()
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        kept = [torch.ones(2**22) for _ in range(4)]
        del kept
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    chosen = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}

    def faults(**environment: str) -> int:
        command = [sys.executable, "-c", script]
        return int(subprocess.run(command, env=chosen | environment, capture_output=True, check=True).stdout)

    assert faults() < 100
    # The choice of the user stays.
    assert faults(MALLOC_TRIM_THRESHOLD_="131072") > 200  # with huge pages; otherwise 131,072
