import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image

from osiris.errors import UserError
from osiris.evaluation.reference import (
    Reference,
    ReferenceScores,
    leave_one_out,
    movement,
    read_reference,
    score_reference,
)


def test_leave_one_out_against_a_naive_loop():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(4).repeat(8)
    features = torch.randn(32, 5, generator=generator) + 1.5 * torch.eye(4, 5)[labels]
    unit = features / features.norm(dim=1, keepdim=True)
    expected = []
    for image in range(32):
        others = sorted((one for one in range(32) if one != image), key=lambda one: -float(unit[one] @ unit[image]))
        votes = [0.0] * 4
        for one in others[:3]:
            votes[int(labels[one])] += math.exp(float(unit[one] @ unit[image]) / 0.1)
        expected.append(votes.index(max(votes)) == int(labels[image]))
    hits = leave_one_out(features, labels, k=3)
    assert hits.tolist() == expected and 0 < sum(expected) < 32


def test_features_that_turn_together_keep_their_neighbours():
    features = torch.randn(30, 6, generator=torch.Generator().manual_seed(1))
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(2)))[0]
    assert movement(features, features) == (pytest.approx(0, abs=1e-6), 100)
    drift, same = movement(features, features @ rotation)
    assert drift > 0.3 and same == 100
    assert movement(features, torch.randn(30, 6, generator=torch.Generator().manual_seed(3)))[1] < 60


def test_movement_against_a_naive_loop():
    before, after = (torch.randn(12, 7, generator=torch.Generator().manual_seed(seed)) for seed in (4, 5))

    def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
        return float(one @ other) / math.sqrt(float(one @ one) * float(other @ other))

    def nearest(features: torch.Tensor, image: int) -> set[int]:
        others = [one for one in range(12) if one != image]
        return set(sorted(others, key=lambda one: -cosine(features[one], features[image]))[:5])

    drift, same = movement(before, after)
    assert drift == pytest.approx(sum(1 - cosine(*pair) for pair in zip(before, after)) / 12, rel=1e-5)
    shared = [len(nearest(before, image) & nearest(after, image)) / 5 for image in range(12)]
    assert same == pytest.approx(100 * sum(shared) / 12)


def test_the_pixels_of_other_reference_images_are_measured_again():
    """Also if the labels alone are others."""
    images = np.random.default_rng(0).integers(0, 256, (10, 3, 4, 4)).astype(np.uint8)
    images[:5, 0], images[5:, 2] = 0, 0
    labels = torch.arange(2).repeat_interleave(5)
    reference = Reference(images, labels, ["no red", "no blue"], [])

    def scores(one: Reference, earlier: ReferenceScores | None = None) -> ReferenceScores:
        return score_reference(one, lambda pixels: torch.ones(len(pixels), 2), earlier)

    first = scores(reference)
    for changed in (
        Reference(np.roll(images, 1, axis=0), labels, reference.classes, []),
        Reference(images, labels.roll(1), reference.classes, []),
    ):
        assert scores(changed, first) == scores(changed) and scores(changed).pixels != first.pixels
    marked = msgspec.structs.replace(first, pixels=-1.0)
    assert scores(reference, marked).pixels == -1.0, "the same images are not measured again"


def test_the_reference_is_a_folder_of_classes(tmp_path: Path):
    for name, colour in (("dark", 20), ("light", 220)):
        (tmp_path / name / "deep").mkdir(parents=True)
        for number in range(6):
            Image.fromarray(np.full((20, 24, 3), colour + number, np.uint8)).save(tmp_path / name / f"{number}.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "dark" / "deep" / "x.png")
    (tmp_path / "light" / "broken.png").write_bytes(b"not an image")
    reference = read_reference(tmp_path, 16)
    assert reference.classes == ["dark", "light"] and reference.images.shape == (13, 3, 16, 16) and reference.k == 1
    assert "broken.png was left out" in reference.notices[0]
    brightness = score_reference(reference, lambda images: torch.from_numpy(images).float().mean((2, 3)) - 100)
    assert brightness.accuracy == 100 and brightness.per_class == [100, 100] and brightness.images == 13
    again = score_reference(reference, lambda images: torch.ones(len(images), 2), brightness)
    assert again.digest == brightness.digest and again.pixels == brightness.pixels
    with pytest.raises(UserError, match="at least two subfolders"):
        read_reference(tmp_path / "dark", 16)
    (tmp_path / "grey").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "grey" / "alone.png")
    with pytest.raises(UserError, match="each class needs two images or more"):
        read_reference(tmp_path, 16)
