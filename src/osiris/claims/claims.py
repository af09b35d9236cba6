"""The page of claims: what the paper says of experiments, each with a verdict from the runs at hand.

A claim is worded in our own words and names where the paper makes it. It is judged on every benchmark that it speaks of
and that has runs; one benchmark on which it fails is enough to say that it does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from osiris.claims.evidence import Evidence, Outcome, Verdict


@dataclass(frozen=True)
class Claim:
    """One empirical sentence."""

    name: str
    where: str
    """Section, table or figure of the paper."""
    sentence: str
    judge: Callable[[Evidence], Outcome] | None
    benchmarks: tuple[str, ...] = ()
    """Where the paper claims it; empty: everywhere."""
    also: tuple[str, ...] = ("tinyworld",)
    """Benchmarks on which it is worth asking besides."""
    across: Callable[[Sequence[Evidence]], Outcome] | None = None
    """Instead of `judge`, where a claim compares benchmarks with each other."""

    def speaks_of(self, benchmark: str) -> bool:
        return not self.benchmarks or benchmark in self.benchmarks or benchmark in self.also


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict, the numbers per benchmark, and what the paper's own tables say."""

    claim: Claim
    verdict: Verdict
    outcomes: tuple[tuple[str, Outcome], ...]
    """(benchmark, outcome)"""
    published: tuple[tuple[str, Outcome], ...] = ()

    @property
    def noise(self) -> bool:
        decisive = [outcome for _, outcome in self.outcomes if outcome.verdict == self.verdict]
        return any(outcome.noise for outcome in decisive)


def all_claims() -> list[Claim]:
    from osiris.claims.analyses import ANALYSES
    from osiris.claims.tables import TABLES

    return [*TABLES, *ANALYSES]


def judge(claim: Claim, evidence: Sequence[Evidence], published: Sequence[Evidence] = ()) -> Judged:
    """The verdict over all benchmarks at hand, and the same question put to the published tables."""
    outcomes = _ask(claim, evidence, claim.speaks_of)
    paper = _ask(claim, published, lambda name: not claim.benchmarks or name in claim.benchmarks)
    known = [(name, outcome) for name, outcome in paper if outcome.verdict != "not enough runs"]
    return Judged(claim, overall([outcome for _, outcome in outcomes]), tuple(outcomes), tuple(known))


def _ask(claim: Claim, evidence: Sequence[Evidence], speaks_of: Callable[[str], bool]) -> list[tuple[str, Outcome]]:
    if claim.across is not None:
        return [(claim.benchmarks[0], claim.across(evidence))] if evidence else []
    assert claim.judge is not None
    return [(one.benchmark, claim.judge(one)) for one in evidence if speaks_of(one.benchmark)]


def overall(outcomes: Sequence[Outcome]) -> Verdict:
    """Does not hold if it fails anywhere; holds if it holds wherever there was enough to judge by."""
    verdicts = {outcome.verdict for outcome in outcomes}
    if "does not hold" in verdicts:
        return "does not hold"
    return "holds" if "holds" in verdicts else "not enough runs"


def tally(judged: Sequence[Judged]) -> dict[Verdict, int]:
    counts: dict[Verdict, int] = {"holds": 0, "does not hold": 0, "not enough runs": 0}
    for one in judged:
        counts[one.verdict] += 1
    return counts
