"""What the claims are judged by: samples over seeds, and comparisons of them that carry their numbers along.

The rule. A comparison is decided by means over at least two seeds on either side; the p of an unpaired t-test stands
beside it and says whether the difference could be noise (p of 0.05 or more). With fewer seeds nothing is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["holds", "does not hold", "not enough runs"]
SIGNIFICANT = 0.05
FEWEST_SEEDS = 2
REFERENCES = ("offline", "d1-only")


@dataclass(frozen=True)
class Sample:
    """A number over seeds: mean, sample deviation (None with one seed), count."""

    mean: float
    deviation: float | None
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Sample | None:
        if not values:
            return None
        centre = sum(values) / len(values)
        if len(values) < 2:
            return Sample(centre, None, 1)
        spread = (sum((value - centre) ** 2 for value in values) / (len(values) - 1)) ** 0.5
        return Sample(centre, spread, len(values))

    @property
    def enough(self) -> bool:
        return self.count >= FEWEST_SEEDS and self.deviation is not None

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:.1f}"
        return f"{self.mean + 0.0:.1f}{spread}"


Test = Callable[[Sample, Sample], float]
"""The two-sided p that two samples have the same mean."""


@dataclass(frozen=True)
class Outcome:
    """A verdict with the numbers behind it."""

    verdict: Verdict
    text: str
    noise: bool = False
    """Decided by means whose difference a t-test cannot tell from chance."""


@dataclass(frozen=True)
class Evidence:
    """Everything the claims ask of the runs on one benchmark (or of a published table)."""

    benchmark: str
    test: Test
    metrics: Mapping[tuple[str, str, str, str], Sample] = field(default_factory=dict)
    """(method, norm, protocol, metric)"""
    environments: Mapping[tuple[str, str], Sample] = field(default_factory=dict)
    """(method, environment): accuracy of the KNN within it"""
    environment_names: tuple[str, ...] = ()
    similarity: Mapping[tuple[str, str], Sample] = field(default_factory=dict)
    """(method, environment): mean cosine similarity between its classes, times 100"""
    overfitting: Mapping[tuple[str, str], Sample] = field(default_factory=dict)
    """(method, space): relative loss difference in the last quarter of training, percent"""
    training: Mapping[tuple[str, str], Sample] = field(default_factory=dict)
    """(method, plasticity | consolidation | stability | late plasticity | late stability): mean of the curve"""
    groups: Mapping[str, str] = field(default_factory=dict)
    """method -> replay, distillation or reference"""

    def get(self, method: str, metric: str, protocol: str = "class-agnostic", norm: str = "gn") -> Sample | None:
        return self.metrics.get((method, norm, protocol, metric))

    def methods(self, metric: str = "A", protocol: str = "class-agnostic", norm: str = "gn") -> list[str]:
        """Continual methods of the zoo (no ablations, no references) with this number from at least two seeds."""
        found = []
        for (method, its_norm, its_protocol, its_metric), sample in self.metrics.items():
            plain = "/" not in method and "[" not in method and "(" not in method and method not in REFERENCES
            if (its_norm, its_protocol, its_metric) == (norm, protocol, metric) and plain and sample.enough:
                found.append(method)
        return found


def lacking(what: Iterable[str]) -> Outcome:
    names = ", ".join(dict.fromkeys(what))
    return Outcome("not enough runs", f"needs at least two seeds of {names}")


def greater(
    evidence: Evidence,
    one: tuple[str, Sample | None],
    other: tuple[str, Sample | None],
    unit: str = "",
    margin: float = 0.0,
) -> Outcome:
    """The first mean is larger than the second by more than `margin`."""
    (name_one, first), (name_two, second) = one, other
    if first is None or second is None or not (first.enough and second.enough):
        short = [name for name, sample in (one, other) if sample is None or not sample.enough]
        return lacking(short)
    p = evidence.test(first, second)
    shown = f"{name_one} {first} against {name_two} {second}{unit} (p {format_p(p)})"
    holds = first.mean - second.mean > margin
    return Outcome("holds" if holds else "does not hold", shown, p >= SIGNIFICANT)


def not_below(evidence: Evidence, one: tuple[str, Sample | None], other: tuple[str, Sample | None]) -> Outcome:
    """The first is above the second, or a t-test cannot tell them apart: `matches`."""
    (name_one, first), (name_two, second) = one, other
    if first is None or second is None or not (first.enough and second.enough):
        return lacking(name for name, sample in (one, other) if sample is None or not sample.enough)
    p = evidence.test(first, second)
    holds = first.mean >= second.mean or p >= SIGNIFICANT
    text = f"{name_one} {first} against {name_two} {second} (p {format_p(p)})"
    return Outcome("holds" if holds else "does not hold", text)


def extreme(
    evidence: Evidence,
    winners: Sequence[str],
    metric: str,
    among: Sequence[str] | None = None,
    protocol: str = "class-agnostic",
    lowest: bool = False,
    fewest: int = 3,
) -> Outcome:
    """One of `winners` has the highest (lowest) mean among the methods at hand, of which `fewest` others are needed."""
    pool = [method for method in evidence.methods(metric, protocol) if among is None or method in among]
    mine, others = [name for name in winners if name in pool], [name for name in pool if name not in winners]
    if not mine or len(others) < fewest:
        more = f"{fewest} other methods (there are {len(others)})"
        return lacking([*(name for name in winners if name not in pool), more])
    sign = -1 if lowest else 1
    samples = {name: evidence.metrics[(name, "gn", protocol, metric)] for name in pool}
    best = max(mine, key=lambda name: sign * samples[name].mean)
    rival = max(others, key=lambda name: sign * samples[name].mean)
    p = evidence.test(samples[best], samples[rival])
    holds = sign * (samples[best].mean - samples[rival].mean) >= 0
    word = "lowest" if lowest else "highest"
    text = f"{metric}: {best} {samples[best]}, {word} of the others {rival} {samples[rival]} (p {format_p(p)})"
    return Outcome("holds" if holds else "does not hold", text, p >= SIGNIFICANT)


def both(*outcomes: Outcome) -> Outcome:
    """All of them hold; one that fails decides, otherwise one that is open does."""
    text = "; ".join(outcome.text for outcome in outcomes)
    noise = any(outcome.noise for outcome in outcomes)
    for verdict in ("does not hold", "not enough runs"):
        decisive = [outcome for outcome in outcomes if outcome.verdict == verdict]
        if decisive:
            return Outcome(verdict, text, any(outcome.noise for outcome in decisive))
    return Outcome("holds", text, noise)


def opposite(outcome: Outcome) -> Outcome:
    swapped: dict[Verdict, Verdict] = {"holds": "does not hold", "does not hold": "holds"}
    return Outcome(swapped.get(outcome.verdict, outcome.verdict), outcome.text, outcome.noise)


def format_p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"
