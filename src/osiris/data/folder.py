"""A folder of images: `folder/episode/image.jpg`, or `folder/episode/class/image.jpg` with labels.

A top level of `train` and `test` (or `val`, `valid`, `validation`) gives separate test images. Episodes are ordered by
name, with numbers inside names compared as numbers. The same class name in two episodes is one class.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from osiris.console import printable
from osiris.data.source import Rows, Source, Values, hash_lines, make_source, natural, stamp
from osiris.errors import UserError, install_extra

if TYPE_CHECKING:
    from torch import Tensor

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".avif", ".jp2")
HEIC = (".heic", ".heif")
TEST_FOLDERS = ("test", "val", "valid", "validation")


class Listing:
    """The image files below a folder, as the parts of their relative paths, and what was left out."""

    def __init__(self, root: Path, levels: int = 0) -> None:
        """The folders of the first `levels` levels are episodes and classes, which must have images."""
        self.root, self.levels = root.expanduser(), levels
        self.skipped: Counter[str] = Counter()
        self.extensions = EXTENSIONS + (HEIC if register_heic() else ())
        try:
            self.files = list(self._walk(()))
        except OSError as error:
            raise UserError(f"cannot read the folder {error.filename}: {error.strerror}.") from None
        except RecursionError:
            raise UserError(f"the folders in {self.root} are nested too deeply; move the images higher up.") from None

    def _walk(self, parts: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """Files in order, then subfolders. Pipes are not opened; a dangling link is reported when it is decoded.

        Links to folders are followed only on the first `levels` levels, because further down they may form a cycle.
        """
        folder = self.root.joinpath(*parts)
        subfolders: list[str] = []
        with os.scandir(folder) as found:  # most entries say what they are without being asked for their status
            entries = sorted((one for one in found if not one.name.startswith(".")), key=lambda one: natural(one.name))
        for entry in entries:
            _, dot, ending = entry.name.rpartition(".")
            suffix = f".{ending.lower()}" if dot and ending else ""
            link = Path(entry.path) if entry.is_symlink() else None  # perhaps to itself: `entry.is_dir` raises an error
            if entry.is_dir() if link is None else link.is_dir():
                if not entry.name.startswith("__") and (len(parts) < self.levels or link is None):
                    subfolders.append(entry.name)
            elif suffix not in self.extensions:
                self.skipped[suffix or "no extension"] += 1
            elif entry.is_file() if link is None else link.is_file() or not link.exists():
                yield (*parts, entry.name)
        for name in subfolders:
            files = list(self._walk((*parts, name)))
            if not files and len(parts) < self.levels:
                left_out = " ".join(self.notices())
                raise UserError(
                    f"the folder {folder / name} has no images. Add some, or remove it. {left_out}".rstrip()
                )
            yield from files

    def notices(self) -> list[str]:
        others = self.skipped.copy()
        heic = sum(others.pop(suffix, 0) for suffix in HEIC)
        notices = []
        if heic:
            notices.append(f"{heic} HEIC image(s) are left out: install pillow-heif ({install_extra('heic')}).")
        if others:
            kinds = ", ".join(f"{count} {suffix}" for suffix, count in others.most_common(6))
            notices.append(f"{others.total()} file(s) that are not images are left out ({kinds}).")
        return notices

    def paths(self) -> list[Path]:
        return [self.root.joinpath(*parts) for parts in self.files]


def register_heic() -> bool:
    """Whether Pillow can read the format of iPhone photos."""
    try:
        import pillow_heif  # type: ignore[import-not-found]  # the extra `heic`
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True


def folder_source(folder: Path, by_class: bool = False, test: Path | None = None) -> Source:
    """All images below `folder`. With `by_class`, the folders of the first level are classes, not episodes."""
    folder = folder.expanduser()
    for place in (folder, test or folder):
        if not place.is_dir():
            raise UserError(f"{place} is not a folder. Give folder:PATH, where PATH has one subfolder per episode.")
    notices: list[str] = []
    roots = _splits(folder, notices) if test is None else {"train": folder, "test": test}
    listings = {split: Listing(root, 1 if by_class else 2) for split, root in roots.items()}
    for listing in listings.values():
        notices += _leave_out_loose(listing) + listing.notices()
    for split, listing in listings.items():
        if not listing.files:
            raise UserError(
                f"{roots[split]} has no images ({', '.join(EXTENSIONS)}). Expected EPISODE/image.jpg or "
                f"EPISODE/CLASS/image.jpg in it. {' '.join(notices)}".rstrip()
            )
    depth = 1 if by_class else 2
    without = sum(len(parts) <= depth for parts in listings["train"].files)
    if 0 < without < len(listings["train"].files):
        count = len(listings["train"].files)
        notices.append(f"{without} of {count} images are not in a class folder: all labels are ignored.")

    def rows(listing: Listing) -> Rows:
        labels = None if without else [parts[depth - 1] if len(parts) > depth else None for parts in listing.files]
        episodes = [parts[0] if len(parts) > 1 else listing.root.name for parts in listing.files]
        return path_rows(listing.paths(), labels, episodes, folder)

    name = folder.resolve().name or "folder"
    test_rows = rows(listings["test"]) if "test" in listings else None
    return make_source(name, rows(listings["train"]), test_rows, notices=notices)


def first_episode_size(folder: Path) -> int | None:
    """Image files of the first episode in `folder`. None if there are none."""
    folder = folder.expanduser()
    if not folder.is_dir():
        return None
    listing = Listing(_splits(folder, [])["train"])
    _leave_out_loose(listing)
    counts = Counter(parts[0] if len(parts) > 1 else "" for parts in listing.files)
    return next(iter(counts.values()), None)


TAKEN, CHANGED = 36867, 306
"""EXIF: when a photo was taken (DateTimeOriginal), and when its file was changed (DateTime)."""


def places(paths: Sequence[Path], by_time: bool) -> tuple[Tensor, list[str]]:
    """(the place of each file in time or by name, notices). Without EXIF a file has the time of its last change. Files
    of the same time are in the order of their names."""
    import torch

    by_name = sorted(range(len(paths)), key=lambda at: [natural(part) for part in paths[at].parts])
    place = torch.empty(len(paths), dtype=torch.int64)
    if not by_time:
        place[torch.tensor(by_name)] = torch.arange(len(paths))
        return place, []
    moments = [taken(path) for path in paths]
    without = sum(moment is None for moment in moments)
    known = [
        datetime.fromtimestamp(path.stat().st_mtime) if moment is None else moment
        for path, moment in zip(paths, moments)
    ]
    place[torch.tensor(sorted(by_name, key=known.__getitem__))] = torch.arange(len(paths))
    text = f"{without:,} of {len(paths):,} images do not say when they were taken: the time of their files is used."
    return place, [text] * bool(without)


def taken(path: Path) -> datetime | None:
    """When a photo was taken, by its EXIF data."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            exif = image.getexif()
            texts = [exif.get_ifd(0x8769).get(TAKEN), exif.get(CHANGED)]
    except Exception:  # Pillow's plugins raise many types; what cannot be decoded was reported before
        return None
    for text in texts:
        with contextlib.suppress(ValueError):
            return datetime.strptime(str(text).strip("\0 ")[:19], "%Y:%m:%d %H:%M:%S")
    return None


