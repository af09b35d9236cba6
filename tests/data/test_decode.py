import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from osiris.data.decode import Encoded, UndecodableImage, decode, image_dimensions
from pictures import picture


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
