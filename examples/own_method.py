"""Compose a method from terms, one of them your own: osiris-d with an alignment of the memory in the space of h.

python examples/own_method.py [PRESET]

From the command line, in the folder of this file: osiris train --method own_method:mine
"""

import sys
from dataclasses import replace

import osiris
from osiris import losses, methods, terms


class Align(terms.Term):
    """||h(f(y)) - h(f(y'))||^2 over the images of the memory."""

    kind = "align"
    inputs = ("Y",)
    space: terms.Space = "h"

    def loss(self, rep, context):
        first, second = rep("Y", head=self.space)
        return losses.match(first, second)


past = methods.past(Align(), terms.Distil(space="h"), weight=0.5)
mine = replace(methods.OSIRIS_D | past, name="osiris-ad")

if __name__ == "__main__":
    run = osiris.train(mine, "tinyworld", preset=sys.argv[1] if len(sys.argv) > 1 else "fast", out="runs/osiris-ad")
    print(f"accuracy {run.metrics['class-agnostic'].A:.1f} percent")
