"""Each method's loss in its second task against the naive computation, and where its gradients go."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

import naive
from osiris.framework.methods import ZOO, Method, find_method
from osiris.framework.representations import Frozen
from tiny import PAPER, Parts, Situation, assert_like_naive, composed, situation


def stored(case: Situation) -> Tensor:
    assert case.context.memory is not None and case.context.slots is not None
    return torch.stack(
        [case.context.memory.get_buffer("field_embedding")[slot] for slot in case.context.slots.tolist()]
    )


def drawn_nu(case: Situation) -> float:
    (term,) = [term for _, term, _ in case.model.later if term.kind == "mixed"]
    return term.nu(case.context)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]


CASES: dict[str, tuple[Method, Callable[[Situation], Parts]]] = {
    "ft": (find_method("ft"), lambda case: naive.ft(case.naive())),
    "er": (find_method("er"), lambda case: naive.er(case.naive())),
    "er+": (find_method("er+"), lambda case: naive.er_plus(case.naive())),
    "er+/plus-replay": (find_method("er+/plus-replay"), lambda case: naive.er_plus_replay(case.naive())),
    "er+/plus-current": (find_method("er+/plus-current"), lambda case: naive.er_plus_current(case.naive())),
    "er++": (find_method("er++"), lambda case: naive.er_plus_plus(case.naive())),
    "der": (find_method("der"), lambda case: naive.der(case.naive(), stored(case))),
    "lump": (find_method("lump"), lambda case: naive.lump(case.naive(), drawn_nu(case))),
    "ewc": (find_method("ewc"), lambda case: naive.ewc(case.naive(), 100)),
    "cassle": (find_method("cassle"), lambda case: naive.cassle(case.naive())),
    "pocon": (find_method("pocon"), lambda case: naive.pocon(case.naive())),
    "osiris-r": (find_method("osiris-r"), lambda case: naive.osiris(case.naive(), ("replay",))),
    "osiris-d": (find_method("osiris-d"), lambda case: naive.osiris(case.naive(), ("distil",))),
    "offline": (find_method("offline"), lambda case: naive.ft(case.naive())),
    "d1-only": (find_method("d1-only"), lambda case: naive.ft(case.naive())),
}
ABLATIONS = {
    "shared-space": {"space": "g"},
    "no-cross": {"weights": (0, 0.5)},
    "no-past": {"weights": (0.5, 0)},
    "no-cross/renormalised": {"weights": (0, 1)},
}
for (_base, _past), (_name, _options) in product(
    (("osiris-r", ("replay",)), ("osiris-d", ("distil",))), ABLATIONS.items()
):
    CASES[f"{_base}/{_name}"] = (
        find_method(f"{_base}/{_name}"),
        lambda case, past=_past, options=_options: naive.osiris(case.naive(), past, **options),
    )
CASES |= {
    "osiris-d, positive other": (
        composed(method="osiris-d(positive=other)"),
        lambda case: naive.osiris(case.naive(), ("distil",), positive="other"),
    ),
    "replay and distillation": (
        composed(method="osiris-d", past="replay+distil", cross_weight=0.3),
        lambda case: naive.osiris(case.naive(), ("replay", "distil"), (0.3, 0.5)),
    ),
    "cassle, symmetric": (
        composed(method="cassle", past="predict(symmetric=true)"),
        lambda case: naive.cassle(case.naive(), symmetric=True),
    ),
    "cassle, as in its own code": (
        composed(method="cassle", past="predict(positive=other,keep_other=true)"),
        lambda case: naive.cassle(case.naive(), "other", keep_other=True),
    ),
    "er, past weight 3": (
        composed(method="er", past_weight=3.0),
        lambda case: naive.er(case.naive(), 3),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_equal_the_naive_ones(name: str) -> None:
    method, reference = CASES[name]
    case = situation(method)
    assert_like_naive(case, lambda: reference(case))


@pytest.mark.parametrize("name", ["ft", "er", "er++", "lump", "cassle", "pocon", "osiris-r", "osiris-d"])
def test_with_batch_norm(name: str) -> None:
    """One pass per view, X and Y together; frozen networks use their running statistics."""
    method, reference = CASES[name]
    case = situation(method, norm="bn")
    assert_like_naive(case, lambda: reference(case))


def test_every_method_of_the_paper_is_compared() -> None:
    assert set(PAPER) <= set(CASES) & set(ZOO)


REACH: dict[str, dict[str, set[str]]] = {
    "ft": {"current": {"f", "g"}},
    "er": {"current": {"f", "g"}, "past": {"f", "g"}},
    "er+": {"current": {"f", "g"}},
    "er++": {"current": {"f", "g"}},
    "der": {"current": {"f", "g"}, "past": {"f", "g"}},
    "lump": {"current": {"f", "g"}},
    "ewc": {"current": {"f", "g"}, "past": {"f"}},
    "cassle": {"current": {"f", "g"}, "past": {"f", "g", "past.predictor"}},
    "pocon": {
        "current": {"f", "current.expert", "current.projector", "current.adapter"},
        "past": {"f", "past.adapter"},
    },
    "osiris-r": {"current": {"f", "g"}, "cross": {"f", "h"}, "past": {"f", "h"}},
    "osiris-d": {"current": {"f", "g"}, "cross": {"f", "h"}, "past": {"f", "h"}},
    "osiris-d/shared-space": {"current": {"f", "g"}, "cross": {"f", "g"}, "past": {"f", "g"}},
    "offline": {"current": {"f", "g"}},
    "d1-only": {"current": {"f", "g"}},
}
"""Which networks get gradient from which term. Everything else gets none."""


def group(name: str) -> str:
    """encoder.conv1.weight -> f, heads.h.fc1.weight -> h, terms.past.predictor.fc1.weight -> past.predictor."""
    parts = name.split(".")
    if parts[0] == "encoder":
        return "f"
    return parts[1] if parts[0] == "heads" else ".".join(parts[1:3])


@pytest.mark.parametrize("name", REACH)
def test_gradient_reach(name: str) -> None:
    case = situation(name)
    found: dict[str, set[str]] = {}
    for term in case.values()[1]:
        case.model.zero_grad()
        case.values()[1][term].backward()
        gradients = case.gradients()
        reached = {group(key) for key, gradient in gradients.items() if gradient.abs().max() > 0}
        for key, gradient in gradients.items():  # reached means: every tensor of the network, not one of its biases
            assert group(key) not in reached or gradient.abs().max() > 0, key
        found[term] = reached
    assert found == REACH[name]


@pytest.mark.parametrize("name", ["cassle", "pocon", "osiris-d", "ewc", "der"])
def test_nothing_frozen_or_stored_is_trained(name: str) -> None:
    case = situation(name)
    case.values()[0].backward()
    frozen = [*case.model.buffers(), *case.networks.past.parameters()]
    frozen += [value for value in case.model.parameters() if not value.requires_grad]
    assert frozen
    assert all(value.grad is None and not value.requires_grad for value in frozen)
    case.model.train()
    assert all(not module.training for module in case.model.modules() if isinstance(module, Frozen))


IMAGES: dict[str, dict[str, set[str]]] = {
    "er": {"current": {"X"}, "past": {"Y"}},
    "er+": {"current": {"X", "Y"}},
    "er++": {"current": {"X", "Y"}},
    "der": {"current": {"X"}, "past": {"Y"}},
    "lump": {"current": {"X", "Y"}},
    "ewc": {"current": {"X"}, "past": set()},
    "cassle": {"current": {"X"}, "past": {"X"}},
    "pocon": {"current": {"X"}, "past": {"X"}},
    "osiris-r": {"current": {"X"}, "cross": {"X", "Y"}, "past": {"Y"}},
    "osiris-d": {"current": {"X"}, "cross": {"X", "Y"}, "past": {"X"}},
}
"""Which images a term learns from: its gradient with respect to the views."""


@pytest.mark.parametrize("name", IMAGES)
def test_which_images_a_term_learns_from(name: str) -> None:
    case = situation(name)
    for views in case.views.values():
        views.requires_grad_()
    found: dict[str, set[str]] = {}
    for term in case.values()[1]:
        value = case.values()[1][term]
        gradients = torch.autograd.grad(value, list(case.views.values()), allow_unused=True)
        found[term] = {
            batch for batch, gradient in zip(case.views, gradients) if gradient is not None and gradient.abs().max() > 0
        }
    assert found == IMAGES[name]
