"""The tables of a study: A F K C T under each protocol, ablations, environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from osiris.evaluation import published
from osiris.evaluation.config import METRICS
from osiris.evaluation.statistics import deviation, mark, mean
from osiris.report.comparison import comparison_table
from osiris.report.studies import Study
from osiris.report.study_run import StudyRun
from osiris.report.style import base_name, order_of
from osiris.report.tables import Cell, Column, Number, Table, number_columns

GROUPS = {"reference": 0, "replay": 1, "distillation": 2, "other": 3}


def main_table(study: Study, protocol: str, labels: Sequence[str] | None = None) -> Table:
    """Tables 2, 3, 6 and 7: baselines, ft, replay, distillation, references; ours beside the paper's."""
    wanted = [item for item in study.main if labels is None or item.label in labels]
    items = sorted(wanted, key=lambda item: (_group(item.label), order_of(item.label), item.seed))
    with_paper = study.benchmark in published.benchmarks() and protocol in published.protocols()
    table = comparison_table([item.run for item in items], protocol, with_paper=with_paper)
    rows, rules = list(table.rows), set(table.rules) if with_paper else set()
    for index in range(1, len(rows)):
        above, here = str(rows[index - 1][0]), str(rows[index][0])
        if not with_paper and _section(above) != _section(here):
            rules.add(index)
    blank = [*(Number(None) for _ in METRICS[1:]), *[""] * (len(table.columns) - 2 - len(METRICS))]
    baselines: list[tuple[Cell, ...]] = [
        (name, "", Number(accuracy), *blank) for name, accuracy in study.baselines(protocol).items()
    ]
    if baselines:
        rows = [*baselines, *rows]
        rules = {index + len(baselines) for index in rules} | {len(baselines)}
    return _without_empty_columns(replace(table, rows=tuple(rows), rules=frozenset(rules)))


def _without_empty_columns(table: Table) -> Table:
    """With one seed there is no p, with one method nothing to compare."""
    kept = [at for at in range(len(table.columns)) if any(row[at] != "" for row in table.rows)]
    return replace(
        table,
        columns=tuple(table.columns[at] for at in kept),
        rows=tuple(tuple(row[at] for at in kept) for row in table.rows),
    )


def _group(label: str) -> int:
    from osiris.framework.table1 import group_of

    name = base_name(label).split("/")[0]
    return GROUPS[group_of(name)]


def _section(label: str) -> tuple[bool, int]:
    return base_name(label) in published.REFERENCES, _group(label)


def ablation_table(study: Study, protocol: str) -> Table | None:
    """Tables 4 and 8: osiris-d without its parts."""
    labels = [label for label in study.by_label if base_name(label).split("/")[0] == "osiris-d"]
    if not any("/" in label for label in labels):
        return None
    table = main_table(study, protocol, labels)
    kept = [index for index, row in enumerate(table.rows) if row[0] not in study.baselines(protocol)]
    first = kept[0]
    return replace(
        table,
        title=f"ablation of osiris-d, {table.title}",
        rows=tuple(table.rows[index] for index in kept),
        rules=frozenset(index - first for index in table.rules if index > first),
    )


def environment_table(study: Study) -> Table | None:
    """Table 5: KNN restricted to the classes of each environment, final model."""
    names = [name for name, _ in study.environments]
    if not names:
        return None
    ours = {label: [_environments(items, name) for name in names] for label, items in study.by_label.items()}
    marks = [mark([mean(values[column]) for values in ours.values()]) for column in range(len(names))]
    paper = published.published_environments() if study.benchmark == published.ENVIRONMENTS else {}
    rows: list[tuple[Cell, ...]] = []
    for index, (label, values) in enumerate(ours.items()):
        numbers = [Number(mean(one), deviation(one), marks[at][index]) for at, one in enumerate(values)]
        rows.append((label, str(len(study.by_label[label])), *numbers))
        known = paper.get(label)
        if known:
            shown = (known[name] for name in names)
            rows.append(("  paper", "3", *(Number(one.mean, one.deviation) for one in shown)))
    columns = (Column("method"), Column("seeds"), *number_columns(names))
    title = f"{study.benchmark}, within-environment KNN"
    return Table(title, columns, tuple(rows), ("percent, mean ± sample deviation (ddof 1) over seeds; final model",))


def _environments(items: list[StudyRun], name: str) -> list[float]:
    found = [(item.run.metrics.evaluations[-1].environments or {}).get(name) for item in items]
    return [value for value in found if value is not None]
