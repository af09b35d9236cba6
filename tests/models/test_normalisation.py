"""GroupNorm, BatchNorm, and the mode in which an encoder is trained, whatever flags it came with."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import osiris
import tiny_runs
from osiris.config import Config, with_options
from osiris.errors import UserError
from osiris.framework.representations import Average
from osiris.models import normalisation
from osiris.models.external import encoder_name
from osiris.models.normalisation import BatchNorm, frozen_statistics, group_norm, set_mode
from osiris.presets import configure
from osiris.training.engine import Engine
from osiris.training.schedule import plan_episodes
from tiny import composed, tiny_benchmark, train
from tiny_encoders import Normed, seeded
from tiny_runs import asked_to_stop, benchmark, last_state


@pytest.mark.parametrize(("channels", "groups"), [(4, 1), (8, 2), (16, 4), (64, 16), (128, 32), (256, 32), (512, 32)])
def test_group_norm_has_a_quarter_as_many_groups_as_channels_at_most_32(channels: int, groups: int) -> None:
    assert group_norm(channels).num_groups == groups


def test_batch_norm_is_torchs_and_its_statistics_can_be_frozen() -> None:
    ours, torchs = BatchNorm(4), nn.BatchNorm2d(4)
    images = torch.randn(3, 4, 5, 5)
    torch.testing.assert_close(ours(images), torchs(images))
    assert ours.running_mean is not None and torchs.running_mean is not None
    torch.testing.assert_close(ours.running_mean, torchs.running_mean)
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    with frozen_statistics(ours):
        torch.testing.assert_close(ours(images * 3 + 1), torchs(images * 3 + 1))
    assert all(torch.equal(value, before[name]) for name, value in ours.state_dict().items())
    ours(images * 3 + 1)
    assert not torch.equal(ours.running_mean, before["running_mean"])


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_statistics_over_processes_are_in_float32(precision: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch's own in one process. The layer sees more than 65,504 values of a channel, the most that half precision
    can count."""
    images = (3 * torch.randn(17, 2, 64, 64) + 2).to(precision)
    results = []
    for world in (1, 2):
        monkeypatch.setattr(normalisation, "world_size", lambda world=world: world)
        monkeypatch.setattr(normalisation, "sum_over_processes", lambda value: value)
        layer, leaf = BatchNorm(2), images.clone().requires_grad_()
        output = layer(leaf)
        (gradient,) = torch.autograd.grad(output.float().pow(3).sum(), leaf)
        results.append((output, gradient, layer.running_mean, layer.running_var))
    (one, *gradient_and_statistics), (other, *others) = results
    assert one.dtype == other.dtype == precision
    torch.testing.assert_close(other.float(), one.float(), rtol=0.01, atol=0.01)
    torch.testing.assert_close(others[0].float(), gradient_and_statistics[0].float(), rtol=0.02, atol=0.1)
    torch.testing.assert_close(others[1:], gradient_and_statistics[1:], rtol=1e-5, atol=1e-6)


OPTIONS = {
    **{"preset": "smoke", "projector_hidden": 16, "projector_output": 8, "epochs": 1, "memory_size": 12},
    **{"k": 3, "batch_size": 8, "threads": 1, "device": "cpu", "learning_rate": 0.05},
}


def settings(encoder: nn.Module, method: str = "ft", **options: object) -> Config:
    given = {name: value for name, value in OPTIONS.items() if name != "preset"}
    return configure("", "smoke", encoder_name(encoder), {"method": method, "memory_size": 12} | given | options)


def engine_of(config: Config, objective: str | None = None) -> Engine:
    method = composed(config.method.method, objective)
    return Engine(config, method, tiny_benchmark(), torch.device("cpu"))


def train_all(engine: Engine) -> Engine:
    train(engine, plan_episodes(engine.benchmark, engine.method, engine.config.learning))
    return engine


