"""How many planted copies `osiris duplicates` finds without an encoder, and how many other pictures it takes for one.

    python benchmarks/copies.py --data DIR
    python benchmarks/copies.py --data DIR --hashes     # the hashes of the package imagehash alone, on the same files

DIR has the Parquet files of PACS and CIFAR-100. Of some of their pictures, copies are made: JPEG of qualities 35 to 90
at sizes 1/4 to 1, PNG, WebP, turned by EXIF, and the same bytes. All others are different pictures, but for those that
the data set has twice itself, which are listed to be looked at.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow.parquet
from PIL import Image, ImageOps

from osiris.data.looks import Look, looking
from osiris.index.copies import SMALLEST, same_bytes, same_picture

SOURCES = {
    "PACS": ("pacs/data/train-00000-of-00001.parquet", "image", 9991),
    "CIFAR-100": ("cifar100/train-00000-of-00001.parquet", "img", 20000),
}
SIZES = {"1": 1.0, "3/4": 0.75, "1/2": 0.5, "1/4": 0.25}


def variants(content: bytes) -> dict[str, bytes]:
    """Kind -> a copy of a picture."""
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    found = {"the same bytes": content}

    def add(kind: str, image: Image.Image, form: str, **options: object) -> None:
        buffer = io.BytesIO()
        image.save(buffer, form, **options)
        found[kind] = buffer.getvalue()

    for name, part in SIZES.items():
        size = round(picture.width * part), round(picture.height * part)
        for quality in (35, 50, 70, 90) if min(size) >= SMALLEST else ():
            small = picture.resize(size, Image.Resampling.LANCZOS)
            add(f"JPEG {quality}, size {name}", small, "JPEG", quality=quality)
    add("PNG", picture, "PNG")
    add("WebP 80", picture, "WEBP", quality=80)
    exif = Image.Exif()
    exif[0x0112] = 6
    add("turned by EXIF", picture.transpose(Image.Transpose.ROTATE_90), "JPEG", quality=90, exif=exif)
    return found


def files_of(name: str, data: Path, planted: int) -> list[tuple[int, str, bytes]]:
    """(picture, kind, content): all originals, and copies of some."""
    file, column, count = SOURCES[name]
    contents = [row["bytes"] for row in pyarrow.parquet.read_table(data / file)[column].to_pylist()[:count]]
    chosen = np.random.default_rng(0).choice(len(contents), planted, replace=False)
    files = [(picture, "original", content) for picture, content in enumerate(contents)]
    return files + [(int(one), kind, copy) for one in chosen for kind, copy in variants(contents[one]).items()]


def measure_hashes(name: str, data: Path, planted: int) -> None:
    """A copy counts as found if a file of its picture is within the distance; a picture counts as wrong if a file of
    another one is."""
    imagehash = import_module("imagehash")
    files = files_of(name, data, planted)
    upright = [ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB") for _, _, content in files]
    picture, copy = np.array([one for one, _, _ in files]), np.array([kind != "original" for _, kind, _ in files])
    same_bytes_kind = np.array([kind == "the same bytes" for _, kind, _ in files])
    for kind in ("phash", "dhash"):
        started = time.process_time()
        bits = np.stack([getattr(imagehash, kind)(one).hash.ravel() for one in upright])
        each = 1000 * (time.process_time() - started) / len(files)
        hashes = np.packbits(bits, axis=1).view("u8").ravel()
        for distance in (0, 2, 4, 8, 10):
            found, wrong = np.zeros(len(files), bool), np.zeros(len(files), bool)
            for start in range(0, len(files), 1024):
                rows = np.arange(start, min(start + 1024, len(files)))
                near = np.bitwise_count(hashes[rows, None] ^ hashes) <= distance
                near[np.arange(len(rows)), rows] = False
                same = picture[rows, None] == picture
                found[rows], wrong[rows] = (near & same).any(axis=1), (near & ~same).any(axis=1)
            recall = found[copy & ~same_bytes_kind].mean()
            print(
                f"{name}, {kind} <= {distance}: recall {recall:.3f}, {wrong.sum():,} files wrong, {each:.2f} ms",
                flush=True,
            )


def measure(name: str, data: Path, planted: int, folder: Path) -> None:
    files = files_of(name, data, planted)
    looks, sizes = dict[Path, Look](), list[int]()
    decode = looking(looks)
    started = time.process_time()
    for number, (_, _, content) in enumerate(files):
        path = folder / f"{name} {number}"
        path.write_bytes(content)
        decode(path, 64)
        sizes.append(len(content))
    looked = time.process_time() - started
    facts = np.array([one.facts for one in looks.values()])
    thumbnails = np.stack([one.thumbnail for one in looks.values()])
    started = time.process_time()
    everything = np.arange(len(files))
    bytewise = same_bytes(facts, np.array(sizes), everything)
    first = np.setdiff1d(everything, np.concatenate([one.members[1:] for one in bytewise]))
    pictures = same_picture(facts, np.array(sizes), lambda some: thumbnails[some], first)
    seconds = time.process_time() - started
    report(name, files, bytewise, pictures)
    print(f"{len(files):,} files: {1000 * looked / len(files):.2f} ms per file, {seconds:.1f} s to compare, CPU\n")


def report(name: str, files: list[tuple[int, str, bytes]], bytewise: list, pictures: list) -> None:
    found, goes, doubles, wrong = set[int](), 0, [], []
    for group in (*bytewise, *pictures):
        members = group.members.tolist()
        for one in members[1:]:
            goes += 1
            if files[one][0] == files[members[0]][0]:
                found |= {one, members[0]}
            elif files[one][1] == "original":
                doubles.append((files[members[0]][0], files[one][0]))
            else:
                wrong.append((files[members[0]][:2], files[one][:2]))
    print(
        f"{name}: {goes} could go; {len(wrong)} of another picture {wrong[:5]}; twice in the data or wrong: {doubles}"
    )
    total, seen = Counter(kind for _, kind, _ in files), Counter(files[one][1] for one in found)
    for kind in total:
        if kind != "original":
            print(f"  {kind:22s} {seen[kind] / total[kind]:.3f}")
    planted = [kind for kind in total if kind not in ("original", "the same bytes")]
    recall = sum(seen[kind] for kind in planted) / sum(total[kind] for kind in planted)
    print(f"  all but the same bytes: {recall:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--planted", type=int, default=200)
    parser.add_argument("--hashes", action="store_true")
    given = parser.parse_args()
    for name in SOURCES:
        if given.hashes:
            measure_hashes(name, given.data, given.planted)
            continue
        with tempfile.TemporaryDirectory() as folder:
            measure(name, given.data, given.planted, Path(folder))


if __name__ == "__main__":
    main()
