"""Learning from a stream: what is seen when, which terms act, the past, the memory, budgets, and exact resuming."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import process_jobs
from fork_server import Pool
from osiris.config import LearningConfig
from osiris.data.config import BenchmarkConfig
from osiris.data.stream import ordered
from osiris.errors import UserError
from osiris.evaluation.config import ProtocolConfig
from osiris.framework.methods import Method
from osiris.framework.past import THRESHOLD, Detector, distance
from osiris.framework.terms import X
from osiris.runs.state import digest
from osiris.training.engine import Ended, Engine, Stepped
from osiris.training.schedule import Episode, batch_positions, check_sizes, plan_episodes
from tiny import composed, tiny_benchmark, tiny_engine
from tiny_runs import asked_to_stop, assert_same_run, config, train, with_learning

ONLINE: dict[str, Any] = {"epochs": 1, "batch_size": 4, "memory_size": 12}
METHODS: dict[str, Method] = {
    "ft": composed("ft"),
    "er++": composed("er++", replay=6),
    "osiris-r": composed("osiris-r", replay=6),
    "osiris-d": composed("osiris-d", replay=6, past_model="snapshot:3"),
    "osiris-d ema": composed("osiris-d", replay=6, past_model="ema:4"),
    "osiris-d detect": composed("osiris-d", replay=6, boundaries="detect"),
    "osiris-d known": composed("osiris-d", replay=6, boundaries="known"),
    "cassle": composed("cassle", past_model="snapshot:0.25"),
    "pocon": composed("pocon", past_model="snapshot:4"),
    "der": composed("der", replay=6),
    "lump": composed("lump"),
    "minred": composed("minred", replay=6),
    "cla-r": composed("cla-r", replay=6),
    "cla-e": composed("cla-e", replay=6),
}


def streamed(method: str | Method, text: str = "tasks", per_task: int = 20, **learning: Any) -> tuple[Engine, Episode]:
    data = ordered(tiny_benchmark(3, per_task), text)
    chosen = METHODS[method] if isinstance(method, str) else method
    engine, (episode,) = tiny_engine(chosen, benchmark=data, **{**ONLINE, **learning})
    return engine, episode


def state_of(engine: Engine) -> str:
    return digest(engine.state())


def test_batches_come_in_the_order_of_the_stream() -> None:
    engine, episode = streamed("ft", "shuffled", passes=2)
    assert episode.steps == 30 and episode.images is not None and engine.benchmark.order is not None
    seen = [batch_positions(episode, 0, step) for step in range(30)]
    assert all(torch.equal(one, other) for one, other in zip(seen[::2], seen[1::2]))
    assert torch.equal(torch.cat(seen[::2]), torch.arange(60))
    rows = engine.benchmark.order.rows
    expected = engine.benchmark.train.images.take(rows[seen[4]])
    assert torch.equal(episode.images.take(seen[4]), expected)
    _, twice = streamed("ft", epochs=2)
    assert twice.steps == 30 and torch.equal(batch_positions(twice, 0, 15), torch.arange(4))


def test_a_rest_is_left_out_and_said() -> None:
    engine, episode = streamed("ft", batch_size=16)
    assert episode.steps == 3
    assert "last 12 images" in check_sizes([episode], engine.method, engine.config.learning)[0]


def test_passes_also_without_a_stream() -> None:
    once, twice = (
        plan_episodes(tiny_benchmark(), composed("ft"), LearningConfig(epochs=2, batch_size=8, passes=passes))
        for passes in (1, 2)
    )
    assert [episode.steps for episode in twice] == [2 * episode.steps for episode in once]
    for step in range(once[0].steps):
        for same in (2 * step, 2 * step + 1):
            assert torch.equal(batch_positions(once[0], 3, step), batch_positions(twice[0], 3, same))


@pytest.mark.parametrize("name", METHODS)
def test_terms_act_as_soon_as_they_can(name: str) -> None:
    """Before the memory holds Y and before there is a past, the loss is that of ft, or has fewer terms."""
    engine, episode = streamed(name, passes=2)
    engine.begin(episode)
    wanted, needs = engine.method.replayed(4), {name: term for name, term, _ in engine.model.later}
    past, filled = False, 0
    for step in range(episode.steps):
        before = engine.memory.before and step % 2 == 0
        filled += 4 * before  # minred is offered the batch before its first pass
        values = engine.step(episode, step).values
        reads = {role for role, term in needs.items() if "Y" in term.reads}
        waits = {role for role, term in needs.items() if term.needs_past}
        allowed = {r for r in needs if (min(filled, 12) >= wanted or r not in reads) and (past or r not in waits)}
        assert values.keys() & needs.keys() == allowed | {"current"} & needs.keys()
        filled += 4 * (not engine.memory.before and step % 2 == 1)
        assert engine.memory.filled == min(filled, 12) and engine.memory.offers == filled
        past = bool(engine.renewals)


def test_every_image_is_offered_once_with_its_position() -> None:
    for name in ("er++", "minred"):
        engine, episode = streamed(name, "shuffled", passes=3, memory_size=60)
        for event in engine.learn(episode):
            assert isinstance(event, Stepped) or engine.memory.offers == 60
        assert sorted(engine.memory.source.tolist()) == list(range(60))
        rows = engine.benchmark.training_rows(engine.memory.task, engine.memory.source)
        assert torch.equal(engine.memory.images, engine.benchmark.train.images.take(rows))


def test_h_is_fresh_and_the_rate_is_that_of_every_step() -> None:
    engine, episode = streamed("osiris-d")
    g, h = (next(engine.networks.heads[name].parameters()) for name in ("g", "h"))
    assert not torch.equal(g, h)
    before = h.clone()
    engine.begin(episode)
    assert torch.equal(h, before)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("osiris-d", [3, 6, 9, 12]),
        ("osiris-d ema", [2]),  # begins after a tenth of 15 steps
        ("osiris-d known", [5, 10]),
        ("cassle", [4, 8, 12]),
        ("ft", []),
    ],
)
def test_when_the_past_is_renewed(name: str, expected: list[int]) -> None:
    engine, episode = streamed(name)
    for _ in engine.learn(episode):
        pass
    assert engine.renewals == expected


def test_an_average_follows_every_step() -> None:
    engine, episode = streamed("osiris-d ema")
    engine.begin(episode)
    average = None
    for step in range(8):
        engine.step(episode, step)
        now = engine.networks.encoder.state_dict()
        if step == 1:
            average = {name: value.clone() for name, value in now.items()}
        elif average is not None:
            average = {name: 0.75 * average[name] + 0.25 * value for name, value in now.items()}
    assert average is not None
    past = engine.networks.past["encoder"].network.state_dict()  # pyright: ignore
    torch.testing.assert_close(past, average, rtol=1e-6, atol=1e-7)


def test_boundaries_of_a_stream_without_tasks_are_refused() -> None:
    with pytest.raises(UserError, match="'shuffled' has no boundaries"):
        streamed("osiris-d known", "shuffled")


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (composed("ewc"), "no end of a task"),
        (composed("cromo"), "no end of a task|does not have"),
        (composed("offline"), "--stream shuffled"),
        (composed("d1-only"), "has no tasks"),
        (composed("er", memory_policy="quota"), "end of a task"),
        (composed("osiris-d", second_space="fresh"), "always fresh"),
        (composed("pocon", past_model="ema:5"), "follows snapshots"),
    ],
)
def test_what_needs_the_end_of_a_task_is_refused(method: Method, message: str) -> None:
    with pytest.raises(UserError, match=message):
        streamed(method)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "ft", "replay": 5}, "no term uses it"),
        ({"method": "er", "replay": 5, "replay_fraction": 0.5}, "give one of them"),
        ({"method": "lump", "replay": 5}, "leave out --replay"),
        ({"method": "er", "past_model": "ema:5"}, "no term uses it"),
        ({"method": "osiris-d", "past_model": "ema"}, "write snapshot:N"),
        ({"method": "osiris-d", "past_model": "ema:2.5"}, "write snapshot:N"),
        ({"method": "osiris-d", "past_model": "ema:5", "boundaries": "known"}, "leave out --past-model"),
    ],
)
def test_wrong_options_say_why(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        composed(**options)


def test_options_of_streams_need_one() -> None:
    with pytest.raises(UserError, match="are for streams"):
        tiny_engine(METHODS["osiris-d"])
    with pytest.raises(UserError, match="averages at the end"):
        streamed("ft", merge=0.5)


@pytest.mark.parametrize("images", [1, 2, 3])
def test_a_stream_of_too_few_images_is_refused(images: int) -> None:
    data = ordered(tiny_benchmark(1, images), "shuffled")
    with pytest.raises(UserError, match=f"too few images \\({images}\\)"):
        plan_episodes(data, composed("ft"), LearningConfig(batch_size=4))
    few = ordered(tiny_benchmark(1, 5), "shuffled")
    with pytest.raises(UserError, match="has 5 images, but er"):
        method = composed("er", replay=6)
        check_sizes(plan_episodes(few, method, LearningConfig(batch_size=4)), method, LearningConfig(batch_size=4))


@pytest.mark.parametrize("name", METHODS)
def test_resuming_at_any_step_gives_the_same_bits(name: str) -> None:
    """In the middle of the passes of a batch, before and after a change of the past."""
    engine, episode = streamed(name, passes=2)
    engine.begin(episode)
    for step in range(episode.steps):
        other, _ = streamed(name, passes=2)
        other.restore(torch_copy(engine.state()))
        engine.step(episode, step)
        other.step(episode, step)
        assert state_of(engine) == state_of(other), step
    assert [type(event) for event in engine.learn(episode, None)][-1] is Ended


def torch_copy(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: torch_copy(value) for key, value in state.items()}
    if isinstance(state, list):
        return [torch_copy(value) for value in state]
    return state.clone() if isinstance(state, torch.Tensor) else state


def test_the_state_does_not_grow_with_the_stream() -> None:
    sizes = []
    for per_task in (20, 200):
        engine, episode = streamed("osiris-d detect", per_task=per_task)
        for step in range(episode.steps):
            engine.step(episode, step)
        tensors = [value for value in engine.model.state_dict().values() if isinstance(value, torch.Tensor)]
        sizes.append(sum(tensor.nbytes for tensor in tensors) + len(engine.detector.state()["means"]))
    assert sizes[0] == sizes[1]


def test_budgets_count_views() -> None:
    engine, episode = streamed("osiris-d", passes=2)  # 30 steps of 4 images
    for _ in engine.learn(episode):
        pass
    budget = engine.budget(episode, episode.steps, 7)
    with_memory, with_past = 30 - 4, 30 - 3  # 6 of 12 slots after two batches; a snapshot after three steps
    assert budget.images == 60 and budget.steps == 30 and budget.evaluated == 7
    assert budget.forward == {"x": 30 * 8, "y": with_memory * 12, "frozen": with_past * 8}
    assert budget.backward == 30 * 8 + with_memory * 12
    assert budget.memory_bytes == 12 * (3 * 64 + 24)
    assert budget.renewals == [8, 12, 20, 24, 32, 36, 44, 48, 56]


def test_points_are_equal_parts_of_the_stream() -> None:
    _, episode = streamed("ft", passes=2)
    assert sorted(episode.points(5)) == [6, 12, 18, 24]
    assert episode.seen(6) == 12 and episode.seen(30) == 60
    assert len(episode.points(1000)) == 14, "at most one for each batch"


def test_the_detector_is_quiet_on_one_distribution_and_finds_a_change() -> None:
    random = torch.Generator().manual_seed(0)
    batches = torch.randn(2000, 16, generator=random)
    quiet = Detector()
    assert not any(quiet.add(mean) for mean in batches)
    changing = Detector()
    shifted = batches + 3 * (torch.arange(2000) // 500 % 2)[:, None]
    found = [at for at, mean in enumerate(shifted) if changing.add(mean)]
    assert [at // 500 for at in found] == [1, 2, 3] and all(at % 500 < 24 for at in found)
    first, second = shifted[492:500], shifted[500:508]
    scatter = sum(((part - part.mean(0)) ** 2).sum() / 7 for part in (first, second)) / 8
    naive = ((first.mean(0) - second.mean(0)) ** 2).sum() / scatter
    torch.testing.assert_close(distance(shifted[492:508]), naive)
    assert naive > THRESHOLD


@pytest.mark.parametrize("name", ["osiris-d", "osiris-d ema", "osiris-d detect", "minred", "cla-r"])
def test_two_processes_equal_one(name: str, pool: Pool) -> None:
    alone = process_jobs.stream(METHODS[name])
    for together in pool.run("stream", method=METHODS[name]):
        assert together.keys() == alone.keys()
        for key, value in alone.items():
            torch.testing.assert_close(together[key], value, rtol=1e-9, atol=1e-10)


def settings(method: str, **options: Any):
    base = with_learning(config(method), batch_size=6, epochs=1, passes=2)
    chosen = replace(base.method, replay=6, **options)
    data = BenchmarkConfig("tiny", stream="blurred:0.5")
    return replace(base, method=chosen, data=data, evaluation=ProtocolConfig(k=3, random_encoders=1, points=4))


@pytest.mark.parametrize("stop", [1, 7, 8, 20])
def test_a_whole_run_stops_and_continues(stop: int, tmp_path: Path) -> None:
    config = settings("osiris-d", past_model="snapshot:0.2")
    whole = train(config, tmp_path / "whole")
    with asked_to_stop(0, stop), pytest.raises(Exception, match="the state is saved"):
        train(config, tmp_path / "parts")
    assert train(config, tmp_path / "parts") == whole and whole is not None
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert whole.stream == "blurred:0.5" and whole.curve is not None and len(whole.curve) == 3
    numbers = whole["class-agnostic"]
    rows = [point.protocols["class-agnostic"].accuracy for point in whole.curve] + numbers.accuracy_matrix
    course = [sum(value or 0.0 for value in row) / len(row) for row in rows]
    assert pytest.approx(course[-1]) == numbers.A and numbers.average == pytest.approx(sum(course) / 4)
    best = [max(row[task] or 0 for row in rows) for task in range(3)]
    assert pytest.approx(sum(b - end for b, end in zip(best, [value or 0.0 for value in rows[-1]])) / 3) == numbers.F
    assert whole.budget is not None and whole.budget.images == 84
    assert [point.budget.images for point in whole.curve if point.budget] == [24, 42, 66]


def test_inputs_of_a_step_are_those_of_the_acting_terms() -> None:
    engine, episode = streamed("minred")
    engine.begin(episode)
    engine.step(episode, 0)
    assert engine.model.inputs(0) == (X,)
    engine.step(episode, 1)
    assert engine.model.inputs(0) == ("Y",)
