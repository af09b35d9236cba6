"""The main claims of the paper, reworded, as rows of data: name, judge, sentence; by where the paper makes them.

A claim is judged on every benchmark that it is about and that has runs, and on tinyworld where the question makes sense
there. It is contradicted if it is contradicted on any of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from osiris.paper.judges import (
    BATCH_NORM,
    TASK_AWARE,
    VERDICTS,
    Evidence,
    Judge,
    Outcome,
    Verdict,
    among_two_best,
    best,
    between,
    each,
    goes_with,
    in_environments,
    matches,
    more,
)
from osiris.paper.published import COMPARED, FIVE, STRUCTURED, STRUCTURED_TINY, TABLE_4, TWENTY

RANDOM = (FIVE, TWENTY)
TINYWORLD = ("tinyworld",)
OSIRIS = ("osiris-d", "osiris-r")
DISTILLATION = ("ewc", "cassle", "pocon", "osiris-d")
WITHOUT_PARTS = tuple(name for name in TABLE_4 if "/" in name)
OVERFITTED = 10.0
"""Percent of the loss. Fig. 3b shows 20 and more for replay, and about 0 for osiris-d."""
CLOSE_TO_ZERO = 5.0
"""Percent of the loss; less than this counts as no overfitting."""


@dataclass(frozen=True)
class Claim:
    """One empirical sentence of the paper."""

    name: str
    where: str
    """Section, table or figure of the paper."""
    sentence: str
    judge: Judge
    benchmarks: tuple[str, ...] = ()
    """Where the paper makes the claim; empty: everywhere."""
    also: tuple[str, ...] = TINYWORLD
    """Other benchmarks on which to judge it."""

    def outcomes(self, evidence: Sequence[Evidence]) -> list[tuple[str, Outcome]]:
        """(benchmark, outcome) on every benchmark that the claim is about."""
        about = [one for one in evidence if not self.benchmarks or one.benchmark in (*self.benchmarks, *self.also)]
        outcomes = []
        for one in about:
            outcome = self.judge(one)
            if not one.meaningful and outcome.verdict in ("holds", "contradicted"):
                outcome = Outcome("undecided", f"{outcome.text}, but smoke runs decide nothing", outcome.p)
            outcomes.append((one.benchmark, outcome))
        return outcomes


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict, the outcome on each benchmark, and on each published table."""

    claim: Claim
    verdict: Verdict
    outcomes: list[tuple[str, Outcome]]
    published: list[tuple[str, Outcome]]

    @property
    def numbers(self) -> str:
        """The outcomes as text."""
        return " · ".join(f"{name}: {outcome.described}: {outcome.text}" for name, outcome in self.outcomes)

    @property
    def paper(self) -> str:
        """The verdicts on the published tables as text."""
        return "; ".join(f"{outcome.described} on {name}" for name, outcome in self.published)


def judge_claim(claim: Claim, evidence: Sequence[Evidence], published: Sequence[Evidence] = ()) -> Judged:
    outcomes = claim.outcomes(evidence)
    paper = [(name, outcome) for name, outcome in claim.outcomes(published) if outcome.verdict != "not run"]
    return Judged(claim, overall({outcome.verdict for _, outcome in outcomes}), outcomes, paper)


def overall(verdicts: Collection[Verdict]) -> Verdict:
    """Contradicted if contradicted anywhere; holds if it holds on every benchmark that has the runs."""
    order: tuple[Verdict, ...] = ("contradicted", "undecided", "holds", "not run")
    return next(verdict for verdict in order if verdict in verdicts or verdict == "not run")


def tally(judged: Sequence[Judged]) -> dict[Verdict, int]:
    counts = Counter(one.verdict for one in judged)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def _claims(where: str, benchmarks: tuple[str, ...], *rows: tuple[str, Judge, str], also=TINYWORLD) -> list[Claim]:
    return [Claim(name, where, sentence, judge, benchmarks, also) for name, judge, sentence in rows]


