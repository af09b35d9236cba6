"""The classes on the page are those of examples/, which the tests run (tests/commands/test_own_parts.py)."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_class_on_the_page_is_an_example() -> None:
    page = (ROOT / "docs" / "your-own.md").read_text(encoding="utf-8")
    shown = re.findall(r"```python\n(.*?)```.*?The file: `(.*?)`", page, flags=re.DOTALL)
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").glob("own_*.py")}
    assert {file for _, file in shown} == files - {"examples/own_encoder.py", "examples/own_images.py"}
    for code, file in shown:
        assert code.strip() in (ROOT / file).read_text(encoding="utf-8"), file
