"""The page as a whole: complete, well-formed, self-contained, and made from run directories alone."""

import csv
import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from osiris.cli import main
from osiris.reporting.benchmark_images import find_images
from osiris.reporting.page import make_report
from osiris.reporting.studies import studies
from osiris.runs.run import load_runs
from web_page import checked

FIGURES = (
    *("overview", "accuracy", "trade-off", "losses", "health", "tasks", "neighbours"),
    *("matrices-class-agnostic", "matrices-task-aware", "norms", "overfitting", "memory", "storage"),
    *("similarity", "distributions", "maps", "compatibility", "images", "views"),
)


def test_the_page_is_well_formed_and_refers_to_nothing_outside(full_report: Path):
    page_parts = checked(full_report)
    assert page_parts.open == [] and len(page_parts.ids) == len(set(page_parts.ids))
    for tag, target in page_parts.references:
        assert target.startswith(("#", "data:")), (tag, target[:80])
        if target.startswith("#") and tag == "a":
            assert target[1:] in page_parts.ids, f"{target} leads nowhere"
    text = full_report.read_text()
    assert "All &lt;methods&gt; &amp; more" in text
    assert "@import" not in text and not re.search(r"url\((?!#|['\"]?data:)", text)
    assert page_parts.images_without_words == 0
    assert not page_parts.tags & {"script", "iframe", "object", "embed", "link"}
    assert "Content-Security-Policy\" content=\"default-src 'none';" in text


def test_every_figure_says_what_to_see_its_protocol_seeds_and_commands(full_report: Path):
    text = full_report.read_text()
    figures = re.findall(r"<figure.*?</figure>", text, re.DOTALL)
    assert len(figures) > 15
    for figure in figures:
        title = re.findall(r"<h3>(.*?)</h3>", figure)
        assert len(title) == 1
        see = re.findall(r'<p class="see">(.*?)</p>', figure)[0]
        assert see.endswith(".") and len(see) > 40, title
        caption = re.findall(r"<figcaption>(.*?)</figcaption>", figure, re.DOTALL)[0]
        assert re.search(r'made by commands? <a href="#run-\d+">', caption), title
        if "KNN" in caption:
            assert re.search(r"(seed \d|\d seeds)", caption), title
    assert sum("KNN" in figure.split("<figcaption>")[1] for figure in figures) >= 8


def test_the_full_page_has_every_section(full_report: Path):
    text = full_report.read_text()
    for name in ("results", "training", "tasks", "components", "memory", "geometry", "costs", "data"):
        assert f'<section id="section-tinyworld-{name}">' in text, name
    for name in FIGURES:
        assert (full_report.parent / "figures" / f"tinyworld-{name}.png").exists(), name
        assert f'<figure id="tinyworld-{name}">' in text, name
    assert "untrained encoder" in text and "their numbers mean nothing" in text.split("<section")[0], "scale on top"
    for name in ("ablation-class-agnostic", "ablation-task-aware", "environments", "cost"):
        assert (full_report.parent / "tables" / f"tinyworld-{name}.tex").exists(), name


def test_files_of_figures_and_tables_are_whole(full_report: Path):
    folder = full_report.parent
    vectors, pixels = sorted((folder / "figures").glob("*.svg")), sorted((folder / "figures").glob("*.png"))
    assert [path.stem for path in vectors] == [path.stem for path in pixels] and len(vectors) > 15
    for path in vectors:
        root = ElementTree.parse(path).getroot()
        assert root.tag.endswith("svg") and root.find("{http://www.w3.org/2000/svg}title") is not None
    for path in pixels:
        with Image.open(path) as image:
            assert min(image.size) > 100 and np.ptp(np.asarray(image.convert("L"))) > 0, path.name
    tables = {path.stem for path in (folder / "tables").iterdir()}
    for name in tables:
        assert {path.suffix for path in (folder / "tables").glob(f"{name}.*")} == {".csv", ".md", ".tex"}
        with (folder / "tables" / f"{name}.csv").open() as file:
            rows = list(csv.reader(file))
        assert len(rows) > 1 and all(len(row) == len(rows[0]) for row in rows)


def test_claims_are_judged_with_numbers(full_report: Path):
    rows = {row["claim"]: row for row in csv.DictReader((full_report.parent / "tables" / "claims.csv").open())}
    assert len(rows) > 40
    best = rows["best-accuracy"]
    assert best["verdict"] == "undecided" and "in favour: A: osiris-d" in best["numbers"], "two seeds"
    assert "means against" in rows["replay-gains"]["numbers"], "the copies give osiris-d the higher K"
    assert rows["lump-alpha"]["verdict"] == "not run"
    assert rows["above-offline"]["published tables"] == "holds on structured-tiny-imagenet"


