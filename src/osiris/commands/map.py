"""`osiris map`: all images of an index on one page."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import numpy as np
from tyro.conf import Positional

from osiris.commands import command, typed_encoder
from osiris.console import notice, progress, say
from osiris.data.thumbnails import thumbnails
from osiris.errors import UserError
from osiris.files import require_writable, write_text
from osiris.index.store import absolute
from osiris.learner import Learner
from osiris.learner.overview import Overview
from osiris.learner.tags import read_tags
from osiris.reporting.map_page import MOST_PICTURES, Atlas, MapImages, make_atlas, map_page


@command("map")
def map_command(
    state: Positional[Path],
    folders: Positional[tuple[Path, ...]] = (),
    out: Path = Path("map.html"),
    link: bool = False,
    tags: Path | None = None,
    anew: bool = False,
    title: str | None = None,
    encoder: str | None = None,
) -> None:
    """Write a page that shows all images of the index, near each other where their features are similar.

    One file that needs no server and no network: zoom, names and dates, the nearest images of each, search by name,
    colours by month, folder, group or novelty, a time line, duplicates. The images of a later call are added to the map
    of the one before. With folders, it has thumbnails (of up to 20,000 images); only files below them are opened.

    Examples:
      osiris map state photos
      osiris map state photos --out map.html --link     click opens the file itself
      osiris map state photos --tags tags.csv           colours by the tags of `osiris tag`

    Args:
        state: The directory of a state or run with an index (`osiris index`).
        folders: Show only the images of the index below these folders, with thumbnails. None means all, as points.
        out: The page.
        link: Write where the files are, relative to the page, so that it can show them in full. Otherwise the page has
            names below the given folders alone.
        tags: A table of `osiris tag`, by which images can be coloured.
        anew: Compute the whole map again, instead of adding new images to that of the last call.
        title: Of the page; None means the names of the folders.
        encoder: For a state whose encoder is your own: `package.module:function`, as it was given to `osiris observe`
            or `osiris train`.
    """
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out {out}: the map is a page; use a name that ends in .html.")
    require_writable(out.parent)
    tagged = None if tags is None else read_tags(tags)
    seen = Learner(state, encoder=typed_encoder(encoder)).overview(folders, anew)
    notice(*seen.notices)
    title = title or ", ".join(folder.resolve().name for folder in folders) or state.resolve().name
    atlas = _atlas(seen) if folders else None
    place = Path(absolute(out)).parent
    addresses = [quote(os.path.relpath(path, place)) for path in seen.paths] if link else None
    write_text(out, map_page(title, _images(seen, tagged), atlas, addresses))
    kept = "" if seen.added is None else f", {seen.added:,} of them added to the map of the last call"
    say(f"{out}: {len(seen.paths):,} images{kept}, {out.stat().st_size / 2**20:.1f} MB")
    if not folders:
        notice("only points: name the folders of the images, and the page has thumbnails.")


def _atlas(seen: Overview) -> Atlas | None:
    if len(seen.paths) > MOST_PICTURES:
        notice(
            f"only points, because there are more than {MOST_PICTURES:,} images; --link shows pictures all the same."
        )
        return None
    with progress("thumbnails", len(seen.paths)) as ticker:

        def counted():
            for picture in thumbnails(seen.paths, seen.digests):
                yield picture
                ticker.advance()

        atlas = make_atlas(counted(), len(seen.paths))
    if missing := int((~atlas.known).sum()):
        notice(f"{missing:,} files are gone, or changed since they were indexed: they are points without a picture.")
    return atlas


def _images(seen: Overview, tagged: dict[str, str] | None) -> MapImages:
    parents = {os.path.dirname(path) for path in seen.paths}  # noqa: PTH120
    root = os.path.commonpath(parents)
    names = [os.path.relpath(path, root) for path in seen.paths]
    row = {path: number for number, path in enumerate(seen.paths)}
    twins = [
        {"kind": group.kind, "images": [row[one.path] for one in inside], "goes": [one.could_go for one in inside]}
        for group in seen.twins
        if len(inside := [one for one in group.images if one.path in row]) > 1
    ]
    return MapImages(
        names=names,
        places=seen.places,
        near=seen.near.rows,
        cosines=seen.near.cosines,
        step=seen.step,
        steps=seen.steps,
        month=seen.month,
        taken=seen.taken,
        folder=[os.path.dirname(name) for name in names],  # noqa: PTH120
        group=seen.group,
        medoids=seen.medoids,
        novelty=np.nan_to_num(seen.novelty),
        size=seen.size,
        tags=None if tagged is None else [tagged.get(str(path), "") for path in seen.paths],
        twins=twins,
        approximate=seen.approximate,
    )
