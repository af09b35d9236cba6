"""docs/architecture.md is true: one way to learn, every file on the way of an image, and its rooms in order."""

import json
import re
from pathlib import Path

import pytest

import fork_server
from osiris.data.catalogue import DATASETS
from pictures import png, write_parquet, write_pictures

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
OPTIONS = ["--preset", "smoke", "--epochs", "1", "--seed", "0", "--quiet"]

Trace = list[tuple[str, str]]
"""(file, function), in the order in which functions are entered."""


def traced(commands: list[list[str]], folder: Path) -> list[Trace]:
    code = fork_server.run("traced", folder / "output", commands=commands, out=str(folder / "trace"))
    assert code == 0, (folder / "output").read_text()
    return [[(file, name) for file, name in trace] for trace in json.loads((folder / "trace").read_text())]


def episodes(trace: Trace) -> list[Trace]:
    """The functions of the rooms that learn, in the order in which each is first entered, from one episode to the
    next. `Training.finish` ends the last one."""
    parts, rooms = list[Trace](), ("training/", "runs/", "framework/", "evaluation/")
    for entry in trace:
        if entry == ("training/run.py", "Training.advance"):
            parts.append([])
        if entry == ("training/run.py", "Training.finish"):
            break
        if parts and entry[0].startswith(rooms):
            parts[-1].append(entry)
    return [list(dict.fromkeys(part)) for part in parts]


def without_votes(episode: Trace) -> Trace:
    """Without the question which episode an image is from: `observe` has the images of one alone."""
    names = [name for _, name in episode]
    first, last = names.index("score_episodes") + 1, names.index("missing")
    assert {file for file, _ in episode[first:last]} <= {
        f"evaluation/{name}.py" for name in ("knn", "evaluate", "metrics")
    }
    return episode[:first] + episode[last:]


def stages(trace: Trace) -> list[str]:
    """Of the life of a run, each where it is first entered."""
    names = ("opened", *(f"Training.{name}" for name in ("start", "advance", "finish", "close")))
    return list(dict.fromkeys(name for file, name in trace if file == "training/run.py" and name in names))


def test_train_and_observe_are_one_way(tmp_path: Path) -> None:
    weeks = [tmp_path / "photos" / f"week {number}" for number in (1, 2, 3)]
    for number, week in enumerate(weeks):
        write_pictures(week, 40, seed=number)
    options = [*OPTIONS, "--image-size", "16"]
    train = ["train", "--benchmark", f"folder:{tmp_path / 'photos'}", "--out", str(tmp_path / "run"), *options]
    (whole,) = traced([train], tmp_path)
    one_by_one = traced([["observe", str(tmp_path / "state"), str(week), *options] for week in weeks], tmp_path)
    assert len(episodes(whole)) == 3 and min(map(len, episodes(whole))) > 100
    assert [without_votes(part) for part in episodes(whole)] == [episodes(trace)[0] for trace in one_by_one]
    way = ["opened", "Training.start", "Training.advance", "Training.finish", "Training.close"]
    assert [way] * 4 == [stages(trace) for trace in (whole, *one_by_one)]


def test_architecture_names_the_way_of_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A miniature of CIFAR-100, decoded for the first time."""
    monkeypatch.setenv("OSIRIS_CACHE", str(tmp_path / "cache"))
    names, labels = list(DATASETS["cifar100"].class_ids), [*range(100)]
    for split in ("train", "test"):
        path = tmp_path / "cifar100" / f"{split}-00000-of-00001.parquet"
        write_parquet(path, [png(label + (split == "test") * 100) for label in labels], labels, names)
    place = ["--data-dir", str(tmp_path), "--out", str(tmp_path / "run")]
    (trace,) = traced([["train", "--benchmark", "split-cifar100-2", *place, *OPTIONS]], tmp_path)
    names = [name for _, name in trace]
    loading = names.index("load_benchmark"), names.index("Training._normalised")
    learning = names.index("Training.advance"), names.index("Training.close")
    on_way = list(dict.fromkeys(file for start, end in (loading, learning) for file, _ in trace[start:end]))
    everywhere = re.findall(r"`([\w/]+\.py)`", section("Used everywhere"))
    numbered = re.findall(r"^\d+\. `([\w/]+\.py)`", TEXT, flags=re.MULTILINE)
    entered = [file for file in on_way if file not in everywhere]
    assert sorted(numbered) == sorted(entered) and rooms(numbered) == rooms(entered)
    assert len(numbered) <= 48
    before = re.findall(r"^- `([\w/]+\.py)`", section("Before there is an image"), flags=re.MULTILINE)
    others = [file for file in dict.fromkeys(file for file, _ in trace) if file not in on_way + everywhere]
    assert sorted(before) == sorted(others)
    assert "reporting/page.py" in section("The report")


def rooms(files: list[str]) -> list[str]:
    """In the order in which they are first entered."""
    return list(dict.fromkeys(file.rpartition("/")[0] for file in files))


def section(title: str) -> str:
    return TEXT.partition(f"### {title}\n")[2].partition("\n### ")[0]


def test_architecture_names_files_that_exist() -> None:
    places = re.findall(r"`([a-z_1/]+(?:\.py|/))`|`(tests/[\w/.]+)`", TEXT)
    paths = [ROOT / (place if place.startswith("tests") else f"src/osiris/{place}") for place in map("".join, places)]
    assert len(paths) > 60 and [path for path in paths if not path.exists()] == []


def test_architecture_names_the_layers() -> None:
    """As in .importlinter, from the command line down."""
    layers = (ROOT / ".importlinter").read_text().partition("layers =\n    __main__\n")[2].split()
    drawn = re.search(r"^    cli.*?(?=\n\n)", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert drawn is not None
    assert re.findall(r"\w+", drawn[0]) == [layer for layer in layers if layer != "|"]
