"""The studies of a report: runs whose numbers may be compared with each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec
import numpy as np
from safetensors import SafetensorError

from osiris.data.catalogue import EPISODES
from osiris.errors import UserError
from osiris.evaluation.config import PROTOCOLS
from osiris.evaluation.fingerprint import json_digest
from osiris.reporting.curves import Course, accuracy_matrix, overfitting_course
from osiris.reporting.style import order_of
from osiris.runs.records import RunMetrics
from osiris.runs.run import Run
from osiris.runs.untrusted import harmless, safe_name, shortened

PREFERRED = ("ft", "osiris-d", "lump", "cassle", "osiris-r", "er")
NORMS = {"gn": "GroupNorm", "bn": "BatchNorm"}
VARYING = (
    *("learning.", "projector.", "method.", "engine.init", "engine.precision"),
    *("encoder.normalise", "encoder.readout", "encoder.codes"),
)
"""Runs of one method that differ in these parts of the config are separate rows."""
TASK_NAME = 30
"""Longest name of a task in a figure, in characters."""
EPISODE_NAME, MOST_NAMES = 12, 12
"""The same on an axis, and how many names an axis has room for."""
SAME_LEVEL = 0.5
"""Points by which the same untrained encoders may differ between machines."""


class Study:
    """Runs on one benchmark under one protocol; only the encoder's normalisation may differ."""

    def __init__(self, identifier: str, runs: Sequence[Run]) -> None:
        self.identifier, self.runs, self.metrics = identifier, runs, runs[0].metrics
        self.benchmark, self.task_count = self.metrics.benchmark, len(self.metrics.task_names)
        self.environments = [(shortened(name, TASK_NAME), tasks) for name, tasks in self.metrics.environments]
        every = [run.metrics.protocols for run in runs]
        self.protocols = [name for name in self.metrics.protocols if all(name in one for one in every)]
        norm = "gn" if any(run.norm == "gn" for run in runs) else runs[0].norm
        self.main = [run for run in runs if run.norm == norm]
        """Runs with GroupNorm if there are any, as in the paper; otherwise with the normalisation of the first run."""
        labels = sorted({run.label for run in self.main}, key=order_of)
        self.by_label = {label: [run for run in self.main if run.label == label] for label in labels}
        """Of the main normalisation: label -> runs of all seeds, in the order of the zoo."""
        self.continual = {label: each for label, each in self.by_label.items() if each[0].continual}
        ablations = [label for label in self.continual if "/" in label]
        self.plain = {label: each for label, each in self.by_label.items() if label not in ablations} or self.by_label
        """Without ablations, which have tables of their own, unless there is nothing else."""
        names = [shortened(name, EPISODE_NAME) for name in self.metrics.task_names]
        self.episode_names = names if self.benchmark == EPISODES and len(names) <= MOST_NAMES else []
        """For the axes: folders have names that say more than their numbers."""
        self.word = "episode" if self.benchmark == EPISODES else "task"

    def task_title(self, task: int) -> str:
        """`task 3 (city)` contains its number, and episodes are known by name; `beetles` becomes `10 beetles`."""
        name = shortened(self.metrics.task_names[task], TASK_NAME)
        return name if name.startswith("task ") or self.word == "episode" else f"{task + 1} {name}"

    def few(self, most: int = 6) -> dict[str, list[Run]]:
        """At most `most` continual methods, for a figure with little space; those of the paper's figures first."""
        labels = [label for label in self.plain if label in self.continual]
        preferred = [label for label in PREFERRED if label in labels]
        chosen = list(dict.fromkeys(preferred + labels))[:most]
        return {label: self.by_label[label] for label in labels if label in chosen}

    def final(self, label: str, protocol: str) -> list[float]:
        """A of every seed of a method that has one."""
        return [value for run in self.by_label[label] if (value := run.metrics[protocol].A) is not None]

    def levels(self, protocol: str) -> dict[str, float]:
        """A of untrained encoders, or of the pretrained start, by name."""
        return levels(self.main, protocol)


def levels(runs: Iterable[Run], protocol: str) -> dict[str, float]:
    """A of the encoders before they learned anything: `untrained encoder`, `start`. Starts that differ have no level in
    common, and are left out."""
    known: dict[str, list[float]] = {}
    for run in runs:
        if (value := run.metrics[protocol].untrained) is not None:
            known.setdefault(run.metrics.reference_name, []).append(value)
    return {name: values[0] for name, values in known.items() if max(values) - min(values) < SAME_LEVEL}


def below_start(runs: Iterable[Run], protocol: str) -> str:
    """`osiris-d, seed 0: all tasks (-3.1, p = 0.004)`, of each run that is significantly below its start."""
    worse = [(run, run.metrics.below_start(protocol)) for run in runs]
    return "; ".join(f"{run.label}, seed {run.seed}: {', '.join(places)}" for run, places in worse if places)


def studies(runs: Sequence[Run]) -> tuple[list[Study], list[str]]:
    """(studies in the order of their first run; one line for each run that is left out: damaged, or there twice)."""
    usable: list[Run] = []
    damaged = []
    for run in runs:
        if reason := damage(run):
            damaged.append(f"{run.path} is damaged and left out: {reason}.")
        else:
            usable.append(replace(run, number=len(usable) + 1))
    groups: dict[str, list[Run]] = {}
    for run in usable:
        groups.setdefault(comparable(run.metrics), []).append(run)
    names: Counter[str] = Counter()
    grouped = []
    for members in groups.values():
        name = safe_name(members[0].metrics.benchmark)
        names[name] += 1
        identifier = name if names[name] == 1 else f"{name}-{names[name]}"
        distinct, repeated = _without_twins(with_variants(members))
        grouped.append(Study(identifier, distinct))
        damaged += repeated
    return grouped, damaged


