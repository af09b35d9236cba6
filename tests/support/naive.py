"""Independent references in float64 and plain loops, written from the formulas of the paper and nothing else.

A batch of embeddings is [2][N] vectors: view, image. Nothing here computes with `osiris.framework`: images are encoded
one by one (BatchNorm: one view at a time), vectors are normalised by hand, every anchor is compared in a loop.
"""

import math
from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from osiris.framework.representations import Unit
from osiris.models.normalisation import BatchNorm

Vectors = Sequence[Sequence[Tensor]] | Tensor
Views = list[Tensor]
"""Raw embeddings [N, d] of the two views."""
Parts = dict[str, tuple[float, Tensor]]
"""Terms by name: weight and value."""
TAU = 0.1


def unit(vector: Tensor) -> Tensor:
    return vector / (vector * vector).sum().sqrt()


def _similarity(one: Tensor, two: Tensor, tau: float) -> Tensor:
    return (one * two).sum() / tau


def _minus_log(positive: Tensor, negatives: list[Tensor]) -> Tensor:
    """-log exp(p) / (exp(p) + sum exp(n)), as printed; shifted by the largest so that exp stays finite."""
    top = max([float(positive.detach()), *(float(value.detach()) for value in negatives)])
    total = (positive - top).exp()
    for value in negatives:
        total = total + (value - top).exp()
    return -((positive - top).exp() / total).log()


def mean(values: Sequence[Tensor]) -> Tensor:
    return sum(values[1:], values[0]) / len(values)


def contrast(z: Vectors, others: Vectors | None = None, tau: float = TAU) -> Tensor:
    """NTX(A), and er+'s variant with all views of `others` as further negatives."""
    losses, count = [], len(z[0])
    for view in range(2):
        for i in range(count):
            anchor = z[view][i]
            positive = _similarity(anchor, z[1 - view][i], tau)
            negatives = [_similarity(anchor, z[v][j], tau) for v in range(2) for j in range(count) if j != i]
            if others is not None:
                negatives += [_similarity(anchor, others[v][j], tau) for v in range(2) for j in range(len(others[0]))]
            losses.append(_minus_log(positive, negatives))
    return mean(losses)


def cross(a: Vectors, b: Vectors, tau: float = TAU) -> Tensor:
    """CROSS(A -> B): positives inside A, negatives from B alone."""
    losses = []
    for view in range(2):
        for i in range(len(a[0])):
            positive = _similarity(a[view][i], a[1 - view][i], tau)
            negatives = [_similarity(a[view][i], b[v][j], tau) for v in range(2) for j in range(len(b[0]))]
            losses.append(_minus_log(positive, negatives))
    return mean(losses)


def distil(p: Vectors, q: Vectors, tau: float = TAU, positive: str = "same", keep_other: bool = False) -> Tensor:
    """Anchor p_k, positive q_k (or the other view's), negatives q_j of other images."""
    losses, count = [], len(p[0])
    for view in range(2):
        for i in range(count):
            chosen = view if positive == "same" else 1 - view
            negatives = [_similarity(p[view][i], q[v][j], tau) for v in range(2) for j in range(count) if j != i]
            if keep_other:
                negatives.append(_similarity(p[view][i], q[1 - chosen][i], tau))
            losses.append(_minus_log(_similarity(p[view][i], q[chosen][i], tau), negatives))
    return mean(losses)


def match(p: Vectors, q: Vectors) -> Tensor:
    """Mean squared distance of vectors."""
    pairs = [(p[view][i], q[view][i]) for view in range(2) for i in range(len(p[0]))]
    return mean([((one - two) * (one - two)).sum() for one, two in pairs])


def elastic(parameters: Sequence[Tensor], anchors: Sequence[Tensor], fisher: Sequence[Tensor]) -> Tensor:
    total = parameters[0].new_zeros(())
    for theta, anchor, importance in zip(parameters, anchors, fisher):
        for t, a, f in zip(theta, anchor, importance):
            total = total + (f * (t * t - 2 * t * a + a * a)).sum()
    return total


def units(z: Views) -> list[list[Tensor]]:
    return [[unit(row) for row in view] for view in z]


