"""Tables of methods over seeds: ours, the paper's, and both together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from osiris.console import notice
from osiris.errors import UserError, unknown
from osiris.evaluation.config import COMPATIBILITY, METRICS, PROBE, instrument
from osiris.evaluation.differences import Difference, Hits, Varying, difference
from osiris.evaluation.fingerprint import require_same
from osiris.evaluation.scores import Better, Compatibility
from osiris.evaluation.statistics import Sample, mark, samples_of
from osiris.paper import published
from osiris.paper.published import REFERENCES
from osiris.paper.table1 import group_of
from osiris.reporting.studies import VARYING, Study, below_start, levels, with_variants
from osiris.reporting.style import base_name, order_of
from osiris.reporting.tables import Column, Number, Table
from osiris.runs.run import Run

NOTHING_TO_SAY = {
    "seeds": "--varying seeds needs two seeds of each method.",
    "images": "--varying images needs the predictions of the runs, in episodes/, on the same test images.",
    "both": "--varying both needs two seeds of each method, and their predictions (episodes/) on the same test images.",
}
VIEWS = "views (k)"
"""Thousands of views that a stream has sent backward through encoders."""
OVER_SEEDS = "percent, mean ± sample deviation (ddof 1) over seeds"


@dataclass(frozen=True)
class Row:
    """One row of numbers over seeds."""

    name: str
    samples: Mapping[str, Sample]
    section: object = None
    """A rule separates rows of different sections."""
    seeds: str = ""
    ranked: bool = True
    """Whether it competes for the best and second best of a column."""
    runs: tuple[Run, ...] = ()
    against: Difference | None = None
    """The difference in A from another row."""


def number_table(
    title: str,
    metrics: Sequence[str],
    rows: Sequence[Row],
    notes: tuple[str, ...],
    against: str = "best A",
    better: Mapping[str, Better | None] | None = None,
) -> Table:
    """Marks the best of every column; columns without any entry are left out. `against` is what rows are compared
    with."""
    columns = [Column(name, (better or {}).get(name, _direction(name))) for name in metrics]
    marks = []
    for column in columns:
        if column.better is None:
            marks.append([None] * len(rows))
            continue
        means = [row.samples[column.name].mean if row.ranked and column.name in row.samples else None for row in rows]
        marks.append(mark(means, column.better == "higher"))
    cells = []
    for index, row in enumerate(rows):
        samples = [row.samples.get(metric) for metric in metrics]
        numbers = [
            Number(None) if sample is None else Number(sample.mean, sample.deviation, of_column[index])
            for sample, of_column in zip(samples, marks)
        ]
        compared = ("", "") if row.against is None else _compared(row.against)
        cells.append((row.name, row.seeds, *numbers, *compared))
    rules = {index for index, (above, here) in enumerate(pairwise(rows), 1) if above.section != here.section}
    names = ("method", "seeds", *columns, f"A - {against}", "p")
    used = [at for at in range(len(names)) if any(row[at] != "" for row in cells)]
    body = [tuple(row[at] for at in used) for row in cells]
    return Table.of(title, [names[at] for at in used], body, *notes, rules=rules)


def _compared(found: Difference) -> tuple[Number, Number]:
    return Number(found.value, interval=(found.low, found.high)), Number(found.p, is_p=True)


def published_table(benchmark: str, protocol: str, what: str = "methods") -> Table:
    """The paper's numbers: of all `methods`, the `ablation` of osiris-d, or the accuracy within `environments`."""
    metrics: Sequence[str] = METRICS
    if what == "ablation":
        samples = published.published_ablation(protocol)
        about = f"ablation of osiris-d on {published.TWENTY}, {protocol}"
    elif what == "environments":
        samples = published.published_environments()
        about = f"accuracy within each environment of {published.STRUCTURED_TINY}, within-environment"
        metrics = tuple(next(iter(samples.values())))
    else:
        samples, about = published.published(benchmark, protocol), f"{benchmark}, {protocol}"
    rows = [Row(name, row, name in REFERENCES, ranked=name not in REFERENCES) for name, row in samples.items()]
    notes = (
        f"percent, mean ± deviation over three seeds; {published.published_settings()}",
        "the paper's own marks are not consistent; these follow one rule, and offline is not ranked",
    )
    ordered = sorted(rows, key=lambda row: not row.ranked)
    return number_table(f"{about} KNN, as published", metrics, ordered, notes)


