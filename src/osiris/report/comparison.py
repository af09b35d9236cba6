"""The paper's tables, and ours beside them: methods over seeds under one protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from osiris.console import notice
from osiris.errors import UserError
from osiris.evaluation import published
from osiris.evaluation.config import METRICS
from osiris.evaluation.fingerprint import require_same
from osiris.evaluation.published import REFERENCES
from osiris.evaluation.runs import Run
from osiris.evaluation.statistics import Sample, format_p, mark, paired_bootstrap, t_test
from osiris.report.style import order_of
from osiris.report.tables import Cell, Column, Number, Table, number_columns


@dataclass(frozen=True)
class Group:
    """The runs of one row."""

    name: str
    runs: tuple[Run, ...]

    @property
    def competes(self) -> bool:
        return self.runs[0].continual and self.runs[0].method not in REFERENCES

    def sample(self, protocol: str, metric: str) -> Sample | None:
        """The metric over seeds; None where no run has it."""
        by_seed = {run.seed: value for run in self.runs if (value := run.values(protocol)[metric]) is not None}
        return Sample.of(by_seed) if by_seed else None

    def mean(self, protocol: str, metric: str) -> float | None:
        sample = self.sample(protocol, metric)
        return None if sample is None else sample.mean


def published_table(benchmark: str, protocol: str) -> Table:
    rows = published.published(benchmark, protocol)
    return _published(f"{benchmark}, {protocol} KNN, as published", rows, METRICS)


def ablation_table(protocol: str) -> Table:
    rows = published.published_ablation(protocol)
    return _published(f"ablation of osiris-d on {published.TWENTY}, {protocol} KNN, as published", rows, METRICS)


def environment_table() -> Table:
    rows = published.published_environments()
    title = f"accuracy within each environment of {published.ENVIRONMENTS}, within-environment KNN, as published"
    return _published(title, rows, tuple(next(iter(rows.values()))))


def _published(title: str, rows: dict[str, dict[str, Sample]], metrics: Sequence[str]) -> Table:
    order = [name for name in rows if name not in REFERENCES] + [name for name in rows if name in REFERENCES]
    columns = []
    for column in number_columns(metrics):
        values = [rows[name][column.name].mean if column.name in rows[name] else None for name in order]
        competing = [value if name not in REFERENCES else None for name, value in zip(order, values, strict=True)]
        columns.append(mark(competing, column.better == "higher"))
    cells = []
    for index, name in enumerate(order):
        samples = [rows[name].get(metric) for metric in metrics]
        cells.append((name, *(_number(sample, marks[index]) for sample, marks in zip(samples, columns, strict=True))))
    notes = (
        f"percent, mean ± deviation over three seeds; {published.settings()}",
        "the paper's own marks are not consistent; these follow one rule, and offline is not ranked",
    )
    rule = frozenset(number for number, name in enumerate(order) if name in REFERENCES)
    return Table(title, (Column("method"), *number_columns(metrics)), tuple(cells), notes, rule)


def comparison_table(
    runs: Sequence[Run],
    protocol: str = "class-agnostic",
    by: Literal["method", "run"] = "method",
    with_paper: bool = False,
) -> Table:
    """One row per method (or run): mean ± sample deviation over seeds, marks, and A compared with the best row's."""
    check(runs)
    groups = group(runs, by)
    marks = []
    for column in number_columns(METRICS):
        means = [one.mean(protocol, column.name) if one.competes else None for one in groups]
        marks.append(mark(means, column.better == "higher"))
    ranked = [one for one in groups if one.competes and one.sample(protocol, "A") is not None]
    best = max(ranked, key=lambda one: one.mean(protocol, "A") or 0.0, default=None)
    paper = published.published_rows(runs[0].benchmark, protocol) if with_paper else {}
    if with_paper and not paper:
        notice(f"the paper has no {protocol} numbers for {runs[0].benchmark}; the table shows your runs alone.")
    rows: list[tuple[Cell, ...]] = []
    rules = set()
    for index, one in enumerate(groups):
        if index and (paper or (not one.competes and groups[index - 1].competes)):
            rules.add(len(rows))
        numbers = [_number(one.sample(protocol, name), marks[at][index]) for at, name in enumerate(METRICS)]
        rows.append((one.name, str(len(one.runs)), *numbers, *_against(one, best, protocol)))
        known = paper.get(one.runs[0].method)
        if known:
            rows.append(("  paper", str(3), *(_number(known.get(name)) for name in METRICS), "", ""))
    columns = (Column("method"), Column("seeds"), *number_columns(METRICS), Column("p"), Column("A - best A"))
    if all(row[-2:] == ("", "") for row in rows):
        columns, rows, best = columns[:-2], [row[:-2] for row in rows], None
    return Table(_title(runs, protocol), columns, tuple(rows), _notes(runs, best, bool(paper)), frozenset(rules))


