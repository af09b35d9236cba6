"""`osiris bench`: the two sides of a ratio do the same work, and the command prints a row for each."""

import pytest
import torch

from osiris import bench
from osiris.augment.views import TwoViews
from osiris.cli import main
from osiris.presets import smoke
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
    def one(repeats: int) -> list[bench.Ratio]:
        return [bench.Ratio(f"{repeats} turns", 1.234, at_most=2)]

    monkeypatch.setattr(bench, "PARTS", (one,))
    assert main(["bench", "--repeats", "3"]) == 0
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("3 turns", "1.23", "at most 2", "met"))
    assert main(["bench", "--repeats", "0"]) == 2


def test_the_speed_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of 1, 2 and 4 seconds for a step, its encoder passes and a product; the work is counted."""
    engine, phase = bench.second_task("osiris-d", smoke("tinyworld"))
    images, times = engine.step(phase, 0).images, iter([1.0, 2.0, 4.0])
    monkeypatch.setattr(bench, "wall_seconds", lambda work, *given: (work(), next(times))[1])
    speed = bench.training_speed("smoke", smoke("tinyworld"), "cpu", 1)
    assert (speed.images, speed.of_passes) == (images, 2.0)
    flops = images * bench.later_cost(engine.method).work * bench.encoder_flops(engine.config.encoder, 32)
    assert speed.of_products == pytest.approx(flops / (2 * 4096**3 / 4))


def test_the_command_on_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench, "PARTS", ())
    monkeypatch.setattr(bench, "on_gpu", lambda repeats: [bench.Speed("bf16", 1234.4, 0.91, 0.32)])
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    assert main(["bench", "--repeats", "3"]) == 0
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("a GPU", "bf16", "1234", "0.91", "0.32"))
