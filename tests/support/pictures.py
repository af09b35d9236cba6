"""Small image files for the tests of data."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int, size: tuple[int, int] = (20, 20)) -> Image.Image:
    """A smooth image that no other seed gives, so that JPEG keeps it apart too."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    return coarse.resize(size, Image.Resampling.BICUBIC)


def write_pictures(folder: Path, count: int, seed: int, size: tuple[int, int] = (20, 20)) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number}.png" for number in range(count)]
    for number, path in enumerate(paths):
        picture(1000 * seed + number, size).save(path)
    return paths


def png(seed: int, size: int = 32, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    picture(seed, (size, size)).convert(mode).save(buffer, format="PNG")
    return buffer.getvalue()


def write_parquet(path: Path, images: list[bytes], labels: list[int], names: list[str]) -> None:
    """With the columns of CIFAR-100."""
    import datasets

    features = datasets.Features({"img": datasets.Image(), "fine_label": datasets.ClassLabel(names=names)})
    rows = {"img": [{"bytes": image, "path": None} for image in images], "fine_label": labels}
    path.parent.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_dict(rows, features=features).to_parquet(path)
