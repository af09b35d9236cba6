"""Vectors of an earlier version of the encoder, mapped to the version of today, and how well that works."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from osiris.errors import UserError
from osiris.evaluation.compatibility import apply_map, fit_map, recall_at
from osiris.evaluation.knn import neighbours_of
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
    weight, recall, gallery = fit_and_test(torch.from_numpy(old), torch.from_numpy(new))
    record = MapRecord(
        name=index.new_name("map"),
        source=source.digest,
        target=target.digest,
        pairs=len(old),
        recall=recall,
        gallery=gallery,
    )
    _write(index, record, weight.numpy())
    index.maps.append(record)
    return record


def fit_and_test(old: Tensor, new: Tensor) -> tuple[Tensor, float, int]:
    """(the map fitted to four fifths of the pairs, its recall@10 on the others, the size of the gallery there).

    Each of the others is a query, by its new vector, among the rest of them: the true neighbours are those by new
    vectors, the found ones those by mapped old vectors.
    """
    order = torch.randperm(len(old), generator=generator(0, "index.map"))
    test, train = order[: len(old) // 5], order[len(old) // 5 :]
    weight = fit_map(old[train], new[train])
    bank, mapped, own = new[test], apply_map(old[test], weight), torch.arange(len(test))
    _, truth = neighbours_of(bank, bank, NEIGHBOURS, own)
    _, found = neighbours_of(mapped, bank, NEIGHBOURS, own)
    return weight, recall_at(NEIGHBOURS, found, truth), len(test) - 1


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
            _write(index, record, known.weight)
        kept.append(record)
    index.maps = kept


def _write(index: Index, record: MapRecord, weight: np.ndarray) -> None:
    tensors = {"map": torch.from_numpy(weight)}
    for part in index.parts:
        if part.version.digest == record.source:
            vectors = part.rows.vectors
            lengths = [
                np.linalg.norm(vectors[start : start + BLOCK] @ weight, axis=1).astype(np.float32)
                for start in range(0, len(vectors), BLOCK)
            ]
            tensors[part.name] = torch.from_numpy(np.concatenate(lengths)).clamp_min(1e-12)
    save_tensors(index.folder / record.name, tensors)


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
