"""The results of an evaluation as records that are JSON files: the numbers of one checkpoint, and what they depend on.

A field with a default is left out of the file when it has that value; every other field is always written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from osiris.errors import UserError
from osiris.evaluation.config import COMPATIBILITY
from osiris.evaluation.statistics import format_p, mean, wilson
from osiris.files import Missing, load_metadata, read_bytes, write_json

SIGNIFICANT = 0.05
Percentages = list[float | None]
"""One number per task (or class); None without test images."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base class of all records in the file."""

    def plain(self) -> dict[str, Any]:
        """The record as dictionaries and lists that JSON can hold."""
        return msgspec.to_builtins(self)


AnyRecord = TypeVar("AnyRecord", bound=Record)


class Health(Record, frozen=True, kw_only=True):
    """Properties of the features that need no labels; `osiris.evaluation.health` defines them."""

    dimension: int
    feature_deviation: float
    spread: float
    effective_rank: float
    uniformity: float | None
    alignment: float | None


class ProtocolScores(Record, frozen=True, kw_only=True):
    """One checkpoint under one protocol."""

    accuracy: Percentages
    top5: Percentages
    per_class: Percentages
    k_effective: list[int]
    """Neighbours that vote, for each bank of a KNN."""
    ridges: list[float | None] = []
    """Of a linear probe: the ridge that was chosen for each bank."""


class TaskLevelScores(Record, frozen=True, kw_only=True):
    """One checkpoint, when the KNN predicts the task instead of the class."""

    accuracy: float | None
    per_task: Percentages
    confusion: list[list[int]]
    """Numbers of images, [true task][predicted task]."""


class Budget(Record, frozen=True, kw_only=True):
    """What a stream has cost so far."""

    images: int
    """Images of the stream that were seen."""
    steps: int
    backward: int = 0
    """Views that were sent forward and backward through an encoder."""
    forward: dict[str, int] = {}
    """Views that were sent forward: `x`, `y` and others through f, `frozen` through other encoders."""
    evaluated: int = 0
    """Images embedded for evaluations; the learner does not see them."""
    memory_bytes: int = 0
    """Images of the memory with all that is stored beside them."""
    frozen_bytes: int = 0
    """Parameters of f*, g* and averages."""
    renewals: list[int] = []
    """Images that were seen when f* was renewed."""
    cuts: list[int] = []
    """Positions at which storyboard has found the beginning of a scene."""


Better = Literal["higher", "lower"]


class OwnNumber(Record, frozen=True, kw_only=True):
    """What a metric of the user's own says of a checkpoint."""

    value: float | None
    better: Better | None = None


NO_TASK_LEVEL = TaskLevelScores(accuracy=None, per_task=[], confusion=[])


class Scores(Record, frozen=True, kw_only=True):
    """All numbers of one checkpoint; accuracies in percent. Without labels only `health`, `task_level` and `missing`
    are filled."""

    labelled: bool
    bank_size: int
    test_size: int
    health: Health
    missing: str | None = None
    """Without labels: what cannot be computed, and why."""
    k: int | None = None
    temperature: float | None = None
    protocols: dict[str, ProtocolScores] = {}
    task_level: TaskLevelScores = NO_TASK_LEVEL
    environments: dict[str, float | None] | None = None
    own: dict[str, OwnNumber] = {}
    """Metrics of the user's own, by name."""
    key: str | None = None
    """Of what `osiris evaluate` has computed: the digest of weights, data and protocol."""
    budget: Budget | None = None
    """Of a stream up to here."""
    coming: float | None = None
    """Of a stream: accuracy on the images that come next (osiris.evaluation.coming)."""


class CurveScores(Scores, frozen=True, kw_only=True):
    """A checkpoint in the middle of a task."""

    task: int
    step: int
    total_step: int


class Comparison(Record, frozen=True, kw_only=True):
    """Two encoders on the same images: what the second one changed."""

    difference: float
    """Accuracy of the second encoder minus that of the first, in percentage points."""
    p: float
    """Of an exact McNemar test, two-sided: the probability of so large a difference if both are equally good."""
    images: int

    @property
    def significant(self) -> bool:
        return self.p < SIGNIFICANT

    def __str__(self) -> str:
        return f"{self.difference:+.1f}, {format_p(self.p)}"


