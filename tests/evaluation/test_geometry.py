import numpy as np
import pytest
import torch

from osiris.evaluation import geometry
from osiris.evaluation.geometry import class_similarity, neighbours_of_some, projection, similarity_histogram
from osiris.evaluation.health import fixed_subset


def unit(features: torch.Tensor) -> np.ndarray:
    rows = features.numpy().astype(np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_class_similarity_against_a_double_loop():
    features, label = torch.randn(30, 6), torch.arange(30) % 4
    label[label == 3] = 2  # class 3 is empty
    rows = unit(features)
    result = class_similarity(features, label, 4)
    for a in range(3):
        for b in range(3):
            pairs = [
                rows[i] @ rows[j] for i in range(30) for j in range(30) if i != j and label[i] == a and label[j] == b
            ]
            assert abs(float(result[a, b]) - np.mean(pairs)) < 1e-5
    assert result[3].isnan().all() and result[:, 3].isnan().all()
    single = class_similarity(torch.eye(2), torch.tensor([0, 1]), 2)
    assert single[0, 0].isnan() and single[0, 1] == 0, "a class of one image has no pair with itself"


def test_histogram_against_a_double_loop(monkeypatch):
    features, label = torch.randn(40, 3), torch.arange(40) % 3
    rows = unit(features)
    expected = np.zeros((2, 200), dtype=int)
    for i in range(40):
        for j in range(i + 1, 40):
            place = min(199, int((rows[i] @ rows[j] + 1) * 100))
            expected[int(label[i] != label[j]), place] += 1
    result = similarity_histogram(features, label).numpy()
    assert result.sum() == 40 * 39 / 2 and np.abs(result - expected).sum() <= 4  # a value on the edge of a bin may move
    monkeypatch.setattr("osiris.evaluation.knn.CHUNK_ENTRIES", 40 * 7)
    assert (similarity_histogram(features, label).numpy() == result).all()
    equal = similarity_histogram(torch.ones(5, 3), torch.zeros(5, dtype=torch.int64))
    assert equal[0, -1] == 10 and equal.sum() == 10, "equal images are in the last bin"


@pytest.mark.parametrize("wide", [4, 3, 1000], ids=str)
def test_projection_is_the_singular_vectors_of_the_bank_with_fixed_signs(wide: int, monkeypatch: pytest.MonkeyPatch):
    """Also of features that are too wide for all axes."""
    monkeypatch.setattr(geometry, "WIDE", wide)
    scale = torch.tensor([5.0, 3.0, 1.0, 0.5])
    bank, test = torch.randn(200, 4) * scale, torch.randn(30, 4) * scale
    indices, points = projection(bank, test)
    assert indices.tolist() == list(range(30))
    rows = unit(bank)
    _, _, axes = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    for axis in range(2):
        direction = axes[axis] * np.sign(axes[axis][np.abs(axes[axis]).argmax()])
        np.testing.assert_allclose(points[:, axis].numpy(), (unit(test) - rows.mean(axis=0)) @ direction, atol=1e-5)
    _, points = projection(torch.randn(10, 1), torch.randn(4, 1))
    assert points.shape == (4, 2) and (points[:, 1] == 0).all()


@pytest.mark.parametrize("images", [30, 200])
def test_features_that_are_zero_or_one_direction_are_projected(images: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(geometry, "WIDE", 50)
    assert (projection(torch.zeros(images, 60), torch.zeros(4, 60))[1] == 0).all()
    line = torch.linspace(-1, 1, images)[:, None] * torch.ones(60)
    assert projection(line, line)[1].isfinite().all()


def test_neighbours_are_the_nearest_in_order():
    bank, test = torch.randn(300, 8), torch.randn(80, 8)
    indices, result = neighbours_of_some(bank, test)
    assert len(indices) == geometry.NEIGHBOUR_IMAGES
    similarity = unit(test) @ unit(bank).T
    for query, row in zip(indices.tolist(), result.tolist(), strict=True):
        assert row == np.argsort(-similarity[query])[:5].tolist()


def test_fixed_subset_is_fixed_sorted_and_not_a_stride():
    chosen = fixed_subset(10_000, 1000)
    assert torch.equal(chosen, fixed_subset(10_000, 1000)) and len(chosen.unique()) == 1000
    assert (chosen.diff() > 0).all() and len(chosen.diff().unique()) > 5
    assert fixed_subset(7, 1000).tolist() == list(range(7))
