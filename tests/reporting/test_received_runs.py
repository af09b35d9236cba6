"""Received runs: hostile text is harmless everywhere, and damaged runs are named and left out."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from osiris.cli import main
from osiris.errors import UserError
from osiris.reporting.page import make_report
from osiris.reporting.studies import studies
from osiris.runs.run import load_runs
from osiris.runs.untrusted import LONGEST_NAME, harmless, safe_name
from tiny_runs import episode
from web_page import checked

EVIL = (
    "x/../../../README\x1b[31m[/b][red]\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 * 7 }}$x_$\u202e"
)
Place = tuple[str, ...]
"""Where a string stands in JSON: keys, `*` for any element of a list, `=` at the end for a key itself."""


def strings(value: Any, place: Place = ()) -> Iterator[Place]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*place, key, "=")
            yield from strings(item, (*place, key))
    elif isinstance(value, list):
        for item in value:
            yield from strings(item, (*place, "*"))
    elif isinstance(value, str):
        yield place


def replaced(value: Any, places: set[Place], place: Place = ()) -> Any:
    if isinstance(value, dict):
        return {
            EVIL if (*place, key, "=") in places else key: replaced(item, places, (*place, key))
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [replaced(item, places, (*place, "*")) for item in value]
    return EVIL if isinstance(value, str) and place in places else value


def rewrite(run: Path, name: str, change: Callable[[Any], Any]) -> None:
    path = run / name
    if path.suffix == ".jsonl":
        lines = [json.dumps(change(json.loads(line))) for line in path.read_text().splitlines()]
        path.write_text("\n".join(lines) + "\n")
    else:
        path.write_text(json.dumps(change(json.loads(path.read_text()))))


def places_of(path: Path) -> set[Place]:
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    return {place for line in lines for place in strings(json.loads(line))}


def accepted(run: Path) -> bool:
    """Whether a run is reported; if not, one line must say so."""
    try:
        known, damaged = studies(load_runs([run]))
    except UserError as error:
        assert str(run) in str(error)
        return False
    assert len(known) + len(damaged) == 1 and all(str(run) in line and line.isprintable() for line in damaged)
    return bool(known)


@pytest.fixture
def run(real_runs: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(real_runs["osiris-d"], tmp_path / "work" / "runs" / "run"))


def test_a_hostile_string_in_any_place_is_harmless(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Each string alone is accepted or refused in one line; then all accepted ones are reported at once."""
    tried = 0
    (run / "progress.json").unlink()  # with it, metrics.json would be made again
    for name in ("metrics.json", "config.json", "environment.json", "log.jsonl"):
        original, harmless = (run / name).read_text(), set()
        for place in sorted(places_of(run / name)):
            if place[-1] == "=" and name != "metrics.json" and "terms" not in place:
                continue  # other keys are fields: a renamed one is a missing one
            rewrite(run, name, lambda value, place=place: replaced(value, {place}))
            harmless |= {place} if accepted(run) else set()
            (run / name).write_text(original)
            tried += 1
        assert {("method",), ("benchmark",), ("task_names", "*")} <= harmless or name != "metrics.json"
        rewrite(run, name, lambda value, harmless=harmless: replaced(value, harmless))
    assert tried > 60
    (tmp_path / "work" / "README.md").write_text("mine")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    out = tmp_path / "work" / "o[/b]x"
    monkeypatch.chdir(tmp_path / "work")
    assert main(["report", str(run), "--out", str(out)]) == 0
    for path in tmp_path.rglob("*"):
        assert path.is_relative_to(out) or path in out.parents or before.get(path) == path.stat().st_mtime_ns, path
        if path.is_relative_to(out):
            assert re.fullmatch(r"[A-Za-z0-9.+-]+", path.name) or path == out
            assert path.suffix in (".png", ".pdf") or path.is_dir() or "\x1b" not in path.read_text(), path
            assert path.suffix != ".md" or "<" not in path.read_text(), path
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err and "o[/b]x/report.html" in captured.out
    check_page(out / "report.html")


