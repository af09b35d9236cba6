"""The paper's published numbers (published.json): mean and deviation over three seeds, in percent."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from osiris.errors import UserError, unknown
from osiris.evaluation.statistics import Sample

FIVE, TWENTY = "split-cifar100-5", "split-cifar100-20"
STRUCTURED, STRUCTURED_TINY = "structured-cifar100", "structured-tiny-imagenet"
REFERENCES = ("offline", "d1-only")
"""Not continual learning: in the tables, but not ranked."""
TABLE_4 = ("osiris-d/shared-space", "osiris-d/no-cross", "osiris-d/no-past", "osiris-d")
"""The rows of Table 4."""
COMPARED = ("ft", "lump", "cassle", "osiris-d")
"""The methods of Fig. 3a and 8 to 11."""
TRACKED = ("er", "lump", "osiris-r", "osiris-d")
"""The methods of Fig. 3b and 5 (overfitting to the memory)."""


@cache
def document() -> dict[str, Any]:
    return json.loads((files("osiris.paper") / "published.json").read_text(encoding="utf-8"))


def benchmarks() -> list[str]:
    return list(document()["results"]["class-agnostic"])


def protocols() -> list[str]:
    return list(document()["results"])


def published(benchmark: str, protocol: str = "class-agnostic") -> dict[str, dict[str, Sample]]:
    """method -> metric -> number, in the order of the paper (Tables 2, 3, 6 and 7)."""
    by_benchmark = _under(protocol, document()["results"])
    if benchmark not in by_benchmark:
        raise unknown("published benchmark", benchmark, by_benchmark)
    return {name: _samples(row) for name, row in by_benchmark[benchmark].items()}


def published_ablation(protocol: str = "class-agnostic") -> dict[str, dict[str, Sample]]:
    """osiris-d without its parts on split-cifar100-20 (Tables 4 and 8), by their names in the zoo."""
    return {name: _samples(row) for name, row in _under(protocol, document()["ablation"]["results"]).items()}


def published_environments() -> dict[str, dict[str, Sample]]:
    """method -> environment -> accuracy of the KNN restricted to its classes (Table 5)."""
    return {name: _samples(row) for name, row in document()["environments"]["results"].items()}


@cache
def online() -> dict[str, dict[str, dict[str, Sample]]]:
    """Data set -> method -> CA and FA by number of experiences, of learning from a stream (CLIMB). The number of seeds
    is not published; 3 stands for it."""
    record = json.loads((files("osiris.paper") / "online.json").read_text(encoding="utf-8"))["results"]
    return {place: {name: _samples(row) for name, row in rows.items()} for place, rows in record.items()}


def published_rows(benchmark: str, protocol: str) -> dict[str, dict[str, Sample]]:
    """Every published row of a benchmark, ablations included; empty if the paper has none."""
    if benchmark not in document()["results"].get(protocol, ()):
        return {}
    ablation = published_ablation(protocol) if benchmark == TWENTY else {}
    return ablation | published(benchmark, protocol)


def published_settings() -> str:
    """How the paper's numbers were measured, as part of a sentence."""
    about = document()["settings"]
    return f"{about['encoder']}, k = {about['k']}, tau = {about['temperature']}, {about['images']} images"


def _under(protocol: str, by_protocol: dict[str, Any]) -> dict[str, Any]:
    if protocol not in by_protocol:
        raise UserError(f"the paper has no numbers under {protocol!r}; it has {' and '.join(by_protocol)}.")
    return by_protocol[protocol]


def _samples(row: dict[str, list[float]]) -> dict[str, Sample]:
    count = document()["seeds"]
    return {metric: Sample(mean, deviation, count) for metric, (mean, deviation) in row.items()}
