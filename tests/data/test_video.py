"""Video files: frames by time, with names that say when; damage is named, and the rest is used."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from osiris.cli import main
from osiris.data.video import SIDE, frames_of, is_video, time_code, upright
from osiris.errors import UserError

av: Any = pytest.importorskip("av")
RATE, FRAMES = 10, 60


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSIRIS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(path: Path, times: list[int] | None = None, **options: Any) -> Path:
    """Each frame is as bright as its number is large. `times`: of each frame, in tenths of a second."""
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream("mpeg4", rate=RATE)
        stream.width = stream.height = 32
        stream.pix_fmt, stream.gop_size = "yuv420p", 10
        for number, time in enumerate(times or range(FRAMES)):
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), 4 * number, np.uint8), format="rgb24")
            frame.pts = time
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.jpg"))


def brightness(path: Path) -> float:
    with Image.open(path) as image:
        return float(np.asarray(image).mean())


def test_a_frame_for_every_so_many_seconds(tmp_path: Path) -> None:
    folder = frames_of(write(tmp_path / "clip.mp4"), 2)
    assert names(folder) == [f"clip 00-00-0{second}.000 frame {second * RATE}.jpg" for second in (0, 2, 4)]
    for number, path in zip((0, 20, 40), sorted(folder.glob("*.jpg"))):
        assert abs(brightness(path) - 4 * number) < 6
    assert frames_of(tmp_path / "clip.mp4", 2) == folder, "read once"
    assert frames_of(tmp_path / "clip.mp4", 1) != folder and len(names(frames_of(tmp_path / "clip.mp4", 1))) == 6


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    before = frames_of(write(tmp_path / "clip.mp4"))
    assert frames_of(write(tmp_path / "clip.mp4", list(range(20)))) != before


def test_variable_rate_by_the_times_of_frames(tmp_path: Path) -> None:
    folder = frames_of(write(tmp_path / "clip.mkv", [0, 1, 2, 3, 35, 36, 37, 50]), 1)
    assert names(folder) == [
        "clip 00-00-00.000 frame 0.jpg",
        "clip 00-00-03.500 frame 4.jpg",
        "clip 00-00-05.000 frame 7.jpg",
    ]


def test_what_is_left_of_a_truncated_or_damaged_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = write(tmp_path / "clip.mkv").read_bytes()
    (tmp_path / "cut.mkv").write_bytes(whole[: len(whole) // 2])
    assert 2 <= len(names(frames_of(tmp_path / "cut.mkv"))) < 6
    assert "says that it lasts 00-00-06.000, but ends at" in capsys.readouterr().err
    spoilt, place = bytearray(whole), random.Random(1)
    for _ in range(300):
        spoilt[place.randrange(len(whole) // 4, len(whole))] = place.randrange(256)
    (tmp_path / "spoilt.mkv").write_bytes(spoilt)
    assert names(frames_of(tmp_path / "spoilt.mkv"))


@pytest.mark.parametrize("content", [b"", b"hello", b"\0" * 5000])
def test_what_is_no_video_is_refused(content: bytes, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "clip.mp4").write_bytes(content)
    with pytest.raises(UserError, match=r"clip.mp4 cannot be read as a video|no frame of"):
        frames_of(tmp_path / "clip.mp4")
    assert not [path for path in (cache / "video").iterdir() if path.name != "clip"], "nothing is left behind"


def test_without_pictures(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "sound.mkv"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
    with pytest.raises(UserError, match="only sound"):
        frames_of(tmp_path / "sound.mkv")


@pytest.mark.parametrize("every", [0, -1, float("nan"), float("inf")])
def test_wrong_intervals(every: float, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="seconds between two frames"):
        frames_of(write(tmp_path / "clip.mp4"), every)


def test_frames_are_upright_and_not_too_large() -> None:
    wide = Image.new("RGB", (4 * SIDE, 2 * SIDE))
    wide.paste((255, 0, 0), (0, 0, 100, 100))  # a red corner at the top left
    frame = SimpleNamespace(to_image=lambda: wide, rotation=-90)  # clockwise: the corner goes to the top right
    image = upright(frame)
    assert image.size == (SIDE, 2 * SIDE) and image.getpixel((SIDE - 5, 5)) == (255, 0, 0)


def test_time_codes_sort_in_time() -> None:
    codes = [time_code(seconds) for seconds in (0, 0.0004, 1.5, 59.9999, 61, 3600, 36_000)]
    assert codes == sorted(codes) and codes[3] == "00-01-00.000" and codes[4] == "00-01-01.000"


def test_other_files_and_folders_stay(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    assert frames_of(tmp_path) == tmp_path and frames_of(tmp_path / "a.jpg") == tmp_path / "a.jpg"
    assert not is_video(tmp_path / "missing.mp4")


@pytest.mark.whole
def test_observe_index_and_search_with_time_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clip, state = write(tmp_path / "2026-11.mp4"), str(tmp_path / "state")
    options = ["--preset", "smoke", "--image-size", "16", "--quiet", "--every", "0.5"]
    assert main(["observe", state, str(clip), *options]) == 0
    assert "after 2026-11.mp4" in capsys.readouterr().out
    assert main(["index", state, str(clip), "--every", "0.5"]) == 0
    query = sorted(frames_of(clip, 0.5).glob("*.jpg"))[4]
    assert main(["search", state, str(query), "--json"]) == 0
    assert "2026-11 00-00-02.000 frame 20.jpg" in capsys.readouterr().out
