"""What an index holds, and what can be compared."""

from __future__ import annotations

from dataclasses import dataclass

from osiris.index.records import MapRecord, Version
from osiris.index.store import Index


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
    versions: list[VersionStatus]
    """The oldest first."""

    def __str__(self) -> str:
        gone = f", {self.gone:,} more are gone" if self.gone else ""
        return f"index: {self.images:,} images{gone}; {'; '.join(map(str, self.versions)) or 'no vectors'}"

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
    return IndexStatus(sum(counts.values()), gone, sorted(found, key=lambda one: (one.current, one.episode)))
