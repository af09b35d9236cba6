import csv
import os
from pathlib import Path

import pytest

from osiris.files import csv_text, write_text


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_a_file_has_the_permissions_that_the_user_asks_for(mask: int, mode: int, tmp_path: Path) -> None:
    """A state holds images: whoever sets umask 077 does not want others to read them."""
    before = os.umask(mask)
    try:
        write_text(tmp_path / "file", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_is_on_the_disk_before_it_takes_its_place(recorded: list[tuple[str, str]], tmp_path: Path) -> None:
    """Otherwise a power cut leaves an empty file under the name of the old one."""
    write_text(tmp_path / "file", "text")
    temporary = recorded[0][1]
    assert recorded == [("fsync", temporary), ("replace", temporary)] and temporary.endswith(".tmp")


def test_a_name_is_no_formula_of_a_spreadsheet() -> None:
    names = ["=cmd|' /C calc'!A0", "@sum(1)", "+cmd", "-x", "\t=1"]
    harmless = ["ft", "-", "+1.2", "-.5", "- 3", "a=b", -1.5, None]
    first, second = csv_text([names, harmless]).splitlines()
    assert [cell.startswith("'") for cell in next(csv.reader([first]))] == [True] * 5
    assert next(csv.reader([second])) == ["ft", "-", "+1.2", "-.5", "- 3", "a=b", "-1.5", ""]