def moved_statistics(before: nn.Module, after: nn.Module) -> list[str]:
    kept = before.state_dict()
    statistics = {name: value for name, value in after.state_dict().items() if "running" in name or "tracked" in name}
    assert statistics
    return [name for name, value in statistics.items() if not torch.equal(value, kept[name])]


@pytest.mark.parametrize("batch_statistics", [False, True])
@pytest.mark.parametrize("dropout", [False, True])
def test_every_layer_gets_the_mode_that_is_asked_for(batch_statistics: bool, dropout: bool) -> None:
    module = seeded()
    module.blocks[0].requires_grad_(False)
    set_mode(module, batch_statistics, dropout)
    modes = {name: module.get_submodule(name).training for name in ("blocks.0.norm", "blocks.1.norm", "norm")}
    assert modes == {"blocks.0.norm": False, "blocks.1.norm": batch_statistics, "norm": batch_statistics}
    assert [module.get_submodule(f"blocks.{index}.drop").training for index in range(2)] == [dropout] * 2


def test_a_layer_without_running_statistics_uses_its_batch_or_is_refused() -> None:
    module = seeded()
    module.blocks.get_submodule("0").norm = nn.BatchNorm1d(8, track_running_stats=False)
    with pytest.raises(UserError, match=r"blocks\.0\.norm has no running statistics .* --statistics batch"):
        engine_of(settings(module, statistics="frozen", merge=1.0))
    engine = train_all(engine_of(settings(module, statistics="batch", freeze=1.0, merge=1.0)))
    assert engine.networks.encoder.get_submodule("blocks.0.norm").training
    assert engine.networks.batch_norm, "so that micro-batches and merged statistics are refused"
    assert not engine.networks.encoder.get_submodule("norm").training, "it is not trained, and has its statistics"


@pytest.mark.parametrize("statistics_option", ["frozen", "batch"])
def test_the_flag_of_a_module_does_not_matter(statistics_option: str) -> None:
    one, other = (
        train_all(engine_of(settings(seeded(flag), statistics=statistics_option, merge=1.0))) for flag in (True, False)
    )
    expected = other.networks.encoder.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in one.networks.encoder.state_dict().items())


@pytest.mark.parametrize(
    "options", [{}, {"statistics": "batch", "freeze": 1.0, "merge": 1.0}, {"dropout": True}], ids=str
)
def test_frozen_statistics_never_move(options: dict[str, Any]) -> None:
    """Those of a pretrained encoder; and with `--statistics batch` those of the layers that are not trained."""
    module = seeded()
    after = train_all(engine_of(settings(module, **options))).networks.encoder
    assert moved_statistics(module, after) == []
    weights = dict(module.named_parameters())
    changed = [name for name, value in after.named_parameters() if not torch.equal(value, weights[name])]
    assert bool(changed) == ("freeze" not in options)


def test_batch_statistics_move_where_they_are_asked_for() -> None:
    module = seeded()
    engine = train_all(engine_of(settings(module, statistics="batch", merge=1.0, freeze=0.5)))
    moved = moved_statistics(module, engine.networks.encoder)
    assert moved and all(name.startswith("blocks.1.") for name in moved), "the first half of the layers is frozen"


@pytest.mark.parametrize(("chosen", "dependent"), [("frozen", False), ("batch", True)])
def test_averages_and_passes_follow_the_mode(chosen: str, dependent: bool) -> None:
    config = settings(seeded(), "cla-e", statistics=chosen, merge=1.0, freeze=0.0)
    engine = engine_of(config, "byol")
    assert engine.networks.batch_norm == dependent, "two passes of the encoder are for batch statistics"
    averages = [one for one in engine.model.modules() if isinstance(one, Average)]
    encoders = [one for one in averages if isinstance(one.network, Normed)]
    assert len(encoders) >= 2, "f~ of byol and of cla-e"
    for one in encoders:
        modes = [layer.training for layer in one.network.modules() if isinstance(layer, BatchNorm)]
        assert modes == [dependent] * 3
    if dependent:
        with pytest.raises(UserError, match="micro-batch"):
            engine_of(with_options(config, {"micro_batch": 4}))
    else:
        assert train_all(engine_of(with_options(config, {"micro_batch": 4}))).memory.filled == 12


