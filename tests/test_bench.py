"""`osiris bench`: the speed of a step beside its encoder passes and a product, and what the command prints."""

import pytest
import torch

from osiris import bench
from osiris.cli import main
from osiris.presets import preset_config


def test_the_speed_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of 1, 2 and 4 seconds for a step, its encoder passes and a product; the work is counted."""
    engine, phase = bench.second_task("osiris-d", preset_config("smoke", "tinyworld"))
    images, times = engine.step(phase, 0).images, iter([1.0, 2.0, 4.0])
    monkeypatch.setattr(bench, "wall_seconds", lambda work, *given: (work(), next(times))[1])
    speed = bench.training_speed("smoke", preset_config("smoke", "tinyworld"), "cpu", 1)
    assert (speed.images, speed.of_passes) == (images, 2.0)
    flops = images * bench.later_cost(engine.method).work * bench.encoder_flops(engine.config.encoder, 32)
    assert speed.of_products == pytest.approx(flops / (2 * 4096**3 / 4))


@pytest.mark.parametrize("gpu", [True, False])
def test_the_command(gpu: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def measured(name: str, config: object, device: str, repeats: int) -> bench.Speed:
        assert (device, repeats) == ("cuda" if gpu else "cpu", 3)
        return bench.Speed(name, 1234.4, 0.91, 0.32)

    monkeypatch.setattr(bench, "training_speed", measured)
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    assert main(["bench", "--repeats", "3"]) == 0
    printed = capsys.readouterr().out
    shown = ("a GPU", "TF32, compiled") if gpu else (f"torch {torch.__version__}", "`fast`")
    assert all(text in printed for text in (*shown, "1234", "0.91", "0.32"))
    assert main(["bench", "--repeats", "0"]) == 2
