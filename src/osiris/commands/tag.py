"""`osiris tag`: tags for images, from a few examples of each."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from osiris.commands import command, typed_encoder
from osiris.commands.index import print_json, print_table, relative
from osiris.console import notice, say
from osiris.data.sidecar import check_tag, write_sidecar
from osiris.errors import UserError
from osiris.files import require_writable, write_csv
from osiris.learner import Learner
from osiris.learner.tags import COLUMNS, Proposal, Tags

CONFIDENT = 0.5
MOST_SHOWN = 3
"""Images of each tag that are named on the terminal."""


@command("tag")
def tag_command(
    state: Positional[Path],
    folders: Positional[tuple[Path, ...]] = (),
    examples: Annotated[Path | None, tyro.conf.arg(name="from")] = None,
    out: Path = Path("tags.csv"),
    sure: float = CONFIDENT,
    xmp: bool = False,
    encoder: str | None = None,
    json: bool = False,
) -> None:
    """Propose tags for the images of an index, from a few examples: one subfolder per tag, 3 to 20 images in it.

    Prints first how many of the examples get their tag when they are left out: whether to believe the rest. Writes a
    table with the columns path, tag (empty: none fits) and confidence. The images are never written.

    Examples:
      osiris tag state photos --from tagged
      osiris tag state photos --from tagged --sure 0.8 --xmp
      osiris map state photos --tags tags.csv

    Args:
        state: The directory of a state or run with an index (`osiris index`).
        folders: Only the images of the index below these folders. None means all.
        examples: The folder with one subfolder of examples per tag; its name is the tag.
        out: The table.
        sure: The confidence from which on a tag is proposed.
        xmp: Also write IMAGE.jpg.xmp beside each image with a tag, for photo programs. Side-cars of other programs stay
            as they are.
        encoder: For a state whose encoder is your own: `package.module:function`, as it was given to `osiris observe`
            or `osiris train`.
        json: Print all proposals as JSON.
    """
    if examples is None:
        raise UserError("--from FOLDER is missing: a folder with one subfolder of examples per tag.")
    if not 0 <= sure <= 1:
        raise UserError(f"--sure {sure}: give a number from 0 to 1.")
    if out.suffix.lower() != ".csv":
        raise UserError(f"--out {out}: the tags are a table; use a name that ends in .csv.")
    if xmp and not folders:
        raise UserError("--xmp writes beside images: name their folders; nothing is written elsewhere.")
    require_writable(out.parent)
    found = Learner(state, encoder=typed_encoder(encoder)).tags(examples, folders, sure)
    for name in found.names if xmp else ():
        check_tag(name)
    notice(*found.notices)
    tagged = [one for one in found.proposals if one.tag is not None]
    if json:
        print_json(accuracy=found.accuracy, examples=found.examples, found=found.found, proposals=found.proposals)
    else:
        _show(found, tagged)
    write_csv(out, [COLUMNS, *((one.path, one.tag or "", f"{one.confidence:.3f}") for one in found.proposals)])
    if not json:
        say(f"{out}: {len(tagged):,} of {len(found.proposals):,} images have a tag")
    if xmp:
        written = sum(write_sidecar(one.path, str(one.tag), list(folders)) for one in tagged)
        left = len(tagged) - written
        others = f"; {left:,} images have one of another program, are gone, or lie behind a link" if left else ""
        notice(f"{written:,} side-cars were written{others}.")


def _show(found: Tags, tagged: list[Proposal]) -> None:
    accuracy, low, high = found.accuracy
    count = sum(found.examples.values())
    largest = 100 * max(found.examples.values()) / count
    said = f"{accuracy:.0f}% of the {count} examples get their tag when they are left out (95% interval {low:.0f} to "
    say(f"{said}{high:.0f}; always the most frequent tag: {largest:.0f})")
    if low <= largest:
        notice("that is not clearly better than guessing: do not believe the tags. Give more, or clearer, examples.")
    counts = Counter(one.tag for one in tagged)
    rows = []
    for name in found.names:
        best = sorted((one for one in tagged if one.tag == name), key=lambda one: -one.confidence)[:MOST_SHOWN]
        shown = ", ".join(relative(one.path) for one in best)
        rows.append((name, f"{found.found[name]} of {found.examples[name]}", f"{counts[name]:,}", shown))
    print_table("", ("tag", "examples found", "images", "surest"), rows, numbered=False)
