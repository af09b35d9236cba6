"""Evidence, one sample over seeds for each method and quantity, and judges: functions that turn it into a verdict.

A comparison is decided by a t-test over seeds (paired where the methods share seeds) at p < 0.05 with at least three
seeds on either side. A claim that consists of several comparisons holds if each of them holds, and is contradicted if
one of them is contradicted at p < 0.05 divided by the number of comparisons (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Concatenate, Literal, ParamSpec, get_args

from osiris.evaluation.config import METRICS
from osiris.evaluation.scores import SIGNIFICANT
from osiris.evaluation.statistics import Sample, TTest, format_p, samples_of, t_test, t_test_against
from osiris.paper import published
from osiris.paper.table1 import group_of

TASK_AWARE = "task-aware "
"""Prefix of a quantity under the task-aware protocol: `task-aware A`. Without it, the protocol is class-agnostic."""
BATCH_NORM = " with BatchNorm"
"""Suffix of a method trained with BatchNorm: `ft with BatchNorm`. Without it, the encoder has GroupNorm."""
Quantities = Mapping[str, float | None]
"""Measured on one run, in percent: `A`, `task-aware A`, `accuracy in city`, `similarity in city`, `overfitting in h`,
`late plasticity`, ..."""
Verdict = Literal["holds", "contradicted", "undecided", "not run"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
FEWEST_SEEDS = 3
POINT = 1.0
"""Methods whose difference is significantly smaller than one point count as equally good."""


@dataclass(frozen=True)
class Evidence:
    """The runs on one benchmark, or the published tables of one benchmark."""

    benchmark: str
    samples: Mapping[tuple[str, str], Sample] = field(default_factory=dict)
    """(method, quantity) -> sample over seeds"""
    environments: tuple[str, ...] = ()
    """Names of the environments, in the order of the tasks."""
    scale: str = ""
    """How the runs differ from the paper's."""
    meaningful: bool = True
    """False for smoke runs, which decide nothing."""

    def get(self, method: str, quantity: str) -> Sample | None:
        return self.samples.get((method, quantity))

    def methods(self, quantity: str = "A") -> list[str]:
        """The paper's continual methods with this quantity: no references, ablations, variants or later methods."""
        names = [method for method, known in self.samples if known == quantity]
        others = ("other", "later", "sums")
        return [name for name in names if group_of(name) not in others and name not in published.REFERENCES]


def samples_by_method(runs: Mapping[str, Mapping[int, Quantities]]) -> dict[tuple[str, str], Sample]:
    """The samples of an `Evidence`, from the quantities of each method and seed."""
    samples = {method: samples_of(by_seed) for method, by_seed in runs.items()}
    return {(method, quantity): sample for method, each in samples.items() for quantity, sample in each.items()}


def from_paper() -> list[Evidence]:
    """The published tables; their deviations are taken as sample deviations."""
    evidence = []
    for benchmark in published.benchmarks():
        samples: dict[tuple[str, str], Sample] = {}
        for protocol, prefix in (("class-agnostic", ""), ("task-aware", TASK_AWARE)):
            for method, row in published.published_rows(benchmark, protocol).items():
                samples |= {(method, prefix + metric): row[metric] for metric in METRICS if metric in row}
        names: tuple[str, ...] = ()
        if benchmark == published.STRUCTURED_TINY:
            for method, row in published.published_environments().items():
                names = tuple(row)
                samples |= {(method, f"accuracy in {name}"): sample for name, sample in row.items()}
        evidence.append(Evidence(benchmark, samples, names))
    return evidence


@dataclass(frozen=True)
class Outcome:
    """A verdict and the numbers behind it."""

    verdict: Verdict
    text: str
    p: float = 1.0
    in_favour: bool = False
    """Whether the means agree with the claim, significantly or not."""

    @property
    def described(self) -> str:
        """The verdict; for an undecided claim, also on which side the means are."""
        if self.verdict != "undecided":
            return self.verdict
        return f"undecided, means {'in favour' if self.in_favour else 'against'}"