def through(head: nn.Module, rows: Tensor) -> Tensor:
    """A head layer by layer, BatchNorm written out: biased variance of the batch, or running statistics if frozen."""
    for layer in head.modules():
        if isinstance(layer, nn.Linear):
            rows = rows @ layer.weight.T + (0 if layer.bias is None else layer.bias)
        elif isinstance(layer, Unit):
            rows = torch.stack([unit(row) for row in rows])
        elif isinstance(layer, nn.ReLU):
            rows = torch.where(rows > 0, rows, torch.zeros_like(rows))
        elif isinstance(layer, BatchNorm):
            mean, variance = rows.mean(0), ((rows - rows.mean(0)) ** 2).mean(0)
            if not layer.training:
                assert layer.running_mean is not None and layer.running_var is not None
                mean, variance = layer.running_mean, layer.running_var
            rows = (rows - mean) / (variance + 1e-5).sqrt()
            rows = rows * layer.weight + layer.bias if layer.affine else rows
    return rows


class Model:
    """f, g, h, their past and the modules of terms, applied by hand to views given as name -> [2, n, 3, H, W]."""

    stored: dict[str, Tensor]
    """What the memory keeps with the images of Y, by field."""
    nu: float
    """The share of X in a mixture."""

    def __init__(self, networks: nn.Module, terms: nn.ModuleDict, views: dict[str, Tensor], batch_norm: bool) -> None:
        self.networks, self.terms, self.views, self.batch_norm = networks, terms, views, batch_norm
        self.f = networks.get_submodule("encoder")

    def term(self, name: str) -> SimpleNamespace:
        module = self.terms[name]
        return SimpleNamespace(**dict(module.named_children()), **dict(module.named_buffers(recurse=False)))

    def features(self, name: str, encoder: nn.Module | None = None, beside: tuple[str, ...] = ()) -> Views:
        """Encoder outputs. `beside`: inputs that share a batch with it, which matters to BatchNorm alone."""
        encoder = self.f if encoder is None else encoder
        if not self.batch_norm:
            return [torch.cat([encoder(image[None]) for image in view]) for view in self.views[name]]
        names = beside or (name,)
        sizes = [self.views[other].shape[1] for other in names]
        whole = [encoder(torch.cat([self.views[other][view] for other in names])) for view in range(2)]
        return [view.split(sizes)[names.index(name)] for view in whole]

    def raw(
        self, names: Sequence[str], heads: Sequence[nn.Module], encoder: nn.Module | None = None
    ) -> dict[str, Views]:
        """Raw embeddings of inputs that share each call of a head, view by view."""
        sizes = [self.views[name].shape[1] for name in names]
        views: dict[str, Views] = {name: [] for name in names}
        for view in range(2):
            rows = torch.cat([self.features(name, encoder, tuple(names))[view] for name in names])
            for head in heads:
                rows = through(head, rows)
            for name, part in zip(names, rows.split(sizes)):
                views[name].append(part)
        return views

    def embed(self, name: str, heads: Sequence[nn.Module], encoder=None, beside=()) -> list[list[Tensor]]:
        return units(self.raw(beside or (name,), heads, encoder)[name])

    def head(self, name: str) -> nn.Module:
        return self.networks.get_submodule(f"heads.{name}")

    def past(self, name: str) -> nn.Module:
        return self.networks.get_submodule(f"past.{name}.network")


def _stopped(vectors: list[list[Tensor]]) -> list[list[Tensor]]:
    return [[vector.detach() for vector in view] for view in vectors]


def _g(model: Model, name: str) -> list[list[Tensor]]:
    return model.embed(name, [model.head("g")])


def _x_and_y(model: Model) -> tuple[list, list]:
    """In the space of g."""
    head, both = [model.head("g")], ("X", "Y")
    return model.embed("X", head, beside=both), model.embed("Y", head, beside=both)


def ft(model: Model) -> Parts:
    return {"current": (1, contrast(_g(model, "X")))}


def er(model: Model, weight: float = 1) -> Parts:
    x, y = _x_and_y(model)
    return {"current": (1, contrast(x)), "past": (weight, contrast(y))}


def er_plus(model: Model) -> Parts:
    x, y = _x_and_y(model)
    return {"current": (1, contrast(x, y))}


def er_plus_replay(model: Model) -> Parts:
    x, y = _x_and_y(model)
    return {"current": (1, contrast(x, y)), "past": (1, contrast(y))}


def er_plus_current(model: Model) -> Parts:
    x, y = _x_and_y(model)
    return {"current.contrast": (1, contrast(x)), "current.negatives": (1, contrast(x, y))}


