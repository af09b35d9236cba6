"""A run from a pretrained encoder is compared with its start (files, G, tests, tables); normalisation of its images."""

import io
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from markupsafe import escape
from msgspec.structs import replace
from rich.console import Console
from torch import nn

import osiris
from osiris.cli import main
from osiris.commands import metrics_table
from osiris.config import with_options
from osiris.data.catalogue import IMAGENET_MEAN, IMAGENET_STD
from osiris.errors import UserError
from osiris.evaluation.scores import Comparison, write_record
from osiris.files import load_tensors, save_tensors
from osiris.framework.representations import Average
from osiris.models.external import encoder_name
from osiris.reporting.page import make_report
from osiris.reporting.studies import levels
from osiris.reporting.tables import Number
from osiris.runs import views
from osiris.training.build import expected_normalisation, initialise
from osiris.training.engine import Engine
from tiny import composed, tiny_benchmark
from tiny_encoders import save_vision_model, seeded
from tiny_runs import TASKS, benchmark, config, episode

OPTIONS: dict[str, Any] = {
    **{"preset": "smoke", "projector_hidden": 16, "projector_output": 8, "epochs": 2, "memory_size": 12},
    **{"k": 3, "batch_size": 12, "threads": 1, "device": "cpu", "learning_rate": 0.03},
}
Train = Callable[..., osiris.Run]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> osiris.Run:
    """A run that starts from nothing; its weights are those of --init."""
    return osiris.train("ft", benchmark(), out=tmp_path_factory.mktemp("scratch") / "run", **OPTIONS, width=8)


@pytest.fixture(scope="module", params=["own", "init", "hf"])
def run(request: pytest.FixtureRequest, scratch: osiris.Run, tmp_path_factory: pytest.TempPathFactory) -> osiris.Run:
    return osiris.train("osiris-d", benchmark(), **OPTIONS, **start(request.param, scratch, tmp_path_factory))


def start(kind: str, scratch: osiris.Run, folders: pytest.TempPathFactory) -> dict[str, Any]:
    out = folders.mktemp("run") / "run"
    if kind == "init":
        return {"out": out, "init": scratch.checkpoint(), "width": 8}
    if kind == "own":
        return {"out": out, "encoder": seeded()}
    pytest.importorskip("transformers")
    return {"out": out, "encoder": f"hf:{save_vision_model(folders.mktemp('model'), 'resnet')}"}


def hits(run: osiris.Run, task: int) -> tuple[np.ndarray, np.ndarray]:
    """(bool [images], their tasks) of one evaluation."""
    arrays = load_tensors(episode(run.path, task).evaluation)[0]
    return (arrays["prediction.class-agnostic"] == arrays["label"]).numpy(), arrays["task"].numpy()


def naive_p(before: np.ndarray, after: np.ndarray) -> float:
    """Of so few or fewer changes in one direction, or so many or more, if each direction is equally likely."""
    gained = sum(bool(new) and not bool(old) for old, new in zip(before, after))
    changed = sum(bool(new) != bool(old) for old, new in zip(before, after))
    tail = sum(math.comb(changed, count) for count in range(min(gained, changed - gained) + 1)) / 2**changed
    return min(1.0, 2 * tail)


def test_the_start_is_evaluated_and_compared(run: osiris.Run) -> None:
    protocol, first = run.metrics["class-agnostic"], run.metrics.start
    assert first is not None and run.metrics.reference_name == "start"
    accuracy = [float(value or 0) for value in first.protocols["class-agnostic"].accuracy]
    assert protocol.random_baseline == accuracy and protocol.A is not None and protocol.T is not None
    assert pytest.approx(protocol.A - sum(accuracy) / TASKS) == protocol.G
    matrix = protocol.accuracy_matrix
    transfer = [float(matrix[task - 1][task] or 0) - accuracy[task] for task in range(1, TASKS)]
    assert pytest.approx(sum(transfer) / len(transfer)) == protocol.T, "T compares with the start"
    (before, tasks), (after, _) = hits(run, 0), hits(run, 3)
    assert protocol.overall is not None and protocol.against_start is not None
    assert protocol.overall.p == pytest.approx(naive_p(before, after)) and protocol.overall.images == len(before)
    assert protocol.overall.difference == pytest.approx(100 * (after.mean() - before.mean()))
    for task, one in enumerate(protocol.against_start):
        part = tasks == task
        assert one is not None and one.p == pytest.approx(naive_p(before[part], after[part]))
        assert one.difference == pytest.approx(float(matrix[-1][task] or 0) - accuracy[task])


