"""Every objective against an independent computation, in the methods that can use it, and its state through a run."""

from functools import partial
from itertools import product
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import naive
import naive_objectives
from naive import Parts
from osiris.errors import UserError
from osiris.framework import losses
from osiris.framework.composition import method_from_dict, method_to_dict
from osiris.framework.methods import TRAINED
from osiris.framework.objectives import Byol, Objective
from osiris.framework.objectives.base import Batch
from osiris.framework.terms import CrossMix, pnr
from osiris.framework.tracing import trace
from osiris.paper.table1 import measure_ticks
from quick import quick
from tiny import OBJECTIVES, Situation, assert_like_naive, composed, situation

OPTIONS = [
    "dcl(weighted=true)",
    "vicreg(halved=true)",
    "swav(clusters=7,frozen_epochs=0,queue_size=4,queue_epoch=0)",
]
METHODS = ["ft", "er", "er++", "lump", "cassle", "osiris-d", "pfr", "pnr"]
PAIRS = [*product([name for name in OBJECTIVES if name != "ntxent"], METHODS), *((name, "er") for name in OPTIONS)]
PAIRS += [("ntxent", "pfr"), ("ntxent", "pnr"), ("ntxent", "pnr(positive_in_denominator=true)")]
"""The other methods with NT-Xent: test_terms.py."""


def expected(case: Situation, method: str, objective: str, model: naive.Model) -> Parts:
    if method == "lump":
        (mixture,) = case.networks.together
        model.views = case.model.make(case.views, case.context)
        return {"current": (1, naive_objectives.Reference(model, objective, (mixture,)).loss(mixture))}
    together = ("X", "Y") if method.startswith("er") else ("X",)
    reference = naive_objectives.Reference(model, objective, together)
    if method == "er++":
        return {"current": (1, reference.loss("X", "Y"))}
    if method.startswith("pnr"):
        current, past = reference.pnr("positive_in_denominator" in method)
        return {"current": (1, current), "past": (1, past)}
    parts: Parts = {"current": (1, reference.loss("X"))}
    if method == "osiris-d":
        return parts | {key: part for key, part in naive.osiris(model, ("distil",)).items() if key != "current"}
    past = {"pfr": reference.pfr, "er": lambda: reference.loss("Y"), "cassle": reference.cassle}
    return parts | ({"past": (1, past[method]())} if method in past else {})


@pytest.mark.parametrize(
    ("objective", "method"),
    quick([pair for pair in PAIRS if pair[0] in ("ntxent", "barlow") or pair[1] in ("er", "cassle", "pnr")], PAIRS),
)
def test_values_and_gradients_equal_the_naive_ones(objective: str, method: str) -> None:
    if method == "pnr" and kind_of(objective) not in pnr.FORMS:
        with pytest.raises(UserError, match="pnr has no form"):
            composed(method, objective)
    else:
        compare(situation(composed(method, objective)), method, objective)


class Alignment(Objective):
    """An objective of a user, which no method knows."""

    kind: ClassVar[str] = "test-alignment"

    def loss(self, batch: Batch, tau: float) -> torch.Tensor:
        return losses.match(*batch.normalised())


class OwnByol(Byol):
    kind: ClassVar[str] = "test-byol"


@pytest.mark.parametrize("method", ["er+", "cassle", "pnr", "cromo"])
def test_an_objective_without_a_form_is_refused_and_a_derived_one_has_that_of_its_base(method: str) -> None:
    composed("osiris-d", "test-alignment")
    with pytest.raises(UserError, match=r"(has no form for the|the) objective test-alignment"):
        composed(method, "test-alignment")
    if method != "er+":
        composed(method, "test-byol")


def kind_of(objective: str) -> type[Objective]:
    return Objective.kinds()[objective.split("(")[0]]


def test_the_table_of_the_documentation_says_which_pairs_are_refused() -> None:
    text = (Path(__file__).parents[2] / "docs" / "objectives.md").read_text(encoding="utf-8")
    lines = text.split("## Which methods take which objective")[1].strip().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[: lines.index("")]]
    (_, *objectives), _, *body = rows
    assert set(objectives) <= {name.split("(")[0] for name in OBJECTIVES}
    methods = [method for names, *_ in body for method in names.split(", ")]
    assert set(TRAINED) <= set(methods)
    for names, *cells in body:
        for method, (objective, cell) in product(names.split(", "), zip(objectives, cells)):
            if cell == "yes":
                composed(method, objective)
            else:
                with pytest.raises(UserError, match=objective.replace("+", r"\+")):
                    composed(method, objective)


