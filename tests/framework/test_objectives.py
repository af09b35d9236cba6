"""Every objective against an independent computation, in the methods that can use it, and its state through a run."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import naive
import naive_objectives
from osiris.errors import UserError
from osiris.framework import losses
from osiris.framework.composition import method_from_dict, method_to_dict, resolve
from osiris.framework.config import MethodConfig
from osiris.framework.methods import ZOO
from osiris.framework.objectives import Objective
from osiris.framework.objectives.base import enqueue
from osiris.framework.table1 import measure_ticks
from osiris.framework.terms import CrossMix
from osiris.framework.tracing import trace
from osiris.training.checkpoint import digest
from osiris.training.loop import Training
from quick import quick
from tiny import Situation, situation, tiny_engine, train

SMALL = {"mocov2+": "mocov2+(queue_size=5)", "swav": "swav(clusters=7)"}
PLAIN = [SMALL.get(kind, kind) for kind, cls in Objective.kinds().items() if cls.__module__.startswith("osiris.")]
OPTIONS = [
    "dcl(weighted=true)",
    "vicreg(halved=true)",
    "swav(clusters=7,frozen_epochs=0,queue_size=4,queue_epoch=0)",
]
METHODS = ["ft", "er", "er++", "lump", "cassle", "osiris-d", "pfr", "pnr"]
PAIRS = [*((name, method) for name in PLAIN for method in METHODS), *((name, "er") for name in OPTIONS)]


def composed(method: str, objective: str, **options):
    return resolve(MethodConfig(method, objective=objective, **options))


def expected(case: Situation, method: str, objective: str) -> dict[str, tuple[float, Tensor]]:
    model = case.naive()
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
    parts = {"current": (1.0, reference.loss("X"))}
    if method == "pfr":
        parts["past"] = (1, reference.pfr())
    if method == "er":
        parts["past"] = (1, reference.loss("Y"))
    if method == "cassle":
        parts["past"] = (1, reference.cassle())
    if method == "osiris-d":
        parts |= {key: part for key, part in naive.osiris(model, ("distil",)).items() if key != "current"}
    return parts


@pytest.mark.parametrize(
    ("objective", "method"),
    quick([pair for pair in PAIRS if pair[0] in ("ntxent", "barlow") or pair[1] in ("er", "cassle", "pnr")], PAIRS),
)
def test_values_and_gradients_equal_the_naive_ones(objective: str, method: str) -> None:
    kind = kind_of(objective)
    if method == "pnr" and not (kind.contrastive or kind.repulsion):
        with pytest.raises(UserError, match="pnr has no form"):
            composed(method, objective)
    elif method == "cassle" and not kind().can_agree:
        with pytest.raises(UserError, match="cassle has no form"):
            composed(method, objective)
    else:
        compare(situation(composed(method, objective)), method, objective)


def kind_of(objective: str) -> type[Objective]:
    return Objective.kinds()[objective.split("(")[0]]


def test_the_table_of_the_documentation_says_which_pairs_are_refused() -> None:
    text = (Path(__file__).parents[2] / "docs" / "objectives.md").read_text(encoding="utf-8")
    lines = text.split("## Which methods take which objective")[1].strip().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[: lines.index("")]]
    (_, *objectives), _, *body = rows
    assert set(objectives) <= {name.split("(")[0] for name in PLAIN}
    methods = [method for names, *_ in body for method in names.split(", ")]
    assert set(ZOO) <= set(methods)
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
    nu, model = term.nu(case.context), case.naive()
    model.views[term.mixture] = nu * case.views["X"][:, :3] + (1 - nu) * case.views["Y"]
    reference = naive_objectives.Reference(model, objective, ("X", term.mixture))
    compare_parts(case, lambda: reference.cromo(term.mixture, nu))


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
    reference = naive_objectives.Reference(case.naive(), objective, names)
    slots = case.context.slots
    stored = case.model.memory.field("target", slots) if method == "cla-r" and slots is not None else None

    def parts() -> dict[str, tuple[float, Tensor]]:
        current = {"current": (1.0, reference.loss(*names))}
        return current if method == "minred" else current | {"past": (1.0, reference.align(names[-1], stored))}

    compare_parts(case, parts)


@pytest.mark.parametrize(("method", "field"), [("cla-r", "target"), ("minred", "feature")])
def test_a_visit_renews_what_is_stored_with_an_image(method: str, field: str) -> None:
    """cla-r: c <- c/2 + mean z / 2, raw; minred: c <- hat(c/2 + hat(z_1 + z_2)/2), and hat(z_1 + z_2) at first."""
    case = situation(method)
    assert case.context.memory is not None and case.context.slots is not None
    case.context.memory.get_buffer("field_feature" if method == "minred" else "field_target")[7] = 0
    z = case.represent()
    renewed = case.model.rewritten(z, case.context)[field]
    for row, slot in enumerate(case.context.slots.tolist()):
        first, second = z.raw("Y")[:, row]
        c = case.context.memory.get_buffer(f"field_{field}")[slot]
        new = naive.unit(first + second)
        if method == "cla-r":
            wanted = c / 2 + (first + second) / 4
        else:
            wanted = new if slot == 7 else naive.unit(c / 2 + new / 2)
        torch.testing.assert_close(renewed[row], wanted)
    engine, stretch = tiny_engine(method, epochs=1)
    train(engine, stretch[:1])
    stored = engine.memory.get_buffer(f"field_{field}")
    assert (stored.norm(dim=1) > 0).all() == (method == "cla-r"), "minred has no feature before the first visit"
    before = stored.clone()
    engine.model.begin_task(engine.task_context(stretch[1], 0))
    engine.memory.plan = lambda count, random: (torch.arange(0), torch.arange(0))  # pyright: ignore[reportAttributeAccessIssue]
    engine.step(stretch[1], 0)
    assert int((stored != before).any(1).sum()) == 6, "the images of Y"


def test_the_average_of_cla_follows_from_the_first_step() -> None:
    engine, stretch = tiny_engine("cla-b", epochs=1)
    average = engine.model.terms["past"].get_submodule("average_encoder.network").get_parameter("conv1.weight")
    live = engine.networks.encoder.get_parameter("conv1.weight")
    wanted = live.detach().clone()
    engine.model.begin_task(engine.task_context(stretch[0], 0))
    for step in range(2):
        engine.step(stretch[0], step)
        engine.model.after_step(engine.task_context(stretch[0], step + 1))
        wanted = 0.999 * wanted + 0.001 * live.detach()
    torch.testing.assert_close(average, wanted)
    assert not torch.equal(average, live)


def test_pnr_with_the_positive_in_the_denominator() -> None:
    name = "pnr(positive_in_denominator=true)"
    compare(situation(composed(name, "ntxent")), name, "ntxent")


@pytest.mark.parametrize("objective", ["barlow", "byol"])
def test_with_a_batch_norm_encoder(objective: str) -> None:
    """One pass for each view, X and Y together, also through the moving average."""
    compare(situation(composed("er", objective), norm="bn"), "er", objective)


def compare(case: Situation, method: str, objective: str) -> None:
    compare_parts(case, lambda: expected(case, method, objective))


def compare_parts(case: Situation, reference: Callable[[], dict[str, tuple[float, Tensor]]]) -> None:
    value, terms = case.values()
    value.backward()
    gradients = case.gradients()
    case.model.zero_grad()
    parts = reference()
    naive.total(parts).backward()
    wanted = case.gradients()
    assert set(terms) == set(parts)
    for name, (_, part) in parts.items():
        torch.testing.assert_close(terms[name], part, rtol=1e-8, atol=1e-9, msg=lambda text, n=name: f"{n}: {text}")
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-6, atol=1e-9, msg=lambda t, n=name: f"{n}: {t}")


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
        ("osiris-d", "barlow", {"second_space": "copy"}, "another shape than h"),
        ("ft", "simsiam", {"past": "distil:g"}, "distil:g is contrastive"),
        ("ft", "vicreg", {"past": "match:h"}, "copy of g"),
        ("cassle(symmetric=true)", "barlow", {}, "belongs to contrastive distillation"),
        ("ft", "mocov2+", {"past": "pseudo-distil"}, "needs the queue of pseudo-contrast"),
        ("er+", "dcl(weighted=true)", {}, "negatives has a loss of its own"),
        ("pnr", "dcl(weighted=true)", {}, "pseudo-contrast has a loss of its own"),
        ("cromo", "vicreg", {}, "cromo has no form for the objective vicreg"),
        ("er", "ntxent", {"memory_policy": "minred"}, "use --method minred"),
        ("der", "ntxent", {"memory_policy": "quota"}, "stores no embeddings"),
        ("minred", "ntxent", {"memory_policy": "fifo"}, "belongs to the memory minred"),
        ("ft", "ntxent", {"cross": "cross-mix:h"}, "acts in the space of g"),
        ("ft", "ntxent", {"memory_policy": "fifo"}, "no term uses it"),
        ("ft", "mocov2+(queue_size=0)", {}, "at least 1 place"),
        ("ft", "swav(clusters=1)", {}, "clusters must be 2 or more"),
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


@pytest.mark.parametrize("objective", PLAIN)
def test_the_first_task_is_ft_with_the_same_objective(objective: str) -> None:
    states = []
    for method in ("ft", "osiris-d", "pocon"):
        engine, stretch = tiny_engine(composed(method, objective), epochs=1)
        results = train(engine, stretch[:1])
        assert all(bool(result.finite) for result in results)
        f, g = engine.networks.encoder.state_dict(), engine.networks.heads["g"].state_dict()
        states.append(digest({"f": f, "g": g, "objective": engine.networks.objective.state_dict()}))
    assert len(set(states)) == 1


@pytest.mark.parametrize(
    ("objective", "method"),
    quick(
        {*((objective, "er") for objective in PLAIN), ("byol", "pocon"), ("barlow", "ewc")},
        product(PLAIN, ("er", "osiris-d", "pocon", "ewc")),
    ),
)
def test_state_goes_through_save_and_load(objective: str, method: str, tmp_path) -> None:
    engine, stretch = tiny_engine(composed(method, objective), epochs=1, learning_rate=0.01)
    train(engine, stretch[:2])
    torch.save(engine.state(), tmp_path / "state.pt")
    again, _ = tiny_engine(composed(method, objective), epochs=1, learning_rate=0.01)
    again.restore(torch.load(tmp_path / "state.pt", weights_only=True))
    for one in (engine, again):
        train(one, stretch[2:3])
    assert digest(again.state()) == digest(engine.state())


def test_moving_averages_follow_the_cosine_schedule() -> None:
    """After the k-th step tau = 1 - 0.01 (1 + cos(pi (k - 1) / T)) / 2; it restarts in every task, weights carry on."""
    engine, stretch = tiny_engine(composed("ft", "byol"), epochs=1)
    average = engine.networks.objective.get_submodule("average_encoder.network").get_parameter("conv1.weight")
    live = engine.networks.encoder.get_parameter("conv1.weight")
    assert torch.equal(average, live) and not average.requires_grad
    wanted = live.detach().clone()
    for phase in stretch[:2]:
        engine.model.begin_task(engine.task_context(phase, 0))
        for step in range(phase.steps):
            engine.step(phase, step)
            engine.model.after_step(engine.task_context(phase, step + 1))
            tau = 1 - 0.01 * (1 + torch.cos(torch.tensor(torch.pi * step / phase.steps))) / 2
            wanted = tau * wanted + (1 - tau) * live.detach()
            torch.testing.assert_close(average, wanted)
        engine.model.end_task(engine.task_context(phase, phase.steps))


def test_queues_take_the_newest_keys_in_global_order_and_wrap_around() -> None:
    """mocov2+: written after the step, carried over to the next task. swav: emptied in every task."""
    engine, stretch = tiny_engine(composed("ft", "mocov2+(queue_size=11)"), epochs=1)
    objective = engine.networks.objective
    queue, expected = objective.get_buffer("queue"), objective.get_buffer("queue").clone()
    torch.testing.assert_close(queue.norm(dim=-1), torch.ones(2, 11))
    written = 0
    for phase in stretch[:2]:
        engine.model.begin_task(engine.task_context(phase, 0))
        for step in range(phase.steps):
            engine.step(phase, step)
            assert torch.equal(queue, expected), "the loss sees the queue of the step before"
            (keys,) = objective.waiting
            for row in range(keys.shape[1]):
                expected[:, (written + row) % 11] = keys[:, row]
            written += keys.shape[1]
            engine.model.after_step(engine.task_context(phase, step + 1))
            assert torch.equal(queue, expected)
    engine, stretch = tiny_engine(composed("ft", "swav(clusters=7,queue_size=30)"), epochs=1)
    train(engine, stretch[:1])
    queue = engine.networks.objective.get_buffer("queue")
    assert (queue.norm(dim=-1) > 0).sum() == 2 * 20, "20 images, zeros until filled"
    engine.model.begin_task(engine.task_context(stretch[1], 0))
    assert queue.abs().sum() == 0


def test_a_bad_step_leaves_the_queue() -> None:
    queue, position = torch.ones(2, 3, 4), torch.tensor(2)
    rows = torch.full((2, 2, 4), 5.0)
    rows[0, 0, 0] = float("nan")
    enqueue(queue, position, rows)
    assert queue[:, :, 1].tolist() == [[5, 1, 1], [5, 1, 5]] and int(position) == 1


def test_prototypes_rest_in_the_first_epochs_of_each_task() -> None:
    engine, stretch = tiny_engine(composed("ft", "swav(clusters=7,frozen_epochs=1)"), epochs=2)
    for phase in stretch[:2]:
        engine.model.begin_task(engine.task_context(phase, 0))
        for step in range(phase.steps):
            before = engine.networks.objective.rows().clone()  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
            engine.step(phase, step)
            after = engine.networks.objective.rows()  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
            assert torch.equal(before, after) == (step < phase.steps_per_epoch)
            engine.model.after_step(engine.task_context(phase, step + 1))


def test_cassle_of_swav_keeps_the_prototypes_of_the_task_before() -> None:
    engine, stretch = tiny_engine(composed("cassle", "swav(clusters=7)"), epochs=1)
    train(engine, stretch[:1])
    past = engine.model.terms["past"].get_submodule("distiller").get_buffer("past")
    assert torch.equal(past, engine.networks.objective.rows())  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]


@pytest.mark.parametrize("optimiser", ["sgd", "muon"])
def test_the_predictor_of_simsiam_has_a_constant_learning_rate(optimiser: str) -> None:
    learning = {"optimiser": optimiser, "schedule": "cosine", "learning_rate": 0.01}
    engine, stretch = tiny_engine(composed("ft", "simsiam"), epochs=1, **learning)  # pyright: ignore[reportArgumentType]
    train(engine, stretch[:1])
    predictor = set(engine.networks.objective.get_submodule("predictor").parameters())
    rates = {(p in predictor, g["lr"] / g.get("scale", 1)) for g in engine.optimiser.param_groups for p in g["params"]}
    assert len(rates) == 2 and (True, 0.01) in rates, "the others have fallen"


def test_the_moving_average_follows_the_expert_of_pocon() -> None:
    engine, stretch = tiny_engine(composed("pocon(interval=100)", "byol(rate=0)"), epochs=1)
    train(engine, stretch[:1])
    engine.model.begin_task(engine.task_context(stretch[1], 0))
    engine.step(stretch[1], 0)
    engine.model.after_step(engine.task_context(stretch[1], 1))
    expert = engine.model.terms["current"].get_submodule("expert").get_parameter("conv1.weight")
    average = engine.networks.objective.get_submodule("average_encoder.network").get_parameter("conv1.weight")
    assert torch.equal(average, expert) and not torch.equal(
        expert, engine.networks.encoder.get_parameter("conv1.weight")
    )


def test_targets_get_no_gradient_and_predictors_do() -> None:
    case = situation(composed("ft", "byol"))
    case.values()[0].backward()
    objective = case.networks.objective
    assert all(parameter.grad is None for parameter in objective.get_submodule("average_head").parameters())
    assert all(parameter.grad is not None for parameter in objective.get_submodule("predictor").parameters())


def test_the_spread_shows_a_collapse() -> None:
    case = situation("ft")
    z = torch.nn.functional.normalize(torch.randn(2, 500, 64, generator=torch.Generator().manual_seed(0)), dim=-1)
    case.networks.objective.watch(z)
    assert case.networks.objective.spread is not None
    assert float(case.networks.objective.spread) == pytest.approx(1, abs=0.02)
    case.networks.objective.watch(z[:, :1].expand(2, 500, 64))  # one point for each view
    assert float(case.networks.objective.spread) == pytest.approx(0, abs=1e-6)


def test_a_collapse_is_named_once_in_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    spreads = [0.5, 0.001, 0.001, None]
    run = SimpleNamespace(
        meter=SimpleNamespace(read=lambda phase, step: {"spread": spreads.pop(0)}, bad_steps=0),
        position=SimpleNamespace(step=30),
        directory=SimpleNamespace(owner=True),
        engine=SimpleNamespace(optimiser=SimpleNamespace(param_groups=[{"lr": 1}]), memory=SimpleNamespace(filled=0)),
        collapsed_in=None,
        _emit=lambda record: None,
    )
    for said in (False, True, False, False):
        Training._log(run, SimpleNamespace(task=1))  # pyright: ignore[reportArgumentType]
        assert ("have collapsed" in capsys.readouterr().err) == said


def test_micro_batches_give_the_same_gradients() -> None:
    """Heads with BatchNorm see the whole batch; only the encoder runs in pieces."""
    case = situation(composed("er", "byol"))
    case.values()[0].backward()
    wanted = case.gradients()
    case.model.zero_grad()
    case.values(micro_batch=3)[0].backward()
    for name, gradient in case.gradients().items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("objective", PLAIN)
def test_the_space_of_g_stays_isolated(objective: str) -> None:
    """With any objective g of osiris-d learns from X alone: BatchNorm in g does not see the memory."""
    assert measure_ticks(composed("osiris-d", objective)) == (True, True, True)
    traced = trace(composed("osiris-d", objective))
    symbol = kind_of(objective).symbol
    assert traced[0].formula == f"{symbol}_g(X)" and traced[0].learns_from == ("X",)
    predictor = {"s"} if hasattr(situation(composed("ft", objective)).networks.objective, "predictor") else set()
    assert set(traced[0].reaches) == {"f", "g"} | predictor
