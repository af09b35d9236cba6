"""`osiris bench`: the two sides of a ratio do the same work, and the command prints a row for each."""

import pytest
import torch

from osiris import bench
from osiris.augment.views import TwoViews
from osiris.cli import main
from osiris.randomness import generator


def test_the_pipeline_with_pillow_makes_the_same_views() -> None:
    images = bench.smooth_images(6)
    arrays = images.permute(0, 2, 3, 1).contiguous().numpy()
    theirs = bench.pillow_two_views(arrays, generator(0, "augment.x"))
    ours = TwoViews(bench.MEAN, bench.STD)(images, generator(0, "augment.x"))
    difference = (ours - theirs) * torch.tensor(bench.STD).view(3, 1, 1)
    assert difference.abs().mean() < 4 / 255


def test_a_ratio_is_the_median_over_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([9.0, 1.0, 2.0, 1.0, 12.0, 2.0, 8.0, 2.0])  # the first turn is left out
    monkeypatch.setattr(bench, "cpu_seconds", lambda work: next(times))
    assert bench.ratio(lambda: None, lambda: None, 3) == 4.0


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def one(repeats: int) -> list[bench.Row]:
        return [bench.Row(f"{repeats} turns", 1.234, at_most=2)]

    monkeypatch.setattr(bench, "PARTS", (one,))
    assert main(["bench", "--repeats", "3"]) == 0
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("3 turns", "1.23", "at most 2", "met"))
    assert main(["bench", "--repeats", "0"]) == 2
