"""A folder of images: `folder/episode/image.jpg`, or `folder/episode/class/image.jpg` with labels.

A top level of `train` and `test` (or `val`, `valid`, `validation`) gives separate test images. Episodes are ordered by
name, with numbers inside names compared as numbers. The same class name in two episodes is one class.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from osiris.console import printable
from osiris.data.table import Rows, Source, Table, Values, make_table, natural
from osiris.errors import UserError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".avif", ".jp2")
HEIC = (".heic", ".heif")
TEST_FOLDERS = ("test", "val", "valid", "validation")


@dataclass(frozen=True)
class ImageFile:
    path: Path
    episode: str
    class_name: str | None


def folder_source(folder: Path, by_class: bool = False, test: Path | None = None) -> Source:
    """All images below `folder`. With `by_class`, the folders of the first level are classes, not episodes."""
    folder = folder.expanduser()
    for place in (folder, test or folder):
        if not place.is_dir():
            raise UserError(f"{place} is not a folder. Give folder:PATH, where PATH has one subfolder per episode.")
    listing = _Listing()
    try:
        roots = _splits(folder, listing) if test is None else {"train": folder, "test": test}
        files = {split: list(_files(root, by_class, listing)) for split, root in roots.items()}
    except OSError as error:
        raise UserError(f"cannot read the folder {error.filename}: {error.strerror}.") from None
    notices = [*listing.notices, *listing.skipped_notices()]
    if not files["train"]:
        raise UserError(
            f"{folder} has no images ({', '.join(EXTENSIONS)}). Expected {folder}/EPISODE/image.jpg or "
            f"{folder}/EPISODE/CLASS/image.jpg. {' '.join(notices)}".rstrip()
        )
    name = folder.resolve().name or "folder"
    stamps = [
        f"{split} {file.path.relative_to(roots[split])} {_stamp(file.path)}" for split in files for file in files[split]
    ]
    fingerprint = (_digest(stamps), f"by_class={by_class}")
    return Source(name, lambda: _table(name, files["train"], files.get("test"), notices), fingerprint)


def paths_source(
    name: str,
    paths: Sequence[str | Path],
    labels: Values | None = None,
    episodes: Values | None = None,
    class_names: Sequence[str] | None = None,
) -> Source:
    """A list of image files."""
    _register_heic()
    files = [Path(path).expanduser() for path in paths]
    columns = [None if values is None else [str(value) for value in values] for values in (labels, episodes)]
    fingerprint = _digest([*(f"{path.absolute()} {_stamp(path)}" for path in files), repr((columns, class_names))])
    rows = path_rows(files, labels, episodes)
    return Source(name, lambda: make_table(name, rows, class_names=class_names), (fingerprint,))


def images_below(folder: Path) -> tuple[list[Path], list[str]]:
    """All images below `folder` at any depth, in order, and what the user should know about the others."""
    listing = _Listing()
    return list(listing.images_below(folder.expanduser())), listing.skipped_notices()


def path_rows(paths: Sequence[Path], labels: Values | None = None, episodes: Values | None = None) -> Rows:
    return Rows(
        len(paths),
        lambda rows: [paths[row] for row in rows],
        lambda row: printable(str(paths[row])).replace("\n", "\\n"),
        labels,
        episodes,
    )


class _Listing:
    """Walks folders and remembers what it left out."""

    def __init__(self) -> None:
        self.skipped: Counter[str] = Counter()
        self.notices: list[str] = []
        self.extensions = EXTENSIONS + (HEIC if _register_heic() else ())

    def images_in(self, folder: Path) -> Iterator[Path]:
        """Image files in `folder`, sorted. Pipes and devices are not opened; a dangling link is reported later."""
        for path in sorted(folder.iterdir(), key=lambda path: natural(path.name)):
            if path.name.startswith(".") or path.is_dir():
                continue
            if path.suffix.lower() not in self.extensions:
                self.skipped[path.suffix.lower() or "no extension"] += 1
            elif path.is_file() or (path.is_symlink() and not path.exists()):
                yield path

    def images_below(self, folder: Path) -> Iterator[Path]:
        """At any depth. Links to directories further down are not followed, since they may form a cycle."""
        yield from self.images_in(folder)
        with os.scandir(folder) as children:
            below = [Path(child) for child in children if child.is_dir(follow_symlinks=False)]
        for child in sorted(below, key=lambda path: natural(path.name)):
            if not child.name.startswith((".", "__")):
                yield from self.images_below(child)

    def skipped_notices(self) -> list[str]:
        heic = sum(self.skipped.pop(suffix, 0) for suffix in HEIC)
        notices = []
        if heic:
            notices.append(f"{heic} HEIC image(s) are left out: install pillow-heif (pip install 'osiris-ucl[heic]').")
        if self.skipped:
            kinds = ", ".join(f"{count} {suffix}" for suffix, count in self.skipped.most_common(6))
            notices.append(f"{self.skipped.total()} file(s) that are not images are left out ({kinds}).")
        return notices


def _register_heic() -> bool:
    """Whether Pillow can read the format of iPhone photos."""
    try:
        import pillow_heif  # type: ignore[import-not-found]  # the extra `heic`
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True


def _folders(parent: Path) -> list[Path]:
    return [
        child
        for child in sorted(parent.iterdir(), key=lambda path: natural(path.name))
        if child.is_dir() and not child.name.startswith((".", "__"))
    ]


def _splits(folder: Path, listing: _Listing) -> dict[str, Path]:
    """`train` is a split if a test folder is next to it or it is alone; otherwise it is an episode or a class."""
    names = {child.name for child in _folders(folder)}
    tests = [name for name in TEST_FOLDERS if name in names]
    if "train" not in names or not (tests or names == {"train"}):
        return {"train": folder}
    ignored = sorted(names - {"train", *tests[:1]})
    if ignored:
        listing.notices.append(f"{folder} has train and test folders: the others are left out ({', '.join(ignored)}).")
    return {"train": folder / "train"} | ({"test": folder / tests[0]} if tests else {})


def _files(root: Path, by_class: bool, listing: _Listing) -> Iterator[ImageFile]:
    folders, loose = _folders(root), list(listing.images_in(root))
    if loose and folders:
        listing.notices.append(f"{len(loose)} image(s) directly in {root}, outside of its folders, are left out.")
    elif loose:
        yield from (ImageFile(path, root.name, None) for path in loose)
    for folder in folders:
        if by_class:
            files = [ImageFile(path, folder.name, folder.name) for path in listing.images_below(folder)]
        else:
            files = [ImageFile(path, folder.name, None) for path in listing.images_in(folder)]
            for child in _folders(folder):
                inside = [ImageFile(path, folder.name, child.name) for path in listing.images_below(child)]
                if not inside:
                    raise UserError(f"the class folder {child} has no images. Add some, or remove the folder.")
                files += inside
        if not files:
            kind = "class" if by_class else "episode"
            notices = " ".join(listing.skipped_notices())
            raise UserError(f"the {kind} folder {folder} has no images. Add some, or remove the folder. {notices}")
        yield from files


def _stamp(path: Path) -> str:
    """Size and time of a file: changes when the file does."""
    try:
        status = path.stat()
    except OSError:
        return "missing"
    return f"{status.st_size} {status.st_mtime_ns}"


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def _table(name: str, train: list[ImageFile], test: list[ImageFile] | None, notices: list[str]) -> Table:
    told = list(notices)
    without = sum(file.class_name is None for file in train)
    if 0 < without < len(train):
        told.append(f"{without} of {len(train)} images are not in a class folder: all labels are ignored.")
    labelled = without == 0
    if test is not None and labelled:
        if not test:
            raise UserError(f"the test folder of {name} has no images. Add some, or remove the folder.")
        outside = next((file.path for file in test if file.class_name is None), None)
        if outside is not None:
            raise UserError(f"{outside} is not in a class folder, while the training images are.")

    def rows(files: list[ImageFile]) -> Rows:
        labels = [file.class_name for file in files] if labelled else None
        return path_rows([file.path for file in files], labels, [file.episode for file in files])

    return make_table(name, rows(train), rows(test) if test else None, notices=told)