ONLINE_NOTES = (
    "percent, mean ± deviation as the README of CLIMB gives them (its number of seeds is not stated); joint linear "
    "probe; CA: average over experiences, FA: final; 20, 50 or 100 experiences",
    "osiris-r, h frozen: in that code h stays at its random initialisation, so this is not the method of the paper",
    "the CIFAR-100 table is in an earlier version of that README only; cla-e on ImageNet-100 has one FA twice there",
)


def online_table(dataset: str) -> Table:
    """The published numbers of learning from a stream (CLIMB's protocol)."""
    rows = [Row(name, samples) for name, samples in published.online()[dataset].items()]
    metrics = tuple(next(iter(rows)).samples)
    return number_table(f"online learning on {dataset}, as published", metrics, rows, ONLINE_NOTES)


def comparison_table(
    runs: Sequence[Run],
    protocol: str = "class-agnostic",
    by: Literal["method", "run"] = "method",
    with_paper: bool = False,
    with_baselines: bool = True,
    against: str | None = None,
    varying: Varying | None = None,
) -> Table:
    """One row per method (or run): mean ± sample deviation over seeds, marks, and A compared with that of the row
    `against`, by default the best. `varying`: what the comparison is about, see `osiris.evaluation.differences`.

    Runs of one method with different settings are separate rows. Above them the features that were not learned, as far
    as they were measured; with `with_paper`, the published numbers below ours.
    """
    require_comparable(runs)
    runs = with_variants(runs) if by == "method" else runs
    rows = method_rows(runs, protocol, by)
    ranked = [row for row in rows if row.ranked and "A" in row.samples]
    if against is None:
        other = max(ranked, key=lambda row: row.samples["A"].mean, default=None)
    else:
        other = _row_called(against, rows)
    rows = [replace(row, against=_difference(row, other, protocol, varying)) for row in rows]
    if varying is not None and len(rows) > 1 and not any(row.against for row in rows):
        raise UserError(NOTHING_TO_SAY[varying])
    benchmark = runs[0].metrics.benchmark
    paper = published.published_rows(benchmark, protocol) if with_paper else {}
    if with_paper and not paper:
        notice(f"the paper has no {protocol} numbers for {benchmark}; the table shows your runs alone.")
    if paper:
        last = {row.runs[0].method: row for row in rows}
        together = []
        for row in rows:
            method = row.runs[0].method
            of_paper = _paper_rows(paper.get(method)) if row is last[method] else []  # variants of a method share them
            together += [replace(one, section=method) for one in (row, *of_paper)]
        rows = together
    baselines = {}
    for run in runs if with_baselines else ():
        baselines |= run.baseline_accuracies(protocol)
    baselines |= levels(runs, protocol) if with_baselines else {}
    above = [Row(name, {"A": Sample(value, None, 1)}, "baseline", ranked=False) for name, value in baselines.items()]
    notes = [OVER_SEEDS, *_test_notes(rows, other, is_best=against is None)]
    if by == "method" and len({frozenset(run.seed for run in row.runs) for row in rows if row.runs}) > 1:
        notes.append("methods have different seeds, and seeds differ among themselves: compare differences, not means")
    notes += [f"{', '.join(baselines)}: features that were not learned here"] if baselines else []
    gained = any("G" in row.samples for row in rows)
    notes += ["G: A minus A of the start, the pretrained encoder of each run"] * gained
    notes += dict.fromkeys(f"{run.label}: {run.full_label}" for run in runs if run.label != run.full_label)
    worse = below_start(runs, protocol)
    notes += [f"significantly worse than the start: {worse}"] * bool(worse)
    notes += [f"paper: three seeds, {published.published_settings()}"] if paper else []
    measured = [run.compatibility for run in runs if run.compatibility is not None]
    of_stream = runs[0].metrics.stream is not None
    notes += _budget_notes(rows) if of_stream else []
    usual = ("A", "F", "C", "A mean", "drop", VIEWS) if of_stream else METRICS
    last = [run.metrics.evaluations[-1].own for run in runs]
    own: dict[str, Better | None] = {name: one.better for numbers in last for name, one in numbers.items()}
    metrics = (*usual, *(("G",) if gained else ()), *(COMPATIBILITY if measured else ()), *own)
    notes += [f"{', '.join(own)}: a metric of the user's own, of the final encoder"] if own else []
    notes += [_recall_note(measured, sum(run.continual for run in runs))] if measured else []
    about = runs[0].metrics.fingerprint
    knn = "" if protocol.endswith(PROBE) else f"k = {about.k}, tau = {about.temperature}, "
    bank = f"{knn}bank of {about.bank_images:,} images"
    order = "" if about.stream is None else f" ({about.stream})"
    title = f"{about.benchmark}{order}, {instrument(protocol)} ({bank}, fingerprint {about.hash})"
    compared = "best A" if against is None or other is None else f"A of {other.name}"
    return number_table(title, metrics, [*above, *rows], (*notes, *config_differences(runs)), compared, own)


