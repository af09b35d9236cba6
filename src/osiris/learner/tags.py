"""Tags for the images of an index, from a few examples of each: folders TAG/image.jpg."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import torch

from osiris.data.folder import Listing
from osiris.errors import UserError
from osiris.evaluation.few import Tagger, fit_ridge
from osiris.evaluation.statistics import wilson
from osiris.index.newest import as_compared
from osiris.learner.indexed import Opened

FEWEST = 3
"""Examples of each tag: with fewer, leaving one out says little."""
BLOCK = 1 << 13
COLUMNS = ("path", "tag", "confidence")


@dataclass(frozen=True)
class Proposal:
    path: Path
    tag: str | None
    """None: not sure enough, or not like any example."""
    confidence: float
    """About the part of such proposals that is right, if the image is of one of the tags."""


@dataclass(frozen=True)
class Tags:
    proposals: list[Proposal]
    names: list[str]
    examples: dict[str, int]
    found: dict[str, int]
    """Examples of each tag, and how many of them got it from the others."""
    notices: list[str]

    @property
    def accuracy(self) -> tuple[float, float, float]:
        """Percent of the examples that got their tag from the others, and its 95% interval."""
        hits, count = sum(self.found.values()), sum(self.examples.values())
        low, high = wilson(hits / count, count)
        return 100 * hits / count, 100 * low, 100 * high


def propose(opened: Opened, examples: Path, sure: float) -> Tags:
    """For every image that the index shows."""
    if not examples.is_dir():
        raise UserError(f"--from {examples} is not a folder. It holds one subfolder of examples per tag.")
    listing = Listing(examples, levels=1)
    files = [parts for parts in listing.files if len(parts) > 1]
    if len({parts[0] for parts in files}) < 2:
        raise UserError(f"--from {examples} needs two subfolders of examples or more, one per tag.")
    embedded = opened.encoder.embedder([examples.joinpath(*parts) for parts in files], strict=False)
    tags = [files[row][0] for row in embedded.rows]
    names = [*dict.fromkeys(parts[0] for parts in files)]
    few = [name for name in names if tags.count(name) < FEWEST]
    if few:
        raise UserError(f"--from {examples}: give {FEWEST} examples or more of {', '.join(few)}.")
    label = torch.tensor([names.index(tag) for tag in tags])
    tagger = fit_ridge(torch.from_numpy(as_compared(embedded.features)), label)
    hits = tagger.hits
    notices = [*opened.notices, *listing.notices(), *embedded.notices]
    return Tags(
        proposals=_proposals(opened, tagger, names, sure),
        names=names,
        examples={name: int((label == number).sum()) for number, name in enumerate(names)},
        found={name: int(hits[label == number].sum()) for number, name in enumerate(names)},
        notices=notices,
    )


def _proposals(opened: Opened, tagger: Tagger, names: list[str], sure: float) -> list[Proposal]:
    gallery, found = opened.gallery, list[Proposal]()
    rows = gallery.shown
    for start in range(0, len(rows), BLOCK):
        some = rows[start : start + BLOCK]
        answers = zip(some.tolist(), *(one.tolist() for one in tagger(torch.from_numpy(gallery.vectors(some)))))
        for row, tag, confidence, like in answers:
            name = names[tag] if like and confidence >= sure else None
            found.append(Proposal(Path(gallery.path(row)), name, confidence))
    return sorted(found, key=lambda one: str(one.path))


def read_tags(path: Path) -> dict[str, str]:
    """Path -> tag, of a table that `osiris tag` wrote."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if tuple(rows.fieldnames or ()) != COLUMNS:
                raise UserError(f"{path} is not a table of osiris tag: its first line is not {','.join(COLUMNS)}.")
            return {row["path"]: row["tag"] or "" for row in rows}
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; osiris tag writes it.") from None
    except (UnicodeError, csv.Error) as error:
        raise UserError(f"{path} is not a table of osiris tag ({error}).") from None
