from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from osiris.data.decode import UndecodableImage, decode, image_dimensions
from pictures import picture


def encode(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format, **options)
    return buffer.getvalue()


def test_pixels_are_those_of_pillow() -> None:
    image = picture(1)
    assert (decode(encode(image), None) == np.asarray(image).transpose(2, 0, 1)).all()
    assert (decode(np.asarray(image), 20) == np.asarray(image).transpose(2, 0, 1)).all()


def test_a_file_is_read_too(tmp_path: Path) -> None:
    picture(2).save(tmp_path / "a.png")
    assert (decode(tmp_path / "a.png", None) == np.asarray(picture(2)).transpose(2, 0, 1)).all()
    assert image_dimensions(tmp_path / "a.png") == (20, 20)


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


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n", b"GIF89a"])
def test_rubbish_is_refused(content: bytes) -> None:
    with pytest.raises(UndecodableImage):
        decode(content, 8)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "BMP"])
def test_truncated_files_are_refused(format: str) -> None:
    whole = encode(picture(6, (200, 200)), format)
    with pytest.raises(UndecodableImage):
        decode(whole[: len(whole) // 2], 32)


def test_a_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UndecodableImage, match="bomb"):
        decode(encode(picture(7)), None)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UndecodableImage, match="No such file"):
        decode(tmp_path / "gone.png", None)