def require_comparable(runs: Sequence[Run]) -> None:
    """Refuse runs that cannot be compared."""
    if not runs:
        raise UserError("there are no runs to compare.")
    require_same({str(run.path): run.metrics.fingerprint for run in runs})
    for run in runs:
        if not run.metrics.complete:
            done = f"{len(run.metrics.evaluations)} of {run.task_count} tasks"
            raise UserError(f"{run.path} has finished {done}; let it finish, or leave it out.")


def method_rows(runs: Sequence[Run], protocol: str, by: Literal["method", "run"]) -> list[Row]:
    """Methods in the order of the zoo (runs in the order given), references last."""
    groups: dict[str, dict[int, Run]] = {}
    for run in runs:
        members = groups.setdefault(run.label if by == "method" else str(run.path), {})
        twin = members.setdefault(run.seed, run)
        if twin is not run:
            raise UserError(
                f"{twin.path} and {run.path} are both {run.label} with seed {run.seed}: their mean would mix"
                " different runs. Leave one out, or give each run a row of its own with --by run."
            )
    rows = []
    for name in sorted(groups, key=order_of) if by == "method" else groups:
        members = tuple(groups[name].values())
        values = {run.seed: run.metrics[protocol].values() | _recall(run) | _views(run) | _own(run) for run in members}
        samples = samples_of(values)
        first = members[0]
        ranked = (first.continual or first.metrics.stream is not None) and first.method not in REFERENCES
        group = group_of(base_name(first.method).split("/")[0]) if by == "method" else None
        section: object = (ranked, group)  # as in the paper's tables: replay, distillation, ...
        if first.metrics.stream is not None:  # rows of one budget stand together
            section = samples[VIEWS].mean if VIEWS in samples else None
        rows.append(Row(name, samples, section, str(len(members)), ranked, members))
    if runs[0].metrics.stream is not None:
        rows.sort(key=lambda row: row.samples[VIEWS].mean if VIEWS in row.samples else 0)
    return sorted(rows, key=lambda row: not row.ranked)


def _direction(metric: str) -> Better | None:
    return None if metric == VIEWS else "lower" if metric in ("F", "drop") else "higher"


def _views(run: Run) -> dict[str, float | None]:
    budget = run.metrics.budget
    return {} if budget is None else {VIEWS: budget.backward / 1000}


def _budget_notes(rows: Sequence[Row]) -> list[str]:
    """What the columns of a stream are, and whether the rows cost the same."""
    notes = [
        "A mean: over the points of the stream; drop: the deepest fall of A below its best so far; F: best minus end",
        f"{VIEWS}: thousands of views sent backward. Frozen passes, memory and renewals of f* are in metrics.json",
    ]
    known = {row.name: row.samples[VIEWS].mean for row in rows if VIEWS in row.samples}
    trained = {name: views for name, views in known.items() if views}
    if trained and max(trained.values()) > 1.05 * min(trained.values()):
        notes.append("the budgets are not equal: compare rows of one section (--passes: more steps on each batch)")
    missing = [row.name for row in rows if row.name not in known]
    return notes + [f"unknown budget: {', '.join(missing)}"] * bool(missing)


def _own(run: Run) -> dict[str, float | None]:
    """Of the final encoder."""
    return {name: one.value for name, one in run.metrics.evaluations[-1].own.items()}


def _recall(run: Run) -> dict[str, float | None]:
    return {} if run.compatibility is None else run.compatibility.values()


def _recall_note(measured: Sequence[Compatibility], runs: int) -> str:
    """The note that explains the columns of compatibility."""
    each = "; ".join(sorted({one.conditions for one in measured}))
    missing = f"; {len(measured)} of {runs} continual runs have it" if len(measured) < runs else ""
    return (
        "R@10: of the ten nearest images, how many are found in an index of an earlier encoder, as it is or mapped; "
        f"mean over all pairs of encoders ({each}{missing})"
    )


