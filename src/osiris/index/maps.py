"""Vectors of an earlier version of the encoder, mapped to the current version, and how well that works."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from osiris.errors import UserError
from osiris.evaluation.compatibility import apply_map, fit_map, recall_at
from osiris.evaluation.knn import nearest, neighbours_of
from osiris.files import load_tensors, save_tensors
from osiris.index.records import MapRecord, Version
from osiris.index.store import Index
from osiris.randomness import generator

SAMPLE = 1000
"""Images that are embedded again to fit a map."""
FEWEST = 100
"""Pairs for which a map is fitted: a fifth of them tests it."""
NEIGHBOURS = 10
BLOCK = 1 << 13


@dataclass(frozen=True)
class Map:
    weight: np.ndarray
    """float32 [d, d]"""
    lengths: dict[str, np.ndarray]
    """Part -> float32 [n]: the lengths of its mapped vectors."""


def add_map(index: Index, source: Version, target: Version, old: np.ndarray, new: np.ndarray) -> MapRecord:
    """Fit a map to pairs [n, d] of L2-normalised vectors of the same images. The caller completes and commits."""
    weight, missed, queries = fit_and_hold_out(torch.from_numpy(old), torch.from_numpy(new))
    lengths = _lengths(index, source.digest, weight.numpy())
    recall, gallery = expected_recall(weight, missed, queries, _mapped_rows(index, lengths))
    if gallery <= NEIGHBOURS:
        recall, gallery = recall_of_sample(missed, queries)
    record = MapRecord(
        name=index.new_name("map"),
        source=source.digest,
        target=target.digest,
        pairs=len(old),
        recall=recall,
        gallery=gallery,
    )
    _write(index, record, weight.numpy(), lengths)
    index.maps.append(record)
    return record


def fit_and_hold_out(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(the map fitted to four fifths of the pairs; for the others, their new minus their mapped vectors, and their new
    vectors)."""
    order = torch.randperm(len(old), generator=generator(0, "index.map"))
    test, train = order[: len(old) // 5], order[len(old) // 5 :]
    weight = fit_map(old[train], new[train])
    return weight, new[test] - apply_map(old[test], weight), new[test]


def expected_recall(
    weight: Tensor, missed: Tensor, queries: Tensor, blocks: Iterable[tuple[np.ndarray, np.ndarray]]
) -> tuple[float, int]:
    """(recall@10 of mapped vectors, number of vectors) in a gallery that is given block by block: old vectors [n, d],
    and the lengths of the mapped ones.

    Their new vectors are not known. They are taken to be the mapped vectors plus what the map `missed` elsewhere, drawn
    at random. True neighbours of a query are those by such vectors, found ones those by mapped vectors. (Recall among
    the few images that were embedded again would be much higher: it falls as the gallery grows.)
    """
    turned, shifts, along = queries @ weight.T, missed @ weight.T, queries @ missed.T
    chance, count = generator(0, "index.recall"), 0
    best = [(queries.new_empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64))] * 2
    for vectors, lengths in blocks:
        rows, length = torch.from_numpy(vectors), torch.from_numpy(lengths)
        drawn = torch.randint(len(missed), (len(rows),), generator=chance)
        cosine = turned @ rows.T / length
        turn = (rows * shifts[drawn]).sum(1) / length  # of the mapped vector and what is added to it
        size = (1 + 2 * turn + missed.square().sum(1)[drawn]).clamp_min(1e-12).sqrt()
        for kind, scores in enumerate((cosine, (cosine + along[:, drawn]) / size)):
            values, places = nearest(scores, NEIGHBOURS)
            values, places = (torch.cat(both, 1) for both in zip(best[kind], (values, places + count)))
            chosen = values.topk(min(NEIGHBOURS, values.shape[1]), dim=1).indices
            best[kind] = values.gather(1, chosen), places.gather(1, chosen)
        count += len(rows)
    return (recall_at(NEIGHBOURS, best[0][1], best[1][1]) if count > NEIGHBOURS else 0.0), count


def recall_of_sample(missed: Tensor, queries: Tensor) -> tuple[float, int]:
    """(recall@10, size of the gallery) where each query is sought among the other queries, by their mapped vectors."""
    own = torch.arange(len(queries))
    _, truth = neighbours_of(queries, queries, NEIGHBOURS, own)
    _, found = neighbours_of(queries - missed, queries, NEIGHBOURS, own)
    return recall_at(NEIGHBOURS, found, truth), len(queries) - 1


def keep_needed_maps(index: Index, target: Version) -> None:
    """Only maps to `target` from versions that the index has, each with the lengths for all of its parts. The caller
    commits."""
    kept = []
    for record in index.maps:
        parts = {part.name for part in index.parts if part.version.digest == record.source}
        if record.target != target.digest or not parts or record.source == target.digest:
            continue
        known = read_map(index, record, complete=False)
        if not parts <= known.lengths.keys():
            record = replace(record, name=index.new_name("map"))
            _write(index, record, known.weight, _lengths(index, record.source, known.weight))
        kept.append(record)
    index.maps = kept


def _lengths(index: Index, source: str, weight: np.ndarray) -> dict[str, np.ndarray]:
    """Part of this version -> float32 [n]: the lengths of its mapped vectors."""
    lengths = {}
    for part in index.parts:
        if part.version.digest == source:
            vectors = part.vectors
            blocks = [vectors[start : start + BLOCK] @ weight for start in range(0, len(vectors), BLOCK)]
            lengths[part.name] = np.concatenate([np.linalg.norm(block, axis=1) for block in blocks]).astype(np.float32)
            lengths[part.name] = lengths[part.name].clip(min=1e-12)
    return lengths


def _mapped_rows(index: Index, lengths: dict[str, np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(vectors, lengths) of the rows that count, block by block."""
    for part in index.parts:
        kept = np.flatnonzero(part.live) if part.name in lengths else np.empty(0, int)
        for start in range(0, len(kept), BLOCK):
            rows = kept[start : start + BLOCK]
            yield part.vectors[rows], lengths[part.name][rows]


def _write(index: Index, record: MapRecord, weight: np.ndarray, lengths: dict[str, np.ndarray]) -> None:
    tensors = {name: torch.from_numpy(length) for name, length in lengths.items()}
    save_tensors(index.folder / record.name, {"map": torch.from_numpy(weight), **tensors})


def read_map(index: Index, record: MapRecord, complete: bool = True) -> Map:
    """Refused if it does not fit the parts of the index, all of them if it is to be `complete`."""
    path = index.folder / record.name
    if path.is_symlink():
        raise UserError(f"{path} is a link. Remove the folder {index.folder} and make the index again.")
    tensors, _ = load_tensors(path)
    weight, size = tensors.pop("map", torch.empty(0)), index.dimension
    rows = {part.name: len(part.rows) for part in index.parts if part.version.digest == record.source}
    fits = weight.shape == (size, size) and (not complete or rows.keys() <= tensors.keys())
    fits = fits and all(value.shape == (rows[name],) for name, value in tensors.items() if name in rows)
    sound = all(value.dtype == torch.float32 and bool(value.isfinite().all()) for value in (weight, *tensors.values()))
    if not fits or not sound:
        raise UserError(f"{path} is not a map of this index. Remove the folder {index.folder} and make it again.")
    return Map(weight.numpy(), {name: value.numpy() for name, value in tensors.items() if name in rows})
