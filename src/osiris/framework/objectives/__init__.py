"""Self-supervised objectives for the space of g: what `--objective` chooses."""

# ruff: noqa: F401
from osiris.framework.objectives.base import Objective, find_form, form_of, is_collapsed
from osiris.framework.objectives.clustering import Swav
from osiris.framework.objectives.contrastive import Dcl, Mocov2, Mocov3, Ntxent
from osiris.framework.objectives.noncontrastive import Barlow, Byol, Simsiam, Vicreg