class ReferenceScores(Record, frozen=True, kw_only=True):
    """Leave-one-out KNN on labelled images, in percent."""

    digest: str
    """Of images and labels: scores of different digests do not compare."""
    images: Annotated[int, Meta(ge=1)]
    k: int
    classes: Annotated[list[str], Meta(min_length=1)]
    accuracy: Annotated[float, Meta(ge=0, le=100)]
    per_class: list[float]
    pixels: float
    """Accuracy of the same KNN on raw pixels, which learn nothing."""
    hits: str = ""
    """One digit per image, in the order of the classes: 1 if its prediction was right."""
    health: Health | None = None
    """Of the features of these images, which are the same after every episode."""

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the accuracy."""
        low, high = wilson(self.accuracy / 100, self.images)
        return 100 * low, 100 * high

    @property
    def chance(self) -> float:
        return 100 / len(self.classes)


class Baseline(Record, frozen=True, kw_only=True):
    """Accuracies of features that were not learned, in percent."""

    protocols: dict[str, Percentages]
    task_level: float | None


class IndexScores(Record, frozen=True, kw_only=True):
    """An index made with the encoder after task s, searched with queries of the encoder after task t. Percent, [t][s]
    for s < t: the first row is empty."""

    recall: list[list[float]]
    """Of the k nearest images when index and queries are of the encoder after task t, how many are found."""
    same_class: list[Percentages]
    """Of the k images found, how many are of the query's class; None without labels."""

    @property
    def mean_recall(self) -> float | None:
        """The mean recall over all pairs s < t."""
        return mean([value for row in self.recall for value in row])

    @property
    def mean_same_class(self) -> float | None:
        return mean([value for row in self.same_class for value in row])


class Compatibility(Record, frozen=True, kw_only=True):
    """compatibility.json of a run; `osiris.evaluation.versions` measures it."""

    k: int
    queries: int
    gallery: int
    """Images in the index."""
    map_images: int
    """Images that each map was fitted on; they are not in the index."""
    raw: IndexScores
    """The vectors of the index as they are."""
    mapped: IndexScores
    """The vectors of the index after the linear map of `fit_map`."""
    same_class: Percentages
    """With an index made with the same encoder as the queries, after each task."""

    @property
    def mean_same_class(self) -> float | None:
        """Over the same pairs s < t: the index is embedded again before each of these searches."""
        return mean([value for earlier, value in enumerate(self.same_class) for _ in range(earlier)])

    @property
    def conditions(self) -> str:
        return f"{self.queries} queries, {self.gallery} images in the index, {self.map_images} for each map"

    def values(self) -> dict[str, float | None]:
        """The numbers for tables: means over all s < t."""
        return dict(zip(COMPATIBILITY, (self.raw.mean_recall, self.mapped.mean_recall), strict=True))


class Fingerprint(Record, frozen=True, kw_only=True):
    """What two numbers must share to be comparable; see `osiris.evaluation.fingerprint`."""

    benchmark: str
    train_images: int
    bank_images: int
    test_images: int
    image_size: list[int]
    split: str
    tasks: int
    task_order: str
    k: int
    temperature: float
    random_encoders: int
    encoder: dict[str, Any]
    """Its config, or a name if it was made elsewhere."""
    hash: str
    stream: str | None = None
    """The order of the images, if all tasks were learned as one stream."""


class Setting(Record, frozen=True, kw_only=True):
    """What the numbers of an evaluation were measured on. With them, it is all that metrics.json is made of."""

    benchmark: str
    task_names: Annotated[list[str], Meta(min_length=1)]
    environments: list[tuple[str, list[int]]] = []
    labelled: bool = False
    fingerprint: Fingerprint
    untrained: dict[str, Percentages] | None = None
    """Protocol -> accuracies of untrained encoders; None if they are not needed or not known."""


class Measured(Record, frozen=True, kw_only=True):
    """What the file of an evaluation says beside its arrays, in its metadata."""

    numbers: Scores
    setting: Setting | None = None


def read_measured(path: Path) -> Measured:
    """The numbers of an evaluation, without its arrays."""
    try:
        return msgspec.convert(load_metadata(path), Measured)
    except msgspec.ValidationError as error:
        raise UserError(f"{path} does not hold an evaluation of this version of osiris: {error}.") from None


def read_record(path: Path, kind: type[AnyRecord]) -> AnyRecord:
    """Read a JSON file and check it against the schema."""
    try:
        return msgspec.json.decode(read_bytes(path), type=kind)
    except FileNotFoundError:
        raise Missing(f"{path} does not exist.") from None
    except msgspec.ValidationError as error:
        raise UserError(f"{path} does not hold {kind.__name__} of this version of osiris: {error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not readable as JSON ({error}). Was the copy interrupted?") from None


def write_record(path: Path, record: Record) -> None:
    write_json(path, record.plain())