def test_the_best_method_is_marked(full_report: Path):
    rows = list(csv.DictReader((full_report.parent / "tables" / "tinyworld-class-agnostic.csv").open()))
    assert rows[0]["method"] == "untrained encoder" and rows[1]["method"] == "ft"
    assert [row["method"] for row in rows if row["A mark"] == "best"] == ["osiris-d"]
    assert [row["method"] for row in rows if row["A mark"] == "second"] == ["osiris-r"]
    assert rows[-1]["method"] == "offline", "references come last"
    assert "(BatchNorm)" not in str(rows) and len([row for row in rows if row["method"] == "ft"]) == 1


def metrics_alone(run: Path, folder: Path, **changes: str) -> Path:
    """A run of which nothing but metrics.json was copied."""
    folder.mkdir()
    metrics = json.loads((run / "metrics.json").read_text())
    metrics["fingerprint"] |= changes
    metrics["benchmark"] = changes.get("benchmark", metrics["benchmark"])
    (folder / "metrics.json").write_text(json.dumps(metrics))
    return folder


def test_the_command_line_replaces_only_its_own_files_and_the_same_runs_give_the_same_page(
    real_runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run, out = metrics_alone(real_runs["ft"], tmp_path / "run"), tmp_path / "page"
    metrics = json.loads((run / "metrics.json").read_text())
    metrics["protocols"] = {"class-agnostic": metrics["protocols"]["class-agnostic"] | {"A": None}}
    (run / "metrics.json").write_text(json.dumps(metrics))
    for name in ("figures", "tables"):
        (tmp_path / name / name).mkdir(parents=True)
        (tmp_path / name / name / "own.svg").write_text("mine")
        assert main(["report", str(run), "--out", str(tmp_path / name)]) == 2
        assert "own.svg would be deleted" in capsys.readouterr().err.replace("\n", " ")
        assert (tmp_path / name / name / "own.svg").read_text() == "mine"
    for _ in range(2):
        assert main(["report", str(run), "--out", str(out)]) == 0
        assert "report.html" in capsys.readouterr().out
        assert not (out / "figures" / "old.svg").exists()
        (out / "figures" / "old.svg").write_text("old")
        (out / "notes.txt").write_text("mine")
    assert {file.name for file in out.iterdir()} == {"report.html", "figures", "tables", "notes.txt"}
    text = (out / "report.html").read_text()
    assert make_report([run], tmp_path / "again").read_text() == text
    assert main(["report", str(tmp_path / "nothing")]) == main(["report", "--out", str(tmp_path)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_metrics_of_two_benchmarks_are_enough_for_two_chapters(real_runs: dict[str, Path], tmp_path: Path):
    """Without config, log, checkpoints and arrays there is less to show, and the page says so."""
    one = metrics_alone(real_runs["osiris-d"], tmp_path / "one")
    two = metrics_alone(real_runs["ft"], tmp_path / "two", benchmark="split-cifar100-20")
    page = make_report([one, two], tmp_path / "report")
    text = page.read_text()
    assert "config.json was not copied along" in text and 'id="tinyworld-accuracy"' in text
    assert 'id="tinyworld-losses"' not in text
    assert 'id="section-tinyworld-results"' in text and 'id="section-split-cifar100-20-results"' in text
    assert '<th scope="row" class="sub">paper</th>' in text, "published numbers stand beside ours"
    assert checked(page).open == []


def test_other_data_leaves_the_images_out(real_runs: dict[str, Path], tmp_path: Path):
    run = metrics_alone(real_runs["ft"], tmp_path / "run", split="another version")
    shutil.copy(real_runs["ft"] / "config.json", run)
    source = find_images(studies(load_runs([run]))[0][0])
    assert source.benchmark is None and "is not the one of the runs" in source.reason


def test_images_without_labels_have_figures_of_their_own(real_runs: dict[str, Path], tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(real_runs["osiris-d"], run)
    metrics = json.loads((run / "metrics.json").read_text())
    for entry in metrics["evaluations"] + metrics["curve"]:
        for name in ("protocols", "environments"):
            entry.pop(name, None)
    names = [f"<b>&$ walk {number}_" for number in range(10)]
    metrics |= {"labelled": False, "protocols": {}, "task_level": [], "missing": "no labels here", "task_names": names}
    metrics |= {"benchmark": "folder:/home/me & you/pictures", "environments": []}
    (run / "metrics.json").write_text(json.dumps(metrics))
    page = make_report([run], tmp_path / "report")
    page_parts, text = checked(page), page.read_text()
    assert (
        page_parts.open == [] and "no labels here" in text and "The paper's claims" not in text and "<b>&$" not in text
    )
    names = {path.stem for path in (tmp_path / "report" / "figures").glob("*.png")}
    for name in ("losses", "health", "episodes", "neighbours", "maps", "memory", "images"):
        assert f"folder-home-me-you-pictures-{name}" in names, name
    assert "tinyworld" not in " ".join(names) and "guessing gives 10%" in text
