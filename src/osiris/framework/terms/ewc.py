"""EWC: important parameters stay close to their values at the end of the previous task (Sec. 3.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn

from osiris.errors import UserError
from osiris.framework import losses
from osiris.framework.representations import Networks, Representations
from osiris.framework.terms.base import StepContext, TaskContext, Term, X
from osiris.models.normalisation import frozen_statistics
from osiris.processes import average_gradients

if TYPE_CHECKING:
    from osiris.framework.methods import Method


class Elastic(Term):
    r"""Online EWC: L_past = (Theta - Theta*)^T F (Theta - Theta*) over the encoder, F <- F + normalised(F_t).

    F_t is the mean of squared batch gradients of L^SSL through f and g, one pass over the task at its end; gamma = 1.
    """

    kind: ClassVar[str] = "elastic"
    formula: ClassVar[str] = "Σ F (θ − θ*)²"
    inputs: ClassVar[tuple[str, ...]] = ()
    spaces: ClassVar[frozenset[str]] = frozenset()
    stores: ClassVar[str] = "F, theta*"
    normaliser: Literal["sum", "max", "l2", "mean"] = "sum"
    """The paper does not say how the Fisher is normalised; `sum` gives unit trace."""

    def default_weight(self, task_count: int) -> float:
        """50 for five tasks and 100 for twenty (Appendix B). The paper gives no other task counts: 100 there too."""
        return 50.0 if task_count == 5 else 100.0

    def check_stream(self, method: Method) -> None:
        raise UserError(
            "ewc measures its weights on all images of a task at its end, and a stream has no end of a task; leave out "
            "--stream to learn task after task."
        )

    def attach(self, networks: Networks, seed: int) -> None:
        for index, parameter in enumerate(networks.encoder.parameters()):
            self.register_buffer(f"fisher_{index}", torch.zeros_like(parameter))
            self.register_buffer(f"anchor_{index}", parameter.detach().clone())

    def _values(self, name: str) -> list[Tensor]:
        return [value for key, value in self.named_buffers() if key.startswith(f"{name}_")]

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        return losses.elastic(rep.networks.encoder.parameters(), self._values("anchor"), self._values("fisher"))

    def begin_task(self, context: TaskContext) -> None:
        """SGD with momentum diverges where the curvature exceeds 2 (1 + momentum) / lr: refuse to start such a task."""
        if not isinstance(context.optimiser, torch.optim.SGD):
            return
        largest = max(float(fisher.max()) for fisher in self._values("fisher"))
        curvature = 2 * context.weight * largest
        bound = 2 * (1 + context.momentum) / context.learning_rate
        if context.task > 0 and curvature > bound:
            # One more Fisher is added after each task: leave room for those to come.
            stable = 0.5 * context.weight * bound / curvature * context.task / max(1, context.task_count - 1)
            raise UserError(
                f"ewc would diverge in task {context.task + 1}: weight {context.weight:g} times the largest Fisher "
                f"entry {largest:.3g} gives curvature {curvature:.3g}, and SGD at this learning rate is stable below "
                f"{bound:.3g}. Use --past-weight {stable:.3g} or less, a smaller "
                f'--learning-rate, or --method "ewc(normaliser=sum)".'
            )

    def end_task(self, context: TaskContext) -> None:
        """F <- F + normalised(F_t), theta* <- theta."""
        assert context.batches is not None
        networks = context.networks
        parameters = list(networks.encoder.parameters())
        total = [torch.zeros_like(parameter) for parameter in parameters]
        count = 0
        with frozen_statistics(networks):
            for rep in context.batches("fisher"):
                networks.zero_grad(set_to_none=True)
                networks.objective(rep, (X,), context.tau).backward()
                average_gradients(networks.parameters())
                gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
                if not torch.isfinite(nn.utils.get_total_norm(gradients)):
                    continue  # left out like a bad step: F would stay undefined for the rest of the run
                for into, parameter in zip(total, parameters):
                    if parameter.grad is not None:  # otherwise it is frozen, or has no part in the features
                        into += parameter.grad.square()
                count += 1
        networks.zero_grad(set_to_none=True)
        count = max(1, count)
        scale = 1 / (count * normaliser([value / count for value in total], self.normaliser))
        for fisher, anchor, value, parameter in zip(self._values("fisher"), self._values("anchor"), total, parameters):
            fisher.add_(value * scale)
            anchor.copy_(parameter.detach())


def normaliser(fisher: list[Tensor], kind: str) -> Tensor:
    """The number that the Fisher of a task is divided by."""
    flat = torch.cat([value.reshape(-1) for value in fisher])
    value = {"sum": flat.sum, "max": flat.max, "l2": flat.norm, "mean": flat.mean}[kind]()
    return value.clamp(min=torch.finfo(flat.dtype).tiny)
