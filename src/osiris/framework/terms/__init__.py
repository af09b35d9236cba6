"""The terms that methods are made of (Sec. 3.2 and 3.3)."""

# ruff: noqa: F401
from osiris.framework.terms.base import Space, StepContext, TaskContext, Term, X, Y
from osiris.framework.terms.contrast import Contrast, Cross, CrossMix, Mixed, Negatives
from osiris.framework.terms.distil import Distil, Match, Predict, Project, PseudoContrast, PseudoDistil
from osiris.framework.terms.elastic import Elastic
from osiris.framework.terms.expert import Expert, Snapshot
from osiris.framework.terms.online import AlignAverage, AlignStored, Revisit
