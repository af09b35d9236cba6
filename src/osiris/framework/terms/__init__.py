"""The terms that methods are made of (Sec. 3.2 and 3.3). The docstring of a term has its equation."""

# ruff: noqa: F401
from osiris.framework.terms.base import Space, StepContext, StoringTerm, TaskContext, Term, X, Y
from osiris.framework.terms.cassle import Predict  # cassle; L_past of cromo
from osiris.framework.terms.cla import AlignAverage, AlignStored  # cla-e and cla-b; cla-r
from osiris.framework.terms.contrast import (  # ft, er, er++, osiris-r; osiris; lump; er+
    Contrast,
    Cross,
    Mixed,
    Negatives,
)
from osiris.framework.terms.cromo import CrossMix  # L_cross of cromo
from osiris.framework.terms.distil import Distil, Match, Project  # osiris-d; der; pfr
from osiris.framework.terms.ewc import Elastic  # ewc
from osiris.framework.terms.minred import Revisit  # minred
from osiris.framework.terms.pnr import PseudoContrast, PseudoDistil  # L_current and L_past of pnr
from osiris.framework.terms.pocon import Expert, Snapshot  # L_current and L_past of pocon
from osiris.framework.terms.storyboard import Storyboard  # storyboard
