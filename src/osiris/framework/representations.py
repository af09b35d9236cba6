"""f, g, h and their frozen copies. Every embedding is computed once per step and shared by all terms.

`Networks` holds what is trained and what is frozen. `Representations` is created in every step: one pass of f over the
union of the inputs that terms declare (with BatchNorm, one pass per view, X and Y together), then
heads on demand. A request names head and encoder as the paper does: `rep(X, "h", "f*")` is the past encoder with the
current h (osiris-d), `rep(X, "g*", "f*")` the past encoder with the past g (cassle).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from osiris.models.config import ProjectorConfig
from osiris.models.encoder import feature_count, is_external
from osiris.models.heads import projector
from osiris.models.normalisation import AnyBatchNorm, BatchNorm
from osiris.processes import gather
from osiris.randomness import scoped

if TYPE_CHECKING:
    from osiris.framework.objectives import Objective

Head = str | nn.Module | tuple[str | nn.Module, ...]
"""g, h, g*, a module of a term, or a chain of them: ("g", predictor) is predictor(g(f(v)))."""


class Frozen(nn.Module):
    """A copy of a network that is not trained and stays in evaluation mode."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
        self.network.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Frozen:
        return super().train(False)

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Copy the current state of the network, in place."""
        copy_state(network, self.network)

    @torch.no_grad()
    def follow(self, network: nn.Module, rate: float) -> None:
        """theta~ <- rate theta~ + (1 - rate) theta; statistics of BatchNorm are copied."""
        for average, parameter in zip(self.network.parameters(), network.parameters(), strict=True):
            average.mul_(rate).add_(parameter, alpha=1 - rate)
        for own, buffer in zip(self.network.buffers(), network.buffers(), strict=True):
            own.copy_(buffer)

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return self.network(inputs)


class Average(Frozen):
    """A moving average (EMA) of a network, updated in place and without gradient.

    Each layer has the mode of the same layer of the network, so BatchNorm uses batch statistics in both or in neither.
    """

    def __init__(self, network: nn.Module, alone: bool = False) -> None:
        """`alone`: each input has a call of its own. Otherwise all inputs that share a call of g share one here too."""
        super().__init__(network)
        self.alone = alone
        for own, other in zip(self.network.modules(), network.modules(), strict=True):
            own.training = other.training

    def train(self, mode: bool = True) -> Average:
        nn.Module.train(self, mode)
        return self

    @torch.no_grad()
    def follow(self, network: nn.Module, rate: float) -> None:
        """theta~ <- rate theta~ + (1 - rate) theta."""
        for average, parameter in zip(self.network.parameters(), network.parameters(), strict=True):
            average.mul_(rate).add_(parameter, alpha=1 - rate)


@torch.no_grad()
def copy_state(source: nn.Module, target: nn.Module) -> None:
    """Copy parameters and buffers in place, so that the optimiser keeps its references."""
    for into, value in zip(target.state_dict().values(), source.state_dict().values(), strict=True):
        into.copy_(value)


class Networks(nn.Module):
    """The encoder f, the projectors g and h, and the frozen f*, g* of the previous task, as far as terms need them."""

    objective: Objective
    """L^SSL in the space of g, with its predictor and moving averages."""

    def __init__(
        self,
        encoder: nn.Module,
        config: ProjectorConfig,
        seed: int,
        needs: frozenset[str] = frozenset(),
        objective: Objective | None = None,
        together: tuple[str, ...] = (),
        image_shape: tuple[int, int, int] = (3, 32, 32),
    ) -> None:
        """`config`: the shape of the projectors, unless `objective` gives g another one; `needs`: which of h, f* and g*
        exist; `together`: the inputs that go through g in one call, so that BatchNorm in g sees one batch."""
        super().__init__()
        self.encoder, self.projector_config, self.together = encoder, config, together
        self.features = feature_count(encoder, image_shape)
        self.batch_norm = any(isinstance(layer, AnyBatchNorm) and layer.training for layer in encoder.modules())
        """Whether the features of an image depend on its batch."""
        self.external = is_external(encoder)
        self.heads = nn.ModuleDict()
        for name in ("g", "h"):
            if name == "g" or name in needs:
                shape = projector if objective is None or name == "h" else objective.projector
                with scoped(seed, f"init.{name}"):
                    self.heads[name] = shape(self.features, config.projector_hidden, config.projector_output)
        self.past = nn.ModuleDict()
        if "f*" in needs:
            self.past["encoder"] = Frozen(self.encoder)
        if "g*" in needs:
            self.past["g"] = Frozen(self.heads["g"])
        if objective is not None:
            self.objective = objective
            objective.attach(self, seed)

    def width(self, head: str) -> int:
        """Dimensions of the space of a head."""
        return [layer.out_features for layer in self.heads[head].modules() if isinstance(layer, nn.Linear)][-1]

    @property
    def frozen(self) -> dict[str, nn.Module]:
        """The networks of the previous task by name, as far as terms need them: f*, g*."""
        return {"f*" if name == "encoder" else f"{name}*": network for name, network in self.past.items()}

    def named(self, name: str | nn.Module) -> nn.Module:
        """The network of this name: f, f*, g, h or g*. A module is its own name."""
        if isinstance(name, nn.Module):
            return name
        if name.endswith("*"):
            assert name in self.frozen, f"a term that uses {name} must declare needs = {{{name!r}}}"
            return self.frozen[name]
        return self.encoder if name == "f" else self.heads[name]

    def end_task(self) -> None:
        """f* <- f, g* <- g."""
        for frozen, network in self._past():
            frozen.update(network)

    def follow(self, rate: float) -> None:
        """f* and g* as moving averages, in a stream."""
        for frozen, network in self._past():
            frozen.follow(network, rate)

    def _past(self) -> Iterator[tuple[Frozen, nn.Module]]:
        for name, frozen in self.past.items():
            assert isinstance(frozen, Frozen)
            yield frozen, self.encoder if name == "encoder" else self.heads[name]


Key = tuple[str, nn.Module, tuple[nn.Module, ...]]
"""Input, encoder, chain of heads."""


class Representations:
    """The embeddings of one step. `rep("X", head="h")` is [2, N, d] over the global batch, L2-normalised."""

    def __init__(
        self,
        networks: Networks,
        views: Mapping[str, Tensor],
        counts: Mapping[str, int] | None = None,
        encode: tuple[str, ...] | None = None,
        micro_batch: int | None = None,
        autocast: Callable[[], torch.autocast] | None = None,
    ) -> None:
        """`views`: the rows of this process for every input, [2, n, 3, H, W]; `counts`: their global numbers of images;
        `encode`: the inputs that go through f (default: all)."""
        self.networks, self.views = networks, dict(views)
        self.counts = {name: views.shape[1] for name, views in self.views.items()} if counts is None else dict(counts)
        self.micro_batch, self.autocast = micro_batch, autocast
        self.requests: list[Key] = []
        """The keys of all calls, for tracing."""
        self.local: dict[Key, Tensor] = {}
        """Outputs of the last head for the rows of this process, [2, n, d]."""
        self._raw: dict[Key, Tensor] = {}
        self._normalised: dict[Key, Tensor] = {}
        names = tuple(self.views) if encode is None else encode
        if names:
            self._encode(networks.encoder, names)

    def __call__(self, name: str, head: Head = "g", encoder: str | nn.Module = "f") -> Tensor:
        """Normalised embeddings of the global batch, [2, N, d]; head=() is the output of the encoder itself."""
        key, raw = self._key(name, head, encoder), self.raw(name, head, encoder)
        if key not in self._normalised:
            self._normalised[key] = unit_vectors(raw)
        return self._normalised[key]

    def raw(self, name: str, head: Head = "g", encoder: str | nn.Module = "f") -> Tensor:
        """Embeddings of the global batch without normalisation, [2, N, d], in float32 or better."""
        key = self._key(name, head, encoder)
        self.requests.append(key)
        if key not in self._raw:
            local = self._outputs(*key)
            wide = local.float() if local.dtype in (torch.float16, torch.bfloat16) else local
            self._raw[key] = gather(wide, self.counts[name], dim=1)
        return self._raw[key]

    def _key(self, name: str, head: Head, encoder: str | nn.Module) -> Key:
        heads = head if isinstance(head, tuple) else (head,)
        return name, self.networks.named(encoder), tuple(self.networks.named(part) for part in heads)

    def _outputs(self, name: str, encoder: nn.Module, heads: tuple[nn.Module, ...]) -> Tensor:
        """The entry of `local` for this key, computed at its first use."""
        key = name, encoder, heads
        if key in self.local:
            return self.local[key]
        names = self._together(name, heads[0] if heads else encoder)
        if not heads:  # encoders other than f run on demand
            self._encode(encoder, names)
            return self.local[key]
        *before, last = heads
        if isinstance(last, BothViews) or not any(isinstance(layer, BatchNorm) for layer in last.modules()):
            rows = self._outputs(name, encoder, tuple(before))
            with self._cast():
                self.local[key] = last(rows.flatten(0, 1)).unflatten(0, rows.shape[:2])
            return self.local[key]
        parts = [self._outputs(other, encoder, tuple(before)) for other in names]
        with self._cast():  # batch statistics belong to one view of all inputs
            outputs = torch.stack([last(view) for view in torch.cat(parts, dim=1)])
        for other, part in zip(names, outputs.split([part.shape[1] for part in parts], dim=1)):
            self.local[other, encoder, heads] = part
        return self.local[key]

    def _together(self, name: str, module: nn.Module) -> tuple[str, ...]:
        """The inputs that share a call of a module with `name`: `Networks.together` for g and moving averages."""
        shared = (isinstance(module, Average) and not module.alone) or module is self.networks.heads["g"]
        names = tuple(other for other in self.networks.together if other in self.views)
        return names if shared and name in names else (name,)

    def _encode(self, encoder: nn.Module, names: tuple[str, ...]) -> None:
        """One pass over the union of some inputs; with BatchNorm one pass for each view."""
        sizes = [self.views[name].shape[1] for name in names]
        per_view = [torch.cat([self.views[name][view] for name in names]) for view in range(2)]
        if self.networks.batch_norm:
            # Batch statistics belong to one view: mixing differently distorted views would change them.
            features = torch.stack([self._run(encoder, images) for images in per_view])
        else:
            features = torch.stack(self._run(encoder, torch.cat(per_view)).chunk(2))
        for name, part in zip(names, features.split(sizes, dim=1)):
            self.local[name, encoder, ()] = part

    def _run(self, encoder: nn.Module, images: Tensor) -> Tensor:
        with self._cast():
            if self.micro_batch is None or len(images) <= self.micro_batch:
                return encoder(images)
            # Gradient caching: only the inputs of each piece are kept; the backward pass recomputes piece by piece.
            pieces = images.split(self.micro_batch)
            if not torch.is_grad_enabled() or isinstance(encoder, Frozen):
                return torch.cat([encoder(piece) for piece in pieces])
            dropout = self.networks.external  # such encoders may have dropout, which must be the same when recomputed
            results = [checkpoint(encoder, piece, use_reentrant=False, preserve_rng_state=dropout) for piece in pieces]
            return torch.cat(results)  # pyright: ignore[reportArgumentType, reportCallIssue]

    def _cast(self) -> torch.autocast:
        device = next(self.networks.encoder.parameters()).device.type
        return torch.autocast(device, enabled=False) if self.autocast is None else self.autocast()


def unit_vectors(vectors: Tensor) -> Tensor:
    """Unit vectors along the last dimension. A vector whose length overflows gives NaN.

    torch's own function would give a zero vector there: a finite loss without a gradient, which would go unnoticed.
    """
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    finite = length.detach() - length.detach() + 1  # 1, or inf - inf = NaN
    return vectors / length.clamp_min(1e-12) * finite


class BothViews(nn.Sequential):
    """A head whose BatchNorm sees both views of one input in one call."""


class Unit(nn.Module):
    """`unit_vectors` as a layer."""

    def forward(self, vectors: Tensor) -> Tensor:
        return unit_vectors(vectors)
