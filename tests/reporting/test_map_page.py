"""The page of `osiris map` in a real browser: it opens without errors, and hover, click and search do what they say."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser import Page, browser, needs_browser
from osiris.reporting.map_page import MapImages, make_atlas, map_page
from pictures import picture

READY = "document.documentElement.dataset.pictures == 'ready'"
MARKUP = "2026-08/<img src=x onerror=alert(1)></script><script>alert(2)<!--.jpg"


def images(count: int = 60) -> MapImages:
    """On a grid; the nearest images of each are those after it."""
    random = np.random.default_rng(0)
    side = int(np.ceil(count**0.5))
    rows = np.arange(count)
    names = [f"2026-0{8 + row % 2}/picture {row:06d}.jpg" for row in rows.tolist()]
    if count > 7:
        names[7] = MARKUP
    return MapImages(
        names=names,
        places=np.stack([rows % side, rows // side], axis=1) + random.uniform(-0.1, 0.1, (count, 2)),
        near=(rows[:, None] + np.arange(1, 6)) % count,
        cosines=np.tile(np.linspace(0.9, 0.5, 5), (count, 1)),
        step=rows * 2 // count,
        steps=["2026-08", "2026-09"],
        month=["2026-08" if row * 2 < count else "2026-09" for row in rows],
        taken=["2026-08-01 10:00:00"] * count,
        folder=[name[:7] for name in names],
        group=rows % 3,
        medoids=[0, 1, 2],
        novelty=random.uniform(0, 1, count).astype(np.float32),
        size=np.tile([40, 30], (count, 1)),
        tags=["dog" if row % 3 else "" for row in rows],
        twins=[{"kind": "the same bytes", "images": [3, 4], "goes": [False, True]}],
        approximate=False,
    )


def write(path: Path, known: MapImages, **options: Any) -> Path:
    atlas = make_atlas((picture(row, (40, 30)) for row in range(len(known.names))), len(known.names))
    path.write_text(map_page("photos & <more>", known, atlas, options.get("link")), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("map") / "map.html", images())


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def page(chromium: Page, made: Path) -> Iterator[Page]:
    chromium.problems.clear()
    chromium.requests.clear()
    chromium.resize(1280, 800)
    chromium.open(made, READY)
    yield chromium
    assert not chromium.problems
    assert all(address.startswith(("file:", "blob:", "data:")) for address in chromium.requests)
    assert len({address for address in chromium.requests if address.startswith("file:")}) == 1, "one file"


def text(page: Page, selector: str) -> str:
    return page.ask(f"document.querySelector({selector!r}).innerText")


def at(page: Page, row: int) -> tuple[float, float]:
    x, y = page.ask(f"osirisMap.where({row})")
    return x, y


def test_nothing_that_a_name_holds_becomes_part_of_the_page(made: Path) -> None:
    html = made.read_text()
    assert "<img" not in html and "alert(2)<" not in html and html.count("<script") == 3
    assert "<title>photos &amp; &lt;more&gt;</title>" in html
    assert not re.search(r"(src|href)=", html.split("<script")[0]), "nothing is loaded"
    assert re.search("default-src 'none';script-src 'sha256-[A-Za-z0-9+/=]{44}'", html)


@needs_browser
def test_hover_shows_name_and_date(page: Page) -> None:
    page.mouse("Moved", *at(page, 7))
    page.until("!document.getElementById('tip').hidden")
    assert text(page, "#tip b") == MARKUP and "2026-08-01 10:00:00" in text(page, "#tip small")
    assert page.ask("document.querySelectorAll('#tip canvas').length") == 1
    assert page.ask("document.querySelectorAll('#tip img, #tip script').length") == 0
    page.mouse("Moved", 620, 5)
    page.until("document.getElementById('tip').hidden")


@needs_browser
def test_click_shows_the_nearest_images(page: Page) -> None:
    page.click(*at(page, 20))
    page.until("osirisMap.state.chosen == 20")
    assert text(page, "#content h2") == images().names[20]
    assert page.ask("[...document.querySelectorAll('#content .one')].map(one => +one.dataset.row)") == [*range(21, 26)]
    assert text(page, "#content .one small") == "0.90"
    page.ask("document.querySelector('#content .one').click()")
    assert page.ask("osirisMap.state.chosen") == 21
    page.key("2")
    page.until("osirisMap.state.chosen == 23")
    page.key("Escape")
    page.until("osirisMap.state.chosen == -1")


@needs_browser
def test_search_dims_the_others_and_enter_zooms_to_what_was_found(page: Page) -> None:
    page.ask("document.getElementById('search').focus()")
    page.call("Input.insertText", text="PICTURE 00003")
    page.until("osirisMap.state.query")
    found = page.ask("[...osirisMap.shown].flatMap((there, row) => there == 2 ? [row] : [])")
    assert found == [*range(30, 40)] and "10 images" in text(page, "#status")
    scale = page.ask("osirisMap.view.k")
    page.key("Enter")
    page.until(f"osirisMap.view.k > {scale * 1.2}")
    page.ask("document.getElementById('search').focus()")
    page.key("Escape")
    page.until("[...osirisMap.shown].every(there => there == 2)")


@needs_browser
def test_the_time_line_goes_from_month_to_month(page: Page) -> None:
    page.ask("document.querySelectorAll('#time .steps button')[0].click()")
    assert page.ask("[...osirisMap.shown]") == [2] * 30 + [0] * 30
    page.ask("document.querySelectorAll('#time .steps button')[1].click()")
    assert page.ask("[...osirisMap.shown]") == [1] * 30 + [2] * 30
    assert "30 images of 2026-09" in text(page, "#status")


@needs_browser
def test_colours_legend_and_duplicates(page: Page) -> None:
    options = page.ask("[...document.getElementById('colour').options].map(option => option.value)")
    assert options == ["month", "folder", "tag", "group", "novelty"]
    for option in options:
        page.ask(f"document.getElementById('colour').value = '{option}'; document.getElementById('colour').onchange()")
    page.ask("document.getElementById('colour').value = 'tag'; document.getElementById('colour').onchange()")
    assert re.sub(r"\s+", " ", text(page, "#legend")) == "none 20 dog 40"
    page.ask("document.querySelectorAll('#legend button')[1].click()")
    assert page.ask("[...osirisMap.shown].filter(there => there == 2).length") == 40
    page.ask("document.getElementById('tab-twins').click()")
    assert "1 the same bytes" in re.sub(r"\s+", " ", text(page, "#content"))
    assert page.ask("[...document.querySelectorAll('#content .go')].map(one => one.innerText)") == [
        "could go · 40 × 30"
    ]


@needs_browser
def test_dragging_moves_the_map_and_does_not_choose(page: Page) -> None:
    before = at(page, 20)
    page.mouse("Moved", *before)
    page.mouse("Pressed", *before, button="left", buttons=1, clickCount=1)
    page.mouse("Moved", before[0] + 60, before[1] + 30, buttons=1)
    page.mouse("Released", before[0] + 60, before[1] + 30, button="left", clickCount=1)
    assert at(page, 20) == pytest.approx((before[0] + 60, before[1] + 30), abs=0.5)
    assert page.ask("osirisMap.state.chosen") == -1
    page.call("Input.dispatchMouseEvent", type="mouseWheel", x=300, y=300, deltaX=0, deltaY=-200)
    page.until(f"Math.abs(osirisMap.where(20)[0] - {before[0] + 60}) > 5")


@needs_browser
def test_a_small_screen_keeps_the_map_above_the_panel(page: Page, made: Path) -> None:
    page.resize(390, 844)
    page.open(made, READY)
    top = page.ask("document.querySelector('aside').getBoundingClientRect().top")
    places = page.ask("osirisMap.names.map((_, row) => osirisMap.where(row))")
    assert all(0 <= x <= 390 and 0 < y < top for x, y in places)


@needs_browser
def test_links_open_the_files_where_they_are(chromium: Page, tmp_path: Path) -> None:
    known = images(4)
    (tmp_path / "a b").mkdir()
    for row in range(4):
        picture(row, (300, 200)).save(tmp_path / "a b" / f"{row}#.jpg")
    known = replace(known, near=known.near[:, :3], cosines=known.cosines[:, :3], medoids=[0])
    page = write(tmp_path / "map.html", known, link=[f"a%20b/{row}%23.jpg" for row in range(4)])
    chromium.problems.clear()
    chromium.open(page, READY)
    chromium.key("n")
    chromium.until("document.querySelector('.large img')?.naturalWidth == 300")
    assert chromium.ask("document.querySelector('#content h2 a').href").endswith("/a%20b/0%23.jpg")
    assert not chromium.problems


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize(("count", "pictures"), [(10_000, True), (100_000, False)])
def test_many_images(chromium: Page, tmp_path: Path, count: int, pictures: bool) -> None:
    known = images(count)
    atlas = make_atlas((picture(row % 500, (40, 30)) for row in range(count)), count) if pictures else None
    (tmp_path / "map.html").write_text(map_page("many", known, atlas, None))
    assert (tmp_path / "map.html").stat().st_size < 60e6
    chromium.resize(1280, 800)
    seconds = chromium.open(tmp_path / "map.html", "document.documentElement.dataset.ready && osirisMap.frames() > 0")
    chromium.until(READY)
    elements = chromium.ask("document.querySelectorAll('*').length")
    drawn, started = chromium.ask("osirisMap.frames()"), time.perf_counter()
    chromium.ask(
        "new Promise(done => { let n = 0; const move = () => { dispatchEvent(new KeyboardEvent('keydown', {key: "
        "n % 20 < 10 ? 'ArrowLeft' : 'ArrowRight'})); ++n < 60 ? requestAnimationFrame(move) : done(); }; move(); })"
    )
    rate = (chromium.ask("osirisMap.frames()") - drawn) / (time.perf_counter() - started)
    print(f"{count} images: {seconds:.2f} s to open, {rate:.0f} frames per second, {elements} elements")
    assert elements < 600 and seconds < 20 and rate > 5, "far from what a desktop does, and yet a bound"