Judge = Callable[[Evidence], Outcome]
P = ParamSpec("P")


def judge(function: Callable[Concatenate[Evidence, P], Outcome]) -> Callable[P, Judge]:
    """Turns a function of the evidence and of parameters into one that takes the parameters and returns a judge."""
    return lambda *args, **options: lambda evidence: function(evidence, *args, **options)


def not_run(*names: str) -> Outcome:
    parts = dict.fromkeys(part for name in names for part in name.split(" and "))
    return Outcome("not run", f"needs {' and '.join(parts)}")


def _decide(test: TTest | None, text: str, difference: float) -> Outcome:
    """`holds` for a significantly positive difference, `contradicted` for a significantly negative one."""
    in_favour = difference > 0
    if test is None or test.seeds < FEWEST_SEEDS:
        seeds = "one seed" if test is None else f"{test.seeds} seeds"
        return Outcome("undecided", f"{text} ({seeds}; {FEWEST_SEEDS} are needed)", in_favour=in_favour)
    verdict: Verdict = "undecided" if test.p >= SIGNIFICANT else "holds" if in_favour else "contradicted"
    return Outcome(verdict, f"{text} ({'paired ' if test.paired else ''}{format_p(test.p)})", test.p, in_favour)


def _compare(
    quantity: str, one: tuple[str, Sample | None], other: tuple[str, Sample | None], by: float = 0.0
) -> Outcome:
    (name_one, first), (name_other, second) = one, other
    if first is None or second is None:
        return not_run(*(f"runs of {name}" for name, sample in (one, other) if sample is None))
    allowed = f", {-by:g} below allowed" if by < 0 else ""
    text = f"{quantity}: {name_one} {first} against {name_other} {second}{allowed}"
    test = t_test(first, second, by)
    # The means are over all seeds, the test is over shared ones: where they disagree, the verdict is that of the test.
    return _decide(test, text, first.mean - second.mean - by if test is None else test.difference)


def every(*outcomes: Outcome, shorten: bool = False) -> Outcome:
    """All of them hold. `shorten`: mention only the outcome that decides, or that is most against the claim."""
    verdicts = {outcome.verdict for outcome in outcomes}
    in_favour = all(outcome.in_favour for outcome in outcomes)
    refuted = min(outcomes, key=lambda outcome: outcome.p if outcome.verdict == "contradicted" else 1.0)
    weakest = max(outcomes, key=lambda one: (not one.in_favour, one.p if one.in_favour else -one.p))
    contradicted = refuted.verdict == "contradicted" and refuted.p * len(outcomes) < SIGNIFICANT
    if "not run" in verdicts and not contradicted:
        return not_run(*(outcome.text.removeprefix("needs ") for outcome in outcomes if outcome.verdict == "not run"))
    deciding = refuted if contradicted else weakest
    text = deciding.text if shorten else "; ".join(outcome.text for outcome in outcomes)
    verdict: Verdict = "contradicted" if contradicted else "holds" if verdicts == {"holds"} else "undecided"
    # Corrected, so that a claim which consists of such claims divides by the number of all comparisons.
    return Outcome(verdict, text, min(1.0, deciding.p * len(outcomes)) if contradicted else deciding.p, in_favour)


@judge
def each(evidence: Evidence, *judges: Judge) -> Outcome:
    """Every one of the judges must say that the claim holds."""
    return every(*(one(evidence) for one in judges))


@judge
def more(evidence: Evidence, one: str, other: str, quantity: str, by: float = 0.0) -> Outcome:
    """`one` has more of a quantity than `other`, by more than `by` points (a negative `by` allows it to be lower)."""
    return _compare(quantity, (one, evidence.get(one, quantity)), (other, evidence.get(other, quantity)), by)


def matches(one: str, other: str, quantity: str) -> Judge:
    """`one` is not lower than `other` by a point or more."""
    return more(one, other, quantity, by=-POINT)


