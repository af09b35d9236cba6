"""An objective of your own: alignment and uniformity in the place of NT-Xent.

python examples/own_objective.py [PRESET]

From the command line, in the folder of this file:
    osiris train --method osiris-d --objective "own_objective:AlignUniform(strength=2)" --preset fast
"""

import sys

import torch

import osiris
from osiris import losses


class AlignUniform(osiris.Objective):
    """||g(x) - g(x')||^2 + strength * log of the mean of exp(-2 ||g(x) - g(y)||^2) over pairs of images."""

    kind = "align-uniform"
    symbol = "AU"
    strength: float = 1.0

    def loss(self, batch, tau):
        first, second = batch.normalised()
        apart = sum(torch.pdist(view).square().mul(-2).exp().mean().log() for view in (first, second)) / 2
        return losses.match(first, second) + self.strength * apart


if __name__ == "__main__":
    preset = sys.argv[1] if len(sys.argv) > 1 else "fast"
    run = osiris.train(
        "osiris-d", "tinyworld", objective="align-uniform(strength=2)", preset=preset, out="runs/align-uniform"
    )
    print(f"accuracy {run.metrics['class-agnostic'].A:.1f} percent")
