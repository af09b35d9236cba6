"""All images of an index at a glance: where they are on a map, their neighbours, groups, months, and what was new."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import normalize

from osiris.console import progress
from osiris.errors import UserError
from osiris.evaluation.knn import nearest
from osiris.index.layout import NEIGHBOURS, Neighbours, lay_out, principal, steps
from osiris.index.places import read_places, write_places
from osiris.learner.duplicates import TwinGroup, clock, find_duplicates
from osiris.learner.indexed import Opened
from osiris.randomness import generator

FEWEST = 3
EXACT = 20_000
"""Images; of more, neighbours are sought by their first principal components."""
COMPONENTS, SAMPLE = 128, 5000
BLOCK = 1024
ROUNDS = 20
MOST_GROUPS = 40
MONTH = re.compile(r"(?<!\d)(19[89]\d|20\d\d)[-_.]?(0[1-9]|1[0-2])(?!\d{3})(?=\D|\d\d(?:\D|$)|$)")
"""2026-11, and 202611 or 20261103 as cameras write it."""


@dataclass(frozen=True)
class Overview:
    """One row for each image, in the order of time."""

    paths: list[Path]
    digests: list[bytes]
    places: np.ndarray
    """float64 [n, 2]"""
    added: int | None
    """Images that were added to a map that was there before; None: the map is new."""
    near: Neighbours
    approximate: bool
    """Neighbours were sought by principal components."""
    step: np.ndarray
    """int64 [n]: of `steps`, episodes if every image is of one, else months."""
    steps: list[str]
    month: list[str]
    """By the date of the camera, else as the name of the file or a folder says, else by the time of the file."""
    taken: list[str]
    """By the clock of the camera; empty: not known."""
    episode: list[str]
    """By the name of a folder; empty: of none."""
    group: np.ndarray
    """int64 [n]"""
    medoids: list[int]
    """Of each group: the image that is most like it as a whole."""
    novelty: np.ndarray
    """float32 [n]: 1 - cosine to the most similar image of an earlier month or episode; of the first one, to any other
    image."""
    size: np.ndarray
    """int32 [n, 2]: width and height"""
    twins: list[TwinGroup]
    notices: list[str]


def overview(opened: Opened, folders: Sequence[str], episodes: Sequence[str], anew: bool = False) -> Overview:
    """Of the images of the index below `folders` (none: of all). The map is that of the whole index. `episodes`: names
    of what was learned, in order. `anew`: forget the old map."""
    gallery, rows = opened.gallery, opened.gallery.shown
    if len(rows) < FEWEST:
        raise UserError(f"the index has {len(rows)} images; a map needs {FEWEST} or more.")
    facts, times = gallery.column("facts", rows), gallery.column("mtime", rows).tolist()
    paths = [gallery.path(row) for row in rows.tolist()]
    months = [_month(*known) for known in zip(paths, facts["taken"].tolist(), times)]
    learned = [_episode(path, episodes) for path in paths]
    names = learned if all(learned) else months
    rank = {name: number for number, name in enumerate(episodes if all(learned) else sorted({*months}))}
    step = np.array([rank[name] for name in names])
    order = np.lexsort((np.array(paths), facts["taken"], step))
    vectors, facts, step = gallery.vectors(rows)[order], facts[order], step[order]
    paths, months, learned = ([one[at] for at in order] for one in (paths, months, learned))
    compared, components = _components(vectors)
    near, novelty = _compare(compared, step, "comparing")
    places, added = _places(opened.index, facts["digest"], components, near, anew)
    shown = _below(paths, folders)
    if not len(shown):
        raise UserError(f"the index has no images below {', '.join(folders)}: osiris index STATE FOLDER adds them.")
    if len(shown) < len(paths):
        near, _ = _compare(compared[shown], step[shown], "comparing")
    group, medoids = _groups(compared[shown])
    twins = find_duplicates(opened)
    return Overview(
        paths=[Path(paths[at]) for at in shown],
        digests=[facts["digest"][at].tobytes() for at in shown],
        places=places[shown],
        added=added,
        near=near,
        approximate=len(rows) > EXACT,
        step=step[shown],
        steps=[*rank],
        month=[months[at] for at in shown],
        taken=[clock(int(facts["taken"][at])) or "" for at in shown],
        episode=[learned[at] for at in shown],
        group=group,
        medoids=medoids,
        novelty=novelty[shown],
        size=np.stack([facts["width"], facts["height"]], axis=1)[shown],
        twins=twins.groups,
        notices=opened.notices + twins.notices,
    )


def _month(path: str, taken: int, modified: int) -> str:
    said = MONTH.findall(path)
    if said and not taken:
        return "-".join(said[-1])
    return datetime.fromtimestamp(taken or modified / 1e9, UTC).strftime("%Y-%m")


def _episode(path: str, episodes: Sequence[str]) -> str:
    """The innermost folder with the name of an episode."""
    return next((part for part in reversed(path.split("/")[:-1]) if part in episodes), "")


def _below(paths: Sequence[str], folders: Sequence[str]) -> np.ndarray:
    starts = tuple(folder.rstrip("/") + "/" for folder in folders)
    return np.array([at for at, path in enumerate(paths) if not folders or path.startswith(starts)], int)


def _components(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(what is compared: [n, d] of length 1; the first two principal components [n, 2])."""
    chosen = torch.randperm(len(vectors), generator=generator(0, "map.sample"))[:SAMPLE].numpy()
    if len(vectors) <= EXACT:
        return vectors, (vectors - vectors[chosen].mean(axis=0)) @ principal(vectors, chosen, 2)
    components = vectors @ principal(vectors, chosen, COMPONENTS)
    lengths = np.linalg.norm(components, axis=1, keepdims=True).clip(min=1e-12)
    return (components / lengths).astype(np.float32), components[:, :2]


