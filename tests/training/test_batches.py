"""Where the training images lie, and that a batch has the right ones."""

import pytest
import torch

from osiris.data.images import LazyImages, Subset
from osiris.training import batches
from osiris.training.schedule import TrainingImages
from tiny_runs import benchmark

META = torch.device("meta")


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> int:
    """A device with room for the images, to the byte. The meta device stands in for it."""
    train = benchmark().train
    size = 10 * len(train) * 3 * train.images.shape[1] * train.images.shape[2]
    monkeypatch.setattr(batches, "total_memory", lambda device: size if device == META else None)
    return size


def test_images_are_kept_where_they_take_a_tenth_of_the_memory(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    train = benchmark().train
    assert TrainingImages(train.images, META).kept is not None
    assert TrainingImages(train.images, META, keep=False).kept is None
    assert TrainingImages(train.images, torch.device("cpu"), keep=True).kept is None
    monkeypatch.setattr(batches, "total_memory", lambda device: room - 10)
    assert TrainingImages(train.images, META).kept is None
    assert TrainingImages(train.images, META, keep=True).kept is not None


def test_images_that_must_be_decoded_are_kept_on_request_only(room: int) -> None:
    train = benchmark().train
    lazy = LazyImages(len(train), train.images.shape[1], lambda rows: [], str)
    assert TrainingImages(lazy, META).kept is None
    assert TrainingImages(Subset(lazy, torch.arange(len(train))), META).kept is None


def test_a_batch_has_the_images_of_its_positions(room: int) -> None:
    images = benchmark().train.images
    kept = TrainingImages(images, META)
    assert kept.take(torch.tensor([3, 1])).shape == (2, *images.shape)
    host = TrainingImages(images, torch.device("cpu"))
    assert torch.equal(host.take(torch.tensor([3, 1])), images.take(torch.tensor([3, 1])))
