"""How a representation is measured, as plain data. No torch here: `osiris list` must be fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from msgspec import Meta

Raw = Literal["class-agnostic", "task-aware", "task-aware-masked"]
Whitened = Literal["class-agnostic-whitened", "task-aware-whitened", "task-aware-masked-whitened"]
Probed = Literal["class-agnostic-probe", "task-aware-probe", "task-aware-masked-probe"]
Protocol = Raw | Whitened | Probed
RAW: tuple[Raw, ...] = get_args(Raw)
"""One bank of all classes; a separate bank of the task's classes (as in the released code); the votes of the one bank,
masked to the task's classes (as in the paper's appendix)."""
WHITENED = "-whitened"
"""The same on features that are whitened by the moments of the bank, which asks how much of a difference is scale. The
paper's numbers are raw."""
PROBE = "-probe"
"""A linear probe instead of the KNN, fitted on the same images of the bank."""
PROTOCOLS: tuple[Protocol, ...] = (*RAW, *get_args(Whitened), *get_args(Probed))


def instrument(protocol: str) -> str:
    """For titles: `class-agnostic KNN`, `class-agnostic linear probe`."""
    return f"{protocol.removesuffix(PROBE)} linear probe" if protocol.endswith(PROBE) else f"{protocol} KNN"


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

    k: Annotated[int, Meta(ge=1, le=10**9)] = 200
    """Neighbours that vote; all images of a smaller bank vote."""
    temperature: Annotated[float, Meta(gt=0, le=1e6)] = 0.1
    """The weight of a neighbour's vote is exp(cosine similarity / temperature)."""
    protocols: tuple[Protocol, ...] = ("class-agnostic", "task-aware", "class-agnostic-whitened")
    """Which protocols to evaluate: class-agnostic, task-aware, task-aware-masked; each also with `-whitened` or
    `-probe`."""
    random_encoders: Annotated[int, Meta(ge=0, le=10_000)] = 5
    """How many untrained encoders are measured; their mean accuracy is the baseline of forward transfer."""
    evaluate_every: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    """Also evaluate inside tasks, whenever this many steps were made."""
    points: Annotated[int, Meta(ge=1, le=10_000)] = 10
    """In a stream: equal parts after which the encoder is evaluated (unless --evaluate-every says when)."""
    keep_features: bool = False
    """Keep the features of bank and test images beside the other results."""
    probe: bool = False
    """Also a linear probe (class-agnostic-probe, task-aware-probe) for each raw protocol that is evaluated."""

    metrics: tuple[str, ...] = ()
    """Metrics of your own, `module:name`: more numbers of each checkpoint."""

    @property
    def measured(self) -> tuple[str, ...]:
        """All protocols: `protocols`, and the probes that `probe` asks for."""
        probed = [name + PROBE for name in self.protocols if name in RAW] if self.probe else []
        return tuple(dict.fromkeys([*self.protocols, *probed]))
