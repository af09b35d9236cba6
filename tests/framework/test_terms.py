"""The loss of each method in its second task against the naive computation, and what must get no gradient."""

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest

import naive
from osiris.framework.methods import ZOO
from osiris.framework.representations import Frozen
from osiris.runs.state import digest
from tiny import PAPER, assert_like_naive, composed, situation

PAST = {"osiris-r": ("replay",), "osiris-d": ("distil",)}
ABLATIONS = {
    "shared-space": {"space": "g"},
    "no-cross": {"weights": (0, 0.5)},
    "no-past": {"weights": (0.5, 0)},
    "no-cross/renormalised": {"weights": (0, 1)},
}
CASES: dict[str, Callable[[naive.Model], naive.Parts]] = {
    "ft": naive.ft,
    "er": naive.er,
    "er+": naive.er_plus,
    "er+/plus-replay": naive.er_plus_replay,
    "er+/plus-current": naive.er_plus_current,
    "er++": naive.er_plus_plus,
    "der": naive.der,
    "lump": naive.lump,
    "ewc": naive.ewc,
    "cassle": naive.cassle,
    "cassle(symmetric=true)": partial(naive.cassle, symmetric=True),
    "cassle(positive=other,keep_other=true)": partial(naive.cassle, positive="other", keep_other=True),  # its own code
    "pocon": naive.pocon,
    "offline": naive.ft,
    "d1-only": naive.ft,
    **{base: partial(naive.osiris, past=past) for base, past in PAST.items()},
    **{
        f"{base}/{name}": partial(naive.osiris, past=past, **options)
        for (base, past), (name, options) in product(PAST.items(), ABLATIONS.items())
    },
    "osiris-d(positive=other)": partial(naive.osiris, past=("distil",), positive="other"),
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_equal_the_naive_ones(name: str) -> None:
    assert_like_naive(situation(composed(name)), CASES[name])


def test_options_of_the_command_line() -> None:
    both = composed("osiris-d", past="replay+distil", cross_weight=0.3)
    assert_like_naive(situation(both), partial(naive.osiris, past=("replay", "distil"), weights=(0.3, 0.5)))
    assert_like_naive(situation(composed("er", past_weight=3.0)), partial(naive.er, weight=3))


@pytest.mark.parametrize("name", ["ft", "er", "er++", "lump", "cassle", "pocon", "osiris-r", "osiris-d"])
def test_with_batch_norm(name: str) -> None:
    """One pass per view, X and Y together; frozen networks use their running statistics."""
    assert_like_naive(situation(name, norm="bn"), CASES[name])


def test_every_method_of_the_paper_is_compared() -> None:
    assert set(PAPER) <= set(CASES) & set(ZOO)


@pytest.mark.parametrize("name", ["cassle", "pocon", "osiris-d", "ewc", "der"])
def test_nothing_frozen_or_stored_is_trained(name: str) -> None:
    case = situation(name, norm="bn")
    case.model.train()
    modules = [module for module in case.model.modules() if isinstance(module, Frozen)]
    assert not any(module.training or module.network.training for module in modules)
    before = digest([module.state_dict() for module in modules])
    case.values()[0].backward()
    assert digest([module.state_dict() for module in modules]) == before, "running statistics included"
    frozen = [*case.model.buffers(), *case.networks.past.parameters()]
    frozen += [value for value in case.model.parameters() if not value.requires_grad]
    assert frozen and all(value.grad is None and not value.requires_grad for value in frozen)


def test_every_image_is_encoded_once_by_the_networks_that_need_it() -> None:
    case = situation("osiris-d")
    live: list[int] = []
    past: list[int] = []
    case.networks.encoder.register_forward_hook(lambda module, inputs, output: live.append(len(output)))
    case.networks.past["encoder"].register_forward_hook(lambda module, inputs, output: past.append(len(output)))
    case.values()
    assert live == [2 * (4 + 3)] and past == [2 * 4], "two views of X and Y together; the past encoder never sees Y"
