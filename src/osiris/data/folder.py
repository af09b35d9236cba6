"""A folder of images as a stream: `folder/episode/image.jpg`, or `folder/episode/class/image.jpg` with labels.

A top level of `train` and `test` (or `val`, `valid`, `validation`) gives a test part of its own. Episodes come in the
order of their names, with numbers inside names compared as numbers. The same class name in two episodes is one class.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from osiris.data.records import Catalogue, Records, natural, number_names
from osiris.errors import UserError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".avif", ".jp2")
TEST_FOLDERS = ("test", "val", "valid", "validation")


@dataclass(frozen=True)
class Found:
    """One image file."""

    path: Path
    episode: str
    class_name: str | None
    stamp: str
    """Size and time: changes when the file does."""


def list_folder(folder: Path, by_class: bool = False) -> Catalogue:
    """Everything below `folder`. With `by_class` its first level are classes, not episodes."""
    folder = folder.expanduser()
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder. Give folder:PATH, where PATH has one subfolder per episode.")
    roots, notices = _parts(folder)
    found = {part: _found(root, by_class, notices) for part, root in roots.items()}
    if not found["train"]:
        raise UserError(
            f"{folder} has no images ({', '.join(EXTENSIONS)}). Expected {folder}/EPISODE/image.jpg or "
            f"{folder}/EPISODE/CLASS/image.jpg."
        )
    return _catalogue(folder, found, notices)


def _parts(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """`train` means a part when a test folder stands beside it or nothing does: it may be a class or an episode too."""
    names = {child.name for child in folder.iterdir() if _visible_folder(child)}
    tests = [name for name in TEST_FOLDERS if name in names]
    if "train" not in names or not (tests or names == {"train"}):
        return {"train": folder}, []
    roots = {"train": folder / "train"} | ({"test": folder / tests[0]} if tests else {})
    ignored = sorted(names - {"train", *tests[:1]})
    return roots, [f"{folder} has train and test folders: its others are left out ({', '.join(ignored)})."] * bool(
        ignored
    )


def _found(root: Path, by_class: bool, notices: list[str]) -> list[Found]:
    found: list[Found] = []
    folders = [child for child in sorted(root.iterdir(), key=lambda path: natural(path.name)) if _visible_folder(child)]
    loose = list(_images_in(root))
    if loose and folders:
        notices.append(f"{len(loose)} image(s) lie directly in {root}, outside of its folders: they are left out.")
    elif loose:
        found += [Found(path, root.name, None, stamp) for path, stamp in loose]
    for folder in folders:
        inside = list(_episode(folder, by_class))
        if not inside:
            kind = "class" if by_class else "episode"
            raise UserError(f"the {kind} folder {folder} has no images. Add some, or remove the folder.")
        found += inside
    return found


def _episode(folder: Path, by_class: bool) -> Iterator[Found]:
    if by_class:
        for path, stamp in _images_below(folder):
            yield Found(path, folder.name, folder.name, stamp)
        return
    for path, stamp in _images_in(folder):
        yield Found(path, folder.name, None, stamp)
    for child in sorted(folder.iterdir(), key=lambda path: natural(path.name)):
        if _visible_folder(child):
            inside = list(_images_below(child))
            if not inside:
                raise UserError(f"the class folder {child} has no images. Add some, or remove the folder.")
            for path, stamp in inside:
                yield Found(path, folder.name, child.name, stamp)


def _visible_folder(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith((".", "__"))


def _images_in(folder: Path) -> Iterator[tuple[Path, str]]:
    """Files with an image's name, sorted. A pipe or a device is not opened; a dangling link is noted later."""
    for path in sorted(folder.iterdir(), key=lambda path: natural(path.name)):
        if path.suffix.lower() not in EXTENSIONS or path.name.startswith("."):
            continue
        if path.is_file():
            status = path.stat()
            yield path, f"{status.st_size} {status.st_mtime_ns}"
        elif path.is_symlink() and not path.exists():
            yield path, "missing"


def _images_below(folder: Path) -> Iterator[tuple[Path, str]]:
    """At any depth; links to directories further down are not followed, since they may lead in a circle."""
    yield from _images_in(folder)
    with os.scandir(folder) as children:
        below = [Path(child) for child in children if child.is_dir(follow_symlinks=False)]
    for child in sorted(below, key=lambda path: natural(path.name)):
        if _visible_folder(child):
            yield from _images_below(child)


def _catalogue(folder: Path, found: dict[str, list[Found]], notices: list[str]) -> Catalogue:
    train, test = found["train"], found.get("test")
    classes, labels = _labels(train, notices)
    episodes, numbers = number_names([image.episode for image in train])
    test_records = None
    if test is not None and classes:
        test_records = _test_records(folder, test, classes, episodes)
    elif test is not None:
        notices.append("there are no labels: the test part is not used.")
    digest = hashlib.sha256()
    for part, images in found.items():
        for image in images:
            digest.update(f"{part}\0{image.path.relative_to(folder)}\0{image.stamp}\0".encode(errors="surrogateescape"))
    return Catalogue(
        name=folder.resolve().name or "folder",
        source=str(folder.resolve()),
        train=_records(train, labels, numbers),
        test=test_records,
        class_names=classes,
        episode_names=episodes,
        content=digest.hexdigest(),
        notices=tuple(notices),
    )


def _labels(images: list[Found], notices: list[str]) -> tuple[tuple[str, ...], np.ndarray | None]:
    without = sum(image.class_name is None for image in images)
    if without == len(images):
        return (), None
    if without:
        notices.append(f"{without} of {len(images)} images are not in a class folder: all labels are left out.")
        return (), None
    classes, labels = number_names([image.class_name or "" for image in images])
    if len({name.casefold() for name in classes}) < len(classes):
        notices.append("some class names differ only in upper and lower case: they are taken as different classes.")
    return classes, labels


def _test_records(folder: Path, test: list[Found], classes: tuple[str, ...], episodes: tuple[str, ...]) -> Records:
    if not test:
        raise UserError(f"the test part of {folder} has no images. Add some, or remove the folder.")
    unlabelled = [image.path for image in test if image.class_name is None]
    if unlabelled:
        raise UserError(f"{unlabelled[0]} is not in a class folder, while the training images are.")
    for kind, known, given in (
        ("class", classes, {image.class_name for image in test}),
        ("episode", episodes, {image.episode for image in test}),
    ):
        strange = sorted(str(name) for name in given - set(known))
        if strange:
            raise UserError(f"{folder}: the test part has the {kind} {strange[0]!r}, which has no training images.")
    label = np.asarray([classes.index(image.class_name or "") for image in test], dtype=np.int64)
    episode = np.asarray([episodes.index(image.episode) for image in test], dtype=np.int64)
    return _records(test, label, episode)


def printable(path: Path) -> str:
    """One line of valid text, whatever the file is called."""
    text = str(path).encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _records(images: list[Found], label: np.ndarray | None, episode: np.ndarray) -> Records:
    paths = [image.path for image in images]
    return Records(
        count=len(paths),
        read=lambda numbers: [paths[number] for number in numbers],
        origin=lambda number: printable(paths[number]),
        label=label,
        episode=episode,
    )
