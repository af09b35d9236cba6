"""The zoo as a whole: Table 1, limits, first tasks, and what methods remember from task to task."""

import copy
from itertools import product

import pytest
import torch
from torch import Tensor

from osiris.framework.methods import READINGS, TRAINED, ZOO
from osiris.runs.state import digest
from osiris.training.engine import Engine, StepResult
from osiris.training.schedule import Episode
from quick import quick
from tiny import OBJECTIVES, composed, tiny_engine, train

CONTINUAL = [name for name in TRAINED if ZOO[name].learns == "continual"]


def encoder_and_g(engine: Engine) -> dict[str, Tensor]:
    networks = engine.networks
    named = {**networks.encoder.state_dict(prefix="f."), **networks.heads["g"].state_dict(prefix="g.")}
    return {name: value.clone() for name, value in named.items()}


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return set(one) == set(two) and all(torch.equal(value, two[name]) for name, value in one.items())


def test_weights() -> None:
    """lambda_1 and lambda_2 of each method (Appendix B)."""
    weights = {name: {key: weight for key, _, weight in method.weighted(20)} for name, method in ZOO.items()}
    assert weights["osiris-d"] == weights["osiris-r"] == {"current": 1, "cross": 0.5, "past": 0.5}
    assert weights["er"] == weights["der"] == weights["cassle"] == weights["pocon"] == {"current": 1, "past": 1}
    assert all(weights[name] == {"current": 1} for name in ("ft", "er+", "er++", "lump", "offline", "d1-only"))
    past = {
        tasks: dict((key, weight) for key, _, weight in ZOO["ewc"].weighted(tasks))["past"] for tasks in (5, 10, 20)
    }
    assert past == {5: 50, 10: 100, 20: 100}
    assert ZOO["lump"].replay == 1 and all(ZOO[name].replay == 0.75 for name in ("er", "osiris-r", "osiris-d", "der"))


@pytest.mark.parametrize(("images", "replayed"), [(1, 0), (5, 3), (6, 4), (7, 5), (8, 6)])
def test_the_batch_of_the_memory_is_rounded_down(images: int, replayed: int) -> None:
    """|Y| = floor(3/4 |X|), in a step as well as in the plan; lump has |Y| = |X|."""
    engine, stretch = tiny_engine("er", batch_size=7, epochs=1)
    assert engine.model.replayed(1, images) == replayed and engine.model.replayed(0, images) == 0
    lump, _ = tiny_engine("lump")
    assert lump.model.replayed(1, images) == images
    if images == 7:
        train(engine, stretch[:1])
        read: list[int] = []
        engine.model.register_forward_hook(lambda module, given, output: read.append(len(given[1].slots)))
        train(engine, stretch[1:2])
        assert read == [5, 5, 4], "batches of 7, 7 and 6 images"


LIMITS = {
    "er without past weight": dict(method="er", past_weight=0.0),
    "cassle without past weight": dict(method="cassle", past_weight=0.0),
    "osiris-d without cross and past": dict(method="osiris-d/no-cross/no-past"),
    "osiris-d with zero weights": dict(method="osiris-d", cross_weight=0.0, past_weight=0.0),
}


@pytest.fixture(scope="module")
def ft_after_two_tasks() -> dict[str, Tensor]:
    engine, stretch = tiny_engine("ft")
    train(engine, stretch[:2])
    return encoder_and_g(engine)


@pytest.mark.parametrize("limit", LIMITS)
def test_limits_train_like_ft_bit_for_bit(limit: str, ft_after_two_tasks: dict[str, Tensor]) -> None:
    engine, stretch = tiny_engine(composed(**LIMITS[limit]))
    train(engine, stretch[:2])
    assert same(encoder_and_g(engine), ft_after_two_tasks)


@pytest.mark.whole
@pytest.mark.parametrize("norm", ["gn", "bn"])
def test_the_first_task_is_ft_bit_for_bit(norm: str) -> None:
    """For the same seed, whatever the method adds: the same f, g and reservoir."""
    held: dict[str, dict[str, Tensor]] = {}
    for name in [*CONTINUAL, *READINGS, *(f"osiris-d/{key}" for key in ("shared-space", "no-cross", "no-past"))]:
        engine, stretch = tiny_engine(name, seed=4, norm=norm, epochs=1)
        train(engine, stretch[:1])
        memory = {key: engine.memory.get_buffer(key) for key in ("images", "source", "task", "step")}
        held[name] = {**encoder_and_g(engine), **memory}
        if engine.method.memory != "reservoir":
            held[name] |= {key: held["ft"][key] for key in memory}
    different = [name for name, state in held.items() if not same(state, held["ft"])]
    assert not different
    other, stretch = tiny_engine("ft", seed=5, norm=norm, epochs=1)
    train(other, stretch[:1])
    assert not same(encoder_and_g(other), {key: held["ft"][key] for key in encoder_and_g(other)})


