"""Unlabelled images keep arriving: `Learner` learns from one episode after the other and keeps its state on disk."""

from osiris.learner.learner import Learner
from osiris.learner.sums import join

__all__ = ["Learner", "join"]