@judge
def best(
    evidence: Evidence,
    winners: Sequence[str],
    quantity: str,
    rivals: Sequence[str] | None = None,
    without: Sequence[str] = (),
    lowest: bool = False,
    fewest: int = 3,
) -> Outcome:
    """One of `winners` is better than every rival (default: every continual method); at least `fewest` rivals ran."""
    pool = [name for name in evidence.methods(quantity) if name not in without]
    mine = [name for name in winners if name in pool]
    others = [name for name in pool if name not in winners and (rivals is None or name in rivals)]
    if not mine:
        return not_run(f"runs of {' or '.join(winners)}")
    if len(others) < fewest:
        return not_run(f"{fewest} methods to compare {mine[0]} with ({len(others)} ran)")
    mine, others = (
        sorted(names, key=lambda name: evidence.samples[(name, quantity)].mean, reverse=not lowest)
        for names in (mine, others)
    )
    winner = mine[0]
    pairs = [(name, winner) if lowest else (winner, name) for name in others]
    outcomes = [more(*pair, quantity)(evidence) for pair in pairs]
    outcome = every(*outcomes, shorten=True)
    missing = [name for name in winners if name not in pool]
    if outcome.verdict == "contradicted" and missing:  # one of them may be the best
        return not_run(*(f"runs of {name}" for name in missing))
    text, place = outcomes[0].text, "strongest"
    if outcome.verdict == "contradicted":
        text, place = outcome.text, "most certain"
    elif outcome.verdict == "undecided" and outcome.in_favour:
        text, place = outcome.text, "least certain"
    return replace(outcome, text=f"{text}, the {place} of {len(others)} rivals" if len(others) > 1 else text)


@judge
def among_two_best(evidence: Evidence, method: str, others: Sequence[str], quantity: str) -> Outcome:
    """Better than the second best of the others, all of which ran."""
    missing = [name for name in (method, *others) if evidence.get(name, quantity) is None]
    if missing:
        return not_run(*(f"runs of {name}" for name in missing))
    ranked = sorted(others, key=lambda name: -evidence.samples[(name, quantity)].mean)
    return more(method, ranked[1], quantity)(evidence)


@judge
def goes_with(evidence: Evidence, one: str, other: str) -> Outcome:
    """Pearson's r between two quantities over methods is positive."""
    from scipy.stats import pearsonr  # takes long to import

    pairs = [(evidence.get(name, one), evidence.get(name, other)) for name in evidence.methods(one)]
    points = [(x.mean, y.mean) for x, y in pairs if x is not None and y is not None]
    if len(points) < 4:
        return not_run(f"4 methods ({len(points)} ran)")
    columns = [*zip(*points)]
    if any(len(set(values)) == 1 for values in columns):
        return not_run(f"methods with different {one} and different {other}")
    r, p = map(float, pearsonr(*columns))
    text = f"r = {r:.2f} between {one} and {other} over {len(points)} methods"
    return _decide(TTest(r, p, len(points), False), text, r)


@judge
def between(
    evidence: Evidence, method: str, quantity: str, low: float | None = None, high: float | None = None
) -> Outcome:
    """A tracked quantity lies between two bounds."""
    sample = evidence.get(method, quantity)
    if sample is None:
        return not_run(f"runs of {method} with --track-overfitting")
    outcomes = []
    for bound, sign, word in ((low, 1, "above"), (high, -1, "below")):
        if bound is not None:
            text = f"{quantity}: {method} {sample}, {word} {bound:g} expected"
            outcomes.append(_decide(t_test_against(sample, bound), text, sign * (sample.mean - bound)))
    return every(*outcomes)


@judge
def in_environments(
    evidence: Evidence, which: Literal["last", "earlier"], judge_of: Callable[[str], Judge], kind: str = "accuracy"
) -> Outcome:
    """`judge_of(quantity)` in the last environment, or in each of the earlier ones."""
    names = evidence.environments
    if len(names) < 2:
        return not_run("a benchmark with environments")
    chosen = names[-1:] if which == "last" else names[:-1]
    return every(*(judge_of(f"{kind} in {name}")(evidence) for name in chosen))
