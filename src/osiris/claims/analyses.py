"""Claims that the paper's figures and analyses are about (Sec. 4.1, 4.4, Appendix D)."""

from __future__ import annotations

from collections.abc import Sequence

from osiris.claims.claims import Claim
from osiris.claims.evidence import Evidence, Outcome, Sample, both, greater, lacking, not_below, opposite
from osiris.claims.judges import Judge, more
from osiris.claims.tables import TINY, TWENTY

ASPECTS = ("plasticity", "consolidation", "stability")
COMPARED = ("ft", "lump", "cassle", "osiris-d")
"""The methods of Fig. 3a."""
CLOSE_TO_ZERO = 5.0
"""Percent of the loss: a relative difference below this counts as close to zero."""
OVERFITTED = 10.0
"""And above this as overfitting; Fig. 3b shows 0.2 and more for replay, and about 0 for osiris-d."""


def norm_pair(method: str) -> Judge:
    """GroupNorm is better than BatchNorm."""

    def judge(evidence: Evidence) -> Outcome:
        group = evidence.get(method, "A", norm="gn"), evidence.get(method, "A", norm="bn")
        return greater(evidence, (f"{method} with GroupNorm", group[0]), (f"{method} with BatchNorm", group[1]))

    return judge


def all_norms(evidence: Evidence) -> Outcome:
    return both(*(norm_pair(method)(evidence) for method in ("ft", "cassle", "lump")))


def gains_shrink(evidence: Evidence) -> Outcome:
    """What lump and cassle add to ft is less with GroupNorm than with BatchNorm."""
    outcomes = []
    for method in ("cassle", "lump"):
        samples = {
            norm: (evidence.get(method, "A", norm=norm), evidence.get("ft", "A", norm=norm)) for norm in ("bn", "gn")
        }
        if not all(sample is not None and sample.enough for pair in samples.values() for sample in pair):
            outcomes.append(lacking([f"ft and {method} with both norms"]))
            continue
        gain = {norm: _difference(*pair) for norm, pair in samples.items()}
        outcomes.append(
            greater(evidence, (f"{method} over ft with BatchNorm", gain["bn"]), ("with GroupNorm", gain["gn"]))
        )
    return both(*outcomes)


def _difference(one: Sample | None, two: Sample | None) -> Sample:
    """Of two independent means: variances add. The count is the smaller one, which is cautious."""
    assert one is not None and two is not None and one.deviation is not None and two.deviation is not None
    spread = (one.deviation**2 + two.deviation**2) ** 0.5
    return Sample(one.mean - two.mean, spread, min(one.count, two.count))


def first_task_only(norm: str) -> Judge:
    def judge(evidence: Evidence) -> Outcome:
        only, ft = evidence.get("d1-only", "A", norm=norm), evidence.get("ft", "A", norm=norm)
        name = {"bn": "BatchNorm", "gn": "GroupNorm"}[norm]
        return greater(evidence, (f"d1-only with {name}", only), (f"ft with {name}", ft))

    return judge


def balanced(evidence: Evidence) -> Outcome:
    """osiris-d is first or second in each aspect, by the mean of its curve."""
    found = [name for name in COMPARED if all((name, aspect) in evidence.training for aspect in ASPECTS)]
    if "osiris-d" not in found or len(found) < 3:
        return lacking(["osiris-d", "two of ft, lump, cassle"])
    if not all(evidence.training[(name, aspect)].enough for name in found for aspect in ASPECTS):
        return lacking(found)
    places = []
    for aspect in ASPECTS:
        ranked = sorted(found, key=lambda name: -evidence.training[(name, aspect)].mean)
        places.append(ranked.index("osiris-d") + 1)
    text = ", ".join(f"{aspect}: place {place} of {len(found)}" for aspect, place in zip(ASPECTS, places))
    return Outcome("holds" if max(places) <= 2 else "does not hold", text)


def through_training(method: str, other: str, aspect: str) -> Judge:
    def judge(evidence: Evidence) -> Outcome:
        one, two = evidence.training.get((method, aspect)), evidence.training.get((other, aspect))
        return greater(evidence, (f"{aspect} of {method}", one), (f"of {other}", two))

    return judge


def environments(methods: Sequence[str], which: str, above: bool) -> Judge:
    """`methods` lie above (or below) offline in the last environment, or in the first two."""

    def judge(evidence: Evidence) -> Outcome:
        names = evidence.environment_names
        if len(names) < 2:
            return lacking(["a benchmark with environments"])
        chosen = names[-1:] if which == "last" else names[:-1]
        outcomes = []
        for method in methods:
            for name in chosen:
                mine = f"{method} in {name}", evidence.environments.get((method, name))
                offline = f"offline in {name}", evidence.environments.get(("offline", name))
                higher, lower = (mine, offline) if above else (offline, mine)
                outcomes.append(greater(evidence, higher, lower))
        return both(*outcomes)

    return judge


def earlier_environments(method: str, other: str) -> Judge:
    def judge(evidence: Evidence) -> Outcome:
        if len(evidence.environment_names) < 2:
            return lacking(["a benchmark with environments"])
        return both(
            *(
                greater(
                    evidence,
                    (f"{method} in {name}", evidence.environments.get((method, name))),
                    (f"{other} in {name}", evidence.environments.get((other, name))),
                )
                for name in evidence.environment_names[:-1]
            )
        )

    return judge


def matches_earlier_environments(evidence: Evidence) -> Outcome:
    """Table 5: osiris-d is about as good as offline in the earlier environments."""
    if len(evidence.environment_names) < 2:
        return lacking(["a benchmark with environments"])
    return both(
        *(
            not_below(
                evidence,
                (f"osiris-d in {name}", evidence.environments.get(("osiris-d", name))),
                (f"offline in {name}", evidence.environments.get(("offline", name))),
            )
            for name in evidence.environment_names[:-1]
        )
    )


