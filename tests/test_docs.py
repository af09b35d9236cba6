"""The documentation names files that exist, and the path of one image stays short."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_architecture_names_files_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text()
    steps = re.findall(r"^\d+\. `([\w/]+\.py)`", text, flags=re.MULTILINE)
    assert 30 < len(steps) <= 45
    places = re.findall(r"`([a-z_1/]+(?:\.py|/))`|`(tests/[\w/.]+)`", text)
    paths = [ROOT / (place if place.startswith("tests") else f"src/osiris/{place}") for place in map("".join, places)]
    assert len(paths) > 60 and [path for path in paths if not path.exists()] == []
