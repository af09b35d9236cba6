"""The terms that methods are made of (Sec. 3.2 and 3.3). `osiris.framework.methods` says which method has which."""

# ruff: noqa: F401
from osiris.framework.terms.base import Space, StepContext, StoringTerm, TaskContext, Term, X, Y
from osiris.framework.terms.cassle import Predict
from osiris.framework.terms.cla import AlignAverage, AlignStored
from osiris.framework.terms.contrast import Contrast, Cross, Mixed, Negatives
from osiris.framework.terms.cromo import CrossMix
from osiris.framework.terms.distil import Distil, Match, Project
from osiris.framework.terms.ewc import Elastic
from osiris.framework.terms.minred import Revisit
from osiris.framework.terms.pnr import PseudoContrast, PseudoDistil
from osiris.framework.terms.pocon import Expert, Snapshot
