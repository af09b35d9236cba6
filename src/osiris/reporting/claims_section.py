"""The section of claims: the numbers of the runs, and the verdicts on them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from osiris.data.catalogue import DATASETS, parse_name
from osiris.errors import UserError
from osiris.evaluation.statistics import mean
from osiris.framework.config import BY_SUMS
from osiris.paper.claims import CLAIMS, judge_claim, tally
from osiris.paper.judges import BATCH_NORM, TASK_AWARE, Evidence, Quantities, from_paper, samples_by_method
from osiris.presets import preset_config
from osiris.reporting.curves import Course, overfitting_course
from osiris.reporting.figures.representation import by_environment, tasks_of
from osiris.reporting.studies import Study
from osiris.reporting.tables import Table
from osiris.reporting.writer import ReportWriter, Section, render_template
from osiris.runs.run import Run

LATE = 0.75
"""Where the last quarter of training begins."""
RULE = (
    "a t-test over at least three seeds decides at p < 0.05, paired where methods share seeds; of several comparisons "
    "all must hold, and one contradicts at 0.05 divided by their number"
)


def claims_section(writer: ReportWriter, studies: Sequence[Study]) -> Section:
    """Claims that were tested, in full, and below them the others with the runs that they need."""
    evidence = []
    for study in studies:
        runs: dict[str, dict[int, Quantities]] = {}
        for run in study.runs if study.protocols else ():
            method = run.label + ("" if run.norm == "gn" else BATCH_NORM)
            runs.setdefault(method, {})[run.seed] = quantities(run, study)
        names = tuple(name for name, _ in study.environments)
        if runs:
            about = (names, scale_of(study), not _smoke(study))
            evidence.append(Evidence(study.benchmark, samples_by_method(runs), *about))
    published = from_paper()
    judged = [judge_claim(claim, evidence, published) for claim in CLAIMS]
    rows = [
        (one.claim.name, one.claim.where, one.claim.sentence, one.verdict, one.numbers, one.paper) for one in judged
    ]
    columns = ("claim", "where", "sentence", "verdict", "numbers", "published tables")
    writer.table(Table.of("Claims of the paper, tested on these runs", columns, rows, RULE), "claims")
    block = render_template(
        "claims.html",
        tally=tally(judged),
        tested=[one for one in judged if one.verdict != "not run"],
        waiting=[one for one in judged if one.verdict == "not run"],
    )
    scales = dict.fromkeys(f"{one.benchmark}: {one.scale}" for one in evidence)
    intro = f"The main empirical claims of the paper, reworded, tested on these runs: {RULE}. {' '.join(scales)}"
    return Section("claims", "The paper's claims", "Claims", intro, [block])


def scale_of(study: Study) -> str:
    """How the runs differ from the paper's, as a sentence."""
    if _smoke(study):
        return "these are smoke runs: they show that the program works, and their numbers mean nothing."
    config, published = study.runs[0].config, preset_config("paper", "")  # of any data
    differences = []
    names = ("encoder.encoder", "encoder.family", "encoder.width")
    encoder, family, width = (config.get(name) for name in names)
    trained = [run for run in study.runs if run.config.get("method.method") not in BY_SUMS]  # those pass once
    epochs = sorted({count for run in trained if isinstance(count := run.config.get("learning.epochs"), int)})
    if encoder is not None:
        differences.append(f"the encoder {encoder} (the paper's: ResNet-18)")
    elif family == "fast":
        differences.append("a small encoder for CPUs (the paper's: ResNet-18)")
    elif width is not None and width != published.encoder.width:
        differences.append(f"an encoder of width {width} (the paper's: {published.encoder.width})")
    if epochs not in ([], [published.learning.epochs]):
        count = "1 epoch" if epochs == [1] else f"{' or '.join(map(str, epochs))} epochs"
        differences.append(f"{count} per task (the paper's: {published.learning.epochs})")
    if per_class := config.get("data.train_per_class"):
        name = None
        with contextlib.suppress(UserError):  # the data is not known by name
            name = parse_name(study.benchmark)
        complete = f" of {DATASETS[name.place].train_per_class}" if name is not None and name.kind == "known" else ""
        differences.append(f"{per_class}{complete} training images per class")
    if not config:
        return "the scale of these runs is not known, because config.json is missing."
    return f"{', '.join(differences)}." if differences else "at the scale of the paper."


def _smoke(study: Study) -> bool:
    return all(run.config.get("preset") == "smoke" for run in study.runs)


def quantities(item: Run, study: Study) -> Quantities:
    """Everything about a run that a claim may ask for."""
    values: dict[str, float | None] = {}
    for protocol, prefix in (("class-agnostic", ""), ("task-aware", TASK_AWARE)):
        if protocol in study.protocols:
            values |= {prefix + metric: value for metric, value in item.metrics[protocol].values().items()}
    for name, value in (item.metrics.evaluations[-1].environments or {}).items():
        values[f"accuracy in {name}"] = value
    arrays = item.arrays() if study.environments else {}
    if "class_similarity" in arrays:
        tasks = tasks_of(arrays["label"], arrays["task"])
        means = by_environment(arrays["class_similarity"], tasks, study.environments)
        values |= {f"similarity in {name}": 100 * value for name, value in means.items()}
    values |= _through_training(item, study)
    late = [spaces for x, spaces in overfitting_course(item) if x > LATE * item.task_count]
    for space in {space for spaces in late for space in spaces}:
        relative = mean([spaces.get(space) for spaces in late])
        values[f"overfitting in {space}"] = None if relative is None else 100 * relative
    return values


def _through_training(item: Run, study: Study) -> Quantities:
    """Means of the curves of Fig. 3a, and of their last quarter."""
    if not item.continual:
        return {}
    course = Course.of(item, study.protocols[0])
    late = course.after(LATE * item.task_count)
    return {
        "plasticity": mean(course.plasticity()),
        "consolidation": mean(course.consolidation()),
        "stability": mean(course.of_task(0)),
        "late plasticity": mean(late.plasticity()),
        "late stability": mean(late.of_task(0)),
    }
