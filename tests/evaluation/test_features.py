import dataclasses

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from osiris.augment.views import normalise
from osiris.console import Display, Ticker
from osiris.data.images import ArrayImages
from osiris.evaluation.config import ProtocolConfig
from osiris.evaluation.evaluate import evaluate_features
from osiris.evaluation.features import Features, embed, embed_benchmark

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


class Counting(nn.Module):
    """Flattens; counts the images it has seen and remembers in which mode."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.seen = 0
        self.modes: set[tuple[bool, bool]] = set()

    def forward(self, images):
        self.seen += len(images)
        self.modes.add((self.training, torch.is_grad_enabled()))
        return self.drop(images.flatten(1))


@pytest.fixture
def images():
    return ArrayImages(np.random.default_rng(0).integers(0, 256, (23, 3, 4, 4), dtype=np.uint8))


def test_values_are_those_of_the_normalised_images_in_order(images):
    ticker = Ticker(Display(), "embedding", 23)
    features = embed(Counting(), images, MEAN, STD, batch_size=5, ticker=ticker)
    expected = (images.array / 255.0 - np.array(MEAN).reshape(3, 1, 1)) / np.array(STD).reshape(3, 1, 1)
    np.testing.assert_allclose(features.numpy(), expected.reshape(23, -1), rtol=1e-5, atol=1e-5)
    assert features.dtype == torch.float32 and not features.requires_grad
    assert ticker.done == 23, "progress counts images"
    pixel = torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)
    assert normalise(pixel, MEAN, STD).flatten().tolist() == pytest.approx([2.5, 2.4, 0.7 / 0.3])


def test_eval_mode_during_and_every_submodule_as_before_afterwards(images):
    encoder = Counting().train()
    encoder.drop.eval()  # a frozen part stays frozen
    before = torch.get_rng_state()
    embed(encoder, images, MEAN, STD)
    assert encoder.modes == {(False, False)}
    assert encoder.training and not encoder.drop.training
    assert torch.equal(before, torch.get_rng_state()), "no global randomness is consumed"


def test_modes_come_back_after_an_error(images):
    class Failing(nn.Module):
        def forward(self, images):
            raise RuntimeError("no")

    encoder = Failing().train()
    with pytest.raises(RuntimeError):
        embed(encoder, images, MEAN, STD)
    assert encoder.training and torch.is_grad_enabled()


def test_twenty_checkpoints_under_all_protocols_cost_twenty_passes(make_benchmark):
    tasks = tuple((2 * task, 2 * task + 1) for task in range(20))
    benchmark = make_benchmark(torch.arange(200) % 40, torch.arange(80) % 40, tasks, (("all", tuple(range(20))),))
    protocol = ProtocolConfig(k=5, protocols=("class-agnostic", "task-aware", "task-aware-masked"), probe=False)
    encoder = Counting()
    for _ in range(20):
        evaluate_features(embed_benchmark(encoder, benchmark), benchmark, protocol)
    assert encoder.seen == 20 * (200 + 80)


def test_features_are_saved(tmp_path):
    features = Features(torch.randn(5, 3), torch.randn(2, 3))
    features.save(tmp_path / "features.safetensors")
    loaded = load_file(tmp_path / "features.safetensors")
    assert features.test is not None
    assert torch.equal(loaded["bank"], features.bank) and torch.equal(loaded["test"], features.test)
    dataclasses.replace(features, test=None).save(tmp_path / "bank.safetensors")
    assert load_file(tmp_path / "bank.safetensors").keys() == {"bank"}
