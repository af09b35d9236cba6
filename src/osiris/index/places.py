"""Where images are on the map of an index: a file beside its parts, so that new images are added to the old map."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from osiris.errors import UserError
from osiris.files import load_tensors, save_tensors

FILE = "layout.safetensors"


def read_places(folder: Path) -> dict[bytes, tuple[float, float]]:
    """Digest of a file -> its place. A file that does not parse counts as none: the map is computed again."""
    path = folder / FILE
    if path.is_symlink() or not path.is_file():
        return {}
    with suppress(UserError, KeyError, ValueError):
        tensors, _ = load_tensors(path)
        digests, places = tensors["digest"].numpy(), tensors["place"].numpy()
        if digests.dtype == np.uint8 and digests.shape == (len(places), 16) and places.shape == (len(digests), 2):
            good = np.isfinite(places).all(axis=1)
            return {one.tobytes(): (float(x), float(y)) for one, (x, y) in zip(digests[good], places[good])}
    return {}


def write_places(folder: Path, digests: np.ndarray, places: np.ndarray) -> None:
    """`digests`: uint8 [n, 16]."""
    with suppress(OSError):  # a state that cannot be written is shown all the same
        tensors = {"digest": torch.from_numpy(digests.copy()), "place": torch.from_numpy(places.astype(np.float64))}
        save_tensors(folder / FILE, tensors)


def forget_places(folder: Path, kept: set[bytes]) -> None:
    """Only those of files with these digests stay."""
    known = read_places(folder)
    left = {digest: place for digest, place in known.items() if digest in kept}
    if len(left) == len(known):
        return
    if not left:
        (folder / FILE).unlink(missing_ok=True)
        return
    digests = np.frombuffer(b"".join(left), np.uint8).reshape(-1, 16)
    write_places(folder, digests, np.array([*left.values()]))