def test_tables_show_the_start_and_what_was_gained(run: osiris.Run) -> None:
    output = Console(file=io.StringIO(), width=200)
    output.print(metrics_table([run.metrics]))
    printed = output.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    gain = run.metrics["class-agnostic"].gain
    assert "start" in printed and "untrained" not in printed and "G ↑" in printed and gain and gain in printed
    protocol, table = run.metrics["class-agnostic"], osiris.compare(run)
    assert "start" in table.text() and "untrained" not in table.text()
    gained = [column.name for column in table.columns].index("G")
    assert table.rows[0][gained] == Number(None) and table.rows[1][gained] == Number(protocol.G)


def test_runs_from_several_starts_have_no_common_level(run: osiris.Run, scratch: osiris.Run) -> None:
    protocol = run.metrics["class-agnostic"]
    other = replace(protocol, random_baseline=[0.0] * TASKS)
    moved = osiris.Run(run.path, replace(run.metrics, protocols={"class-agnostic": other}, seed=1))
    assert levels([run, run], "class-agnostic") == {"start": protocol.untrained}
    assert levels([run, moved], "class-agnostic") == {}
    assert list(levels([run, scratch], "class-agnostic")) == ["start", "untrained encoder"]


@pytest.mark.parametrize("run", ["own"], indirect=True)
def test_pages_and_status_show_the_start_and_where_it_was_better(
    run: osiris.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)

    def change(difference: float) -> Any:
        one = Comparison(difference=difference, p=0.0001, images=24)
        every = run.metrics.protocols.items()
        protocols = {name: replace(each, overall=one, against_start=[None, one, None]) for name, each in every}
        write_record(copy / "metrics.json", replace(run.metrics, protocols=protocols))
        assert main(["status", str(copy)]) == 0 and main(["compare", str(copy)]) == 0
        return capsys.readouterr()

    printed = change(20.0)
    assert "significantly" not in printed.out + printed.err
    printed = change(-20.0)
    worse = "osiris-d, seed 0: all tasks (-20.0, p < 0.001), task 2 (class 2, class 3) (-20.0, p < 0.001)"
    assert f"significantly worse than the start: {worse}" in printed.out.replace("\n", " "), "of compare"
    assert f"class-agnostic KNN: A {run.metrics['class-agnostic'].A:.1f}, start " in printed.out
    assert "significantly worse than its start on all tasks" in printed.err.replace("\n", " ")
    page = make_report([copy], tmp_path / "report").read_text()
    body = page.split("</header>")[1]
    assert "start" in body and "untrained" not in page and "<dt>G</dt>" in body and '"n">G ' in body
    assert f"<b>Significantly worse than the start:</b> {escape(worse)}. Use the start" in body
    overview = next((tmp_path / "report" / "figures").glob("*-overview.svg")).read_text()
    assert "start is " in overview or "start lowest" in overview, "a row of the figure"


def test_a_scratch_run_has_no_start(scratch: osiris.Run) -> None:
    assert scratch.metrics.start is None and scratch.metrics.harm is None
    assert scratch.metrics.reference_name == "untrained encoder" and scratch.metrics["class-agnostic"].G is None
    assert not list(scratch.path.rglob("00-start"))