# fmt: off
CLAIMS: list[Claim] = [
    *_claims("Tables 2 and 3, Sec. 4.2", (),
        ("best-accuracy", best(["osiris-d"], "A"),
         "osiris-d has the highest overall accuracy A of all continual methods."),
        ("best-consolidation", best(OSIRIS, "C"),
         "Osiris (either variant) has the highest consolidation C."),
        ("best-transfer", best(OSIRIS, "T"),
         "Osiris (either variant) has the highest forward transfer T."),
        ("distillation-remembers", more("osiris-r", "osiris-d", "F"),
         "osiris-d forgets less than osiris-r."),
    ),
    *_claims("Sec. 4.2", (FIVE,),
        ("ft-near-offline", more("ft", "offline", "A", by=-2.0),
         "ft ends within about two points of offline training on five random tasks."),
        ("osiris-matches-offline", each(matches("osiris-d", "offline", "A"), matches("osiris-d", "offline", "C")),
         "osiris-d closes the gap to offline training on five random tasks, in A and in C."),
        ("lump-five", matches("ft", "lump", "A"),
         "lump does not improve on ft in a sequence of 5 tasks."),
        also=(),
    ),
    *_claims("Sec. 4.2", RANDOM,
        ("replay-gains", more("osiris-r", "osiris-d", "K"),
         "osiris-r has a higher knowledge gain K than osiris-d."),
        ("cassle-remembers", more("ft", "cassle", "F"),
         "cassle forgets less than ft."),
        ("cassle-gains-little", best(["cassle"], "K", without=["ewc"], lowest=True),
         "cassle has a lower knowledge gain than every method but ewc."),
        ("pocon-gains", best(["pocon"], "K", rivals=["cassle", "ewc"], fewest=2),
         "pocon has the highest knowledge gain of the distillation methods other than osiris-d."),
        ("contrast-gains", best(["er+", "er++"], "K"),
         "er+ or er++, which contrast the task with the memory, have the highest knowledge gain."),
        ("contrast-over-er", each(more("er+", "er", "K"), more("er++", "er", "K")),
         "er+ and er++ both gain more knowledge than er."),
        ("lowest-forgetting", best(DISTILLATION, "F", lowest=True),
         "The method that forgets least uses distillation."),
    ),
    *_claims("Sec. 4.2", (TWENTY,),
        ("lump-twenty", more("lump", "ft", "A"),
         "lump improves on ft in a sequence of 20 tasks."),
    ),
    *_claims("Sec. 4.3", (STRUCTURED,),
        ("structured-over-ft", best(["ft"], "A", lowest=True),
         "On a structured sequence every method improves on ft."),
        ("structured-osiris", each(*(best([one], metric, without=["ft", other], fewest=2)
                                     for metric in "AKCT" for one, other in (OSIRIS, OSIRIS[::-1]))),
         "On a structured sequence both variants of Osiris lead the methods other than ft in A, K, C and T."),
    ),
    *_claims("Sec. 4.3", (STRUCTURED_TINY,),
        ("environments-ft-gain", best(["ft"], "K"),
         "On a sequence of environments ft has the highest knowledge gain."),
        ("environments-osiris", each(*(best(OSIRIS, metric, without=["ft"], fewest=2) for metric in "KCT")),
         "On a sequence of environments Osiris leads the continual methods other than ft in K, C and T."),
        ("above-offline", more("osiris-d", "offline", "A"),
         "On a sequence of environments osiris-d ends above offline training."),
    ),
    *_claims("Table 4", (TWENTY,),
        ("space-gains", more("osiris-d", "osiris-d/shared-space", "K"),
         "Without an isolated space for the current task, knowledge gain falls."),
        ("cross-consolidates", each(*(more(other, "osiris-d/no-cross", "C")
                                      for other in TABLE_4 if other != "osiris-d/no-cross")),
         "Without L_cross, consolidation C is the lowest of all ablations."),
        ("cross-gains", more("osiris-d", "osiris-d/no-cross", "K"),
         "Without L_cross, knowledge gain falls."),
        ("past-costs-gain", each(*(more("osiris-d/no-past", other, "K")
                                   for other in TABLE_4 if other != "osiris-d/no-past")),
         "Without L_past, knowledge gain is the highest of all ablations."),
        ("past-remembers", more("osiris-d/no-past", "osiris-d", "F"),
         "Without L_past, forgetting rises."),
        ("whole-is-best", each(*(more("osiris-d", part, metric) for metric in "ACT" for part in WITHOUT_PARTS),
                               *(more(part, "osiris-d", "F") for part in WITHOUT_PARTS)),
         "With all its parts osiris-d is the best in A, F, C and T."),
    ),
    *_claims("Appendix C", (),
        ("task-aware-best", best(["osiris-d"], TASK_AWARE + "A"),
         "osiris-d has the highest A also when the task is known."),
        ("task-aware-consolidation", goes_with(TASK_AWARE + "C", TASK_AWARE + "A"),
         "Consolidation goes along with accuracy even when the task is known."),
    ),
    *_claims("Table 8", (TWENTY,),
        ("task-aware-cross", more("osiris-d", "osiris-d/no-cross", TASK_AWARE + "A"),
         "L_cross helps even within a task: without it the task-aware A falls."),
    ),
    *_claims("Appendix B", (*RANDOM, STRUCTURED),
        ("lump-alpha", more("lump", "lump[alpha=0.1]", "A"),
         "lump with alpha = 0.4 does better than with alpha = 0.1 on CIFAR-100."),
        also=(),
    ),
    *_claims("Sec. 4.1, Fig. 2", (TWENTY,),
        ("group-norm", each(*(more(name, name + BATCH_NORM, "A") for name in ("ft", "cassle", "lump"))),
         "Every method does better with GroupNorm than with BatchNorm."),
        ("first-task-bn", more("d1-only" + BATCH_NORM, "ft" + BATCH_NORM, "A"),
         "With BatchNorm, training on the first task alone beats ft."),
        ("first-task-gn", matches("ft", "d1-only", "A"),
         "With GroupNorm, training on the first task alone does not beat ft."),
    ),
    *_claims("Sec. 4.4, Fig. 3a", (TWENTY,),
        ("balance", each(*(among_two_best("osiris-d", COMPARED[:-1], aspect)
                           for aspect in ("plasticity", "consolidation", "stability"))),
         "osiris-d is among the two best of ft, lump, cassle and itself in plasticity, consolidation and stability "
         "throughout training."),
        ("lump-plastic", more("lump", "cassle", "late plasticity"),
         "Towards the end lump is more plastic than cassle."),
        ("lump-unstable", more("cassle", "lump", "late stability"),
         "Towards the end lump is less stable than cassle."),
        ("accuracy-by-consolidation", each(*(more(name, "ft", metric)
                                             for name in ("lump", "cassle") for metric in "AC")),
         "lump and cassle end above ft in A, and in C as well."),
    ),
    *_claims("Table 5", (STRUCTURED_TINY,),
        ("last-environment", in_environments("last", lambda place: each(
            more("ft", "offline", place), more("osiris-d", "offline", place))),
         "In the last environment ft and osiris-d do better than offline training."),
        ("first-environments", in_environments("earlier", lambda place: more("offline", "ft", place)),
         "In the earlier environments ft does worse than offline training."),
        ("osiris-environments", in_environments("earlier", lambda place: matches("osiris-d", "offline", place)),
         "In the earlier environments osiris-d is about as good as offline training."),
        ("osiris-remembers", in_environments("earlier", lambda place: more("osiris-d", "ft", place)),
         "In the earlier environments osiris-d does better than ft."),
    ),
    *_claims("Sec. 4.4, Fig. 4", (STRUCTURED_TINY,),
        ("offline-blurs", in_environments("last", lambda place: each(
            more("offline", "ft", place), more("offline", "osiris-d", place)), "similarity"),
         "Offline training places the classes of the last environment closer together than ft and osiris-d do."),
        ("osiris-distinguishes", in_environments("earlier", lambda place: more("ft", "osiris-d", place), "similarity"),
         "osiris-d tells the classes of the earlier environments apart better than ft."),
    ),
    *_claims("Sec. 4.4, Fig. 3b and 5", (TWENTY,),
        ("replay-overfits", each(*(between(name, f"overfitting in {space}", low=OVERFITTED)
                                   for name, space in (("er", "g"), ("lump", "g"), ("osiris-r", "h")))),
         "er, lump and osiris-r overfit to the memory in the space where they replay."),
        ("osiris-d-does-not", between("osiris-d", "overfitting in h", -CLOSE_TO_ZERO, CLOSE_TO_ZERO),
         "osiris-d does not overfit to the memory in h."),
        ("current-space", each(*(between(name, "overfitting in g", -CLOSE_TO_ZERO, CLOSE_TO_ZERO) for name in OSIRIS)),
         "Neither variant of Osiris overfits to the memory in g."),
    ),
]
# fmt: on
