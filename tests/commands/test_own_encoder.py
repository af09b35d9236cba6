"""`--encoder package.module:function`: code is imported because the user typed it, never because a file names it."""

import json
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from osiris import cli
from osiris.errors import Stopped
from osiris.files import load_tensors
from osiris.index import newest
from osiris.models import external
from osiris.models.external import PYTHON_ENTRY, typed_encoder
from osiris.runs.directory import read_config
from tiny_runs import arguments, asked_to_stop, episode, last_state, pictures

CODE = """
from pathlib import Path

import torch
from torch import nn

Path("imported").touch()


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(128, 12))


def build():
    return Net()


module = build()
number = 3


def loaded():
    # With the weights of `module`.
    network = build()
    network.load_state_dict(module.state_dict())
    return network
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with `nets.py`, in which commands are typed; nothing of it is known to this process yet."""
    (tmp_path / "nets.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(external, "_registered", {})
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    return tmp_path


def forget(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    """As in a new process."""
    monkeypatch.setattr(external, "_registered", {})
    sys.modules.pop("nets", None)
    newest.open_embedder.cache_clear()
    (here / "imported").unlink(missing_ok=True)


def typed(arrays: str, out: str, encoder: str, *more: str) -> list[str]:
    return [*arguments(arrays, Path(out), "ft"), "--encoder", encoder, "--epochs", "1", *more]


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_a_typed_function_is_recorded_by_name_and_must_be_typed_again(
    arrays: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], signals_arrive: None
) -> None:
    with asked_to_stop(1, 1):
        assert cli.main(typed(arrays, "run", "nets:build")) == Stopped.exit_code
    assert "Give the same command again to continue" in error_of(capsys)
    config = read_config(Path("run"))
    assert config.encoder.encoder == "own:build" and not config.pretrained and not config.encoder.pretrained
    forget(monkeypatch, here)
    assert cli.main(["train", "--resume", "run", "--quiet"]) == 2
    message = error_of(capsys)
    assert "own:build" in message and "nets.build" in message and "--encoder package.module:function" in message
    assert not Path("imported").exists(), "a run directory names it, and that is not enough"
    assert cli.main(["train", "--resume", "run", "--encoder", "nets:build", "--quiet"]) == 0
    assert Path("imported").exists()
    assert cli.main(typed(arrays, "whole", "nets:build")) == 0
    assert last_state(Path("run")) == last_state(Path("whole"))
    assert not list(Path("run").rglob("start.*"))


def test_a_module_counts_as_pretrained_and_a_function_only_if_said(arrays: str, here: Path) -> None:
    for out, entry, more in (
        ("module", "nets:module", ()),
        ("said", "nets:build", ("--pretrained", "--normalise", "half")),
    ):
        command = typed(arrays, out, entry, "--freeze", "0", *more)
        assert cli.main(command) == 0
        config = read_config(Path(out))
        assert config.pretrained and config.learning.statistics == "frozen" and config.learning.merge < 1
        assert episode(Path(out), 0).evaluation.exists()
        assert cli.main(command) == 0, "the same command again returns the finished run"
        assert cli.main(["train", "--resume", out, "--encoder", entry, "--quiet"]) == 0
    assert cli.main(typed(arrays, "not", "nets:module", "--no-pretrained")) == 0
    assert not read_config(Path("not")).pretrained and read_config(Path("not")).learning.merge == 1


@pytest.mark.parametrize("name", ["nets:build", "own:build", "os:system", "hf:nets:build"])
def test_what_files_name_is_never_imported(
    name: str, arrays: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(typed(arrays, "run", "nets:build")) == 0
    record = json.loads(Path("run/config.json").read_text())
    record["config"]["encoder"]["encoder"] = name
    Path("hostile.json").write_text(json.dumps(record))
    forget(monkeypatch, here)
    assert cli.main(["train", "--config", "hostile.json", "--out", "again", "--quiet"]) == 2
    if name == "own:build":
        assert cli.main(["embed", "run", "photos"]) == 2
        assert cli.main(["evaluate", "run"]) == 2
    assert "osiris:" in error_of(capsys) and not Path("imported").exists() and "nets" not in sys.modules


def test_entries_that_are_no_encoders(here: Path, arrays: str, capsys: pytest.CaptureFixture[str]) -> None:
    for entry, message in (
        ("nowhere.at.all:build", "No module named 'nowhere'"),
        ("nets:missing", "has no function 'missing'"),
        ("nets:number", "a function that builds one, not int"),
    ):
        assert cli.main(typed(arrays, "run", entry)) == 2
        assert message in error_of(capsys)
    assert not Path("run").exists()
    assert typed_encoder("hf:a/b") == "hf:a/b" and typed_encoder("resnet18") == "resnet18"
    assert not PYTHON_ENTRY.fullmatch("../x:y") and not PYTHON_ENTRY.fullmatch("x:y.z") and str(here) not in sys.path


def write_photos(here: Path) -> None:
    images, _, tasks = pictures(3, seed=3)
    for number, (image, task) in enumerate(zip(images, tasks)):
        (here / "photos" / str(task)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(here / "photos" / str(task) / f"{number}.png")


SMOKE = ("--preset", "smoke", "--image-size", "16", "--quiet")
SMALL = (*SMOKE, "--epochs", "1", "--memory-size", "8", "--freeze", "0")


def test_a_function_that_loads_weights_starts_a_state_without_a_word_of_torch(
    here: Path, recwarn: pytest.WarningsRecorder
) -> None:
    write_photos(here)
    own = ["--encoder", "nets:loaded", "--pretrained", "--method", "osiris-d"]
    assert cli.main(["observe", "state", "photos/0", *own, *SMALL]) == 0
    assert read_config(Path("state")).pretrained
    assert not [one for one in recwarn if "non-meta" in str(one.message)]


@pytest.mark.parametrize("learning", [("--method", "osiris-d", *SMALL), SMOKE], ids=["osiris-d", "readout"])
def test_a_state_of_an_own_encoder_on_the_command_line(
    learning: tuple[str, ...], here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """observe, status, embed, search, export and report."""
    write_photos(here)
    own = ["--encoder", "nets:module"]

    def new(*command: str) -> int:
        forget(monkeypatch, here)
        return cli.main(list(command))

    assert new("observe", "state", "photos/0", *own, *learning) == 0
    assert new("observe", "state", "photos/1", "--quiet") == 2
    assert "own:module" in error_of(capsys)
    assert new("observe", "state", "photos/1", *own, "--quiet") == 0
    assert new("status", "state") == 0 and not Path("imported").exists()
    for command in (["embed", "state", "photos"], ["search", "state", "photos", "photos/0/0.png"]):
        assert new(*command) == 2 and "own:module" in error_of(capsys)
        assert new(*command, *own) == 0
    assert new("export", "state", "--format", "torchscript", *own) == 0
    assert new("report", "state", *own) == 0
    assert torch.jit.load("state-torchscript/model.pt") is not None
    assert load_tensors(episode(Path("state"), 2).weights)[1]["encoder"]["encoder"] == "own:module"


def test_a_run_of_an_own_encoder_is_evaluated_again(
    arrays: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(typed(arrays, "run", "nets:module", "--freeze", "0")) == 0
    forget(monkeypatch, here)
    assert cli.main(["evaluate", "run", "--out", "again"]) == 2 and "own:module" in error_of(capsys)
    assert cli.main(["evaluate", "run", "--encoder", "nets:module", "--out", "again"]) == 0
    first, second = (json.loads(Path(out, "metrics.json").read_text()) for out in ("run", "again"))
    assert first["protocols"] == second["protocols"] and "overall" in second["protocols"]["class-agnostic"]
    assert cli.main(["evaluate", "run", "--encoder", "nets:build", "--out", "other"]) == 2
    assert "give one of" in error_of(capsys)
