"""Compatibility of the encoders of a run: an index made after task s, searched with queries embedded after task t.

For every pair s < t, Recall@10: of the ten nearest gallery images to a query when everything is embedded after t, how
many are among the ten nearest in the gallery as it was embedded after s, raw or mapped by `fit_map`. Mean over queries,
in percent. docs/concepts.md has the whole definition.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from osiris.console import Ticker
from osiris.data.benchmark import Benchmark
from osiris.errors import UserError
from osiris.evaluation.compatibility import apply_map, fit_map, recall_at
from osiris.evaluation.features import Features
from osiris.evaluation.health import fixed_subset
from osiris.evaluation.knn import neighbours_of
from osiris.evaluation.scores import Compatibility, IndexScores

PairScores = list[tuple[float, float | None]]
"""(recall, percent of the same class) for each s < t."""

NEIGHBOURS = 10
MAP_IMAGES = 1000
"""Bank images that the map is fitted on, or half of the bank if that is less."""
QUERIES = 2000
"""The largest number of queries."""


def roles(bank: int, test: int) -> tuple[Tensor, Tensor, Tensor]:
    """(bank images that the map is fitted on; bank images of the gallery; queries): disjoint positions, the same at
    every call. Queries are test images; without test images, a fifth of the bank."""
    queries = fixed_subset(test, QUERIES) if test else fixed_subset(bank, min(QUERIES, bank // 5))
    known = torch.arange(bank)
    if not test:
        known = known[~torch.isin(known, queries)]
    fitted = known[fixed_subset(len(known), min(MAP_IMAGES, len(known) // 2))]
    gallery = known[~torch.isin(known, fitted)]
    if len(gallery) <= NEIGHBOURS or len(queries) == 0:
        raise UserError(
            f"compatibility needs more than {NEIGHBOURS} images in the gallery, and a query: {bank} bank images leave "
            f"{len(gallery)}, with {len(queries)} queries. Evaluate with more images."
        )
    return fitted, gallery, queries


def measure_compatibility(
    versions: Sequence[Features], benchmark: Benchmark, ticker: Ticker | None = None
) -> Compatibility:
    """From the features after each task, in order. `ticker` counts the pairs s < t."""
    with_test = versions[0].test is not None
    split = benchmark.test if with_test else benchmark.bank
    assert split is not None
    fitted, gallery, chosen = roles(len(benchmark.bank), len(split) if with_test else 0)
    known, asked = benchmark.bank.label, split.label

    def same_class(found: Tensor) -> float | None:
        if known is None or asked is None:
            return None
        return 100 * float((known[gallery][found] == asked[chosen].unsqueeze(1)).double().mean())

    raw, mapped, renewed = list[PairScores](), list[PairScores](), list[float | None]()
    for number, new in enumerate(versions):
        queries = _rows(new.bank if new.test is None else new.test, chosen)
        truth = neighbours_of(_rows(new.bank, gallery), queries, NEIGHBOURS)[1]

        def score(index: Tensor, queries: Tensor = queries, truth: Tensor = truth) -> tuple[float, float | None]:
            found = neighbours_of(index, queries, NEIGHBOURS)[1]
            return 100 * recall_at(NEIGHBOURS, found, truth), same_class(found)

        renewed.append(same_class(truth))
        raw.append([])
        mapped.append([])
        for old in versions[:number]:
            stored = _rows(old.bank, gallery)
            raw[-1].append(score(stored))
            weight = fit_map(_rows(old.bank, fitted), _rows(new.bank, fitted))
            mapped[-1].append(score(apply_map(stored, weight)))
            if ticker is not None:
                ticker.advance()
    return Compatibility(
        k=NEIGHBOURS,
        queries=len(chosen),
        gallery=len(gallery),
        map_images=len(fitted),
        raw=_index_scores(raw),
        mapped=_index_scores(mapped),
        same_class=renewed,
    )


def _rows(features: Tensor, positions: Tensor) -> Tensor:
    return features[positions.to(features.device)]


def _index_scores(rows: list[PairScores]) -> IndexScores:
    return IndexScores(
        recall=[[recall for recall, _ in row] for row in rows], same_class=[[same for _, same in row] for row in rows]
    )
