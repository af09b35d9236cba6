"""f, g, h and their frozen copies; every embedding is computed once and shared by all terms.

`Networks` owns what is trained and what is frozen. `Representations` is made anew in every step: one pass of the live
encoder over the union of the inputs the terms declared (with BatchNorm, one pass per view, X and Y together), then
heads on demand. Encoder and head are named apart: "past encoder with the live h" (osiris-d) and "past encoder with the
past g" (cassle) are different things.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from osiris.models import EncoderConfig, ProjectorConfig, build_encoder, projector
from osiris.processes import gather
from osiris.randomness import scoped

Head = str | nn.Module | tuple[str | nn.Module, ...]
"""g, h, past.g, a term's own module, or a chain of them: ("g", predictor) is predictor(g(f(v)))."""


class Frozen(nn.Module):
    """A copy of a network that neither trains nor leaves evaluation mode."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
        self.network.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Frozen:
        return super().train(False)

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Become the network as it is now, in place."""
        copy_state(network, self.network)

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return self.network(inputs)


@torch.no_grad()
def copy_state(source: nn.Module, target: nn.Module) -> None:
    """Parameters and buffers, in place: the optimiser and everyone else keep their references."""
    for into, value in zip(target.parameters(), source.parameters(), strict=True):
        into.copy_(value)
    for into, value in zip(target.buffers(), source.buffers(), strict=True):
        into.copy_(value)


