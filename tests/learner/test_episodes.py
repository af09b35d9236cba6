"""Which folders are one episode."""

from pathlib import Path

import pytest

from osiris.errors import UserError
from osiris.learner.episodes import check_folder
from pictures import write_pictures


@pytest.mark.parametrize("folders", [("100MEDIA", "101MEDIA"), ("100_PANA", "101CANON"), ("100APPLE", "2026-11")])
def test_folders_of_a_camera_are_one_episode(folders: tuple[str, ...], tmp_path: Path) -> None:
    for number, name in enumerate(folders):
        write_pictures(tmp_path / "2026-09" / name, 2, seed=number)
    check_folder(tmp_path / "state", tmp_path / "2026-09", None)


@pytest.mark.parametrize("folders", [("2026-09", "2026-10"), ("100 media", "101 media"), ("week 1", "week 2")])
def test_folders_of_episodes_are_not(folders: tuple[str, ...], tmp_path: Path) -> None:
    for number, name in enumerate(folders):
        write_pictures(tmp_path / "photos" / name, 2, seed=number)
    with pytest.raises(UserError, match=r"2 folders that look like episodes .* or --each to learn from each in order"):
        check_folder(tmp_path / "state", tmp_path / "photos", None)
    check_folder(tmp_path / "state", tmp_path / "photos", "all of it")
