"""Memory before the start, and the cost of an encoder."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from osiris.config import Config
from osiris.errors import UserError
from osiris.framework.composition import resolve
from osiris.framework.config import MethodConfig
from osiris.models.config import EncoderConfig
from osiris.models.encoder import build_encoder
from osiris.runs.state import digest
from osiris.training import estimate
from osiris.training.engine import Engine
from osiris.training.estimate import check_memory, encoder_flops, estimate_memory, estimate_seconds
from osiris.training.schedule import Episode, plan_episodes
from tiny import composed, tiny_engine
from tiny_runs import benchmark, config, train, with_learning

CPU = torch.device("cpu")


def built(settings: Config) -> tuple[Engine, list[Episode]]:
    method, data = resolve(settings.method), benchmark()
    plan = plan_episodes(data, method, settings.learning)
    return Engine(settings, method, data, CPU), plan


def of(settings: Config) -> dict[str, int]:
    return estimate_memory(*built(settings), settings.engine.micro_batch)


def wide(method: str = "ft", width: int = 16, micro_batch: int | None = None) -> Config:
    settings = config(method, micro_batch=micro_batch)  # pyright: ignore[reportArgumentType]
    return replace(settings, encoder=replace(settings.encoder, width=width))


@pytest.mark.parametrize("method", ["ft", "osiris-d", "pocon", "lump"])
def test_the_estimate_is_what_autograd_keeps(method: str) -> None:
    """The same count on real tensors, at the size of the run's largest batch."""
    import process_jobs

    engine, stretch = process_jobs.build(MethodConfig(method))
    stored: dict[int, int] = {}
    kept: list[torch.Tensor] = []
    known = {value.untyped_storage().data_ptr() for value in engine.model.parameters()}
    known |= {value.untyped_storage().data_ptr() for value in engine.model.buffers()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            stored[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)
        return tensor

    for step in range(2):  # fills the memory
        engine.step(stretch[0], step)
    engine._update = lambda loss, *given: (loss > 0, loss.detach())  # pyright: ignore
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        engine.step(stretch[1], 1)  # the batch of fifteen
    measured = sum(stored.values())
    predicted = estimate_memory(engine, stretch)
    assert measured < predicted["activations"] < 2 * measured + 200_000


@pytest.mark.parametrize(
    ("method", "objective"),
    [("pnr", "mocov2+(queue_size=11)"), ("pocon", "byol"), ("er", "swav(clusters=7,queue_size=6)"), ("ewc", "mocov3")],
)
def test_an_estimate_leaves_nothing_behind(method: str, objective: str) -> None:
    """Each start of a run makes one. Its images, which are black, do not enter a queue."""
    states = []
    for estimated in (False, True):
        engine, stretch = tiny_engine(composed(method, objective), epochs=1)
        for phase in stretch[:2]:
            if estimated:
                estimate_memory(engine, stretch)
            engine.begin(phase)
            engine.step(phase, 0)
            engine.end(phase)
        states.append(digest(engine.state()))
    assert states[0] == states[1]


def test_more_of_anything_needs_more() -> None:
    base = of(wide())
    assert of(with_learning(wide(), batch_size=24))["activations"] > 1.5 * base["activations"]
    assert of(wide(width=32))["networks"] > 3.5 * base["networks"]
    assert of(wide("osiris-d"))["activations"] > base["activations"]
    assert of(wide("pocon"))["networks"] > 3 * base["networks"]
    assert of(wide("der"))["memory"] > base["memory"]
    assert of(wide(micro_batch=4))["activations"] < base["activations"] / 2
    adam = replace(wide(), learning=replace(wide().learning, optimiser="adamw"))
    assert of(adam)["networks"] > base["networks"]


def test_the_time_of_an_episode_is_that_of_a_few_images_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, plan = built(wide())
    before = {name: value.clone() for name, value in engine.model.state_dict().items()}
    clock = iter([0.0, 9.0, 10.0, 13.0, 20.0, 24.0])  # a slow first step, then three and four seconds
    monkeypatch.setattr(estimate.time, "perf_counter", lambda: next(clock))
    batch, images = plan[0].batch_size, plan[0].count * plan[0].epochs
    assert estimate_seconds(engine, plan[0]) == pytest.approx(3 / min(estimate.TIMED_IMAGES, batch) * images)
    assert all(torch.equal(value, before[name]) for name, value in engine.model.state_dict().items())
    assert all(parameter.grad is None for parameter in engine.model.parameters())


def test_what_cannot_fit_is_refused_with_what_would(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = with_learning(wide("osiris-d", width=64), batch_size=28, memory_size=28)
    need = estimate.total(of(settings))
    check_memory(*built(settings))
    monkeypatch.setattr(estimate, "available_memory", lambda device: need - 2**20)
    with pytest.raises(UserError, match=r"needs about .* GB .* free\. Use --micro-batch 64"):
        check_memory(*built(settings))
    batch_norm = replace(settings, encoder=replace(settings.encoder, norm="bn"))
    monkeypatch.setattr(estimate, "available_memory", lambda device: 2**20)
    with pytest.raises(UserError) as told:
        check_memory(*built(batch_norm))
    assert "--micro-batch" not in str(told.value) and "--batch-size" in str(told.value)
    monkeypatch.setattr(estimate, "available_memory", lambda device: None)
    check_memory(*built(settings))


def test_a_gpu_keeps_room_for_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = wide("osiris-d")
    engine, plan = built(settings)
    needed = estimate.total(of(settings))
    parts = estimate_memory(engine, plan)
    monkeypatch.setattr(estimate, "estimate_memory", lambda *given: parts)
    engine.device = torch.device("cuda:0")
    monkeypatch.setattr(estimate, "available_memory", lambda device: needed + estimate.WORKSPACE)
    check_memory(engine, plan)
    monkeypatch.setattr(estimate, "available_memory", lambda device: needed + estimate.WORKSPACE - 1)
    with pytest.raises(UserError, match="1 GB is left for kernels"):
        check_memory(engine, plan)


def test_images_that_stay_on_a_gpu_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, plan = built(wide("osiris-d"))
    before = estimate_memory(engine, plan)
    monkeypatch.setattr(estimate, "kept_bytes", lambda images, device, keep: len(images))
    parts = estimate_memory(engine, plan)
    assert before["images"] == 0 and parts["images"] == max(episode.count for episode in plan)
    assert estimate.total(parts) == estimate.total(before) + parts["images"]


@pytest.mark.parametrize(("again", "advice"), [(False, "--micro-batch 16"), (True, "no other program")])
def test_memory_that_runs_out_is_one_sentence(
    again: bool, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first step, whose state can be resumed with smaller pieces; the estimate may run out of memory too."""
    settings = with_learning(wide("osiris-d"), batch_size=28, memory_size=28)

    def fail(*given: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def start_failing(*given: Any) -> None:
        if again:
            monkeypatch.setattr(estimate, "estimate_memory", fail)
        fail()

    monkeypatch.setattr(estimate, "PIECES", (16,))
    monkeypatch.setattr(Engine, "step", start_failing)
    with pytest.raises(UserError, match=f"memory of cpu is used up. Resume with .*{advice}"):
        train(settings, tmp_path / "run")


def test_a_refused_run_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "available_memory", lambda device: 2**20)
    with pytest.raises(UserError, match="GB"):
        train(config(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("shape", [EncoderConfig(), EncoderConfig(width=8, blocks=(1, 2, 1, 1), stem="large")])
def test_flops_are_those_that_torch_counts(shape: EncoderConfig) -> None:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        build_encoder(shape).eval()(torch.zeros(1, 3, 64, 64))
    assert encoder_flops(shape, 64) == counter.get_total_flops()
