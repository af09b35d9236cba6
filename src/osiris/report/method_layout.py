"""Where the lines of a method's picture lie: one lane for each embedding that a loss compares."""

from __future__ import annotations

from dataclasses import dataclass

from osiris.framework.tracing import Path, Traced

ROW = 0.62
"""Inches between lanes."""


@dataclass
class Lane:
    """One line of the picture: images through an encoder and heads to an embedding, or something stored."""

    source: str
    encoder: str
    heads: tuple[str, ...]
    frozen: tuple[str, ...]
    label: str
    y: float = 0.0


@dataclass
class Layout:
    lanes: list[Lane]
    uses: list[tuple[Traced, list[Lane]]]
    """Each term with the lanes it compares."""

    @property
    def depth(self) -> int:
        return max([len(lane.heads) for lane in self.lanes], default=0)


def lay_out(terms: tuple[Traced, ...]) -> Layout:
    """Lanes of one encoder lie together, live encoders above frozen ones, and heads of one kind side by side."""
    lanes: dict[tuple, Lane] = {}
    uses = []
    for term in terms:
        mine = [lanes.setdefault((path.source, path.encoder, path.heads), _lane(path)) for path in term.paths]
        if not term.paths:  # a penalty on parameters: it looks at the encoder itself
            key = ("", "f", ("parameters",))
            mine.append(lanes.setdefault(key, Lane("", "f", (), (), "parameters θ")))
        for stored in term.stored:
            mine.append(lanes.setdefault(("", "", (stored,)), Lane("", "", (), (), stored.replace("theta", "θ"))))
        uses.append((term, mine))
    encoders = list(dict.fromkeys(lane.encoder for lane in lanes.values()))
    heads = list(dict.fromkeys(head for lane in lanes.values() for head in lane.heads))

    def place(lane: Lane) -> tuple:
        frozen = lane.encoder in lane.frozen
        order = tuple(heads.index(head) for head in lane.heads)
        return (not lane.encoder, frozen, encoders.index(lane.encoder), not lane.source, order, lane.source)

    ordered = sorted(lanes.values(), key=place)
    for number, lane in enumerate(ordered):
        lane.y = -ROW * number
    return Layout(ordered, uses)


def _lane(path: Path) -> Lane:
    name = path.source if path.source in ("X", "Y") else "mix"
    label = " ".join([*reversed(path.heads), f"{path.encoder}({name})"])
    return Lane(path.source, path.encoder, path.heads, path.frozen, label)
