"""SimSiam: the learning rate of its predictor. Values and gradients: tests/framework/test_objectives.py."""

import pytest

from tiny import composed, tiny_engine, train


@pytest.mark.parametrize("optimiser", ["sgd", "muon"])
def test_the_predictor_of_simsiam_has_a_constant_learning_rate(optimiser: str) -> None:
    learning = {"optimiser": optimiser, "schedule": "cosine", "learning_rate": 0.01}
    engine, stretch = tiny_engine(composed("ft", "simsiam"), epochs=1, **learning)  # pyright: ignore[reportArgumentType]
    train(engine, stretch[:1])
    predictor = set(engine.networks.objective.get_submodule("predictor").parameters())
    rates = {(p in predictor, g["lr"] / g.get("scale", 1)) for g in engine.optimiser.param_groups for p in g["params"]}
    assert len(rates) == 2 and (True, 0.01) in rates, "the others have fallen"
