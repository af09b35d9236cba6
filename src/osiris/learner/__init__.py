"""Unlabelled images keep arriving: `Learner` learns from one episode after the other and keeps its state on disk."""

from osiris.learner.learner import Learner

__all__ = ["Learner"]
