"""--track-overfitting and the function behind it."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fork_server import Pool
from osiris.evaluation.overfitting import overfitting, relative_difference
from osiris.framework import losses
from osiris.framework.config import MethodConfig
from osiris.training import log as training_log
from osiris.training.log import track_overfitting
from process_jobs import build
from tiny_runs import config, contents, log, train


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


def test_neither_side_has_images_of_the_current_task(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, stretch = build(MethodConfig("osiris-r"))
    for phase in stretch:
        for step in range(2):
            engine.step(phase, step)
    sides: list[Tensor] = []
    monkeypatch.setattr(training_log, "overfitting", lambda embed, past, memory, *_, **__: sides.extend((past, memory)))
    assert track_overfitting(engine, stretch[2], 1) is None
    train_task = engine.benchmark.train.task
    held = engine.memory.task[: engine.memory.filled]
    assert (held == 2).any() and sorted(sides[0].tolist()) == torch.nonzero(train_task < 2).flatten().tolist()
    assert train_task[sides[1]].tolist() == held[held < 2].tolist()


def test_two_processes_measure_what_one_measures(pool: Pool) -> None:
    import process_jobs

    alone = process_jobs.tracked()
    for other in pool.run("tracked"):
        for space, values in alone.spaces.items():
            assert other.spaces[space]["all"] == pytest.approx(values["all"], rel=1e-4)
            assert other.spaces[space]["memory"] == pytest.approx(values["memory"], rel=1e-4)
