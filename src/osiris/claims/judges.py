"""Ways to judge a claim about a table: pairs of methods, extremes, groups, ablations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from osiris.claims.evidence import Evidence, Outcome, Sample, both, extreme, greater, lacking

OSIRIS = ("osiris-d", "osiris-r")
TASK_AWARE = "task-aware"
Judge = Callable[[Evidence], Outcome]


def named(evidence: Evidence, method: str, metric: str, protocol: str = "class-agnostic") -> tuple[str, Sample | None]:
    return f"{method} {metric}", evidence.get(method, metric, protocol)


def more(method: str, other: str, metric: str, protocol: str = "class-agnostic") -> Judge:
    """`method` has the larger mean."""
    return lambda evidence: greater(
        evidence, named(evidence, method, metric, protocol), named(evidence, other, metric, protocol)
    )


def every(judges: Sequence[Judge]) -> Judge:
    return lambda evidence: both(*(one(evidence) for one in judges))


def within(method: str, other: str, metric: str, points: float) -> Judge:
    """`method` lies less than so many points below `other`."""

    def judge(evidence: Evidence) -> Outcome:
        return greater(evidence, named(evidence, method, metric), named(evidence, other, metric), margin=-points)

    return judge


def top_two(metrics: Sequence[str]) -> Judge:
    """Both variants of osiris lie above every other method."""

    def judge(evidence: Evidence) -> Outcome:
        outcomes = []
        for metric in metrics:
            others = [name for name in evidence.methods(metric) if name not in (*OSIRIS, "ft")]
            for one in OSIRIS:
                outcomes.append(extreme(evidence, [one], metric, among=[one, *others], fewest=2))
        return both(*outcomes)

    return judge


def improves_on_ft(evidence: Evidence) -> Outcome:
    others = [name for name in evidence.methods("A") if name != "ft"]
    if len(others) < 3:
        return lacking(["ft and at least three other methods"])
    return both(*(greater(evidence, named(evidence, name, "A"), named(evidence, "ft", "A")) for name in others))


def cassle_plasticity(evidence: Evidence) -> Outcome:
    """Lower knowledge gain than all but ewc."""
    others = [name for name in evidence.methods("K") if name not in ("cassle", "ewc")]
    return extreme(evidence, ["cassle"], "K", among=["cassle", *others], lowest=True)


def some_gain_above_ft(evidence: Evidence) -> Outcome:
    """The knowledge gain of ft is not the highest."""
    pool = [name for name in evidence.methods("K") if name != "ft"]
    if "ft" not in evidence.methods("K") or not pool:
        return lacking(["ft", "another method"])
    best = max(pool, key=lambda name: evidence.metrics[(name, "gn", "class-agnostic", "K")].mean)
    return greater(evidence, named(evidence, best, "K"), named(evidence, "ft", "K"))


def grouped(metric: str, higher: str, lower: str) -> Judge:
    """The mean over the methods of one group lies above that of another."""

    def judge(evidence: Evidence) -> Outcome:
        means: dict[str, list[float]] = {higher: [], lower: []}
        for name in evidence.methods(metric):
            if evidence.groups.get(name) in means:
                means[evidence.groups[name]].append(evidence.metrics[(name, "gn", "class-agnostic", metric)].mean)
        if min(len(values) for values in means.values()) < 2:
            return lacking([f"two {higher} methods", f"two {lower} methods"])
        samples = {group: Sample.of(values) for group, values in means.items()}
        return greater(evidence, (f"{metric} of {higher} methods", samples[higher]), (f"of {lower}", samples[lower]))

    return judge


def lowest_forgetting(evidence: Evidence) -> Outcome:
    distilling = [name for name in evidence.methods("F") if evidence.groups.get(name) == "distillation"]
    return extreme(evidence, distilling or ["cassle"], "F", lowest=True)


def consolidation_follows_accuracy(evidence: Evidence) -> Outcome:
    """Pearson's r between C and the task-aware A over methods."""
    pairs = [
        (evidence.get(name, "C", TASK_AWARE), evidence.get(name, "A", TASK_AWARE))
        for name in evidence.methods("A", TASK_AWARE)
    ]
    known = [(one.mean, two.mean) for one, two in pairs if one is not None and two is not None]
    if len(known) < 4:
        return lacking(["at least four methods"])
    xs, ys = [x for x, _ in known], [y for _, y in known]
    centre_x, centre_y = sum(xs) / len(xs), sum(ys) / len(ys)
    product = sum((x - centre_x) * (y - centre_y) for x, y in known)
    scale = (sum((x - centre_x) ** 2 for x in xs) * sum((y - centre_y) ** 2 for y in ys)) ** 0.5
    r = product / scale if scale else 0.0
    text = f"r = {r:.2f} between C and task-aware A over {len(known)} methods"
    return Outcome("holds" if r > 0.5 else "does not hold", text)


def ablation_best(metrics: Sequence[str], protocol: str = "class-agnostic") -> Judge:
    """The whole method against each of its ablations."""

    def judge(evidence: Evidence) -> Outcome:
        parts = ("osiris-d/shared-space", "osiris-d/no-cross", "osiris-d/no-past")
        outcomes = []
        for metric in metrics:
            for part in parts:
                whole, without = (named(evidence, name, metric, protocol) for name in ("osiris-d", part))
                better, worse = (without, whole) if metric == "F" else (whole, without)
                outcomes.append(greater(evidence, better, worse))
        return both(*outcomes)

    return judge


def lowest_of_ablations(method: str, metric: str) -> Judge:
    parts = ["osiris-d", "osiris-d/shared-space", "osiris-d/no-cross", "osiris-d/no-past"]
    return every([more(other, method, metric) for other in parts if other != method])


def more_forgetting_than(benchmarks: Sequence[str]) -> Callable[[Sequence[Evidence]], Outcome]:
    """On the first benchmark every method forgets more than on each of the others."""

    def judge(evidence: Sequence[Evidence]) -> Outcome:
        found = {one.benchmark: one for one in evidence if one.benchmark in benchmarks}
        if set(found) != set(benchmarks):
            return lacking([f"the same methods on {', '.join(benchmarks)}"])
        first, *others = (found[name] for name in benchmarks)
        shared = [name for name in first.methods("F") if all(name in other.methods("F") for other in others)]
        if len(shared) < 2:
            return lacking([f"two methods on each of {', '.join(benchmarks)}"])
        outcomes = []
        for name in shared:
            for other in others:
                one, two = first.get(name, "F"), other.get(name, "F")
                outcomes.append(greater(first, (f"F of {name} here", one), (f"on {other.benchmark}", two)))
        return both(*outcomes)

    return judge
