"""Every embedding is computed once, shared, normalised, and equal to the plain computation."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from osiris.framework.representations import Frozen, Networks, Representations
from osiris.models import EncoderConfig, build_encoder
from tiny import ENCODER, HEADS, assert_same_gradients, situation

NEEDS = frozenset({"h", "past.encoder", "past.g"})


def networks(norm: str = "gn") -> Networks:
    config = EncoderConfig(width=8, blocks=(1, 1, 1, 1), norm=norm)  # pyright: ignore[reportArgumentType]
    return Networks(build_encoder(config), HEADS, 0, NEEDS).double()


def views(x: int = 4, y: int = 3) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(2, count, 3, 8, 8, generator=random, dtype=torch.float64)
        for name, count in (("X", x), ("Y", y))
    }


def test_embeddings_equal_one_pass_per_image() -> None:
    nets, inputs = networks(), views()
    rep = Representations(nets, inputs)
    for name in ("X", "Y"):
        for head in ("g", "h"):
            z = rep(name, head=head)
            assert z.shape == (2, inputs[name].shape[1], HEADS.projector_output)
            torch.testing.assert_close(z.norm(dim=-1), torch.ones_like(z[..., 0]))
            for view in range(2):
                for index, image in enumerate(inputs[name][view]):
                    plain = nets.heads[head](nets.encoder(image[None]))
                    torch.testing.assert_close(z[view, index], normalize(plain, dim=1)[0])


@pytest.mark.parametrize(("size", "finite"), [(1e10, True), (1e25, False)])
def test_embeddings_too_large_to_normalise_are_not_finite(size: float, finite: bool) -> None:
    """Their length overflows. Zero vectors would give a finite loss without a gradient, which would go unnoticed."""
    nets = networks().float()
    with torch.no_grad():
        nets.heads["g"].get_parameter("fc2.weight").mul_(size)
    z = Representations(nets, {name: value.float() for name, value in views().items()})("X")
    assert bool(torch.isfinite(z).all()) == finite


def test_encoder_and_head_are_named_apart() -> None:
    nets, inputs = networks(), views()
    with torch.no_grad():
        for frozen in nets.past.values():
            for parameter in frozen.parameters():
                parameter.add_(torch.randn_like(parameter))
    rep = Representations(nets, inputs)
    features = nets.past["encoder"](inputs["X"].flatten(0, 1))
    for head, module in (("h", nets.heads["h"]), ("past.g", nets.past["g"]), ("g", nets.heads["g"])):
        expected = normalize(module(features), dim=1).view(2, 4, -1)
        torch.testing.assert_close(rep("X", head=head, encoder="past"), expected)
    assert not torch.allclose(rep("X", head="g"), rep("X", head="g", encoder="past"))


def test_a_chain_of_heads() -> None:
    nets, inputs = networks(), views()
    predictor = nn.Linear(HEADS.projector_output, 3).double()
    rep = Representations(nets, inputs)
    expected = normalize(predictor(nets.heads["g"](nets.encoder(inputs["X"].flatten(0, 1)))), dim=-1).view(2, 4, 3)
    torch.testing.assert_close(rep("X", head=("g", predictor)), expected)
    assert rep("X", head=("g", predictor)) is rep("X", head=("g", predictor))


def test_batch_norm_sees_one_view_of_x_and_y_at_a_time() -> None:
    nets, inputs = networks("bn"), views()
    rep = Representations(nets, inputs)
    for view in range(2):
        both = torch.cat([inputs["X"][view], inputs["Y"][view]])
        features = nets.encoder(both)
        torch.testing.assert_close(rep("X", head=())[view], normalize(features[:4], dim=1))
        torch.testing.assert_close(rep("Y", head=())[view], normalize(features[4:], dim=1))
    assert not torch.allclose(rep("X", head=())[0], normalize(nets.encoder(inputs["X"][0]), dim=1))


def test_only_what_is_asked_is_encoded_and_only_once() -> None:
    nets, inputs = networks(), views()
    calls: list[int] = []
    nets.encoder.register_forward_hook(lambda module, arguments, output: calls.append(len(output)))
    rep = Representations(nets, inputs, encode=("X",))
    for _ in range(2):
        for head, encoder in (("g", "live"), ("h", "live"), ("h", "past")):
            rep("X", head=head, encoder=encoder)
    assert calls == [8], "one pass over both views of X"
    encoded = {key[:2]: features.requires_grad for key, features in rep.local.items() if not key[2]}
    assert encoded == {("X", nets.encoder): True, ("X", nets.past["encoder"]): False}
    rep("Y", head="g")
    assert calls == [8, 6]


def test_frozen_networks_stay_frozen() -> None:
    nets = networks("bn")
    nets.train()
    frozen = nets.past["encoder"]
    assert isinstance(frozen, Frozen) and not frozen.training and not frozen.network.training
    before = {name: value.clone() for name, value in frozen.state_dict().items()}
    rep = Representations(nets, views())
    loss = rep("X", head="h", encoder="past").sum()
    loss.backward()
    assert all(torch.equal(value, before[name]) for name, value in frozen.state_dict().items())
    assert all(parameter.grad is None for parameter in frozen.parameters())
    assert nets.heads["h"].get_parameter("fc1.weight").grad is not None, "the live head learns from the frozen encoder"
    assert all(parameter.grad is None for parameter in nets.encoder.parameters())


def test_the_end_of_a_task_copies_f_and_g_in_place() -> None:
    nets = networks("bn")
    with torch.no_grad():
        for parameter in (*nets.encoder.parameters(), *nets.heads.parameters()):
            parameter.add_(torch.randn_like(parameter))
    nets.encoder(views()["X"][0])  # running statistics move too
    places = [parameter.data_ptr() for parameter in nets.past.parameters()]
    nets.end_task()
    assert places == [parameter.data_ptr() for parameter in nets.past.parameters()]
    for name, live in (("encoder", nets.encoder), ("g", nets.heads["g"])):
        copied = nets.past[name].get_submodule("network").state_dict()
        assert all(torch.equal(value, copied[key]) for key, value in live.state_dict().items())


def test_only_needed_networks_exist() -> None:
    plain = Networks(build_encoder(ENCODER), HEADS, 0)
    assert list(plain.heads) == ["g"] and not plain.past
    assert list(Networks(build_encoder(ENCODER), HEADS, 0, frozenset({"past.encoder"})).past) == ["encoder"]


@pytest.mark.parametrize("name", ["er", "osiris-d", "cassle", "pocon", "lump"])
def test_micro_batches_give_the_same_gradients(name: str) -> None:
    assert_same_gradients(situation(name), micro_batch=3)


@pytest.mark.parametrize("name", ["cassle", "pocon", "osiris-d", "der"])
def test_bf16_networks_and_float32_losses(name: str) -> None:
    case = situation(name)
    case.model.float()
    case.views = {key: value.float() for key, value in case.views.items()}
    value, terms = case.values(autocast=lambda: torch.autocast("cpu", torch.bfloat16))
    value.backward()
    assert all(term.dtype == torch.float32 for term in terms.values())
    assert all(torch.isfinite(gradient).all() for gradient in case.gradients().values())
