"""Whether a run can be reported: every file that a report needs is read once, before anything is drawn."""

from __future__ import annotations

import msgspec
import numpy as np
from safetensors import SafetensorError

from osiris.errors import UserError
from osiris.evaluation.config import PROTOCOLS
from osiris.evaluation.runs import Run
from osiris.evaluation.untrusted import harmless
from osiris.report.curves import Course, percentages


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
    metrics = run.metrics
    if not metrics.task_names or not metrics.evaluations:
        raise ValueError("metrics.json has no tasks or no evaluations")
    if unknown := set(metrics.protocols) - set(PROTOCOLS):
        raise ValueError(f"metrics.json has the unknown protocol {sorted(unknown)[0]!r}")
    if not {task for _, tasks in metrics.environments for task in tasks} <= set(range(run.task_count)):
        raise ValueError("metrics.json has an environment with tasks that do not exist")
    for protocol in metrics.protocols:
        _ = Course.of(run, protocol), accuracy_matrix(run, protocol), class_accuracy(run, protocol)
    _ = run.observations, run.command, run.composition, run.config, run.steps, run.overfitting_logged
    for task in [*range(run.task_count), None]:
        check_arrays(run.arrays(task), run.task_count, metrics.fingerprint.bank_images, metrics.fingerprint.test_images)
        run.memory(task)


def accuracy_matrix(run: Run, protocol: str) -> np.ndarray:
    """A[t, i]: [evaluations, tasks], NaN for a task without test images."""
    return percentages(run.metrics[protocol].accuracy_matrix, (len(run.metrics.evaluations), run.task_count))


def class_accuracy(run: Run, protocol: str) -> np.ndarray:
    """[evaluations, classes] in percent."""
    rows = [scores.protocols[protocol].per_class for scores in run.metrics.evaluations]
    return percentages(rows, (len(rows), len(rows[0])))


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