class OwnNorm(nn.BatchNorm1d):
    """As timm has them: what the layer is replaced by would not do the same."""


def test_a_batch_norm_of_the_encoders_own_counts_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its batch matters, and where its statistics must not move: in a bad step and in the Fisher."""
    module = seeded()
    module.blocks.get_submodule("0").norm = OwnNorm(8)
    with pytest.raises(UserError, match="--merge"):
        engine_of(settings(module, statistics="batch", merge=0.5, freeze=0.0))
    engine = engine_of(settings(module, "ewc", statistics="batch", merge=1.0, freeze=0.0))
    encoder, learning = engine.networks.encoder, engine.config.learning
    phase, *_ = plan_episodes(engine.benchmark, engine.method, learning)
    before = copy.deepcopy(encoder)
    handle = engine.model.register_forward_hook(lambda _, inputs, output: (output[0] * math.nan, output[1]))
    assert not bool(engine.step(phase, 0).finite)
    handle.remove()
    engine.end(phase)
    assert [name for name in moved_statistics(before, encoder) if "tracked" not in name] == []
    assert bool(engine.step(phase, 1).finite) and "blocks.0.norm.running_mean" in moved_statistics(before, encoder)
    monkeypatch.setattr(normalisation, "world_size", lambda: 2)
    with pytest.raises(UserError, match=r"blocks\.0\.norm \(OwnNorm\) .* --statistics frozen"):
        set_mode(encoder, True, False)
    set_mode(encoder, False, False)


def test_gradients_do_not_depend_on_micro_batches_with_frozen_statistics() -> None:
    whole, pieces = (
        train_all(engine_of(settings(seeded(), "osiris-d", micro_batch=size))).networks.encoder.state_dict()
        for size in (None, 4)
    )
    torch.testing.assert_close(pieces, whole, rtol=1e-4, atol=1e-5)


def test_dropout_is_off_unless_asked_for() -> None:
    engine = engine_of(settings(seeded()))
    images = torch.randn(4, 3, 8, 8)
    assert torch.equal(engine.networks.encoder(images), engine.networks.encoder(images))
    active = engine_of(settings(seeded(), dropout=True)).networks.encoder
    assert not torch.equal(active(images), active(images))


def test_dropout_in_the_fisher_of_ewc_does_not_depend_on_the_global_generator() -> None:
    """A resumed run finds that generator in another state."""
    states = []
    for seed in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            states.append(train_all(engine_of(settings(seeded(), "ewc", dropout=True))).model.state_dict())
    fishers = [name for name in states[0] if "fisher" in name]
    assert fishers and all(torch.equal(states[0][name], states[1][name]) for name in fishers)


@pytest.mark.parametrize("options", [{}, {"statistics": "batch", "merge": 1.0}, {"dropout": True}], ids=str)
@pytest.mark.usefixtures("signals_arrive")
def test_the_mode_is_the_same_after_a_resume(options: dict[str, Any], tmp_path: Path) -> None:
    """A run stops in the middle of its second episode."""
    given = OPTIONS | options
    for name in ("whole", "resumed"):
        if name == "resumed":
            with asked_to_stop(1, 1), pytest.raises(osiris.errors.Stopped):
                osiris.train("osiris-d", benchmark(), encoder=seeded(), out=tmp_path / name, **given)
        osiris.train("osiris-d", benchmark(), encoder=seeded(name == "whole"), out=tmp_path / name, **given)
    tiny_runs.assert_same_run(tmp_path / "whole", tmp_path / "resumed")
    assert last_state(tmp_path / "whole") == last_state(tmp_path / "resumed")
