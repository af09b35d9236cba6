"""Compose a method from terms: osiris-d that also replays the memory in the space of h.

python examples/own_method.py [PRESET]
"""

import sys
from dataclasses import replace

import osiris
from osiris import methods, terms

past = methods.past(terms.Contrast("Y", space="h"), terms.Distil(space="h"), weight=0.5)
mine = replace(methods.OSIRIS_D | past, name="osiris-rd")

run = osiris.train(mine, "tinyworld", preset=sys.argv[1] if len(sys.argv) > 1 else "fast", out="runs/osiris-rd")
print(f"accuracy {run.metrics['class-agnostic'].A:.1f} percent")