def closer_classes(method: str, other: str, which: str) -> Judge:
    """Classes of the last (or of the earlier) environments are more similar to each other under `method`."""

    def judge(evidence: Evidence) -> Outcome:
        names = evidence.environment_names
        if len(names) < 2:
            return lacking(["a benchmark with environments"])
        outcomes = []
        for name in names[-1:] if which == "last" else names[:-1]:
            one, two = evidence.similarity.get((method, name)), evidence.similarity.get((other, name))
            outcomes.append(greater(evidence, (f"similarity x 100 in {name}: {method}", one), (other, two)))
        return both(*outcomes)

    return judge


def overfits(methods: Sequence[str], space: str, yes: bool) -> Judge:
    """The relative loss difference at the end is well above zero, or close to it."""

    def judge(evidence: Evidence) -> Outcome:
        outcomes = []
        for method in methods:
            sample = evidence.overfitting.get((method, space)) or evidence.overfitting.get((method, "g"))
            if sample is None or not sample.enough:
                outcomes.append(lacking([f"{method} with --track-overfitting"]))
                continue
            good = sample.mean > OVERFITTED if yes else abs(sample.mean) < CLOSE_TO_ZERO
            limit = f"more than {OVERFITTED:g}" if yes else f"less than {CLOSE_TO_ZERO:g} from 0"
            text = f"{method} in {space}: {sample} % ({limit} expected)"
            outcomes.append(Outcome("holds" if good else "does not hold", text))
        return both(*outcomes)

    return judge


ANALYSES: list[Claim] = [
    Claim(
        "group-norm",
        "Sec. 4.1, Fig. 2",
        "Every method does better with GroupNorm than with BatchNorm.",
        all_norms,
        (TWENTY,),
    ),
    Claim(
        "strong-ft",
        "Sec. 4.1, Fig. 2",
        "With GroupNorm ft is a strong baseline: what cassle and lump add to it shrinks.",
        gains_shrink,
        (TWENTY,),
    ),
    Claim(
        "first-task-bn",
        "Sec. 4.1, Fig. 2",
        "With BatchNorm, training on the first task alone beats ft.",
        first_task_only("bn"),
        (TWENTY,),
    ),
    Claim(
        "first-task-gn",
        "Sec. 4.1, Fig. 2",
        "With GroupNorm, training on the first task alone does not beat ft.",
        lambda e: opposite(first_task_only("gn")(e)),
        (TWENTY,),
    ),
    Claim(
        "balance",
        "Sec. 4.4, Fig. 3a",
        "osiris-d does well in plasticity, consolidation and stability at once: among "
        "the two best throughout training.",
        balanced,
        (TWENTY,),
    ),
    Claim(
        "lump-plastic",
        "Sec. 4.4, Fig. 3a",
        "Towards the end lump is more plastic than cassle.",
        through_training("lump", "cassle", "late plasticity"),
        (TWENTY,),
    ),
    Claim(
        "lump-unstable",
        "Sec. 4.4, Fig. 3a",
        "Towards the end lump is less stable than cassle.",
        through_training("cassle", "lump", "late stability"),
        (TWENTY,),
    ),
    Claim(
        "accuracy-by-consolidation",
        "Sec. 4.4",
        "lump and cassle end above ft in A, and in C as well.",
        lambda e: both(*(more(m, "ft", k)(e) for m in ("lump", "cassle") for k in ("A", "C"))),
        (TWENTY,),
    ),
    Claim(
        "last-environment",
        "Table 5",
        "In the last environment ft and osiris-d do better than offline training.",
        environments(("ft", "osiris-d"), "last", above=True),
        (TINY,),
    ),
    Claim(
        "first-environments",
        "Table 5",
        "In the earlier environments ft does worse than offline training.",
        environments(("ft",), "first", above=False),
        (TINY,),
    ),
    Claim(
        "osiris-environments",
        "Table 5",
        "In the earlier environments osiris-d is about as good as offline training.",
        matches_earlier_environments,
        (TINY,),
    ),
    Claim(
        "osiris-remembers",
        "Table 5",
        "In the earlier environments osiris-d does better than ft.",
        earlier_environments("osiris-d", "ft"),
        (TINY,),
    ),
    Claim(
        "offline-blurs",
        "Sec. 4.4, Fig. 4",
        "Offline training places the classes of the last environment closer together than ft and osiris-d do.",
        lambda e: both(*(closer_classes("offline", m, "last")(e) for m in ("ft", "osiris-d"))),
        (TINY,),
    ),
    Claim(
        "osiris-distinguishes",
        "Sec. 4.4, Fig. 4",
        "osiris-d tells the classes of the earlier environments apart better than ft.",
        closer_classes("ft", "osiris-d", "first"),
        (TINY,),
    ),
    Claim(
        "replay-overfits",
        "Sec. 4.4, Fig. 3b",
        "er, lump and osiris-r overfit to the memory in the space where they replay.",
        overfits(("er", "lump", "osiris-r"), "h", yes=True),
        (TWENTY,),
    ),
    Claim(
        "osiris-d-does-not",
        "Sec. 4.4, Fig. 3b",
        "osiris-d does not overfit to the memory in h.",
        overfits(("osiris-d",), "h", yes=False),
        (TWENTY,),
    ),
    Claim(
        "current-space",
        "Sec. 4.4, Fig. 5",
        "Neither variant of Osiris overfits to the memory in g.",
        overfits(("osiris-r", "osiris-d"), "g", yes=False),
        (TWENTY,),
    ),
]
