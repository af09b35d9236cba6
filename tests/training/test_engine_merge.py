"""--merge: at the end of an episode f becomes a share of what was learned and the rest of what it was before."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from osiris.config import Config, with_options
from osiris.errors import Stopped, UserError
from osiris.framework.representations import Average, Frozen
from osiris.framework.terms import Elastic, Expert
from osiris.training.engine import Ended, Engine, Trained
from osiris.training.schedule import plan_episodes
from quick import quick
from tiny import composed, tiny_benchmark
from tiny_runs import asked_to_stop, assert_same_run, config, last_state, read_newest, train

SHARE = 0.3


def engine_of(method: str, objective: str | None = None, pretrained: bool = False, **options: Any) -> Engine:
    settings = with_options(config(method), {"merge": SHARE, "pretrained": pretrained, "batch_size": 8} | options)
    return Engine(settings, composed(method, objective), tiny_benchmark(), torch.device("cpu"))


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def assert_merged(encoder: dict[str, Tensor], before: dict[str, Tensor], learned: dict[str, Tensor], a: float) -> None:
    expected = {name: a * learned[name].double() + (1 - a) * before[name].double() for name in learned}
    for name, value in encoder.items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("pretrained", [False, True])
def test_f_is_a_share_of_what_was_learned(pretrained: bool) -> None:
    """From the second episode on, with a pretrained start from the first; heads and moments are left alone."""
    engine = engine_of("osiris-d", pretrained=pretrained)
    for episode in plan_episodes(engine.benchmark, engine.method, engine.config.learning)[:2]:
        before, learned, heads = weights(engine.networks.encoder), {}, {}
        merges = pretrained or episode.task > 0
        for event in engine.learn(episode):
            if isinstance(event, Trained):
                learned, heads = weights(engine.networks.encoder), weights(engine.networks.heads)
                assert (engine.before is not None) == ("before" in engine.state()) == merges
            elif isinstance(event, Ended):
                assert_merged(weights(engine.networks.encoder), before, learned, SHARE if merges else 1.0)
                assert any(not torch.equal(value, before[name]) for name, value in learned.items())
        assert all(torch.equal(value, heads[name]) for name, value in weights(engine.networks.heads).items())
        assert "before" not in engine.state(), "a checkpoint holds it only while an episode is learned"
        past = engine.networks.past["encoder"]
        assert isinstance(past, Frozen)
        for name, value in weights(past.network).items():
            assert torch.equal(value, engine.networks.encoder.state_dict()[name]), "f* is the merged f"


def learned_two(engine: Engine) -> Engine:
    for episode in plan_episodes(engine.benchmark, engine.method, engine.config.learning)[:2]:
        list(engine.learn(episode))
    return engine


@pytest.mark.parametrize(
    ("method", "objective", "count"), [("er", "byol", 1), ("cla-e", None, 1), ("cla-e", "byol", 2)]
)
def test_moving_averages_copy_the_merged_f(method: str, objective: str | None, count: int) -> None:
    engine = learned_two(engine_of(method, objective, pretrained=True))
    averages = [part for name, part in engine.model.named_modules() if name.endswith("average_encoder")]
    assert len(averages) == count
    for average in averages:
        assert isinstance(average, Average)
        torch.testing.assert_close(weights(average.network), weights(engine.networks.encoder), rtol=0, atol=0)


def test_the_terms_see_the_merged_f() -> None:
    """Also where pocon's snapshot falls on the last step of an episode."""
    engine = learned_two(engine_of("ewc"))
    (elastic,) = [term for _, term, _ in engine.model.later if isinstance(term, Elastic)]
    for index, value in enumerate(engine.networks.encoder.parameters()):
        assert torch.equal(elastic.get_buffer(f"anchor_{index}"), value)
    engine = learned_two(engine_of("pocon"))
    (expert,) = [term for _, term, _ in engine.model.later if isinstance(term, Expert)]
    torch.testing.assert_close(weights(expert.expert), weights(engine.networks.encoder), rtol=0, atol=0)
    assert not torch.equal(next(expert.expert_past.network.parameters()), next(engine.networks.encoder.parameters()))


def test_statistics_of_a_batch_do_not_fit_merged_weights() -> None:
    batch = with_options(config(norm="bn"), {"merge": 0.5, "norm": "bn"})
    with pytest.raises(UserError, match="--statistics frozen"):
        batch.check()
    with_options(batch, {"statistics": "frozen"}).check()


@pytest.mark.parametrize("method", quick({"osiris-d"}, ["osiris-d", "ewc", "pocon", "cla-e"]))
@pytest.mark.parametrize("place", [(1, 2), (2, 0)])
@pytest.mark.usefixtures("signals_arrive")
def test_resumed_in_the_middle_is_not_resumed(method: str, place: tuple[int, int], tmp_path: Path) -> None:
    settings: Config = with_options(config(method), {"merge": SHARE})
    train(settings, tmp_path / "whole")
    with asked_to_stop(*place), pytest.raises(Stopped):
        train(settings, tmp_path / "resumed")
    assert "before" in read_newest(tmp_path / "resumed").engine
    train(settings, tmp_path / "resumed")
    assert_same_run(tmp_path / "whole", tmp_path / "resumed")
    assert "before" not in read_newest(tmp_path / "whole").engine
    train(config(method), tmp_path / "unmerged")
    assert last_state(tmp_path / "unmerged") != last_state(tmp_path / "whole")


def test_weights_of_another_encoder_are_refused() -> None:
    engine = engine_of("ft", pretrained=True)
    episode = plan_episodes(engine.benchmark, engine.method, engine.config.learning)[0]
    engine.begin(episode)
    state = engine.state()
    engine.restore(state)
    for wrong in ({}, {"conv1.weight": torch.zeros(2)}, {"conv1.weight": 3}):
        with pytest.raises(ValueError, match=r"before the episode|Error"):
            engine.restore(state | {"before": wrong})