def check(runs: Sequence[Run]) -> None:
    """Refuse runs that cannot be compared."""
    if not runs:
        raise UserError("there are no runs to compare.")
    require_same({str(run.path): run.fingerprint for run in runs})
    for run in runs:
        if not run.complete:
            done, all_tasks = len(run.metrics.evaluations), len(run.metrics.task_names)
            raise UserError(f"{run.path} has finished {done} of {all_tasks} tasks; let it finish, or leave it out.")


def group(runs: Sequence[Run], by: Literal["method", "run"]) -> list[Group]:
    """Methods in the order of the zoo (runs in the order given), references last."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        members = groups.setdefault(run.method if by == "method" else str(run.path), [])
        twin = next((one for one in members if one.seed == run.seed), None)
        if twin is not None:
            raise UserError(
                f"{twin.path} and {run.path} are both {run.method} with seed {run.seed}: their mean would mix"
                " different runs. Leave one out, or give each run a row of its own with --by run."
            )
        members.append(run)
    rows = [Group(name, tuple(members)) for name, members in groups.items()]
    if by == "method":
        rows.sort(key=lambda one: order_of(one.name))
    return sorted(rows, key=lambda one: not one.competes)


def _title(runs: Sequence[Run], protocol: str) -> str:
    about = runs[0].fingerprint
    knn = f"k = {about.k}, tau = {about.temperature}, bank of {about.bank_images:,} images"
    return f"{runs[0].benchmark}, {protocol} KNN ({knn}, fingerprint {about.hash})"


def _notes(runs: Sequence[Run], best: Group | None, with_paper: bool) -> tuple[str, ...]:
    notes = ["percent, mean ± sample deviation (ddof 1) over seeds"]
    if best is not None:
        notes.append(
            f"compared with {best.name}, the best A: p of a t-test over seeds (paired where methods share at least two "
            "seeds), and the difference in A with its 95% paired bootstrap interval over test images"
        )
    if with_paper:
        notes.append(f"paper: three seeds, {published.settings()}")
    return (*notes, *config_differences(runs))


def config_differences(runs: Sequence[Run]) -> list[str]:
    """Differences in training, which the protocol does not fix. Methods may differ in their own options."""
    notes = []
    methods = sorted({run.method for run in runs})
    for name in sorted({name for run in runs for name in run.config}):
        section = name.split(".")[0]
        if section in ("learning", "projector"):
            subsets = [list(runs)]
        elif section == "method":
            subsets = [[run for run in runs if run.method == method] for method in methods]
        else:
            continue
        for subset in subsets:
            values = {repr(run.config[name]): run for run in subset if name in run.config}
            if len(values) > 1:
                listed = "; ".join(f"{value} in {run.path}" for value, run in values.items())
                notes.append(f"note that {name} differs: {listed}")
    return notes


def _against(one: Group, best: Group | None, protocol: str) -> tuple[str, str]:
    """(p of the t-test on A, difference in A with its bootstrap interval); empty for the best row itself."""
    if best is None or one is best:
        return "", ""
    ours, highest = one.sample(protocol, "A"), best.sample(protocol, "A")
    test = None if ours is None or highest is None else t_test(ours, highest)
    p = "" if test is None else format_p(test.p).removeprefix("p ").removeprefix("= ")
    mine, theirs = _hits(one, protocol), _hits(best, protocol)
    if mine is None or theirs is None or mine[0].shape[1] != theirs[0].shape[1]:
        return p, ""
    interval = paired_bootstrap(mine[0], theirs[0], mine[1])
    return p, f"{interval.difference:+.1f} [{interval.low:+.1f}, {interval.high:+.1f}]"


def _hits(one: Group, protocol: str) -> tuple[np.ndarray, np.ndarray] | None:
    """(bool [seeds, test images]: whether the run was right, int [test images]: their tasks), or None."""
    hits = [run.hits(protocol) for run in one.runs]
    known = [pair for pair in hits if pair is not None]
    if len(known) < len(hits):
        return None
    return np.stack([right for right, _ in known]), known[0][1]


def _number(sample: Sample | None, how: Literal["best", "second"] | None = None) -> Number:
    return Number(None) if sample is None else Number(sample.mean, sample.deviation, how)
