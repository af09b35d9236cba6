"""GroupNorm as the paper sets it, and a BatchNorm whose batch is the global one, on any device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from osiris.errors import UserError
from osiris.processes import sum_over_processes, world_size


def group_norm(channels: int) -> nn.GroupNorm:
    """min(32, channels // 4) groups (Appendix B)."""
    groups = min(32, channels // 4)
    if groups < 1 or channels % groups:
        raise UserError(f"GroupNorm cannot split {channels} channels into {groups} groups; use a width such as 16, 32, 64.")
    return nn.GroupNorm(groups, channels)


class BatchNorm(nn.BatchNorm2d):
    """BatchNorm over the batch of all processes. (torch's SyncBatchNorm refuses CPU tensors.)"""

    def forward(self, input: Tensor) -> Tensor:
        if world_size() == 1 or not self.training:
            return super().forward(input)
        # Two-pass moments: mean first, then the mean of squared differences, as one process would compute them.
        count = sum_over_processes(input.new_full((1,), input.numel() / input.shape[1])).detach()
        mean = sum_over_processes(input.sum((0, 2, 3))) / count
        centred = input - mean[:, None, None]
        variance = sum_over_processes(centred.square().sum((0, 2, 3))) / count
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                momentum = 0.1 if self.momentum is None else self.momentum
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
                self.running_var.lerp_((variance * count / (count - 1)).to(self.running_var.dtype), momentum)
                if self.num_batches_tracked is not None:
                    self.num_batches_tracked.add_(1)
        scale = torch.rsqrt(variance + self.eps) * self.weight
        return centred * scale[:, None, None] + self.bias[:, None, None]


@contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Batch statistics are used but the running ones are left alone (the Fisher pass of ewc, tracking)."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
    before = [layer.track_running_stats for layer in layers]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer, tracked in zip(layers, before):
            layer.track_running_stats = tracked
