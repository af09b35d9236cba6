"""GroupNorm with the groups of the paper, BatchNorm over the batch of all processes, and the modes of an encoder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from osiris.errors import UserError
from osiris.processes import sum_over_processes, world_size


def group_norm(channels: int) -> nn.GroupNorm:
    """min(32, channels // 4) groups (Appendix B)."""
    groups = min(32, channels // 4)
    if groups < 1 or channels % groups:
        raise UserError(
            f"GroupNorm cannot split {channels} channels into {groups} groups; use a width such as 16, 32, 64."
        )
    return GroupNorm(groups, channels)


class GroupNorm(nn.GroupNorm):
    """GroupNorm in the dtype of its input, also under autocast, which would compute it and all that follows in float32.

    In half precision the kernels add up in float32, and keep mean and deviation of each group in half precision for
    the backward pass.
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.dtype == self.weight.dtype:
            return super().forward(input)
        # The kernel on CUDA wants one dtype for all.
        weight, bias = self.weight.to(input.dtype), self.bias.to(input.dtype)
        with torch.autocast(input.device.type, enabled=False):
            return F.group_norm(input, self.num_groups, weight, bias, self.eps)


AnyBatchNorm = nn.modules.batchnorm._BatchNorm
"""Also those that an encoder defines itself, such as timm's with an activation: they stay as they are."""


class BatchNorm(AnyBatchNorm):
    """BatchNorm over the batch of all processes, for [B, C] and [B, C, H, W] (torch's own refuses the CPU)."""

    def _check_input_dim(self, input: Tensor) -> None:
        assert input.ndim in (2, 4), input.shape

    def forward(self, input: Tensor) -> Tensor:
        if world_size() == 1 or not self.training:
            return super().forward(input)
        # Two-pass moments: mean first, then the mean of squared differences, as one process would compute them.
        # In float32, as torch's kernels: in half precision, sums over a large batch and even its size overflow.
        wide = input.float() if input.dtype.itemsize < 4 else input
        axes = [axis for axis in range(input.ndim) if axis != 1]
        shape = [-1 if axis == 1 else 1 for axis in range(input.ndim)]
        count = sum_over_processes(wide.new_full((1,), input.numel() / input.shape[1])).detach()
        mean = sum_over_processes(wide.sum(axes)) / count
        centred = wide - mean.view(shape)
        variance = sum_over_processes(centred.square().sum(axes)) / count
        if self.track_running_stats:
            self._track(mean.detach(), variance.detach() * count / (count - 1))
        normalised = centred * torch.rsqrt(variance + self.eps).view(shape)
        result = normalised * self.weight.view(shape) + self.bias.view(shape) if self.affine else normalised
        return result.to(input.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        momentum = 0.1 if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)
        self.num_batches_tracked.add_(1)


def set_mode(encoder: nn.Module, batch_statistics: bool, dropout: bool) -> None:
    """Set the mode in which an encoder is trained, whatever flags it came with.

    `batch_statistics`: BatchNorm layers that are trained normalise by their batch; otherwise all of them use their
    running statistics, which then stay as they are. A layer without running statistics always normalises by its batch.
    `dropout`: dropout and stochastic depth are active.
    """
    encoder.train(dropout)
    for name, layer in encoder.named_modules():
        if isinstance(layer, AnyBatchNorm):
            tracked, trained = layer.running_mean is not None, layer.weight is None or layer.weight.requires_grad
            if not tracked and not batch_statistics:
                raise UserError(f"the encoder's {name} has no running statistics to be frozen; use --statistics batch.")
            layer.train(batch_statistics and (trained or not tracked))
            if layer.training and world_size() > 1 and not isinstance(layer, BatchNorm):
                raise UserError(
                    f"the encoder's {name} ({type(layer).__name__}) would see its process' part of a batch alone; use "
                    "--statistics frozen, or one process."
                )


@contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """A context in which BatchNorm uses batch statistics and does not update the running ones."""
    layers = [layer for layer in module.modules() if isinstance(layer, AnyBatchNorm)]
    before = [layer.track_running_stats for layer in layers]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer, tracked in zip(layers, before):
            layer.track_running_stats = tracked


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """A context with evaluation mode and without gradients. Every submodule returns to its former mode afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training