def comparable(metrics: RunMetrics) -> str:
    """What two runs must share, apart from the normalisation of the encoder."""
    fields = {name: value for name, value in metrics.fingerprint.plain().items() if name != "hash"}
    fields["encoder"] = {name: value for name, value in fields["encoder"].items() if name != "norm"}
    return json_digest([fields, metrics.task_names])


def with_variants(runs: Sequence[Run]) -> list[Run]:
    """Runs of one method with different settings are told apart by them: `epochs=48`."""
    named = []
    for run in runs:
        twins = [other for other in runs if (other.method, other.norm) == (run.method, run.norm)]
        differing = [
            name
            for name in sorted(run.config)
            if name.startswith(VARYING) and len({repr(other.config.get(name)) for other in twins}) > 1
        ]
        variant = ", ".join(f"{name.split('.', 1)[1]}={run.config[name]}" for name in differing)
        named.append(replace(run, variant=variant) if variant else run)
    return named


def _without_twins(runs: list[Run]) -> tuple[list[Run], list[str]]:
    """(runs, a line for each that is left out). A run that another one repeats with the same numbers, for example with
    --evaluate-every or --track-overfitting, counts once: the one with more measurements inside tasks."""
    groups: dict[tuple[str, str, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.label, run.norm, run.seed), []).append(run)
    lines, repeated = [], list[Run]()
    for members in groups.values():
        kept = max(members, key=lambda run: len(run.metrics.curve or ()) + len(run.overfitting_logged))
        for run in members:
            if run is not kept and run.metrics.protocols == kept.metrics.protocols:
                repeated.append(run)
                lines.append(f"{run.path} is left out: {kept.path} is the same run with the same numbers.")
    return [run for run in runs if run not in repeated], lines


def seeds_of(runs: Iterable[Run]) -> str:
    """`seed 0`, `3 seeds`, or `1 to 3 seeds` if methods differ."""
    counts: dict[tuple[str, str], set[int]] = {}
    for run in runs:
        counts.setdefault((run.label, run.norm), set()).add(run.seed)
    numbers = sorted({len(seeds) for seeds in counts.values()})
    if not numbers:
        return ""
    if numbers == [1]:
        used = sorted({seed for seeds in counts.values() for seed in seeds})
        return f"seed {used[0]}" if len(used) == 1 else "one seed each"
    return f"{numbers[0]} seeds" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} seeds"


def damage(run: Run) -> str:
    """Why the files of a run cannot be used; empty if they can."""
    try:
        read_everything(run)
    except UserError as error:
        return str(error).rstrip(".")
    except msgspec.ValidationError as error:
        return f"log.jsonl: {error}"
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OSError, SafetensorError) as error:
        return f"{type(error).__name__}: {harmless(str(error))[:200]}"
    return ""


def read_everything(run: Run) -> None:
    """Every file that a report needs, once, before anything is drawn."""
    metrics = run.metrics
    if not set(metrics.lost) <= set(range(run.task_count)):
        raise ValueError("metrics.json has lost evaluations of tasks that do not exist")
    if unknown := set(metrics.protocols) - set(PROTOCOLS):
        raise ValueError(f"metrics.json has the unknown protocol {sorted(unknown)[0]!r}")
    if not {task for _, tasks in metrics.environments for task in tasks} <= set(range(run.task_count)):
        raise ValueError("metrics.json has an environment with tasks that do not exist")
    for protocol in metrics.protocols:
        _ = Course.of(run, protocol), accuracy_matrix(run, protocol)
    _ = run.observations, run.command, run.composition, run.config, run.steps, run.compatibility
    _ = overfitting_course(run)
    for task in [*range(run.task_count), None]:
        check_arrays(run.arrays(task), run.task_count, metrics.fingerprint.bank_images, metrics.fingerprint.test_images)
        run.memory(task)


def check_arrays(arrays: dict[str, np.ndarray], task_count: int, bank_images: int, test_images: int) -> None:
    """Indices lie within what they index, and arrays that are read together fit each other. Without test images, the
    bank was evaluated; in a learner's state it has another size after each episode."""
    images, classes = len(arrays.get("task", ())), len(arrays.get("class_similarity", ()))
    limits = {
        "task": task_count,
        "projection.indices": images,
        "neighbours.indices": images,
        "neighbours.bank": bank_images if test_images else images,
        "label": classes,
    }
    for name, limit in limits.items():
        indices = arrays.get(name, np.zeros(0, dtype=np.int64))
        if indices.size and not (indices.min() >= 0 and indices.max() < limit):
            raise IndexError(f"the array {name!r} of an evaluation has entries outside 0 to {limit - 1}")
    shapes = {
        "label": (images,),
        "projection.points": (len(arrays.get("projection.indices", ())), 2),
        "class_similarity": (classes, classes),
        **{name: (2, array.shape[-1]) for name, array in arrays.items() if name.startswith("histogram.")},
    }
    for name, shape in shapes.items():
        if name in arrays and arrays[name].shape != shape:
            raise ValueError(f"the array {name!r} of an evaluation should have the shape {shape}")
