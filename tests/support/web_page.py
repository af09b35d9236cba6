"""Reads a page as a browser would: open elements, ids, attributes, and what it refers to."""

from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "img", "br", "path", "circle", "rect", "use", "image", "link", "input", "hr"}


class Checker(HTMLParser):
    """Counts open elements, ids, and what the page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[tuple[str, str]] = []
        self.images_without_words = 0
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        values = {name: value or "" for name, value in attrs}
        if tag not in VOID:
            self.open.append(tag)
        if "id" in values:
            self.ids.append(values["id"])
        for name in ("src", "href", "xlink:href", "action", "srcset", "poster", "data"):
            if name in values:
                self.references.append((tag, values[name]))
        if tag == "img" and not values.get("alt"):
            self.images_without_words += 1

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
            self.open.pop()


def checked(page: Path) -> Checker:
    checker = Checker()
    checker.feed(page.read_text())
    checker.close()
    return checker
