"""An augmentation of your own: after the views for drawings, a square of each view is hidden.

python examples/own_augmentation.py [PRESET]

From the command line, in the folder of this file:
    osiris train --method osiris-d --views "own_augmentation:Hidden(part=0.3)" --benchmark tinyworld --preset fast
"""

import sys

import torch

import osiris


class Hidden(osiris.Augmentation):
    """A square with this share of the area becomes the mean of all images (zero, since views are normalised)."""

    kind = "hidden"
    views = osiris.views.VIEWS["gentle"]
    numbers = 2
    part: float = 0.25

    def change(self, view, numbers):
        side = round(self.part**0.5 * view.shape[-1])
        corner = (numbers * (view.shape[-1] - side + 1)).long()
        place = torch.arange(view.shape[-1], device=view.device)
        rows, columns = ((place >= one[:, None]) & (place < one[:, None] + side) for one in corner.T)
        return view.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0.0)


if __name__ == "__main__":
    preset = sys.argv[1] if len(sys.argv) > 1 else "fast"
    run = osiris.train("osiris-d", "tinyworld", views="hidden(part=0.3)", preset=preset, out="runs/hidden")
    print(f"accuracy {run.metrics['class-agnostic'].A:.1f} percent")