def places_of_value(value: Any) -> set[Place]:
    return set(strings(value))


def check_page(page: Path) -> None:
    text, parser = page.read_text(), checked(page)
    assert "README" in text and "&lt;script&gt;" in text, "hostile text is shown as text"
    assert not parser.tags & {"script", "iframe", "object", "embed", "link", "form"}
    assert not any(name.startswith("on") for name in parser.attributes)
    assert all(target.startswith(("#", "data:image/", "data:text/plain")) for _, target in parser.references)
    assert all(re.fullmatch(r"[A-Za-z0-9.+_-]+", identifier) for identifier in parser.ids)
    assert "49" not in re.findall(r"<h1>(.*?)</h1>", text)[0], "text is not a template"


def cut(name: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[: (run / name).stat().st_size // 2])


def written(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda run: (run / name).write_bytes(content)


def changed(name: str, *keys: str | int, to: Any) -> Callable[[Path], object]:
    def change(value: Any) -> Any:
        inner = value
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = to
        return value

    return lambda run: rewrite(run, name, change)


def inside(run: Path, task: int, file: str) -> str:
    return str(getattr(episode(run, task), file).relative_to(run))


def beyond(run: Path) -> None:
    path = episode(run, 10).evaluation
    arrays = load_file(path)
    arrays["projection.indices"] = arrays["projection.indices"] + np.int32(10**6)
    save_file(arrays, path)


INDEX = {"recall": [[], [50.0]], "same_class": [[], []]}
SIZES = {"k": 10, "queries": 1, "gallery": 11, "map_images": 1, "same_class": [1.0, 2.0]}
MISSHAPEN = json.dumps(SIZES | {"raw": INDEX, "mapped": INDEX})

METRICS = ("metrics", "seed", "no ", "lost", "a protocol", "matrix", "environment of other")
DAMAGE: dict[str, Callable[[Path], object]] = {
    "metrics cut": cut("metrics.json"),
    "metrics empty": written("metrics.json", b""),
    "metrics not text": written("metrics.json", b"\xff\xfe\x00"),
    "metrics a list": written("metrics.json", b"[1, 2]"),
    "metrics nested too deep": written("metrics.json", b"[" * 100_000),
    "seed a word": changed("metrics.json", "seed", to="zero"),
    "no tasks": changed("metrics.json", "task_names", to=[]),
    "no evaluations": changed("metrics.json", "evaluations", to=[]),
    "lost evaluations of no task": changed("metrics.json", "lost", to=[99]),
    "a protocol of its own": changed("metrics.json", "protocols", "mine", to=None),
    "matrix of another shape": changed("metrics.json", "protocols", "class-agnostic", "accuracy_matrix", to=[[1.0]]),
    "environment of other tasks": changed("metrics.json", "environments", to=[["indoor", [99]]]),
    "config cut": cut("config.json"),
    "config a list": written("config.json", b"[]"),
    "environment empty": written("environment.json", b""),
    "environment of words": written("environment.json", b'["command"]'),
    "log of words": written("log.jsonl", b'{"event": "step", "task": "one", "step": {}, "loss": 1, "terms": {}}\n'),
    "arrays cut": lambda run: cut(inside(run, 10, "evaluation"))(run),
    "arrays empty": lambda run: written(inside(run, 3, "evaluation"), b"")(run),
    "indices beyond the arrays": beyond,
    "compatibility of another shape": written("compatibility.json", MISSHAPEN.encode()),
    "compatibility cut": written("compatibility.json", MISSHAPEN[:40].encode()),
    "checkpoint not one": lambda run: written(inside(run, 2, "weights"), b"garbage" * 9)(run),
}


def test_damaged_runs_are_named_and_left_out(
    run: Path, real_runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """All at once, beside one good run: each is refused in a line of its own, and the good one is reported."""
    broken = []
    for number, (name, damage) in enumerate(DAMAGE.items()):
        copy = Path(shutil.copytree(run, run.parent / f"broken-{number}", ignore=shutil.ignore_patterns("*.pt")))
        if name.startswith(METRICS):  # which would be made again from the files that progress.json names
            (copy / "progress.json").unlink()
        damage(copy)
        broken.append(copy)
        assert not accepted(copy), name
    good = tmp_path / "good"
    good.mkdir()
    shutil.copy(real_runs["ft"] / "metrics.json", good)
    page = make_report([*broken, good], tmp_path / "report")
    said = capsys.readouterr().err.replace("\n", "") + page.read_text()
    assert all(copy.name in said for copy in broken), "each one is named"
    assert "1 seed" not in said and "ft" in page.read_text()
    with pytest.raises(UserError, match=r"can be read|damaged|readable"):
        make_report(broken, tmp_path / "none")


COMPARED = {
    "an evaluation nested too deep": written("metrics.json", b'{"a": ' * 100_000),
    "config null": written("config.json", b'{"config": null}'),
    "config nested too deep": written("config.json", b'{"config": ' * 100_000),
    "baselines nested too deep": written("baselines.json", b'{"a": ' * 100_000),
    "baselines a list": written("baselines.json", b"[]"),
    "baselines of words": written("baselines.json", b'{"baselines": {"pixels": {"protocols": "high"}}}'),
}


@pytest.mark.parametrize("damage", [*COMPARED.values(), *DAMAGE.values()], ids=[*COMPARED, *DAMAGE])
def test_a_damaged_run_is_compared_or_named_in_one_line(
    damage: Callable[[Path], object], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    damage(run)
    code = main(["compare", str(run), "--format", "csv"])
    told = capsys.readouterr().err
    assert code == 0 or (code == 2 and str(run) in told and len(told.strip().splitlines()) == 1)


@pytest.mark.parametrize("form", ["text", "markdown", "latex", "csv"])
def test_a_comparison_shows_hostile_text_as_text(form: str, run: Path, capsys: pytest.CaptureFixture[str]):
    places: set[Place] = {("method",), ("benchmark",), ("task_names", "*"), ("fingerprint", "benchmark"), ("preset",)}
    rewrite(run, "metrics.json", lambda value: replaced(value, places))
    measured = {"baselines": {EVIL: {"protocols": {"class-agnostic": [50.0] * 10}, "task_level": None}}}
    (run / "baselines.json").write_text(json.dumps(measured))
    assert main(["compare", str(run), "--format", form]) == 0
    shown = capsys.readouterr()
    assert "README" in shown.out and "\x1b" not in repr(shown.out).replace("\\x1b", "")
    assert form != "markdown" or not re.search(r"<|\]\(|[^\\]\|[^ \n]", shown.out)


def test_names_of_files_stay_inside_and_short():
    assert safe_name("tinyworld-class-agnostic") == "tinyworld-class-agnostic"
    for name in (EVIL, "..", "/", "", "a" * 5000, "b" * 5000, "c:\\d", "nul\0"):
        made = safe_name(name)
        assert re.fullmatch(r"[A-Za-z0-9.+-]+", made) and ".." not in made and len(made) <= LONGEST_NAME
    assert safe_name("a" * 5000) != safe_name("a" * 4999 + "b"), "cut names stay apart"
    assert harmless({"a\x1b": ["\u202eb\n", 1, None]}) == {"a\\x1b": ["\\u202eb ", 1, None]}


def test_a_report_does_not_write_through_links_or_into_a_run(run: Path, tmp_path: Path):
    with pytest.raises(UserError, match="is a run directory"):
        make_report([run], run)
    with pytest.raises(UserError, match="is a file"):
        make_report([run], run / "config.json")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("mine")
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "figures").symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match="is a link"):
        make_report([run], tmp_path / "report")
    assert (tmp_path / "precious" / "file").read_text() == "mine"