def test_what_is_damaged_is_computed_again(
    scratch: osiris.Run, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    given = start("own", scratch, tmp_path_factory)
    whole = osiris.train("ft", benchmark(), **OPTIONS, **given)
    path = whole.files.start.evaluation
    content = path.read_bytes()
    for damaged in (b"{", None):
        path.write_bytes(damaged) if damaged else path.unlink()
        again = osiris.train("ft", benchmark(), **OPTIONS, **given)
        assert again.metrics == whole.metrics and path.read_bytes() == content
        assert "computed again" in capsys.readouterr().err.replace("\n", " ")
    tensors = load_tensors(whole.files.start.weights)[0]
    for name, value in seeded().state_dict().items():
        assert torch.equal(tensors[f"encoder.{name}"], value), "the start is what was given"


def test_harm_is_said_in_one_sentence(
    run: osiris.Run, scratch: osiris.Run, tmp_path_factory: pytest.TempPathFactory, monkeypatch, capsys
) -> None:
    protocol = run.metrics["class-agnostic"]

    def harm(difference: float, p: float) -> str | None:
        changed = replace(protocol, overall=Comparison(difference=difference, p=p, images=24), against_start=[None] * 3)
        return replace(run.metrics, protocols={"class-agnostic": changed}).harm

    assert harm(-9.0, 0.2) is None and harm(9.0, 0.01) is None
    assert "worse than its start on all tasks (-9.0, p = 0.010), class-agnostic" in (harm(-9.0, 0.01) or "")
    worse = Comparison(difference=-20.0, p=0.0001, images=8)
    monkeypatch.setattr(views, "compare_arrays", lambda *_: (None, [None, worse, None]))
    hurt = osiris.train("ft", benchmark(), **OPTIONS, **start("own", scratch, tmp_path_factory))
    assert hurt.metrics.harm is None, "nothing is known about all tasks"
    monkeypatch.setattr(views, "compare_arrays", lambda *_: (worse, [None, worse, None]))
    osiris.train("ft", benchmark(), **OPTIONS, **start("own", scratch, tmp_path_factory))
    message = capsys.readouterr().err.replace("\n", " ")
    assert "significantly worse than its start on all tasks (-20.0, p < 0.001), task 2" in message


def test_moving_averages_start_from_the_given_weights(scratch: osiris.Run) -> None:
    """f~ of byol is f at step 0, and both are what --init says."""
    settings = with_options(config("ft"), {"init": scratch.checkpoint()})
    engine = Engine(settings, composed("ft", "byol"), tiny_benchmark(), torch.device("cpu"))
    given = load_tensors(scratch.checkpoint())[0]
    (average,) = [
        part for part in engine.model.modules() if isinstance(part, Average) and hasattr(part.network, "conv1")
    ]
    for encoder in (engine.networks.encoder, average.network):
        for name, value in encoder.state_dict().items():
            assert torch.equal(value, given[f"encoder.{name}"])


def test_names_of_other_weights_are_taken_as_they_are(tmp_path: Path) -> None:
    """Those of a ViT begin with `embeddings.`, `encoder.` and `layernorm.`."""
    encoder = nn.ModuleDict({name: nn.Linear(2, 2) for name in ("embeddings", "encoder", "layernorm")})
    given = {name: torch.rand_like(value) for name, value in encoder.state_dict().items()}
    save_tensors(tmp_path / "w.safetensors", given)
    initialise(encoder, tmp_path / "w.safetensors")
    assert all(torch.equal(value, given[name]) for name, value in encoder.state_dict().items())


class Expecting(nn.Module):
    """An encoder that says how its images are normalised."""

    def __init__(self, mean: Any = 0.5, std: Any = (0.1, 0.2, 0.3)) -> None:
        super().__init__()
        self.layer, self.mean, self.std = nn.Linear(3, 4), mean, std

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layer(images.mean((2, 3)))


def expected(encoder: nn.Module | None = None, **options: Any) -> Any:
    given = {} if encoder is None else {"encoder": encoder_name(encoder)}
    return expected_normalisation(with_options(config(), given | options))


def test_normalisation_comes_from_the_encoder_or_the_option(tmp_path: Path) -> None:
    assert expected() is None and expected(seeded()) is None
    assert expected(Expecting()) == ((0.5, 0.5, 0.5), (0.1, 0.2, 0.3))
    buffers = Expecting(torch.full((1, 3, 1, 1), 0.25), torch.ones(3))
    assert expected(buffers) == ((0.25, 0.25, 0.25), (1.0, 1.0, 1.0))
    assert expected(Expecting(), normalise="imagenet") == (IMAGENET_MEAN, IMAGENET_STD)
    assert expected(Expecting(), normalise="half") == ((0.5,) * 3, (0.5,) * 3)
    assert expected(normalise="0.1,0.2,0.3/1,2,3") == ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    save_tensors(tmp_path / "w.safetensors", {"x": torch.zeros(1)}, {"mean": [0.1] * 3, "std": [0.2] * 3})
    assert expected(init=tmp_path / "w.safetensors") == ((0.1,) * 3, (0.2,) * 3)
    assert expected(init=tmp_path / "w.safetensors", normalise="half") == ((0.5,) * 3, (0.5,) * 3)


@pytest.mark.parametrize("text", ["imagenett", "1,2,3", "1,2/3,4", "0,0,0/1,0,1", "0,0,0/1,-1,1", "nan,0,0/1,1,1"])
def test_other_forms_of_normalise_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"--normalise .*R,G,B/R,G,B"):
        expected(normalise=text)


@pytest.mark.parametrize(("mean", "std"), [((1, 2), 1.0), (0.5, 0.0), ("grey", 1.0), (0.5, nn.Linear(1, 1))], ids=str)
def test_attributes_that_are_no_statistics_are_refused(mean: Any, std: Any) -> None:
    with pytest.raises(UserError, match=r"mean and std of an encoder|deviations"):
        expected(Expecting(mean, std))


def test_images_of_a_run_are_normalised_as_its_encoder_says(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="use --freeze 0"):
        osiris.train("ft", benchmark(), encoder=Expecting(), out=tmp_path / "run", **OPTIONS)
    run = osiris.train("ft", benchmark(), encoder=Expecting(), out=tmp_path / "run", **OPTIONS, freeze=0.0)
    metadata = load_tensors(run.checkpoint())[1]
    assert (metadata["mean"], metadata["std"]) == ([0.5] * 3, [0.1, 0.2, 0.3])
    again = osiris.train(
        "ft", benchmark(), encoder=Expecting(), out=tmp_path / "half", **OPTIONS, normalise="half", freeze=0.0
    )
    assert load_tensors(again.checkpoint())[1]["std"] == [0.5] * 3
