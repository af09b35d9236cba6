"""A readout of your own: the principal components of the joined layers of a frozen network, without whitening.

python examples/own_readout.py [PRESET]

From the command line, in the folder of this file, for photos that arrive and in one run:
    osiris observe state photos/2026-11 --encoder hf:facebook/dinov2-small --readout own_readout:Principal
    osiris train --method readout --readout own_readout:Principal --benchmark tinyworld --preset fast
"""

import sys

import torch

import osiris


class Principal(osiris.ReadoutMap):
    """The directions in which the images that were seen differ most, each with its own variance."""

    kind = "principal"

    def fit(self, images, drawings, sizes, dimension):
        directions = torch.linalg.eigh(images.covariance).eigenvectors  # in ascending order
        return osiris.Fitted(images.mean.float(), directions[:, -dimension:].float(), images.count)


if __name__ == "__main__":
    preset = sys.argv[1] if len(sys.argv) > 1 else "fast"
    run = osiris.train("readout", "tinyworld", readout="principal", preset=preset, out="runs/principal")
    print(f"accuracy {run.metrics['class-agnostic'].A:.1f} percent")
