import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from osiris.errors import UserError
from osiris.evaluation.observations import leave_one_out, movement, read_reference, score_reference


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
