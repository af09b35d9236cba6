"""The projectors: g of the current-task space, h of the second space, and the predictors that distillation uses."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

from torch import nn

from osiris.models.normalisation import BatchNorm


def projector(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Linear - ReLU - Linear without bias: the shape of g and of h."""
    return nn.Sequential(
        OrderedDict(
            fc1=nn.Linear(inputs, hidden),
            act=nn.ReLU(inplace=True),
            fc2=nn.Linear(hidden, outputs, bias=False),
        )
    )


def mlp(
    *widths: int, norm: bool = True, bias: bool = True, first_bias: bool | None = None, last_norm: bool = False
) -> nn.Sequential:
    """Linear layers of the given widths with [BatchNorm and] ReLU between them.

    `first_bias` overrides `bias` for the first layer; `last_norm` ends with a BatchNorm without scale and shift.
    """
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise(widths)):
        layers.append(nn.Linear(inputs, outputs, bias=first_bias if index == 0 and first_bias is not None else bias))
        if index < len(widths) - 2:
            layers += [BatchNorm(outputs)] if norm else []
            layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers, *([BatchNorm(widths[-1], affine=False)] if last_norm else []))


def predictor(size: int, hidden: int, batch_norm: bool = False) -> nn.Sequential:
    """The predictor of CaSSLe, on top of g: Linear - [BatchNorm] - ReLU - Linear, back into the space of g."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(fc1=nn.Linear(size, hidden))
    if batch_norm:
        layers["norm"] = BatchNorm(hidden)
    layers["act"] = nn.ReLU(inplace=True)
    layers["fc2"] = nn.Linear(hidden, size)
    return nn.Sequential(layers)


def adapter(size: int) -> nn.Sequential:
    """POCON's four-layer projector between encoder outputs: size - 2 size - size - 2 size - size (512, 1024, ...)."""
    return mlp(size, 2 * size, size, 2 * size, size, norm=False)