def path_rows(
    paths: Sequence[Path], labels: Values | None = None, episodes: Values | None = None, folder: Path | None = None
) -> Rows:
    """Image files, all of them in `folder` (default: the closest folder that holds them)."""
    register_heic()
    folder = folder or Path(os.path.commonpath([path.parent for path in paths]))
    return Rows(
        len(paths),
        lambda rows: [paths[row] for row in rows],
        lambda row: printable(str(paths[row])).replace("\n", "\\n"),
        labels,
        episodes,
        hash_lines([f"{os.path.relpath(path, folder)} {stamp(path)}" for path in paths]),
        str(folder.resolve()),
    )


def _splits(folder: Path, notices: list[str]) -> dict[str, Path]:
    """`train` is a split if a test folder is next to it or it is alone; otherwise it is an episode or a class."""
    names = {child.name for child in folder.iterdir() if child.is_dir() and not child.name.startswith((".", "__"))}
    tests = [name for name in TEST_FOLDERS if name in names]
    if "train" not in names or not (tests or names == {"train"}):
        return {"train": folder}
    ignored = sorted(names - {"train", *tests[:1]})
    if ignored:
        notices.append(f"{folder} has train and test folders: the others are left out ({', '.join(ignored)}).")
    return {"train": folder / "train"} | ({"test": folder / tests[0]} if tests else {})


def _leave_out_loose(listing: Listing) -> list[str]:
    """Images beside the folders of episodes or classes belong to none. Without such folders, all are one episode."""
    inside = [parts for parts in listing.files if len(parts) > 1]
    loose = len(listing.files) - len(inside)
    if not inside or not loose:
        return []
    listing.files = inside
    return [f"{loose} image(s) directly in {listing.root}, outside of its folders, are left out."]
