import io
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image

from osiris.data.config import BenchmarkConfig
from osiris.data.images import Encoded, LazyImages, Subset, UndecodableImage, decode, image_dimensions
from osiris.data.load import load_benchmark
from osiris.errors import UserError
from pictures import picture, write_pictures


def encode(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format, **options)
    return buffer.getvalue()


def test_pixels_are_those_of_pillow(tmp_path: Path) -> None:
    image = picture(1)
    image.save(tmp_path / "a.png")
    for encoded, size in ((encode(image), None), (np.asarray(image), 20), (tmp_path / "a.png", None)):
        assert (decode(encoded, size) == np.asarray(image).transpose(2, 0, 1)).all()
        assert image_dimensions(encoded) == (20, 20)


def test_grey_palette_transparent_and_16_bit_become_rgb() -> None:
    grey = picture(3).convert("L")
    assert (decode(encode(grey), None) == np.asarray(grey)).all()
    assert decode(encode(picture(3).convert("P")), None).shape == (3, 20, 20)
    assert decode(encode(picture(3).convert("RGBA")), None).shape == (3, 20, 20)
    deep = Image.fromarray((np.asarray(grey).astype(np.uint16) << 8) + 77)
    assert (decode(encode(deep), None) == np.asarray(grey)).all()
    unit = Image.fromarray(np.asarray(grey).astype(np.float32) / 255)
    assert (decode(encode(unit, "TIFF"), None) == np.asarray(grey)).all()
    assert decode(encode(picture(3).convert("CMYK"), "JPEG"), None).shape == (3, 20, 20)
    frames = {"save_all": True, "append_images": [picture(4)]}
    assert (decode(encode(picture(3), "GIF", **frames), None) == decode(encode(picture(3), "GIF"), None)).all()


def test_scaled_by_the_short_side_and_cropped_in_the_middle() -> None:
    wide = np.zeros((10, 30, 3), dtype=np.uint8)
    wide[:, 10:20] = 200
    assert (decode(wide, 10) == 200).all()
    assert decode(wide, 5).shape == (3, 5, 5)
    large = decode(encode(picture(4, (640, 480)), "JPEG", quality=95), 32)
    exact = decode(np.asarray(picture(4, (640, 480))), 32)
    assert np.abs(large.astype(int) - exact).mean() < 2


def test_photographs_are_turned_upright() -> None:
    image = picture(5, (20, 10))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side
    turned = decode(encode(image, exif=exif), None)
    assert turned.shape == (3, 20, 10)
    assert (turned == np.asarray(image.rotate(-90, expand=True)).transpose(2, 0, 1)).all()


