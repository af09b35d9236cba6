"""Independent references for the objectives, in float64 and loops over images and dimensions."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

import naive
from naive import Parts, Views, mean, through, units


def union(*parts: Views) -> Views:
    return [torch.cat([part[view] for part in parts]) for view in range(2)]


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (naive.unit(a) * naive.unit(b)).sum()


def dcl(z: Views, tau: float = 0.1, weighted: bool = False) -> Tensor:
    u, count = units(z), len(z[0])
    similar = torch.stack([(u[0][i] * u[1][i]).sum() for i in range(count)])
    weights = 2 - count * (similar / 0.5).softmax(0) if weighted else torch.ones(count)
    losses = []
    for view in range(2):
        for i in range(count):
            others = [(u[view][i] * u[v][j]).sum() / tau for v in range(2) for j in range(count) if j != i]
            losses.append(-weights[i] * similar[i] / tau + torch.stack(others).logsumexp(0))
    return mean(losses)


def barlow(a: Tensor, b: Tensor, off: float = 5e-3, scale: float = 0.1) -> Tensor:
    count, width = a.shape
    total = a.new_zeros(())
    for i in range(width):
        for j in range(width):
            one, two = a[:, i] - a[:, i].mean(), b[:, j] - b[:, j].mean()
            deviations = ((one**2).mean() + 1e-5).sqrt() * ((two**2).mean() + 1e-5).sqrt()
            correlation = (one * two).sum() / count / deviations
            total = total + ((correlation - 1) ** 2 if i == j else off * correlation**2)
    return scale * total


def vicreg(z: Views, halved: bool = False) -> Tensor:
    count, width = z[0].shape
    value = 25 * ((z[0] - z[1]) ** 2).sum() / (count * width)
    for view in z:
        centred = view - view.mean(0)
        for i in range(width):
            deviation = ((centred[:, i] ** 2).sum() / (count - 1) + 1e-4).sqrt()
            if deviation < 1:
                value = value + 25 * (1 - deviation) / width / (2 if halved else 1)
            for j in range(width):
                if i != j:
                    value = value + ((centred[:, i] * centred[:, j]).sum() / (count - 1)) ** 2 / width
    return value


def byol(predictions: Views, targets: Views) -> Tensor:
    """A sum of two directions."""
    parts = [
        mean([2 - 2 * cosine(p, t.detach()) for p, t in zip(predictions[view], targets[1 - view])]) for view in range(2)
    ]
    return parts[0] + parts[1]


def simsiam(predictions: Views, z: Views) -> Tensor:
    parts = [mean([cosine(p, t.detach()) for p, t in zip(predictions[view], z[1 - view])]) for view in range(2)]
    return -(parts[0] + parts[1]) / 2


def mocov2(z: Views, keys: Views, queue: Tensor, tau: float = 0.2) -> Tensor:
    """Cross-entropy of the key of the other view among it and the queue of the other view; halves."""
    losses, u, k = [], units(z), units(keys)
    for view in range(2):
        for i in range(len(u[view])):
            positive = (u[view][i] * k[1 - view][i].detach()).sum() / tau
            logits = [positive, *((u[view][i] * row).sum() / tau for row in queue[1 - view])]
            losses.append(torch.stack(logits).exp().sum().log() - positive)
    return mean(losses)


def mocov3(predictions: Views, keys: Views, tau: float = 0.2) -> Tensor:
    """2 tau cross-entropy among the keys of the batch; a sum of two directions."""
    total, p, k = [], units(predictions), units(keys)
    for view in range(2):
        rows = []
        for i in range(len(p[view])):
            logits = torch.stack([(p[view][i] * key.detach()).sum() / tau for key in k[1 - view]])
            rows.append(logits.exp().sum().log() - logits[i])
        total.append(2 * tau * mean(rows))
    return total[0] + total[1]


def swav(z: Views, length: Tensor, direction: Tensor, queue: Tensor | None) -> Tensor:
    """`queue`: embeddings of earlier batches that join the assignment."""
    rows = torch.stack([size * naive.unit(row) for size, row in zip(length, direction)])
    scores = [torch.stack([torch.stack([(u * row).sum() for row in rows]) for u in view]) for view in units(z)]
    value = scores[0].new_zeros(())
    for view in range(2):
        joined = scores[view] if queue is None else torch.cat([scores[view], queue[view] @ rows.T])
        q = (joined.detach() / 0.05).exp()
        q = q / q.sum()
        for _ in range(3):
            q = q / q.sum(0) / q.shape[1]
            q = q / q.sum(1)[:, None] / q.shape[0]
        q = q[: len(scores[view])] * q.shape[0]
        for target, row in zip(q, scores[1 - view]):
            value = value - (target * ((row / 0.1).exp() / (row / 0.1).exp().sum()).log()).sum() / len(q) / 2
    return value


class Reference:
    """The objective of a model, on inputs that share a batch."""

    def __init__(self, model: naive.Model, kind: str, together: tuple[str, ...]) -> None:
        self.model, self.kind, self.together = model, kind, together
        self.g, self.state = model.head("g"), dict(model.networks.get_submodule("objective").named_children())

    def loss(self, *names: str) -> Tensor:
        """L^SSL on the union of `names`."""

        def of(heads: Sequence[nn.Module], encoder: nn.Module | None = None) -> Views:
            views = self.model.raw(self.together, heads, encoder)
            return union(*(views[name] for name in names))

        z = of([self.g])
        if self.kind in ("ntxent", "dcl", "dcl(weighted=true)"):
            return naive.contrast(units(z)) if self.kind == "ntxent" else dcl(z, weighted="weighted" in self.kind)
        if self.kind == "barlow":
            return barlow(z[0], z[1])
        if self.kind.startswith("vicreg"):
            return vicreg(z, halved="halved" in self.kind)
        if self.kind.startswith("swav"):
            length, direction = self.state["prototypes"].parameters()
            trained = "frozen_epochs=0" in self.kind
            parts = (length, direction) if trained else (length.detach(), direction.detach())
            return swav(z, *parts, self.queue if trained else None)
        if self.kind == "simsiam":
            return simsiam(of([self.g, self.state["predictor"]]), z)
        target = of([self.state["average_head"]], self.state["average_encoder"])
        if self.kind.startswith("mocov2"):
            return mocov2(z, target, self.queue)
        return {"byol": byol, "mocov3": mocov3}[self.kind](of([self.g, self.state["predictor"]]), target)

    @property
    def queue(self) -> Tensor:
        return self.model.networks.get_submodule("objective").get_buffer("queue")

    def cromo(self, mixture: str) -> Parts:
        """Mixtures with the first |Y| images of X."""
        mixed = self.model.raw(self.together, [self.g])[mixture]
        x, count = self.model.raw(self.together, [self.g])["X"], len(mixed[0])
        past = self.model.raw(("Y",), [self.model.past("g")], self.model.past("encoder"))["Y"]
        if self.kind == "byol":
            mixed = self.model.raw(self.together, [self.g, self.state["predictor"]])[mixture]
            x = self.model.raw(self.together, [self.state["average_head"]], self.state["average_encoder"])["X"]

        def similar(a: Tensor, b: Tensor) -> Tensor:
            if self.kind == "byol":
                return mean([2 - 2 * cosine(p, t) for p, t in zip(a, b)])
            losses = {"ntxent": lambda: naive.contrast(units([a, b])), "dcl": lambda: dcl([a, b])}
            return barlow(a, b) if self.kind == "barlow" else losses[self.kind]()

        cross = [
            self.model.nu * similar(mixed[view], x[view][:count])
            + (1 - self.model.nu) * similar(mixed[view], past[view].detach())
            for view in range(2)
        ]
        prediction, target = self.prediction_and_target()
        if self.kind in ("ntxent", "dcl"):
            distilled = mean([similar(prediction[view], target[view]) for view in range(2)])
        else:
            distilled = self.cassle()
        return {"current": (1, self.loss("X")), "cross": (1, mean(cross)), "past": (1, distilled)}

    def align(self, name: str, stored: Tensor | None) -> Tensor:
        """-cos(a(z), target) with both views in one call of the aligner."""
        term = self.model.term("past")
        aligned = through(term.aligner, torch.cat(self.model.raw(self.together, [self.g])[name]))
        if stored is None:
            target = torch.cat(self.model.raw((name,), [term.average_head], term.average_encoder)[name])
        else:
            target = torch.cat([stored, stored])
        return mean([-cosine(a, t.detach()) for a, t in zip(aligned, target)])

    def prediction_and_target(self) -> tuple[Views, Views]:
        """p(g(f(X))) and g*(f*(X))."""
        prediction = self.model.raw(self.together, [self.g, self.model.term("past").predictor])["X"]
        target = self.model.raw(("X",), [self.model.past("g")], self.model.past("encoder"))["X"]
        return prediction, [view.detach() for view in target]

    def pfr(self) -> Tensor:
        """-cos(p(f(X)), f*(X))."""
        prediction = self.model.raw(("X",), [self.model.term("past").predictor])["X"]
        target = self.model.raw(("X",), [], self.model.past("encoder"))["X"]
        return mean([-cosine(p, t.detach()) for view in range(2) for p, t in zip(prediction[view], target[view])])

    def pnr(self, positive_in_denominator: bool = False) -> tuple[Tensor, Tensor]:
        """The current and the past term. Rows 0..2N-1 are the views of all images, row k ± N the other view."""
        prediction, target = self.prediction_and_target()
        if self.kind.startswith(("ntxent", "dcl")):
            z = self.model.raw(self.together, [self.g])["X"]
            z, p, u = ([naive.unit(row) for view in views for row in view] for views in (z, prediction, target))
            count, main, distil = len(z), [], []
            for k in range(count):
                other = (k + count // 2) % count
                similar = [(z[k] * row[j]).sum() / 0.1 for row in (z, u) for j in range(count) if j != k]
                left_out = [(z[k] * z[other]).sum() / 0.1] if self.kind == "dcl" else []
                total = torch.stack(similar).exp().sum() - sum((value.exp() for value in left_out), torch.zeros(()))
                main.append(total.log() - (z[k] * z[other]).sum() / 0.1)
                found = [(p[k] * row[j]).sum() / 0.1 for row in (z, u) for j in range(count) if j != k]
                positive = (p[k] * u[k]).sum() / 0.1
                found += [positive] if positive_in_denominator else []
                distil.append(torch.stack(found).exp().sum().log() - positive)
            return mean(main), mean(distil)
        if self.kind.startswith("mocov2"):
            z = self.model.raw(self.together, [self.g])["X"]
            keys = self.model.raw(self.together, [self.state["average_head"]], self.state["average_encoder"])["X"]
            queue = torch.cat([self.queue, self.model.term("current").queue], dim=1)
            swapped = [target[1], target[0]]  # the distillation looks for the same view in the queues of the other view
            return mocov2(z, keys, queue), mocov2(prediction, swapped, queue)
        wrong = [target[1], target[0]]
        pairs = [(p, t) for view in range(2) for p, t in zip(prediction[view], wrong[view])]
        if self.kind.startswith("vicreg"):
            away = -23 * mean([((p - t) ** 2).mean() for p, t in pairs])
        elif self.kind == "barlow":
            away = mean([cosine(p, t) for p, t in pairs])
        else:
            away = -0.5 * mean([2 - 2 * cosine(p, t) for p, t in pairs])
        return self.loss("X"), self.cassle() + away

    def cassle(self) -> Tensor:
        """The past term: predictions p(z) of X against g*(f*(X))."""
        prediction, target = self.prediction_and_target()
        if self.kind.startswith("swav"):
            distiller = self.model.term("past").distiller
            length, direction = distiller.prototypes.parameters()
            values = []
            for p, t in zip(torch.cat(prediction), torch.cat(target)):
                goal = ((distiller.past @ naive.unit(t)) / 0.1).softmax(0)
                scores = torch.stack(
                    [(size * naive.unit(row) * naive.unit(p)).sum() for size, row in zip(length, direction)]
                )
                values.append(-(goal * (scores / 0.1).log_softmax(0)).sum())
            return mean(values)
        if self.kind.startswith(("ntxent", "dcl", "mocov2")):
            tau = 0.2 if self.kind.startswith("mocov2") else 0.1  # that of the objective
            return naive.distil(units(prediction), units(target), tau)
        if self.kind == "barlow":
            return mean([barlow(p, t) for p, t in zip(prediction, target)])
        if self.kind.startswith("vicreg"):
            return 25 * mean([((p - t) ** 2).mean() for p, t in zip(prediction, target)])
        return mean([2 - 2 * cosine(p, t) for view in range(2) for p, t in zip(prediction[view], target[view])])