@pytest.mark.parametrize("objective", quick(("ntxent", "byol"), ("ntxent", "dcl", "barlow", "byol")))
def test_cromo_equals_the_naive_computation(objective: str) -> None:
    """With three images of Y for four of X."""
    case = situation(composed("cromo", objective))
    case.views["Y"], case.context.slots = case.views["Y"][:, :3], torch.tensor([7, 2, 0])
    term = case.model.terms["cross"]
    assert isinstance(term, CrossMix)

    def parts(model: naive.Model) -> Parts:
        model.views[term.mixture] = model.nu * case.views["X"][:, :3] + (1 - model.nu) * case.views["Y"]
        return naive_objectives.Reference(model, objective, ("X", term.mixture)).cromo(term.mixture)

    assert_like_naive(case, parts)


ONLINE = ["cla-e", "cla-r", "cla-b", "minred"]


@pytest.mark.parametrize(
    ("objective", "method"),
    quick(
        {*(("ntxent", method) for method in ONLINE), ("byol", "cla-r"), ("mocov2+(queue_size=5)", "minred")},
        product(["ntxent", "barlow", "byol", "mocov2+(queue_size=5)"], ONLINE),
    ),
)
def test_online_methods_equal_the_naive_computation(objective: str, method: str) -> None:
    case = situation(composed(method, objective))
    names = {"cla-b": ("X",), "minred": ("Y",)}.get(method, ("X", "Y"))

    def parts(model: naive.Model) -> Parts:
        reference = naive_objectives.Reference(model, objective, names)
        current: Parts = {"current": (1, reference.loss(*names))}
        past = {} if method == "minred" else {"past": (1, reference.align(names[-1], model.stored.get("target")))}
        return current | past

    assert_like_naive(case, parts)


@pytest.mark.parametrize("objective", ["ntxent", "barlow"])
def test_the_average_of_cla_e_sees_the_memory_alone(objective: str) -> None:
    """BatchNorm in f~ and in g~ (barlow) has the statistics of Y, although f and g see X and Y together."""
    case = situation(composed("cla-e", objective), norm="bn")

    def parts(model: naive.Model) -> Parts:
        reference = naive_objectives.Reference(model, objective, ("X", "Y"))
        return {"current": (1, reference.loss("X", "Y")), "past": (1, reference.align("Y", None))}

    assert_like_naive(case, parts)


@pytest.mark.parametrize("objective", ["barlow", "byol"])
def test_with_a_batch_norm_encoder(objective: str) -> None:
    """One pass for each view, X and Y together, also through the moving average."""
    compare(situation(composed("er", objective), norm="bn"), "er", objective)


@pytest.mark.parametrize("options", ["", "tau=0.3"])
def test_the_temperature_of_a_past_term_in_the_space_of_g_is_that_of_the_objective(options: str) -> None:
    """mocov2+ has one of its own, 0.2; that of the run is 0.1. An option of the term comes first."""
    case = situation(composed("ft", "mocov2+(queue_size=5)", past=f"predict({options})+distil:g"))
    z, term = case.represent(), case.model.terms["past_predict"]
    predicted, target = z("X", ("g", term.get_submodule("predictor"))), z("X", "g*", "f*")
    terms = case.values()[1]
    torch.testing.assert_close(terms["past.predict"], naive.distil(predicted, target, 0.3 if options else 0.2))
    now, past = z("X"), z("X", "g", "f*")
    both = (naive.distil(now, past, 0.2) + naive.distil(past, now, 0.2)) / 2
    torch.testing.assert_close(terms["past.distil"], both)


def compare(case: Situation, method: str, objective: str) -> None:
    assert_like_naive(case, partial(expected, case, method, objective))