WHOLE = [encode(picture(6, (200, 200)), format) for format in ("PNG", "JPEG", "WEBP", "BMP")]
TRUNCATED = [file[: len(file) // 2] for file in WHOLE]


@pytest.mark.parametrize("encoded", [b"", b"not an image", b"\x89PNG\r\n\x1a\n", Path("gone.png"), *TRUNCATED])
def test_what_is_not_an_image_is_refused(encoded: Encoded) -> None:
    with pytest.raises(UndecodableImage):
        decode(encoded, 32)


def test_a_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UndecodableImage, match="bomb"):
        decode(encode(picture(7)), None)


def test_no_other_program_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow gives EPS to Ghostscript, whatever the name of the file says."""
    trace = tmp_path / "executed"
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {trace}\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    page = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n%%EOF\n"
    (tmp_path / "cat.jpg").write_bytes(page)
    for encoded in (tmp_path / "cat.jpg", page):
        with pytest.raises(UndecodableImage, match="EPS is not read"):
            decode(encoded, 32)
    assert not trace.exists()


class Counting:
    """A source of pictures that remembers what was read."""

    def __init__(self, count: int) -> None:
        self.pictures = [np.asarray(picture(number)) for number in range(count)]
        self.lock = threading.Lock()
        self.read_numbers: list[int] = []

    def read(self, numbers) -> list:
        with self.lock:
            self.read_numbers += list(numbers)
        return [self.pictures[number] for number in numbers]

    def images(self, **options) -> LazyImages:
        return LazyImages(len(self.pictures), 20, self.read, lambda number: f"picture {number}", **options)

    def expected(self, numbers: list[int]) -> torch.Tensor:
        return torch.from_numpy(np.stack([self.pictures[number].transpose(2, 0, 1) for number in numbers]))


def test_take_with_and_without_prefetch_and_repeats() -> None:
    source = Counting(12)
    images = source.images()
    assert images.shape == (3, 20, 20) and len(images) == 12
    order = [3, 3, 0, 11, 5]
    assert torch.equal(images.take(torch.tensor(order)), source.expected(order))
    images.prefetch(torch.tensor(order))
    assert torch.equal(images.take(torch.tensor(order)), source.expected(order))
    assert images.pending == {}
    assert images.take(torch.tensor([], dtype=torch.int64)).shape == (0, 3, 20, 20)


def test_prefetched_images_are_read_once_and_before_take() -> None:
    source = Counting(8)
    images = source.images()
    images.prefetch(torch.tensor([1, 2, 3]))
    for future in list(images.pending.values()):
        future.result(timeout=10)
    assert sorted(source.read_numbers) == [1, 2, 3]
    images.take(torch.tensor([3, 2, 1]))
    assert sorted(source.read_numbers) == [1, 2, 3]


def test_hints_are_bounded_and_forgotten_ones_make_room() -> None:
    source = Counting(12)
    images = source.images(ahead=4)
    images.prefetch(torch.arange(12))
    assert list(images.pending) == [0, 1, 2, 3]
    images.prefetch(torch.tensor([8, 9]))
    assert list(images.pending) == [2, 3, 8, 9]
    assert torch.equal(images.take(torch.arange(12)), source.expected(list(range(12))))


def test_a_subset_passes_the_hint_on() -> None:
    source = Counting(6)
    images = source.images()
    Subset(images, torch.tensor([5, 4])).prefetch(torch.tensor([0]))
    assert list(images.pending) == [5]


def test_an_index_out_of_range() -> None:
    for wrong in (-1, 6):
        with pytest.raises(IndexError):
            Counting(6).images().take(torch.tensor([wrong]))


def test_a_file_that_vanishes_is_named(tmp_path: Path) -> None:
    paths = write_pictures(tmp_path, 2, 1)
    images = LazyImages(2, 20, lambda numbers: [paths[n] for n in numbers], lambda number: str(paths[number]))
    paths[1].unlink()
    images.prefetch(torch.tensor([1]))
    with pytest.raises(UserError, match=r"1.png was readable when the data was first read"):
        images.take(torch.tensor([0, 1]))


def test_an_image_that_changes_during_training_is_named(tmp_path: Path) -> None:
    """Images that are too many to keep are decoded again and again; each must be the one of the checksum."""
    write_pictures(tmp_path / "photos" / "a", 6, 0, (40, 40))
    benchmark = load_benchmark(BenchmarkConfig(f"folder:{tmp_path / 'photos'}", decode_limit_mb=0))
    images = benchmark.train.images
    before = images.take(torch.arange(6))
    picture(99).save(tmp_path / "photos" / "a" / "3.png")
    assert torch.equal(images.take(torch.tensor([2])), before[2:3])
    with pytest.raises(UserError, match=r"3\.png has changed since the data was first read"):
        images.take(torch.tensor([3]))


def test_chosen_by_size_and_equal_to_the_cache(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for seed, (episode, name) in enumerate([("a", "cat"), ("a", "dog"), ("b", "cat")]):
        write_pictures(root / episode / name, 6, seed, (150, 130))
    (root / "a" / "cat" / "3.png").write_bytes(b"no image")
    whole = load_benchmark(BenchmarkConfig(f"folder:{root}"))
    lazy = load_benchmark(BenchmarkConfig(f"folder:{root}", decode_limit_mb=0))
    assert any("on the fly" in text for text in lazy.notices)
    assert not any("on the fly" in text for text in whole.notices)
    for one, other in ((whole.train, lazy.train), (whole.bank, lazy.bank), (whole.test, lazy.test)):
        assert one is not None and other is not None and one.label is not None and other.label is not None
        assert torch.equal(one.task, other.task) and torch.equal(one.label, other.label)
        everything = torch.arange(len(one))
        assert torch.equal(one.images.take(everything), other.images.take(everything))
    assert lazy.location is not None and (lazy.location / "skipped.txt").exists()
    assert not (lazy.location / "images.bin").exists()
    again = load_benchmark(BenchmarkConfig(f"folder:{root}", decode_limit_mb=0))
    assert again.checksum == lazy.checksum == whole.checksum


def test_the_limit_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pictures(tmp_path / "photos" / "a", 3, 1)
    monkeypatch.setenv("OSIRIS_DECODE_LIMIT_MB", "0")
    assert any(
        "on the fly" in text for text in load_benchmark(BenchmarkConfig(f"folder:{tmp_path / 'photos'}")).notices
    )
    monkeypatch.setenv("OSIRIS_DECODE_LIMIT_MB", "many")
    with pytest.raises(UserError, match="OSIRIS_DECODE_LIMIT_MB='many'"):
        load_benchmark(BenchmarkConfig(f"folder:{tmp_path / 'photos'}"))
