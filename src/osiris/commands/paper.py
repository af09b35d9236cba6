"""osiris paper: the published results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Args:
    """Print the results that the paper published.

    Examples:
      osiris paper --benchmark split-cifar100-20
      osiris paper --benchmark structured-tiny-imagenet --protocol task-aware --format latex
      osiris paper --table ablation
      osiris paper --table environments
    """

    benchmark: str = "split-cifar100-20"
    """split-cifar100-5, split-cifar100-20, structured-cifar100 or structured-tiny-imagenet."""
    protocol: Literal["class-agnostic", "task-aware"] = "class-agnostic"
    """Whether the KNN knows the task of a test image."""
    table: Literal["methods", "ablation", "environments"] = "methods"
    """All methods; osiris-d without its parts (split-cifar100-20); accuracy within the environments (Tiny-ImageNet)."""
    format: Literal["text", "markdown", "latex", "csv"] = "text"


def run(args: Args) -> int:
    from osiris.report.comparison import published_table
    from osiris.report.tables import show

    show(published_table(args.benchmark, args.protocol, args.table), args.format)
    return 0
