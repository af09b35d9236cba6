"""The paper's own numbers (published.json): mean and deviation over three seeds, in percent."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from osiris.errors import UserError, unknown


@dataclass(frozen=True)
class Summary:
    """A number over seeds."""

    mean: float
    deviation: float | None
    count: int


@cache
def document() -> dict[str, Any]:
    import json

    return json.loads((files("osiris.evaluation") / "published.json").read_text(encoding="utf-8"))


def benchmarks() -> list[str]:
    return list(document()["results"]["class-agnostic"])


def protocols() -> list[str]:
    return list(document()["results"])


def published(benchmark: str, protocol: str = "class-agnostic") -> dict[str, dict[str, Summary]]:
    """method -> metric -> number, in the order of the paper (Tables 2, 3 and 6 to 8)."""
    by_protocol = document()["results"]
    _require(protocol, by_protocol)
    if benchmark not in by_protocol[protocol]:
        raise unknown("published benchmark", benchmark, by_protocol[protocol])
    return {name: _summaries(row) for name, row in by_protocol[protocol][benchmark].items()}


def published_ablation(protocol: str = "class-agnostic") -> dict[str, dict[str, Summary]]:
    """osiris-d without its parts on split-cifar100-20 (Tables 4 and 8), by their names in the zoo."""
    by_protocol = document()["ablation"]["results"]
    _require(protocol, by_protocol)
    return {name: _summaries(row) for name, row in by_protocol[protocol].items()}


def published_environments() -> dict[str, dict[str, Summary]]:
    """method -> environment -> accuracy of the KNN restricted to its classes (Table 5)."""
    return {name: _summaries(row) for name, row in document()["environments"]["results"].items()}


def settings() -> str:
    """What the paper's numbers were measured with, as a sentence part."""
    about = document()["settings"]
    return f"{about['encoder']}, k = {about['k']}, tau = {about['temperature']}, {about['images']} images"


def _require(protocol: str, by_protocol: dict[str, Any]) -> None:
    if protocol not in by_protocol:
        raise UserError(f"the paper has no numbers under {protocol!r}; it has {' and '.join(by_protocol)}.")


def _summaries(row: dict[str, list[float]]) -> dict[str, Summary]:
    count = document()["seeds"]
    return {metric: Summary(mean, deviation, count) for metric, (mean, deviation) in row.items()}
