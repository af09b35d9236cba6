"""Grids of runs: planned, launched here or on a SLURM cluster, watched and summarised.

Calling the package, `osiris.sweep(methods, ...)`, runs a grid on this machine.
"""

import sys

from osiris import CallablePackage

sys.modules[__name__].__class__ = CallablePackage
