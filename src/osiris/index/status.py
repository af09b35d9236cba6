"""What an index holds, and what can be compared."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as compute

from osiris.index.records import MapRecord, Version
from osiris.index.store import Index

MOST_NAMED = 3
WAY_OUT = "`osiris forget STATE FOLDER` removes what the index has of them"


@dataclass(frozen=True)
class VersionStatus:
    """The files whose vectors are of one version."""

    episode: int
    images: int
    current: bool
    map: MapRecord | None
    """To the current version."""

    def __str__(self) -> str:
        text = f"{self.images:,} of the encoder after episode {self.episode}"
        if self.current:
            return f"{text} (the current one)"
        if self.map is None:
            return f"{text}, which cannot be compared: osiris index STATE FOLDER... makes a map"
        return (
            f"{text}, mapped with recall@10 of about {self.map.recall:.2f} among {self.map.gallery:,} images "
            f"(estimated from {self.map.pairs // 5} of {self.map.pairs:,} images that were embedded again)"
        )


@dataclass(frozen=True)
class IndexStatus:
    images: int
    """Files that are searched."""
    gone: int
    """Files that were not there any more when their folder was last read."""
    missing: list[str]
    """Folders that the index has files of, and that do not exist any more."""
    versions: list[VersionStatus]
    """The oldest first."""

    def __str__(self) -> str:
        gone = f", {self.gone:,} more are gone" if self.gone else ""
        text = f"index: {self.images:,} images{gone}; {'; '.join(map(str, self.versions)) or 'no vectors'}"
        if not self.missing:
            return text
        more = f" and {len(self.missing) - MOST_NAMED} more" if len(self.missing) > MOST_NAMED else ""
        return f"{text}; folders that do not exist any more: {', '.join(self.missing[:MOST_NAMED])}{more} ({WAY_OUT})"

    def below(self, recall: float) -> int:
        """Files whose vectors are not mapped, or mapped with less than this recall."""
        poor = [one for one in self.versions if not one.current and (one.map is None or one.map.recall < recall)]
        return sum(one.images for one in poor)


def index_status(index: Index, version: Version) -> IndexStatus:
    counts: dict[str, int] = {}
    versions = {part.version.digest: part.version for part in index.parts}
    for part in index.parts:
        counts[part.version.digest] = counts.get(part.version.digest, 0) + int(part.live.sum())
    maps = {one.source: one for one in index.maps if one.target == version.digest}
    found = [
        VersionStatus(one.episode, counts[digest], digest == version.digest, maps.get(digest))
        for digest, one in versions.items()
        if counts[digest]
    ]
    gone = sum(int((part.gone & ~part.superseded).sum()) for part in index.parts)
    return IndexStatus(
        sum(counts.values()), gone, _missing(index), sorted(found, key=lambda one: (one.current, one.episode))
    )


def _missing(index: Index) -> list[str]:
    folders = set[str]()
    for part in index.parts:
        paths = part.rows.paths.take(np.flatnonzero(~part.superseded))
        names = compute.call_function("replace_substring_regex", [paths], _LAST)
        folders.update(compute.call_function("unique", [names]).to_pylist())
    gone = {one for one in folders if not os.path.isdir(one or "/")}  # noqa: PTH112
    return sorted(one for one in gone if one.rpartition("/")[0] not in gone)


_LAST = compute.ReplaceSubstringOptions(pattern="/[^/]*$", replacement="")
