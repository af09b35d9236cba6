"""The section of claims: runs become the numbers that claims are judged by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from osiris.claims.claims import CLAIMS, Judged, judge, tally
from osiris.claims.evidence import BATCH_NORM, TASK_AWARE, Evidence, RunNumbers, from_paper, from_runs
from osiris.claims.judges import Outcome
from osiris.data.names import DATASETS, parse_name
from osiris.errors import UserError
from osiris.evaluation.statistics import mean
from osiris.report import curves
from osiris.report.figures.representation import by_environment, tasks_of
from osiris.report.overfitting import Measured
from osiris.report.studies import Study
from osiris.report.study_run import StudyRun
from osiris.report.tables import Column, Table
from osiris.report.writer import ReportWriter, Section, render
from osiris.training.presets import preset

LATE = 0.75
"""Where the last quarter of training begins."""
KINDS = {"holds": "holds", "contradicted": "fails", "undecided": "unknown", "not run": "unknown"}
SIGNS = {"holds": "✓", "contradicted": "✗", "undecided": "?", "not run": "–"}
RULE = (
    "a t-test over at least three seeds decides at p < 0.05, paired where methods share seeds; of several comparisons "
    "all must hold, and one contradicts at 0.05 divided by their number"
)


def claims_section(writer: ReportWriter, studies: Sequence[Study]) -> Section:
    """Claims that were put to a test in full, the others as a list of the runs they need."""
    evidence = [evidence_of(study, writer.measured.get(study.identifier, {})) for study in studies if study.protocols]
    published = from_paper()
    judged = [judge(claim, evidence, published) for claim in CLAIMS]
    writer.table(claims_table(judged), "claims")
    block = render(
        "claims.html",
        tally=tally(judged),
        tested=[_item(one) for one in judged if one.verdict != "not run"],
        waiting=[_item(one) for one in judged if one.verdict == "not run"],
    )
    scales = dict.fromkeys(f"{one.benchmark}: {one.scale}" for one in evidence)
    intro = f"Every empirical claim of the paper, in our words, tested on these runs: {RULE}. {' '.join(scales)}"
    return Section("claims", "The paper's claims", "Claims", intro, [block])


def evidence_of(study: Study, measured: Measured) -> Evidence:
    runs = [_numbers(item, study, measured) for item in study.runs]
    names = tuple(name for name, _ in study.environments)
    return from_runs(study.benchmark, runs, names, scale_of(study), _presets(study) == {"smoke"})


def scale_of(study: Study) -> str:
    """How the runs differ from the paper's, as a sentence."""
    if _presets(study) == {"smoke"}:
        return "these are smoke runs: they show that the program works, and their numbers mean nothing."
    config, paper = study.runs[0].config, preset("paper", study.benchmark)
    differences = []
    family, width, epochs = (config.get(name) for name in ("encoder.family", "encoder.width", "learning.epochs"))
    if family == "fast":
        differences.append("a small encoder for CPUs (the paper's: ResNet-18)")
    elif width is not None and width != paper.encoder.width:
        differences.append(f"an encoder of width {width} (the paper's: {paper.encoder.width})")
    if epochs is not None and epochs != paper.learning.epochs:
        differences.append(f"{epochs} epochs per task (the paper's: {paper.learning.epochs})")
    if config.get("data.train_per_class"):
        differences.append(f"{config['data.train_per_class']}{_complete(study.benchmark)} training images per class")
    if not config:
        return "the scale of these runs is not known, because config.json is missing."
    return f"{', '.join(differences)}." if differences else "at the scale of the paper."


def _complete(benchmark: str) -> str:
    """How many training images per class there are; empty for data that is not known by name."""
    try:
        name = parse_name(benchmark)
    except UserError:
        return ""
    return f" of {DATASETS[name.place].train_per_class}" if name.kind == "known" else ""


def _presets(study: Study) -> set[str]:
    return {item.config.get("preset", "") for item in study.runs}


def _numbers(item: StudyRun, study: Study, measured: Measured) -> RunNumbers:
    values: dict[str, float | None] = {}
    for protocol, prefix in (("class-agnostic", ""), ("task-aware", TASK_AWARE)):
        if protocol in study.protocols:
            values |= {prefix + metric: value for metric, value in item.run.values(protocol).items()}
    for name, value in (item.run.metrics.evaluations[-1].environments or {}).items():
        values[f"accuracy in {name}"] = value
    arrays = item.arrays() if study.environments else {}
    if "class_similarity" in arrays:
        tasks = tasks_of(arrays["label"], arrays["task"])
        means = by_environment(arrays["class_similarity"], tasks, study.environments)
        values |= {f"similarity in {name}": 100 * value for name, value in means.items()}
    values |= _through_training(item, study)
    late = [spaces for x, spaces in measured.get(item.number, []) if x > LATE * item.task_count]
    for space in {space for spaces in late for space in spaces}:
        relative = mean([spaces.get(space) for spaces in late])
        values[f"overfitting in {space}"] = None if relative is None else 100 * relative
    method = item.label + ("" if item.norm == "gn" else BATCH_NORM)
    return RunNumbers(method, item.seed, {name: value for name, value in values.items() if value is not None})


def _through_training(item: StudyRun, study: Study) -> Mapping[str, float | None]:
    """Means of the curves of Fig. 3a, and of their last quarter."""
    if not item.continual:
        return {}
    points = item.points(study.protocols[0])
    late = [point for point in points if point.x > LATE * item.task_count]
    return {
        "plasticity": mean(curves.plasticity(points)[1]),
        "consolidation": mean(curves.consolidation(points)[1]),
        "stability": mean(curves.of_task(points, 0)[1]),
        "late plasticity": mean(curves.plasticity(late)[1]),
        "late stability": mean(curves.of_task(late, 0)[1]),
    }


def _item(one: Judged) -> dict[str, str]:
    """What the template shows of a claim."""
    return {
        "name": one.claim.name,
        "kind": KINDS[one.verdict],
        "verdict": f"{SIGNS[one.verdict]} {one.verdict}",
        "where": one.claim.where,
        "sentence": one.claim.sentence,
        "ours": _numbers_text(one) or "no runs on a benchmark that it is about",
        "paper": _paper_text(one),
    }


def _verdict_text(outcome: Outcome) -> str:
    if outcome.verdict != "undecided":
        return outcome.verdict
    return f"undecided, means {'in favour' if outcome.in_favour else 'against'}"


def _numbers_text(one: Judged) -> str:
    return " · ".join(f"{name}: {_verdict_text(outcome)}: {outcome.text}" for name, outcome in one.outcomes)


def _paper_text(one: Judged) -> str:
    return "; ".join(f"{_verdict_text(outcome)} on {name}" for name, outcome in one.published)


def claims_table(judged: Sequence[Judged]) -> Table:
    rows = tuple(
        (one.claim.name, one.claim.where, one.claim.sentence, one.verdict, _numbers_text(one), _paper_text(one))
        for one in judged
    )
    names = ("claim", "where", "sentence", "verdict", "numbers", "published tables")
    return Table("claims of the paper, tested on these runs", tuple(map(Column, names)), rows, (RULE,))
