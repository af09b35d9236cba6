"""The pages and pictures of the methods say what the code does."""

import re
from pathlib import Path

import make_method_pages
import method_pictures
import pytest

from osiris.framework.methods import TRAINED, ZOO, find_method
from osiris.framework.tracing import trace
from osiris.reporting.framework_tables import ABOUT

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "methods"


@pytest.mark.whole
def test_pages_are_up_to_date() -> None:
    assert make_method_pages.documented() == list(ZOO)
    assert [path.name for path in make_method_pages.stale()] == [], "run python docs/make_method_pages.py"


def test_pictures_are_up_to_date() -> None:
    assert make_method_pages.stale_pictures() == [], "run python docs/make_method_pages.py"


def test_a_changed_fact_makes_a_page_stale() -> None:
    """In every part that is generated."""
    page = make_method_pages.renewed((DOCS / "osiris-d.md").read_text(encoding="utf-8"), "osiris-d")
    parts = re.findall(r"<!-- begin (\w+) -->\n(.*?)<!-- end", page, re.DOTALL)
    assert [name for name, _ in parts] == ["loss", "picture", "command", "cost", "published", "ours"]
    for name, text in parts:
        changed = page.replace(text, text.replace("a", "b"))
        assert changed != page, name
        assert make_method_pages.renewed(changed, "osiris-d") == page, name


@pytest.mark.parametrize("name", ZOO)
def test_every_page_has_its_parts(name: str) -> None:
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    trained = name in TRAINED
    for part in (*(("loss", "picture") if trained else ()), "command", "cost", "published", "ours"):
        assert f"<!-- begin {part} -->" in page, part
    for heading in ("What the logged numbers mean", "What the paper leaves open" if trained else "Limits"):
        assert f"## {heading}\n\n- " in page or f"## {heading}\n\nThe " in page, heading
    logged = {term for term, _, _ in find_method(name).weighted(20)}
    assert all(f"`terms.{term}`" in page for term in logged)


def test_links_of_the_pages_lead_somewhere() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    assert all(f"[{name}]({name}.md)" in index for name in [*ZOO, "ablations"])
    for page in DOCS.glob("*.md"):
        for target in (part.split(")")[0] for part in page.read_text(encoding="utf-8").split("](")[1:]):
            assert (DOCS / target).exists(), f"{page.name}: {target}"


def test_our_numbers_are_taken_from_the_results(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "tinyworld.md"
    head = "| method | seeds | A ↑ | F ↓ |\n|---|---|---:|---:|"
    few, many = f"{head}\n| ft | 1 | 1.0 | - |\n| er | 1 | 2.0 | - |", f"{head}\n| `er` | 3 | **4.0** ± 0.1 | - |"
    results.write_text(f"# Results\n\n**world, class-agnostic KNN (k = 2, fingerprint 0a1b)**\n\n{few}\n\n{many}\n")
    monkeypatch.setattr(make_method_pages, "RESULTS", tmp_path)
    assert "| world, class-agnostic KNN (k = 2) | 3 | 4.0 ± 0.1 | - | - | - | - |" in make_method_pages.ours("er")
    assert "2.0" not in make_method_pages.ours("er") and "| 1 | 1.0 |" in make_method_pages.ours("ft")
    assert make_method_pages.ours("lump").startswith("No runs of it")
    monkeypatch.setattr(make_method_pages, "RESULTS", tmp_path / "nowhere")
    assert make_method_pages.ours("er").startswith("No runs of it")


def test_a_picture_shows_every_network_and_loss() -> None:
    layout = method_pictures.lay_out(trace(find_method("osiris-d")))
    assert [lane.label for lane in layout.lanes] == ["g f(X)", "h f(X)", "h f(Y)", "h f*(X)"]
    assert [lane.frozen for lane in layout.lanes] == [(), (), (), ("f*",)]
    used = {term.name: [lane.label for lane in lanes] for term, lanes in layout.uses}
    assert used == {"current": ["g f(X)"], "cross": ["h f(X)", "h f(Y)"], "past": ["h f(X)", "h f*(X)"]}
    ewc = method_pictures.lay_out(trace(find_method("ewc")))
    assert [lane.label for lane in ewc.lanes] == ["g f(X)", "parameters θ", "F, θ*"]


def test_the_list_and_the_page_of_methods_say_the_same_in_one_line() -> None:
    page = (DOCS / "README.md").read_text(encoding="utf-8")
    lines = dict(re.findall(r"^\| \[([^\]]+)\]\([^)]+\) \| (.+) \|$", page, flags=re.MULTILINE))
    assert {name: lines[name] for name in ABOUT} == ABOUT and set(ABOUT) >= set(ZOO)