@pytest.fixture(scope="module")
def ft_in_task_2() -> dict[str, Tensor]:
    engine, stretch = tiny_engine("ft", learning_rate=0.01)
    train(engine, stretch[:1])
    steps(engine, stretch[1], 0, 3)
    return encoder_and_g(engine)


FREE = {
    "everything at once": {"past": "replay+distil+elastic+predict", "cross": "cross:g"},
    "two mixtures": {"method": "lump", "current": "mixed(alpha=0.4)+mixed(alpha=2)"},
    "pocon with replay": {"method": "pocon", "cross": "cross", "past": "snapshot+replay:h"},
    "der in h": {"method": "osiris-r", "past": "match:g", "current": "contrast:h"},
    "lump and distillation": {"method": "lump", "past": "distil:g"},
}
RESUMED = {name: {"method": name} for name in [*CONTINUAL, "osiris-d/shared-space", "er+/plus-replay"] if name != "ft"}
RESUMED |= FREE
RESUMED |= {
    f"{method}, {objective}": {"method": method, "objective": objective}
    for method, objective in product(("er", "osiris-d", "pocon", "ewc"), OBJECTIVES)
}
DISTINCT = [
    "er",
    "der",
    "lump",
    "ewc",
    "cassle",
    "pocon",
    "osiris-d",
    "pfr",
    "pnr",
    "cromo",
    "minred",
    "cla-r",
    "cla-b",
]
DISTINCT += [*FREE, *(f"er, {objective}" for objective in OBJECTIVES), "pocon, byol", "ewc, barlow"]


@pytest.mark.whole
@pytest.mark.parametrize("name", quick(DISTINCT, RESUMED))
def test_state_goes_through_save_and_load(name: str, ft_in_task_2: dict[str, Tensor], tmp_path) -> None:
    """In the middle of the second task: Fisher, anchors, frozen copies, experts, embeddings, predictor, momentum."""
    method = composed(**{"pocon_interval": 2, **RESUMED[name]})  # presets set it for every method
    engine, stretch = tiny_engine(method, learning_rate=0.01)
    train(engine, stretch[:1])
    second = stretch[1]
    engine.begin(second)
    results = steps(engine, second, 0, 3)
    assert all(bool(result.finite) for result in results)
    named = {key for key, _, _ in method.weighted(3)} | {"loss", "gradient_norm"}
    assert set(results[-1].values) - {"spread"} == named
    assert not same(encoder_and_g(engine), ft_in_task_2), "from the second task on it is no longer ft"
    torch.save(engine.state(), tmp_path / "state.pt")
    again, _ = tiny_engine(method, learning_rate=0.01)
    again.restore(torch.load(tmp_path / "state.pt", weights_only=True))
    assert digest(again.state()) == digest(engine.state())
    for one in (engine, again):
        steps(one, second, 3, second.steps)
        one.end(second)
        one.begin(stretch[2])
        steps(one, stretch[2], 0, 2)
    assert digest(again.state()) == digest(engine.state())


def steps(engine: Engine, phase: Episode, start: int, stop: int) -> list[StepResult]:
    results = []
    for step in range(start, stop):
        results.append(engine.step(phase, step))
    return results


def test_h_starts_as_a_copy_of_g_and_not_before_the_second_task() -> None:
    engine, stretch = tiny_engine("osiris-d")
    fresh = copy.deepcopy(engine.networks.heads["h"].state_dict())
    train(engine, stretch[:1])
    assert same(engine.networks.heads["h"].state_dict(), fresh), "h rests in the first task"
    engine.begin(stretch[1])
    assert same(engine.networks.heads["h"].state_dict(), engine.networks.heads["g"].state_dict())
    engine.step(stretch[1], 0)
    assert not same(engine.networks.heads["h"].state_dict(), engine.networks.heads["g"].state_dict())
    learned = copy.deepcopy(engine.networks.heads["h"].state_dict())
    engine.end(stretch[1])
    engine.begin(stretch[2])
    assert same(engine.networks.heads["h"].state_dict(), learned), "from then on it is carried on"


def test_h_may_start_fresh() -> None:
    engine, stretch = tiny_engine(composed("osiris-d", second_space="fresh"))
    fresh = copy.deepcopy(engine.networks.heads["h"].state_dict())
    train(engine, stretch[:1])
    engine.begin(stretch[1])
    assert same(engine.networks.heads["h"].state_dict(), fresh)


def test_the_checkpoint_is_the_model_at_the_end_of_the_previous_task() -> None:
    engine, stretch = tiny_engine("cassle", norm="bn")
    for phase in stretch:
        before = engine.networks.past["encoder"].get_submodule("network")
        frozen = {key: value.clone() for key, value in before.state_dict().items()}
        engine.begin(phase)
        steps(engine, phase, 0, phase.steps)
        assert same(before.state_dict(), frozen), "it does not move during a task"
        engine.end(phase)
        for name, live in (("encoder", engine.networks.encoder), ("g", engine.networks.heads["g"])):
            assert same(engine.networks.past[name].get_submodule("network").state_dict(), live.state_dict())
