"""How a representation is measured, as plain data. No torch here: `osiris list` must be fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from osiris.errors import UserError, unknown

RAW = ("class-agnostic", "task-aware", "task-aware-masked")
"""One bank of all classes; a separate bank of the task's classes (as in the released code); the votes of the one bank,
masked to the task's classes (as in the paper's appendix)."""
WHITENED = "-whitened"
PROTOCOLS = (*RAW, *(f"{name}{WHITENED}" for name in RAW))
"""The same on features that are whitened by the moments of the bank, which asks how much of a difference is scale. The
paper's numbers are raw."""

BASELINES = ("pixels", "pixels-centred", "patches")
"""Features that are not learned. A trained encoder should beat KNN on them."""

Mark = Literal["best", "second"]
"""How a value stands out in its column."""
METRICS = ("A", "F", "K", "C", "T")
"""Overall accuracy, forgetting, knowledge gain, cross-task consolidation, forward transfer (Sec. 4.1)."""

COMPATIBILITY = ("R@10 raw", "R@10 mapped")
"""Recall of the ten nearest images in an index of an earlier encoder, as it is and after a map; means over s < t."""


@dataclass(frozen=True)
class ProtocolConfig:
    """The evaluation protocol."""

    k: int = 200
    """Neighbours that vote; all images of a smaller bank vote."""
    temperature: float = 0.1
    """The weight of a neighbour's vote is exp(cosine similarity / temperature)."""
    protocols: tuple[str, ...] = ("class-agnostic", "task-aware", "class-agnostic-whitened")
    """Which protocols to evaluate: class-agnostic, task-aware, task-aware-masked; each also with `-whitened`."""
    random_encoders: int = 5
    """How many untrained encoders are measured; their mean accuracy is the baseline of forward transfer."""
    evaluate_every: int | None = None
    """Also evaluate inside tasks, whenever this many steps were made."""
    keep_features: bool = False
    """Keep the features of bank and test images beside the other results."""
    probe: bool = False
    """Also fit a linear probe on the frozen features."""

    def __post_init__(self) -> None:
        for name in self.protocols:
            if name not in PROTOCOLS:
                raise unknown("protocol", name, PROTOCOLS)
        if self.k < 1:
            raise UserError(f"k, the number of neighbours that vote, must be at least 1, not {self.k}.")
        if not 0 < self.temperature < float("inf"):
            raise UserError(f"the temperature of the KNN must be positive and finite, not {self.temperature}.")
        if self.random_encoders < 0:
            raise UserError(f"--random-encoders is a number of encoders: 0 or more, not {self.random_encoders}.")
        if self.evaluate_every is not None and self.evaluate_every < 1:
            raise UserError(f"--evaluate-every is a number of steps: at least 1, not {self.evaluate_every}.")
