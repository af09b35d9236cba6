import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from osiris.cli import main
from osiris.data.benchmark import Benchmark
from osiris.data.config import BenchmarkConfig
from osiris.data.load import load_benchmark
from osiris.errors import UserError
from osiris.files import read_json
from pictures import picture, write_pictures


def load(folder: Path, **options) -> Benchmark:
    return load_benchmark(BenchmarkConfig(f"folder:{folder}", **options))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three episodes without labels; day10 must come after day2."""
    root = tmp_path / "photos"
    for seed, day in enumerate(("day1", "day2", "day10")):
        write_pictures(root / day, 4 + seed, seed)
    return root


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    root = tmp_path / "labelled"
    write_pictures(root / "morning" / "cat", 10, 1)
    write_pictures(root / "morning" / "dog", 5, 2)
    write_pictures(root / "evening" / "cat", 10, 3)
    return root


def test_episodes_in_the_order_of_their_names(photos: Path) -> None:
    benchmark = load(photos)
    assert benchmark.task_names == ("day1", "day2", "day10")
    assert benchmark.train.task.tolist() == [0] * 4 + [1] * 5 + [2] * 6
    assert benchmark.tasks == ((), (), ()) and benchmark.class_names == ()
    assert benchmark.train.label is None and benchmark.test is None and not benchmark.labelled
    assert benchmark.mean == (0.485, 0.456, 0.406) and benchmark.std == (0.229, 0.224, 0.225)
    assert benchmark.train.images.shape == (3, 20, 20) and benchmark.notices == ()
    first = benchmark.train.images.take(torch.tensor([0, 14]))
    assert (first[0].numpy() == np.asarray(picture(0)).transpose(2, 0, 1)).all()
    assert (first[1].numpy() == np.asarray(picture(2005)).transpose(2, 0, 1)).all()


def test_class_folders_give_labels_and_a_fifth_is_held_out(labelled: Path) -> None:
    benchmark = load(labelled)
    assert benchmark.class_names == ("cat", "dog")
    assert benchmark.task_names == ("evening", "morning")
    assert benchmark.tasks == ((0,), (0, 1))
    assert benchmark.labelled and benchmark.test is not None
    assert len(benchmark.train) == 20 and len(benchmark.test) == 5
    held = list(zip(benchmark.test.task.tolist(), benchmark.test.label.tolist()))  # type: ignore[union-attr]
    assert sorted(held) == [(0, 0), (0, 0), (1, 0), (1, 0), (1, 1)]
    assert any("a fifth of each class (5 of 25 images) is held out" in text for text in benchmark.notices)
    seen = benchmark.train.images.take(torch.arange(20)).flatten(1).tolist()
    tested = benchmark.test.images.take(torch.arange(5)).flatten(1).tolist()
    assert not {tuple(row) for row in seen} & {tuple(row) for row in tested}
    assert load(labelled).checksum == benchmark.checksum


def test_train_and_test_at_the_top(labelled: Path, tmp_path: Path) -> None:
    root = tmp_path / "parts"
    shutil.copytree(labelled, root / "train")
    write_pictures(root / "test" / "morning" / "dog", 2, 7)
    write_pictures(root / "test" / "evening" / "cat", 3, 8)
    write_pictures(root / "notes" / "cat", 1, 9)
    benchmark = load(root)
    assert len(benchmark.train) == 25 and benchmark.test is not None and len(benchmark.test) == 5
    assert benchmark.test.task.tolist() == [0, 0, 0, 1, 1]
    assert benchmark.test.label is not None and benchmark.test.label.tolist() == [0, 0, 0, 1, 1]
    assert any("the others are left out (notes)" in text for text in benchmark.notices)
    write_pictures(root / "test" / "morning" / "fox", 1, 9)
    with pytest.raises(UserError, match="test labels contain 'fox', which has no training images"):
        load(root)


def test_an_episode_may_be_called_train(tmp_path: Path) -> None:
    write_pictures(tmp_path / "vehicles" / "train", 2, 1)
    write_pictures(tmp_path / "vehicles" / "bus", 2, 2)
    assert load(tmp_path / "vehicles").task_names == ("bus", "train")


def test_split_by_class(tmp_path: Path) -> None:
    for seed, name in enumerate(("ant", "bee", "cat", "dog")):
        write_pictures(tmp_path / "animals" / name, 5, seed)
    benchmark = load_benchmark(BenchmarkConfig(f"split-folder:{tmp_path / 'animals'}-2", class_order="seed:3"))
    assert sorted(len(task) for task in benchmark.tasks) == [2, 2]
    assert benchmark.class_names == ("ant", "bee", "cat", "dog") and len(benchmark.train) == 16
    with pytest.raises(UserError, match="--class-order needs tasks made of classes: use split-folder"):
        load(tmp_path / "animals", class_order="seed:3")


def test_the_size_is_the_median_short_side_and_said(tmp_path: Path) -> None:
    write_pictures(tmp_path / "mixed" / "a", 3, 1, (40, 30))
    write_pictures(tmp_path / "mixed" / "b", 1, 2, (90, 100))
    benchmark = load(tmp_path / "mixed")
    assert benchmark.train.images.shape == (3, 30, 30)
    assert any("scaled and cropped to 30x30" in text for text in benchmark.notices)
    assert load(tmp_path / "mixed", image_size=16).train.images.shape == (3, 16, 16)
    write_pictures(tmp_path / "large" / "a", 2, 1, (400, 300))
    assert load(tmp_path / "large").train.images.shape == (3, 224, 224)


def test_broken_images_are_skipped_counted_and_listed(photos: Path) -> None:
    whole = (photos / "day2" / "0.png").read_bytes()
    (photos / "day2" / "0.png").write_bytes(whole[: len(whole) // 2])
    (photos / "day2" / "é\nx.jpg").write_bytes(b"no image")
    (photos / "day10" / "gone.png").symlink_to("nowhere.png")
    benchmark = load(photos)
    assert len(benchmark.train) == 14
    assert any("3 image(s) could not be decoded and were skipped" in text for text in benchmark.notices)
    assert benchmark.location is not None
    listed = (benchmark.location / "skipped.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in listed] == [
        str(photos / "day2" / "0.png"),
        str(photos / "day2") + "/é\\nx.jpg",
        str(photos / "day10" / "gone.png"),
    ]
    with pytest.raises(UserError, match="could not be decoded"):
        load(photos, strict=True)


NOT_AN_IMAGE = b"not an image"


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({"a/x.png": NOT_AN_IMAGE}, {"strict": True}, r"a/x.png cannot be decoded: .*--strict"),
        ({"empty/.keep": b""}, {}, r"the folder .*empty has no images. Add some, or remove"),
        ({"a/emu/.keep": b""}, {}, r"the folder .*emu has no images"),
        ({"b/dog/x.png": NOT_AN_IMAGE, "b/dog/y.png": NOT_AN_IMAGE}, {}, "no usable training images in class 'dog'"),
    ],
)
def test_what_is_refused(tmp_path: Path, cache_directory: Path, files: dict, options: dict, message: str) -> None:
    for seed, name in enumerate(("a/cat", "b/cat")):
        write_pictures(tmp_path / "photos" / name, 2, seed)
    for name, content in files.items():
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        load(tmp_path / "photos", **options)
    assert [child for child in cache_directory.glob("*") if child.is_dir()] == []


def test_a_folder_without_images(tmp_path: Path) -> None:
    (tmp_path / "bad" / "a").mkdir(parents=True)
    with pytest.raises(UserError, match="is not a folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"has no images \(.jpg"):
        load(tmp_path / "bad" / "a")
    (tmp_path / "bad" / "a" / "x.jpg").write_bytes(NOT_AN_IMAGE)
    with pytest.raises(UserError, match=r"for example .*x.jpg. Are these images"):
        load(tmp_path / "bad")
    with pytest.raises(UserError, match=r"none of the training images can be decoded.*x.jpg"):
        load(tmp_path / "bad", image_size=16)


def test_folders_in_each_other_without_end_are_refused(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos)
    for _ in range(300):
        Path("a").mkdir()
        os.chdir("a")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(300)  # 1,000 folders would do it by themselves, and pytest could not remove them
    try:
        with pytest.raises(UserError, match="nested too deeply"):
            load(photos)
    finally:
        sys.setrecursionlimit(limit)


def test_a_changed_file_is_noticed(photos: Path) -> None:
    before = load(photos)
    picture(999).save(photos / "day1" / "0.png")
    os.utime(photos / "day1" / "0.png", ns=(1, 1))
    after = load(photos)
    assert before.location != after.location and before.checksum != after.checksum


def test_partly_in_class_folders_means_no_labels(labelled: Path) -> None:
    write_pictures(labelled / "evening", 2, 9)
    benchmark = load(labelled)
    assert benchmark.train.label is None and len(benchmark.train) == 27
    assert any("2 of 27 images are not in a class folder: all labels are ignored" in text for text in benchmark.notices)


def test_loose_images_and_upper_case_and_other_files(labelled: Path) -> None:
    picture(1).save(labelled / "loose.png")
    write_pictures(labelled / "morning" / "Cat", 5, 11)
    (labelled / "morning" / "cat" / "notes.txt").write_text("hello")
    (labelled / ".hidden").mkdir()
    benchmark = load(labelled)
    assert benchmark.class_names == ("Cat", "cat", "dog")
    told = " ".join(benchmark.notices)
    assert "1 file(s) that are not images are left out (1 .txt)" in told and "1 image(s) directly in" in told


def test_links_are_followed_once_and_never_in_a_circle(photos: Path, tmp_path: Path) -> None:
    root = tmp_path / "links"
    root.mkdir()
    (root / "a").symlink_to(photos / "day1")
    write_pictures(root / "b" / "c", 2, 5)
    (root / "b" / "c" / "circle").symlink_to(root)
    assert load(root).train.task.tolist() == [0] * 4 + [1] * 2


def test_a_pipe_does_not_hang(photos: Path) -> None:
    os.mkfifo(photos / "day1" / "pipe.jpg")
    assert len(load(photos).train) == 15


def test_names_cannot_steer_the_terminal(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pictures(photos / "\x1b[31m[bold]x", 2, 5)
    (photos / "\x1b[31m[bold]x" / "\x1b]0;title.jpg").write_bytes(b"no image")
    assert main(["data", f"folder:{photos}"]) == 0
    assert main(["data", f"folder:{photos}", "--strict"]) == 2
    assert main(["data", f"folder:{photos}/\x1b[31m"]) == 2
    output = capsys.readouterr()
    assert "\x1b" not in output.out + output.err and "\\x1b[31m[bold]x" in output.out


def test_heic_files_are_reported_or_read(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.from_pillow(picture(3, (64, 64))).save(photos / "day1" / "photo.HEIC")
    assert len(load(photos).train) == 16
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    benchmark = load(photos)
    assert len(benchmark.train) == 15
    assert any("1 HEIC image(s) are left out: install pillow-heif" in text for text in benchmark.notices)


def test_from_the_command_line_to_the_metrics(labelled: Path, photos: Path, tmp_path: Path, capsys) -> None:
    """With labels, cut by class; without them, accuracy cannot be computed."""
    smoke = ["--preset", "smoke", "--batch-size", "12", "--quiet", "--image-size", "16"]
    split = ["--benchmark", f"split-folder:{labelled}-2", "--class-order", "seed:1", "--k", "2"]
    assert main(["train", *split, *smoke, "--out", str(tmp_path / "run")]) == 0
    metrics = read_json(tmp_path / "run" / "metrics.json")
    assert metrics["labelled"] and metrics["fingerprint"]["tasks"] == 2
    assert metrics["fingerprint"]["image_size"] == [16, 16]
    assert "is held out for testing" in " ".join(capsys.readouterr().err.split())
    assert main(["train", "--benchmark", f"folder:{photos}", *smoke, "--out", str(tmp_path / "plain")]) == 0
    assert not read_json(tmp_path / "plain" / "metrics.json")["labelled"]
    assert "cannot be computed" in " ".join(capsys.readouterr().out.replace("│", " ").split())
