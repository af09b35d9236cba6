"""--track-overfitting and the function behind it."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fork_server import Pool
from osiris.augment.views import VIEWS
from osiris.evaluation.overfitting import checkpoint_overfitting, overfitting, relative_difference
from osiris.files import load_tensors
from osiris.framework import losses
from osiris.framework.config import MethodConfig
from osiris.training.log import track_overfitting
from process_jobs import build
from tiny_runs import benchmark, config, contents, log, train


def by_index(indices: Tensor, key: torch.Generator) -> dict[str, Tensor]:
    """Views that depend on the image alone; images below 50 have twin views, the others have not."""
    random = [torch.Generator().manual_seed(int(index)) for index in indices]
    views = torch.stack([torch.randn(2, 5, generator=generator) for generator in random], dim=1)
    views[1, indices < 50] = views[0, indices < 50]
    return {"g": F.normalize(views, dim=-1)}


def test_losses_of_equally_many_images_of_past_tasks() -> None:
    seen: list[tuple[str, list[int]]] = []

    def embed(indices: Tensor, key: torch.Generator) -> dict[str, Tensor]:
        seen.append((f"{int(torch.randint(1 << 30, (), generator=key))}", indices.tolist()))
        return by_index(indices, key)

    past, held = torch.arange(40, 100), torch.tensor([3, 7, 7, 9, 11, 3, 20])
    result = overfitting(embed, past, held, (5, 1, 8), size=64, draws=3)
    assert result is not None
    assert len(seen) == 6
    for (key, everything), (same_key, memory) in zip(seen[::2], seen[1::2]):
        assert key == same_key  # the same augmentation for both
        assert len(everything) == len(memory) == 5 and set(everything) <= set(range(40, 100))
        assert sorted(memory) == [3, 7, 9, 11, 20]  # each image once
    expected = {
        name: sum(
            float(losses.contrast(by_index(torch.tensor(indices), torch.Generator())["g"])) for _, indices in part
        )
        / 3
        for name, part in (("all", seen[::2]), ("memory", seen[1::2]))
    }
    assert result["g"]["all"] == pytest.approx(expected["all"])
    assert result["g"]["memory"] == pytest.approx(expected["memory"])
    assert result["g"]["relative"] == pytest.approx((expected["all"] - expected["memory"]) / expected["all"])
    assert result["g"]["relative"] > 0.2  # the memory's twin views are easy
    assert overfitting(by_index, past, held[:3], (5,), size=64) is None
    assert relative_difference(4.0, 3.0) == 0.25


@pytest.mark.parametrize("norm", ["gn", "bn"])
def test_tracking_changes_nothing(norm: str, tmp_path: Path) -> None:
    """The same bits with and without, curve evaluations included; and a line for every measurement."""
    train(config("osiris-d", norm), tmp_path / "without")
    train(config("osiris-d", norm, track_overfitting=2), tmp_path / "with")
    assert contents(tmp_path / "with") == contents(tmp_path / "without")
    lines = log(tmp_path / "with", "overfitting")
    assert [(line["task"], line["step"], line["total_step"]) for line in lines] == [
        (task, step, 6 * (task - 1) + step) for task in (2, 3) for step in (2, 4, 6)
    ]
    for line in lines:
        assert set(line["spaces"]) == {"g", "h"}
        for values in line["spaces"].values():
            assert values["relative"] == pytest.approx((values["all"] - values["memory"]) / values["all"])
    assert log(tmp_path / "without", "overfitting") == []


def test_it_can_be_computed_afterwards(tmp_path: Path) -> None:
    """From the saved networks and memory, as the tracker does at the last step of a task (with its random stream)."""
    train(config("osiris-r"), tmp_path / "run")
    tensors, metadata = load_tensors(tmp_path / "run" / "checkpoints" / "task-03.safetensors")
    learning = config("osiris-r").learning
    settings = VIEWS[learning.views], 0, learning.batch_size, learning.tau
    first = checkpoint_overfitting(tensors, metadata, benchmark(), *settings, draws=40)
    assert first is not None and set(first) == {"g", "h"}
    assert first == checkpoint_overfitting(tensors, metadata, benchmark(), *settings, draws=40)
    engine, stretch = build(MethodConfig("osiris-r"))
    for name, module in (("encoder", engine.networks.encoder), *engine.networks.heads.items()):
        module.load_state_dict({key: tensors[f"{name}.{key}"] for key in module.state_dict()})
    engine.memory.advance(len(tensors["memory.source"]))
    for name in ("source", "task"):
        engine.memory.get_buffer(name)[: engine.memory.filled] = tensors[f"memory.{name}"][: engine.memory.filled]
    live = track_overfitting(engine, stretch[2], 6)
    assert live is not None
    for space in ("g", "h"):
        assert live["spaces"][space]["all"] == pytest.approx(first[space]["all"], rel=0.1)
        assert live["spaces"][space]["memory"] == pytest.approx(first[space]["memory"], rel=0.1)
    tensors, metadata = load_tensors(tmp_path / "run" / "checkpoints" / "task-01.safetensors")
    assert checkpoint_overfitting(tensors, metadata, benchmark(), *settings) is None  # there is no past


def test_two_processes_measure_what_one_measures(pool: Pool) -> None:
    import process_jobs

    alone = process_jobs.tracked()
    for other in pool.run("tracked"):
        for space, values in alone["spaces"].items():
            assert other["spaces"][space]["all"] == pytest.approx(values["all"], rel=1e-4)
            assert other["spaces"][space]["memory"] == pytest.approx(values["memory"], rel=1e-4)
