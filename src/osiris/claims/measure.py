"""From runs, and from the published tables, to the evidence that claims are judged by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from osiris.claims.evidence import Evidence, Sample
from osiris.evaluation import published
from osiris.evaluation.config import METRICS
from osiris.evaluation.published import Summary
from osiris.evaluation.statistics import t_test_from_summaries
from osiris.report import curves
from osiris.report.figures import similarity
from osiris.report.overfitting import Measured
from osiris.report.studies import Study, StudyRun

Key = TypeVar("Key")
LATE = 0.75
"""Where the last quarter of training begins."""


def p_value(first: Sample, second: Sample) -> float:
    """Student's unpaired t-test with sample deviations (ddof 1)."""
    assert first.deviation is not None and second.deviation is not None
    return t_test_from_summaries(
        (first.mean, first.deviation, first.count), (second.mean, second.deviation, second.count)
    ).p


def from_study(study: Study, measured: Measured) -> Evidence:
    """Of all runs of a study."""
    values: dict[tuple[str, str, str, str], list[float]] = {}
    places: dict[tuple[str, str], list[float]] = {}
    close: dict[tuple[str, str], list[float]] = {}
    course: dict[tuple[str, str], list[float]] = {}
    fitted: dict[tuple[str, str], list[float]] = {}
    for item in study.runs:
        for protocol in study.protocols:
            for metric, value in item.run.values(protocol).items():
                if value is not None:
                    values.setdefault((item.label, item.norm, protocol, metric), []).append(value)
        if item.norm != study.main_norm:
            continue
        for name, value in (item.run.metrics.evaluations[-1].environments or {}).items():
            if value is not None:
                places.setdefault((item.label, name), []).append(value)
        for name, value in _similarities(item, study).items():
            close.setdefault((item.label, name), []).append(100 * value)
        for aspect, value in _course(item, study).items():
            course.setdefault((item.label, aspect), []).append(value)
        for space, value in _fitted(measured.get(item.number, []), item.task_count).items():
            fitted.setdefault((item.label, space), []).append(value)
    return Evidence(
        study.benchmark,
        p_value,
        _samples(values),
        _samples(places),
        tuple(name for name, _ in study.environments),
        _samples(close),
        _samples(fitted),
        _samples(course),
        groups(),
    )


def groups() -> dict[str, str]:
    from osiris.framework.methods import ZOO

    return {name: method.group for name, method in ZOO.items()}


def _samples(values: Mapping[Key, Sequence[float]]) -> dict[Key, Sample]:
    made = {key: Sample.of(group) for key, group in values.items()}
    return {key: sample for key, sample in made.items() if sample is not None}


def _similarities(item: StudyRun, study: Study) -> dict[str, float]:
    if not study.environments:
        return {}
    arrays = item.arrays()
    if "class_similarity" not in arrays:
        return {}
    tasks = similarity.tasks_of(arrays["label"], arrays["task"])
    return similarity.by_environment(arrays["class_similarity"], tasks, study.environments)


def _course(item: StudyRun, study: Study) -> dict[str, float]:
    """Means of the curves of Fig. 3a, and of their last quarter."""
    if not item.run.continual or not study.protocols:
        return {}
    points = item.points(study.protocols[0])
    late = [point for point in points if point.x > LATE * item.task_count]
    return {
        "plasticity": _mean(curves.plasticity(points)),
        "consolidation": _mean(curves.consolidation(points)),
        "stability": _mean(curves.of_task(points, 0)),
        "late plasticity": _mean(curves.plasticity(late)),
        "late stability": _mean(curves.of_task(late, 0)),
    }


def _mean(series: tuple[np.ndarray, np.ndarray]) -> float:
    return float(np.nanmean(series[1]))


def _fitted(points: Sequence[tuple[float, Mapping[str, float]]], tasks: int) -> dict[str, float]:
    """Mean relative loss difference in the last quarter of training, in percent, by space."""
    late = [values for x, values in points if x > LATE * tasks]
    spaces = {space for values in late for space in values}
    return {space: 100 * float(np.mean([values[space] for values in late if space in values])) for space in spaces}


def from_paper() -> list[Evidence]:
    """The published tables as evidence (their deviations taken as those of a sample)."""
    found = []
    for benchmark in published.benchmarks():
        metrics: dict[tuple[str, str, str, str], Sample] = {}
        for protocol in published.protocols():
            rows = published.published(benchmark, protocol)
            if benchmark == published.document()["ablation"]["benchmark"]:
                rows = published.published_ablation(protocol) | rows
            for method, row in rows.items():
                for metric in METRICS:
                    if metric in row:
                        metrics[(method, "gn", protocol, metric)] = _sample(row[metric])
        places: dict[tuple[str, str], Sample] = {}
        names: tuple[str, ...] = ()
        if benchmark == published.document()["environments"]["benchmark"]:
            table = published.published_environments()
            names = tuple(next(iter(table.values())))
            places = {(method, name): _sample(row[name]) for method, row in table.items() for name in names}
        found.append(Evidence(benchmark, p_value, metrics, places, names, groups=groups()))
    return found


def _sample(summary: Summary) -> Sample:
    return Sample(summary.mean, summary.deviation, summary.count)
