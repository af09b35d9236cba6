"""Self-supervised objectives for the space of g: what `--objective` chooses."""

# ruff: noqa: F401
from osiris.framework.objectives.base import Objective, is_collapsed
from osiris.framework.objectives.clustering import Swav
from osiris.framework.objectives.contrastive import Dcl, Ntxent
from osiris.framework.objectives.decorrelation import Barlow, Vicreg
from osiris.framework.objectives.momentum import Mocov2, Mocov3
from osiris.framework.objectives.predictive import Byol, Simsiam
