"""Own data through Hugging Face `datasets`: files, saved data sets, image folders with metadata."""

import datetime
import errno
import io
import subprocess
import sys
from pathlib import Path

import datasets
import datasets.exceptions
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from osiris.data import huggingface
from osiris.data.benchmark import Benchmark
from osiris.data.config import BenchmarkConfig
from osiris.data.load import load_benchmark
from osiris.errors import UserError
from pictures import picture, write_pictures


def png(number: int) -> dict:
    buffer = io.BytesIO()
    picture(number).save(buffer, format="PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def table(count: int = 20, **columns) -> datasets.Dataset:
    rows = {"image": [png(number) for number in range(count)], **columns}
    dataset = datasets.Dataset.from_dict(rows)
    return dataset.cast_column("image", datasets.Image())


DAYS = [datetime.date(2024, 1, 1 + number // 10) for number in range(20)]
PLACES = ["room 10" if number % 2 else "room 9" for number in range(20)]
KINDS = ["cat" if number % 4 < 2 else "dog" for number in range(20)]


def load(place: object, **options) -> Benchmark:
    return load_benchmark(BenchmarkConfig(f"dataset:{place}", **options))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "saved"
    table(day=DAYS, place=PLACES, label=KINDS, score=[float(number) for number in range(20)]).save_to_disk(path)
    return path


def test_episodes_from_a_place_and_from_a_date(saved: Path) -> None:
    by_place = load(saved, episode_column="place")
    assert by_place.task_names == ("room 9", "room 10") and by_place.class_names == ("cat", "dog")
    assert by_place.tasks == ((0, 1), (0, 1)) and by_place.labelled
    by_day = load(saved, episode_column="day")
    assert by_day.task_names == ("2024-01-01", "2024-01-02")
    numbers = load(saved, episode_column="day", label_column="place")
    assert numbers.class_names == ("room 9", "room 10")


def test_pixels_without_labels_or_episodes(tmp_path: Path) -> None:
    table(6).to_parquet(tmp_path / "plain.parquet")
    benchmark = load(tmp_path / "plain.parquet")
    assert benchmark.task_names == ("all",) and benchmark.train.label is None and benchmark.test is None
    pixels = benchmark.train.images.take(torch.arange(6)).numpy()
    assert (pixels == np.stack([np.asarray(picture(k)).transpose(2, 0, 1) for k in range(6)])).all()


def test_rows_without_an_image_are_skipped_and_rows_without_an_episode_are_refused(tmp_path: Path) -> None:
    rows = [{"bytes": None, "path": None}, *table(5).cast_column("image", datasets.Image(decode=False))["image"]]
    pictures_ = pyarrow.array([None, *rows], datasets.Image().pa_type)
    pyarrow.parquet.write_table(pyarrow.table({"image": pictures_}), tmp_path / "empty.parquet")
    benchmark = load_benchmark(BenchmarkConfig(f"dataset:{tmp_path / 'empty.parquet'}", image_column="image"))
    assert len(benchmark.train) == 5 and any("2 image(s) could not be decoded" in text for text in benchmark.notices)
    for missing in (-1, None):
        days = table(6, day=[0, 1, 0, 1, 0, missing]).cast_column("day", datasets.ClassLabel(names=["mon", "tue"]))
        days.save_to_disk(tmp_path / f"days{missing}")
        with pytest.raises(UserError, match="episodes: some images have none"):
            load(tmp_path / f"days{missing}", episode_column="day")


def test_splits_and_class_labels(tmp_path: Path) -> None:
    names = datasets.ClassLabel(names=["wolf", "ant"])
    parts = {
        split: table(8, label=[k % 2 for k in range(8)]).cast_column("label", names)
        for split in ("train", "validation", "extra")
    }
    datasets.DatasetDict(**parts).save_to_disk(tmp_path / "parts")
    benchmark = load_benchmark(BenchmarkConfig(f"split-{tmp_path / 'parts'}-2"))
    assert benchmark.class_names == ("wolf", "ant") and benchmark.tasks == ((0,), (1,))
    assert benchmark.test is not None and len(benchmark.test) == 8 and len(benchmark.train) == 8
    assert any("the split(s) extra are not used" in text for text in benchmark.notices)


def test_an_image_folder_in_the_layout_of_datasets(tmp_path: Path) -> None:
    for seed, name in enumerate(("cat", "dog")):
        write_pictures(tmp_path / "pets" / "train" / name, 5, seed)
        write_pictures(tmp_path / "pets" / "test" / name, 2, seed + 10)
    benchmark = load_benchmark(BenchmarkConfig(f"split-dataset:{tmp_path / 'pets'}-2"))
    assert benchmark.class_names == ("cat", "dog") and len(benchmark.train) == 10
    assert benchmark.test is not None and len(benchmark.test) == 4


def test_a_csv_with_paths(tmp_path: Path) -> None:
    paths = write_pictures(tmp_path / "files", 6, 1)
    lines = ["file,place", *(f"{path},{'ab'[number // 3]}" for number, path in enumerate(paths))]
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    benchmark = load(tmp_path / "list.csv", image_column="file", episode_column="place")
    assert benchmark.task_names == ("a", "b") and len(benchmark.train) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_column": "picture"}, "--image-column 'picture': .* has only the columns image, day, place"),
        ({"label_column": "kind"}, "--label-column 'kind'"),
        ({"episode_column": "date"}, "--episode-column 'date'"),
        ({"label_column": "score"}, "labels must be whole numbers"),
        ({"episode_column": "score"}, "episodes must be whole numbers"),
        ({"image_column": "score"}, "'score' does not hold images"),
    ],
)
def test_wrong_columns(saved: Path, options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(saved, **options)


def test_wrong_data(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hello")
    with pytest.raises(UserError, match=r"give a folder or a file of these kinds: \.parquet"):
        load(tmp_path / "note.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"cannot read .*empty as a data set"):
        load(tmp_path / "empty")
    table(4).to_parquet(tmp_path / "half.parquet")
    (tmp_path / "half.parquet").write_bytes((tmp_path / "half.parquet").read_bytes()[:-50])
    with pytest.raises(UserError, match="is not a complete parquet file"):
        load(tmp_path / "half.parquet")
    datasets.Dataset.from_dict({"x": [1]}).save_to_disk(tmp_path / "numbers")
    with pytest.raises(UserError, match=r"has no image columns: choose with --image-column \(x\)"):
        load(tmp_path / "numbers")


def test_a_disk_that_fills_up_while_datasets_works(monkeypatch: pytest.MonkeyPatch, cache_directory: Path) -> None:
    def load_dataset(*_given: object) -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise datasets.exceptions.DatasetGenerationError("An error occurred") from error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(UserError, match=r"No space left on device: free some space in .*HF_HOME"):
        load("someone/birds")
    assert [child for child in cache_directory.iterdir() if child.is_dir()] == []


def test_the_hub_by_name(saved: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface, "hub_reachable", lambda: False)
    with pytest.raises(UserError, match=r"could not download someone/birds .*by hand"):
        load("someone/birds")
    with pytest.raises(UserError, match=r"could not download someone/birds"):
        load_benchmark(BenchmarkConfig("split-someone/birds-5"))
    monkeypatch.setenv("OSIRIS_DATA", str(saved.parent))
    assert load("someone/saved", episode_column="place").task_count == 2
    for data_dir in (saved.parent, saved):
        assert load("someone/saved", episode_column="place", data_dir=data_dir).task_count == 2
    with pytest.raises(UserError, match=r"nowhere does not exist"):
        load(str(tmp_path / "nowhere"))
    asked: list = []

    def load_dataset(repository: str, configuration: str | None):
        asked.append((repository, configuration))
        return datasets.load_from_disk(str(saved))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert load("someone/birds@small", episode_column="place").task_count == 2
    load("someone/birds@small", episode_column="place")
    assert asked == [("someone/birds", "small")]


def test_the_warm_path_imports_no_datasets(saved: Path) -> None:
    load(saved, episode_column="place")
    script = (
        "import sys\nfrom osiris.data.load import load_benchmark\n"
        "from osiris.data.config import BenchmarkConfig\n"
        f"b = load_benchmark(BenchmarkConfig('dataset:{saved}', episode_column='place'))\n"
        "print(b.task_count, 'datasets' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["2", "False"]