def _row_called(name: str, rows: Sequence[Row]) -> Row:
    """By its full name, or by its method if it is the only row of that."""
    called = [row for row in rows if row.name == name] or [row for row in rows if row.runs[0].method == name]
    if len(called) > 1:
        raise UserError(f"{name!r} is the method of several rows; name one: {', '.join(row.name for row in called)}.")
    if not called or "A" not in called[0].samples:
        raise unknown("row", name, [row.name for row in rows if "A" in row.samples])
    return called[0]


def _paper_rows(samples: Mapping[str, Sample] | None) -> list[Row]:
    return [Row("  paper", samples, seeds="3", ranked=False)] if samples else []


def _test_notes(rows: Sequence[Row], other: Row | None, is_best: bool) -> list[str]:
    """What the last two columns say, and of which rows they say something else."""
    found = [(row, row.against) for row in rows if row.against is not None]
    if other is None or not found:
        return []
    kinds = list(dict.fromkeys(one.words for _, one in found))
    usual = max(kinds, key=lambda kind: sum(one.words == kind for _, one in found))
    compared = f"compared with {other.name}{', the best A' * is_best}"
    head = f"{compared}: the difference in A, its 95% interval, and p. What varies: "
    notes = [head + usual]
    for kind in (kind for kind in kinds if kind != usual):
        notes.append(f"{', '.join(row.name for row, one in found if one.words == kind)}: {kind}")
    return notes


def config_differences(runs: Sequence[Run]) -> list[str]:
    """Differences in training, which the protocol does not fix. Methods may differ in their own options."""
    notes = []
    methods = sorted({run.method for run in runs})
    for name in sorted({name for run in runs for name in run.config}):
        if not name.startswith(VARYING):
            continue
        subsets = [list(runs)]
        if name.startswith("method."):
            subsets = [[run for run in runs if run.method == method] for method in methods]
        for subset in subsets:
            values = {repr(run.config[name]): run for run in subset if name in run.config}
            if len(values) > 1:
                listed = "; ".join(f"{value} in {run.path}" for value, run in values.items())
                notes.append(f"note that {name} differs: {listed}")
    return notes


def _difference(row: Row, other: Row | None, protocol: str, varying: Varying | None) -> Difference | None:
    """In A; None for the other row itself, and where the runs do not say."""
    if other is None or row is other or "A" not in row.samples:
        return None
    # A predictions file is large: over seeds it is not needed.
    found = difference(row.samples["A"], other.samples["A"], varying)
    if found is not None or varying == "seeds":
        return found
    hits = _hits(row.runs, protocol), _hits(other.runs, protocol)
    return difference(row.samples["A"], other.samples["A"], varying, hits)


def _hits(runs: Sequence[Run], protocol: str) -> Hits | None:
    known = [pair for run in runs if (pair := run.hits(protocol)) is not None]
    if len(known) < len(runs):
        return None
    return Hits(tuple(run.seed for run in runs), np.stack([right for right, _ in known]), known[0][1])


def main_table(study: Study, protocol: str) -> Table:
    """Tables 2, 3, 6 and 7: ours beside the paper's, if it has this benchmark."""
    return comparison_table(study.main, protocol, with_paper=bool(published.published_rows(study.benchmark, protocol)))


def ablation_table(study: Study, protocol: str) -> Table | None:
    """Tables 4 and 8: osiris-d without its parts."""
    runs = [run for run in study.main if base_name(run.label).split("/")[0] == "osiris-d"]
    if not any("/" in run.label for run in runs):
        return None
    with_paper = bool(published.published_rows(study.benchmark, protocol))
    table = comparison_table(runs, protocol, with_paper=with_paper, with_baselines=False)
    return replace(table, title=f"ablation of osiris-d, {table.title}")


def environment_table(study: Study) -> Table | None:
    """Table 5: KNN restricted to the classes of each environment, final model."""
    names = [name for name, _ in study.metrics.environments]
    if not names:
        return None
    paper = published.published_environments() if study.benchmark == published.STRUCTURED_TINY else {}
    rows = []
    for label, runs in study.by_label.items():
        samples = samples_of({run.seed: run.metrics.evaluations[-1].environments or {} for run in runs})
        row = Row(label, samples, seeds=str(len(runs)), ranked=runs[0].continual)
        rows += [row, *_paper_rows(paper.get(label))]
    return number_table(f"{study.benchmark}, within-environment KNN", names, rows, (f"{OVER_SEEDS}; final model",))