def _compare(vectors: np.ndarray, step: np.ndarray, what: str) -> tuple[Neighbours, np.ndarray]:
    """(the nearest other images of each, how new it is). `step`: ascending."""
    bank, count = torch.from_numpy(vectors), len(vectors)
    earlier = torch.from_numpy(np.searchsorted(step, step))
    found, novelty = list[tuple[torch.Tensor, torch.Tensor]](), torch.empty(count)
    with progress(what, count) as ticker:
        for rows in torch.arange(count).split(BLOCK):
            cosines = bank[rows] @ bank.T
            cosines[torch.arange(len(rows)), rows] = -2
            values, nearest_rows = nearest(cosines, min(NEIGHBOURS, count - 1))
            values, order = values.sort(dim=1, descending=True, stable=True)
            found.append((nearest_rows.gather(1, order), values))
            ends = earlier[rows]
            for end in ends.unique().tolist():
                those = ends == end
                novelty[rows[those]] = 1 - cosines[those][:, : end or None].amax(dim=1)
            ticker.advance(len(rows))
    near, values = (torch.cat(one).numpy() for one in zip(*found))
    return Neighbours(near, values), novelty.numpy()


def _places(
    index: Path, digests: np.ndarray, components: np.ndarray, near: Neighbours, anew: bool
) -> tuple[np.ndarray, int | None]:
    """(the map, how many images were added to an old one). Files with one content have one place."""
    known = {} if anew else read_places(index)
    keys = [one.tobytes() for one in digests]
    fixed = np.array([key in known for key in keys])
    if 2 * fixed.sum() < len(keys):  # the old map says little about these
        fixed[:] = False
    added = int((~fixed).sum()) if fixed.any() else None
    if added == 0:
        return np.array([known[key] for key in keys]), 0
    start = components if added is None else np.array([known.get(key, (0.0, 0.0)) for key in keys])
    with progress("making the map" if added is None else "adding to the map", steps(added is not None)) as ticker:
        places = lay_out(start, near, None if added is None else fixed, ticker)
    write_places(index, digests, places)
    return places, added


def _groups(vectors: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """(group of each image, its medoids), by k-means with cosines. Groups are in the order of their size."""
    count = max(1, min(MOST_GROUPS, round((len(vectors) / 4) ** 0.5)))
    rows = torch.from_numpy(vectors)
    chance = generator(0, "map.groups")
    centres = rows[torch.randint(len(rows), (1,), generator=chance)]
    nearness = (rows @ centres.T).squeeze(1)
    for _ in range(count - 1):  # rather images that are little like those before
        centres = torch.cat([centres, rows[torch.multinomial((1 - nearness).clamp(min=1e-6), 1, generator=chance)]])
        nearness = torch.maximum(nearness, rows @ centres[-1])
    for _ in range(ROUNDS):
        group = (rows @ centres.T).argmax(dim=1)
        sums = torch.zeros_like(centres).index_add_(0, group, rows)
        centres = torch.where(sums.norm(dim=1, keepdim=True) > 0, normalize(sums, dim=1), centres)
    cosines = rows @ centres.T
    group = cosines.argmax(dim=1)
    sizes = torch.bincount(group, minlength=count)
    order = [one for one in sizes.argsort(descending=True, stable=True).tolist() if sizes[one]]
    number = torch.empty(count, dtype=torch.int64)
    number[order] = torch.arange(len(order))
    inside = [torch.where(group == one, cosines[:, one], -2.0) for one in order]
    return number[group].numpy(), [int(one.argmax()) for one in inside]