@pytest.mark.parametrize("objective", ["dcl", "byol"])
def test_decoupled_negatives_and_cross(objective: str) -> None:
    """er+ and cross:g follow dcl; objectives without negatives are refused."""
    if objective == "byol":
        for method, options in (("er+", {}), ("osiris-d/shared-space", {}), ("ft", {"cross": "cross:g"})):
            with pytest.raises(UserError, match="the objective byol has no negatives"):
                composed(method, objective, **options)
        return
    torch.manual_seed(0)
    x, y = (torch.nn.functional.normalize(torch.randn(2, n, 5, dtype=torch.float64), dim=-1) for n in (4, 3))
    rows, columns = x.flatten(0, 1), y.flatten(0, 1)
    other = [4, 5, 6, 7, 0, 1, 2, 3]
    added, crossed = [], []
    for k in range(8):
        positive = rows[k] @ rows[other[k]] / 0.1
        mine = [rows[k] @ rows[j] / 0.1 for j in range(8) if j not in (k, other[k])]
        theirs = [rows[k] @ column / 0.1 for column in columns]
        added.append(torch.stack(mine + theirs).logsumexp(0) - positive)
        crossed.append(torch.stack(theirs).logsumexp(0) - positive)
    torch.testing.assert_close(losses.contrast_with_negatives(x, y, decoupled=True), torch.stack(added).mean())
    torch.testing.assert_close(losses.cross(x, y, decoupled=True), torch.stack(crossed).mean())
    case, plain = situation(composed("er+", "dcl")), situation("er+")
    z = case.represent()
    wanted = losses.contrast_with_negatives(z("X"), z("Y"), 0.1, decoupled=True)
    torch.testing.assert_close(case.values()[0], wanted)
    assert not torch.allclose(case.values()[0], plain.values()[0])


@pytest.mark.parametrize(
    ("method", "objective", "options", "message"),
    [
        ("ft", "barlo", {}, "Did you mean 'barlow'"),
        ("ft", "barlow(scal=1)", {}, "Did you mean 'scale'"),
        ("osiris-d", "barlow", {"second_space": "copy"}, "differs in shape from h"),
        ("ft", "simsiam", {"past": "distil:g"}, "distil:g is contrastive"),
        ("ft", "vicreg", {"past": "match:h"}, "copy of g"),
        ("cassle(symmetric=true)", "barlow", {}, "belongs to contrastive distillation"),
        ("ft", "mocov2+", {"past": "pseudo-distil"}, "needs the queue of pseudo-contrast"),
        ("pnr(tau=0.3)", "mocov2+", {}, "changes nothing with the objective mocov2+"),
        ("pnr(repulsion=0.3)", "ntxent", {}, "changes nothing with the objective ntxent"),
        ("cromo(tau=0.5)", "ntxent", {}, "one temperature for all its losses; use --tau"),
        ("er+", "dcl(weighted=true)", {}, "negatives has a loss of its own"),
        ("pnr", "dcl(weighted=true)", {}, "pseudo-contrast has a loss of its own"),
        ("cromo", "vicreg", {}, "cromo has no form for the objective vicreg"),
        ("er", "ntxent", {"memory_policy": "minred"}, "use --method minred"),
        ("der", "ntxent", {"memory_policy": "quota"}, "stores no embeddings"),
        ("der", "ntxent", {"memory_policy": "equal"}, "stores no embeddings"),
        ("minred", "ntxent", {"memory_policy": "fifo"}, "belongs to the memory minred"),
        ("ft", "ntxent", {"cross": "cross-mix:h"}, "acts in the space of g"),
        ("ft", "ntxent", {"memory_policy": "fifo"}, "no term uses it"),
        ("ft", "mocov2+(queue_size=0)", {}, r"queue_size=0\): Expected `int` >= 1"),
        ("ft", "swav(clusters=1)", {}, r"clusters=1\): Expected `int` >= 2"),
    ],
)
def test_compositions_without_a_meaning_are_refused(method: str, objective: str, options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        composed(method, objective, **options)


def test_an_objective_is_recorded_and_named() -> None:
    method = composed("osiris-d", "barlow(scale=0.025)")
    assert method.name == "osiris-d[objective=barlow(scale=0.025)]" and composed("ft", "ntxent").name == "ft"
    again = method_from_dict(method_to_dict(method))
    assert again.objective.to_dict() == {"kind": "barlow", "off_diagonal": 5e-3, "scale": 0.025}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_space_of_g_stays_isolated(objective: str) -> None:
    """With any objective g of osiris-d learns from X alone: BatchNorm in g does not see the memory."""
    assert measure_ticks(composed("osiris-d", objective)) == (True, True, True)
    traced = trace(composed("osiris-d", objective))
    symbol = kind_of(objective).symbol
    assert traced[0].formula == f"{symbol}_g(X)" and traced[0].learns_from == ("X",)
    predictor = {"s"} if hasattr(situation(composed("ft", objective)).networks.objective, "predictor") else set()
    assert set(traced[0].reaches) == {"f", "g"} | predictor
