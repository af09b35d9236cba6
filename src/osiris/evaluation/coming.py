"""Online accuracy: how well an encoder knows the images of a stream that come next, before it learns from them."""

from __future__ import annotations

import torch
from torch import nn

from osiris.data.benchmark import Benchmark
from osiris.data.images import Subset
from osiris.evaluation.config import ProtocolConfig
from osiris.evaluation.features import Features, embed
from osiris.evaluation.knn import Question, ask
from osiris.evaluation.metrics import percent

CHUNK = 200
"""Images that come next."""


def coming_accuracy(
    encoder: nn.Module,
    features: Features,
    benchmark: Benchmark,
    protocol: ProtocolConfig,
    device: torch.device | str,
    position: int,
) -> float | None:
    """Percent of the CHUNK images from this `position` on that a KNN over the bank classifies correctly; None without
    labels, or at the end."""
    assert benchmark.order is not None
    rows, labels = benchmark.order.rows[position : position + CHUNK], benchmark.train.label
    if labels is None or benchmark.bank.label is None or not len(rows):
        return None
    embedded = embed(encoder, Subset(benchmark.train.images, rows), benchmark.mean, benchmark.std, device)
    question = Question("coming", benchmark.bank.label, benchmark.class_count)
    ranking = ask(features.bank, embedded, [question], protocol.k, protocol.temperature)["coming"]
    return percent(ranking.prediction == labels[rows])