class Networks(nn.Module):
    """The encoder f, the projectors g and h, and the frozen f*, g* of the previous task, as far as terms need them."""

    def __init__(
        self,
        encoder: EncoderConfig,
        heads: ProjectorConfig,
        seed: int,
        needs: frozenset[str] = frozenset(),
        images: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.encoder_config, self.projector_config = encoder, heads
        self.encoder: nn.Module = build_encoder(encoder, seed, images=images)
        self.heads = nn.ModuleDict()
        for name in ("g", "h"):
            if name == "g" or name in needs:
                with scoped(seed, f"init.{name}"):
                    self.heads[name] = projector(encoder.features, heads.projector_hidden, heads.projector_output)
        self.past = nn.ModuleDict()
        if "past.encoder" in needs:
            self.past["encoder"] = Frozen(self.encoder)
        if "past.g" in needs:
            self.past["g"] = Frozen(self.heads["g"])

    @property
    def batch_norm(self) -> bool:
        return self.encoder_config.batch_norm

    def end_task(self) -> None:
        """f* <- f, g* <- g."""
        for name, frozen in self.past.items():
            assert isinstance(frozen, Frozen)
            frozen.update(self.encoder if name == "encoder" else self.heads[name])


class Passes:
    """Counts images through encoders: the cost of a method, measured instead of claimed."""

    def __init__(self) -> None:
        self.forward: dict[str, int] = {}
        self.backward: dict[str, int] = {}

    def count(self, encoder: str, inputs: str, images: int, gradient: bool) -> None:
        for table in [self.forward] + ([self.backward] if gradient else []):
            key = f"{encoder}:{inputs}"
            table[key] = table.get(key, 0) + images


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
        passes: Passes | None = None,
    ) -> None:
        """`views`: this process' rows of every input, [2, n, 3, H, W]; `counts`: their global numbers of images;
        `encode`: those that the live encoder must see (default: all)."""
        self.networks, self.views = networks, dict(views)
        self.counts = {name: views.shape[1] for name, views in self.views.items()} if counts is None else dict(counts)
        self.micro_batch, self.autocast, self.passes = micro_batch, autocast, passes
        self._features: dict[tuple[str, int], Tensor] = {}
        self._outputs: dict[tuple[str, int, tuple[int, ...]], Tensor] = {}
        self._shared: dict[tuple[str, int, tuple[int, ...]], Tensor] = {}
        names = tuple(self.views) if encode is None else encode
        if names:
            self._encode_together(networks.encoder, names, "live")

    def __call__(self, name: str, head: Head = "g", encoder: str | nn.Module = "live") -> Tensor:
        """Normalised embeddings of the global batch, [2, N, d]."""
        key = (name, id(self._encoder(encoder)), tuple(id(module) for module in self._heads(head)))
        if key not in self._shared:
            self._shared[key] = self.share(self.outputs(name, head, encoder), name)
        return self._shared[key]

    def outputs(self, name: str, head: Head = "g", encoder: str | nn.Module = "live") -> Tensor:
        """Head outputs of this process' rows, before normalisation, [2, n, d]; head=() is the encoder's own output."""
        if not self._heads(head):
            return self.features(name, encoder)
        *before, last = self._heads(head)
        key = (name, id(self._encoder(encoder)), tuple(id(module) for module in (*before, last)))
        if key not in self._outputs:
            rows = self.outputs(name, tuple(before), encoder) if before else self.features(name, encoder)
            with self._cast():
                self._outputs[key] = last(rows.flatten(0, 1)).unflatten(0, rows.shape[:2])
        return self._outputs[key]

    def features(self, name: str, encoder: str | nn.Module = "live") -> Tensor:
        """Encoder outputs of this process' rows, [2, n, D]; encoders other than the live one run on demand."""
        module = self._encoder(encoder)
        key = (name, id(module))
        if key not in self._features:
            label = encoder if isinstance(encoder, str) else "frozen" if isinstance(encoder, Frozen) else "other"
            self._encode_together(module, (name,), label)
        return self._features[key]

    def share(self, local: Tensor, name: str) -> Tensor:
        """Normalise [2, n, d] and gather the rows of all processes, in float32 or better: [2, N, d]."""
        wide = local.float() if local.dtype in (torch.float16, torch.bfloat16) else local
        normalised = F.normalize(wide, dim=-1)
        return gather(normalised.transpose(0, 1), self.counts[name]).transpose(0, 1)

    def _encode_together(self, encoder: nn.Module, names: tuple[str, ...], label: str) -> None:
        sizes = [self.views[name].shape[1] for name in names]
        per_view = [torch.cat([self.views[name][view] for name in names]) for view in range(2)]
        if self.networks.batch_norm:
            # Batch statistics belong to one view: mixing differently distorted views would change them.
            features = torch.stack([self._run(encoder, images) for images in per_view])
        else:
            features = torch.stack(self._run(encoder, torch.cat(per_view)).chunk(2))
        for name, part in zip(names, features.split(sizes, dim=1)):
            self._features[name, id(encoder)] = part
            if self.passes is not None:
                self.passes.count(label, name, 2 * part.shape[1], part.requires_grad)

    def _run(self, encoder: nn.Module, images: Tensor) -> Tensor:
        with self._cast():
            if self.micro_batch is None or len(images) <= self.micro_batch:
                return encoder(images)
            # Gradient caching: only the inputs of each piece are kept; the backward pass recomputes piece by piece.
            pieces = images.split(self.micro_batch)
            if not torch.is_grad_enabled() or isinstance(encoder, Frozen):
                return torch.cat([encoder(piece) for piece in pieces])
            results = [checkpoint(encoder, piece, use_reentrant=False, preserve_rng_state=False) for piece in pieces]
            return torch.cat(results)  # pyright: ignore[reportArgumentType, reportCallIssue]

    def _cast(self) -> torch.autocast:
        device = next(self.networks.encoder.parameters()).device.type
        return torch.autocast(device, enabled=False) if self.autocast is None else self.autocast()

    def _encoder(self, encoder: str | nn.Module) -> nn.Module:
        if not isinstance(encoder, str):
            return encoder
        if encoder == "live":
            return self.networks.encoder
        assert "encoder" in self.networks.past, 'a term that uses encoder="past" says so: needs = {"past.encoder"}'
        return self.networks.past["encoder"]

    def _heads(self, head: Head) -> list[nn.Module]:
        return [self._head(part) for part in (head if isinstance(head, tuple) else (head,))]

    def _head(self, head: str | nn.Module) -> nn.Module:
        if not isinstance(head, str):
            return head
        if head != "past.g":
            return self.networks.heads[head]
        assert "g" in self.networks.past, 'a term that uses head="past.g" says so: needs = {"past.g"}'
        return self.networks.past["g"]