def er_plus_plus(model: Model) -> Parts:
    x, y = _x_and_y(model)
    return {"current": (1, contrast([[*x[view], *y[view]] for view in range(2)]))}


def der(model: Model) -> Parts:
    x, y = _x_and_y(model)
    stored = list(model.stored["embedding"])
    return {"current": (1, contrast(x)), "past": (1, match(y, [stored, stored]))}


def lump(model: Model) -> Parts:
    mixed = [
        torch.stack([model.nu * x + (1 - model.nu) * y for x, y in zip(model.views["X"][view], model.views["Y"][view])])
        for view in range(2)
    ]
    model.views = {"mixed": torch.stack(mixed)}
    return {"current": (1, contrast(_g(model, "mixed")))}


def ewc(model: Model) -> Parts:
    remembered = vars(model.term("past"))
    parameters = list(model.f.parameters())
    anchors = [remembered[f"anchor_{index}"] for index in range(len(parameters))]
    fisher = [remembered[f"fisher_{index}"] for index in range(len(parameters))]
    return {"current": (1, contrast(_g(model, "X"))), "past": (100, elastic(parameters, anchors, fisher))}


def cassle(model: Model, positive: str = "same", keep_other: bool = False, symmetric: bool = False) -> Parts:
    predicted = model.embed("X", [model.head("g"), model.term("past").predictor])
    target = _stopped(model.embed("X", [model.past("g")], model.past("encoder")))
    value = distil(predicted, target, positive=positive, keep_other=keep_other)
    if symmetric:
        value = (value + distil(target, predicted, positive=positive, keep_other=keep_other)) / 2
    return {"current": (1, contrast(_g(model, "X"))), "past": (1, value)}


def pocon(model: Model) -> Parts:
    expert, past = model.term("current"), model.term("past")

    def follow(adapter: nn.Module, target: nn.Module) -> Tensor:
        return match(model.embed("X", [adapter]), _stopped(model.embed("X", [], target)))

    plasticity = contrast(model.embed("X", [expert.projector], expert.expert))
    return {
        "current": (1, plasticity + follow(expert.adapter, expert.expert_past.network)),
        "past": (1, follow(past.adapter, past.encoder_past.network)),
    }


def _distillation(model: Model, x: list, space: str, positive: str) -> Tensor:
    """D of osiris-d: P = h(f(v)), Q = h(f*(v)); rows and columns; no gradient into f*, gradient into h from both."""
    q = model.embed("X", [model.head(space)], model.past("encoder"))
    return (distil(x, q, positive=positive) + distil(q, x, positive=positive)) / 2


def osiris(
    model: Model,
    past: tuple[str, ...],
    weights: tuple[float, float] = (0.5, 0.5),
    space: str = "h",
    positive: str = "same",
) -> Parts:
    """osiris-r (past: replay), osiris-d (past: distil), their ablations (a weight of zero) and both together."""
    needs_y = weights[0] > 0 or "replay" in past
    both = ("X", "Y") if needs_y else ("X",)
    parts: Parts = {"current": (1, contrast(model.embed("X", [model.head("g")], beside=both)))}
    head = [model.head(space)]
    x = model.embed("X", head, beside=both)
    y = model.embed("Y", head, beside=both) if needs_y else []
    if weights[0]:
        parts["cross"] = (weights[0], (cross(x, y) + cross(y, x)) / 2)
    names = {"replay": "past.contrast", "distil": "past.distil"} if len(past) > 1 else dict.fromkeys(past, "past")
    for kind in past if weights[1] else ():
        value = contrast(y) if kind == "replay" else _distillation(model, x, space, positive)
        parts[names[kind]] = (weights[1], value)
    return parts


def total(parts: Parts) -> Tensor:
    values = [weight * value for weight, value in parts.values()]
    return sum(values[1:], values[0])


class Reservoir:
    """Vitter's algorithm R with the wording of docs/methods/er.md, one offer at a time."""

    def __init__(self, size: int) -> None:
        self.size, self.offers = size, 0
        self.slots: list[object] = []

    def offer(self, item: object, uniform: float) -> None:
        """`uniform` in [0, 1) decides r in {0..n}; it is drawn for every offer, used when the memory is full."""
        if len(self.slots) < self.size:
            self.slots.append(item)
        else:
            r = math.floor(uniform * (self.offers + 1))
            if r < self.size:
                self.slots[r] = item
        self.offers += 1
