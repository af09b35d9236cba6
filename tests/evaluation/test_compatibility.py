"""The map between two encoders and the compatibility of the encoders of a run, against loops."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from osiris.data.benchmark import Benchmark
from osiris.errors import UserError
from osiris.evaluation import versions
from osiris.evaluation.compatibility import PENALTIES, apply_map, fit_map, recall_at
from osiris.evaluation.features import Features
from osiris.evaluation.scores import Compatibility, IndexScores
from osiris.evaluation.versions import measure_compatibility, roles

TASKS = ((0, 1), (2, 3))


def unit(features: torch.Tensor) -> np.ndarray:
    rows = features.numpy().astype(np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def naive_map(rows: np.ndarray, target: np.ndarray, penalty: float) -> np.ndarray:
    inverse = np.linalg.inv(rows @ rows.T + penalty * np.eye(len(rows)))
    return np.eye(rows.shape[1]) + rows.T @ inverse @ (target - rows)


def naive_error(rows: np.ndarray, target: np.ndarray, penalty: float) -> float:
    """Each pair is left out of a fit of its own."""
    error = 0.0
    for i in range(len(rows)):
        others = np.arange(len(rows)) != i
        weight = naive_map(rows[others], target[others], penalty)
        error += float(((rows[i] @ weight - target[i]) ** 2).sum())
    return error


def pairs(n: int, d: int, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    old = torch.randn(n, d) * torch.linspace(2, 0.2, d)
    return old, old @ (torch.eye(d) + 0.3 * torch.randn(d, d)) + noise * torch.randn(n, d)


@pytest.mark.parametrize(("n", "d"), [(12, 20), (40, 8), (8, 8), (2, 5), (1, 3)])
@pytest.mark.parametrize("noise", [0.0, 0.3, 30.0])
def test_the_map_is_the_ridge_with_the_least_leave_one_out_error(n: int, d: int, noise: float):
    old, new = pairs(n, d, noise)
    rows, target = unit(old), unit(new)
    errors = [naive_error(rows, target, penalty) for penalty in PENALTIES]
    expected = naive_map(rows, target, PENALTIES[int(np.argmin(errors))])
    np.testing.assert_allclose(fit_map(old, new).numpy(), expected, atol=1e-5)


def test_the_noise_decides_the_penalty():
    """The cases above are no test of the choice if it is always the same."""
    chosen = set()
    for noise in (0.0, 0.3, 30.0):
        old, new = pairs(40, 8, noise)
        chosen.add(int(np.argmin([naive_error(unit(old), unit(new), penalty) for penalty in PENALTIES])))
    assert len(chosen) > 1


def test_the_map_ignores_lengths_and_undoes_a_rotation():
    old = torch.randn(200, 16)
    rotation, _ = torch.linalg.qr(torch.randn(16, 16))
    new = old @ rotation
    weight = fit_map(old, new)
    assert torch.allclose(weight, rotation, atol=1e-3)
    assert torch.allclose(fit_map(old * torch.rand(200, 1), 3 * new), weight, atol=1e-5)
    unseen = torch.randn(10, 16)
    np.testing.assert_allclose(apply_map(7 * unseen, weight).numpy(), unit(unseen @ rotation), atol=1e-2)
    stretched = torch.randn(16, 16)
    np.testing.assert_allclose(apply_map(7 * unseen, stretched).numpy(), unit(unseen @ stretched), atol=1e-5)


def test_equal_vectors_give_the_identity():
    old = torch.randn(5, 9)
    assert torch.equal(fit_map(old, old), torch.eye(9))


def test_recall_is_the_share_of_true_neighbours():
    found = torch.stack([torch.randperm(30)[:12] for _ in range(25)])
    truth = torch.stack([torch.randperm(30)[:11] for _ in range(25)])
    shares = [len(set(a[:10]) & set(b[:10])) / 10 for a, b in zip(found.tolist(), truth.tolist())]
    assert recall_at(10, found, truth) == pytest.approx(np.mean(shares))
    assert recall_at(3, torch.tensor([[1, 2, 3, 4]]), torch.tensor([[3, 2, 9, 1]])) == pytest.approx(2 / 3)
    assert recall_at(2, torch.tensor([[5, 6]]), torch.tensor([[6, 5]])) == 1


def features_of(benchmark: Benchmark, with_test: bool = True) -> list[Features]:
    """Three encoders, each a distortion of the one before, of classes that overlap."""
    assert benchmark.bank.label is not None and benchmark.test is not None and benchmark.test.label is not None
    centres = 1.5 * torch.randn(4, 6)
    bank, test = (centres[part.label] + torch.randn(len(part), 6) for part in (benchmark.bank, benchmark.test))
    made = [Features(bank, test if with_test else None)]
    for _ in range(2):
        distortion = torch.eye(6) + 0.6 * torch.randn(6, 6)
        bank, test = ((part @ distortion + 0.2 * torch.randn(len(part), 6)).relu() for part in (bank, test))
        made.append(Features(bank, test if with_test else None))
    return made


def naive_neighbours(query: np.ndarray, index: np.ndarray) -> list[int]:
    similarity = [float(query @ row) for row in index]
    return sorted(range(len(index)), key=lambda place: -similarity[place])[:10]


def naive(
    old: np.ndarray, new: np.ndarray, queries: np.ndarray, fitted: list[int], gallery: list[int], mapped: bool
) -> tuple[float, list[list[int]]]:
    """(recall in percent, bank images found by each query); all rows are of length 1."""
    index = old
    if mapped:
        errors = [naive_error(old[fitted], new[fitted], penalty) for penalty in PENALTIES]
        index = unit(torch.from_numpy(old @ naive_map(old[fitted], new[fitted], PENALTIES[int(np.argmin(errors))])))
    shares, found = [], []
    for query in queries:
        true = naive_neighbours(query, new[gallery])
        ours = naive_neighbours(query, index[gallery])
        shares.append(len(set(true) & set(ours)) / 10)
        found.append([gallery[place] for place in ours])
    return 100 * float(np.mean(shares)), found


@pytest.fixture
def made(make_benchmark: Callable[..., Benchmark]) -> Benchmark:
    torch.manual_seed(3)
    return make_benchmark(torch.arange(60) % 4, torch.arange(18) % 4, TASKS)


@pytest.mark.parametrize("with_test", [True, False])
def test_every_pair_against_loops(made: Benchmark, with_test: bool):
    encoders = features_of(made, with_test)
    result = measure_compatibility(encoders, made)
    fitted, gallery, chosen = (part.tolist() for part in roles(60, 18 if with_test else 0))
    split = made.test if with_test else made.bank
    assert split is not None and split.label is not None and made.bank.label is not None
    label, asked = made.bank.label.numpy(), split.label.numpy()[chosen]
    assert (result.queries, result.gallery, result.map_images) == (len(chosen), len(gallery), len(fitted))
    for t, new in enumerate(encoders):
        everything = new.bank if new.test is None else new.test
        queries = unit(everything)[chosen]
        for s in range(t):
            for mapped, scores in ((False, result.raw), (True, result.mapped)):
                recall, found = naive(unit(encoders[s].bank), unit(new.bank), queries, fitted, gallery, mapped)
                assert scores.recall[t][s] == pytest.approx(recall), (t, s, mapped)
                assert scores.same_class[t][s] == pytest.approx(100 * np.mean(label[found] == asked[:, None]))
        recall, found = naive(unit(new.bank), unit(new.bank), queries, fitted, gallery, mapped=False)
        assert recall == 100 and result.same_class[t] == pytest.approx(100 * np.mean(label[found] == asked[:, None]))
    assert [len(row) for row in result.raw.recall] == [0, 1, 2]
    assert (result.mapped.mean_recall or 0) > (result.raw.mean_recall or 100) + 5, "or the case shows nothing"


def test_the_same_encoder_is_compatible_with_itself_and_a_rotated_one_after_a_map(made: Benchmark):
    first = features_of(made)[0]
    assert first.test is not None
    rotation, _ = torch.linalg.qr(torch.randn(6, 6))
    result = measure_compatibility([first, first, Features(first.bank @ rotation, first.test @ rotation)], made)
    assert result.raw.recall[1] == [100] and result.mapped.recall[1] == [100]
    assert max(result.raw.recall[2]) < 70 and min(result.mapped.recall[2]) > 95


def test_without_labels_there_is_recall_alone(made: Benchmark):
    encoders = features_of(made)
    bare = replace(made, bank=replace(made.bank, label=None))
    result = measure_compatibility(encoders, bare)
    assert result.raw.recall == measure_compatibility(encoders, made).raw.recall
    assert result.raw.same_class == [[], [None], [None, None]] and result.same_class == [None] * 3
    assert result.mean_same_class is None and result.mapped.mean_same_class is None


@pytest.mark.parametrize(
    ("bank", "test", "sizes"),
    [(5000, 3000, (1000, 4000, 2000)), (1200, 800, (600, 600, 800)), (100, 0, (40, 40, 20)), (30, 1, (15, 15, 1))],
)
def test_an_image_has_one_role(bank: int, test: int, sizes: tuple[int, int, int]):
    fitted, gallery, queries = roles(bank, test)
    assert (len(fitted), len(gallery), len(queries)) == sizes
    of_bank: list[Tensor] = [fitted, gallery] if test else [fitted, gallery, queries]
    assert torch.cat(of_bank).sort().values.equal(torch.arange(bank))
    assert all(part.equal(again) for part, again in zip((fitted, gallery, queries), roles(bank, test)))


@pytest.mark.parametrize(("bank", "test"), [(20, 5), (4, 0)])
def test_too_few_images_are_refused(bank: int, test: int):
    with pytest.raises(UserError, match=f"{bank} bank images leave"):
        roles(bank, test)


def test_numbers_for_tables_are_means_over_pairs():
    raw = IndexScores(recall=[[], [10.0], [20.0, 60.0]], same_class=[[], [1.0], [2.0, 6.0]])
    mapped = IndexScores(recall=[[], [40.0], [50.0, 90.0]], same_class=[[], [None], [None, None]])
    sizes = {"k": versions.NEIGHBOURS, "queries": 1, "gallery": 2, "map_images": 3}
    record = Compatibility(**sizes, raw=raw, mapped=mapped, same_class=[9.0, 30.0, 60.0])
    assert record.values() == {"R@10 raw": 30, "R@10 mapped": 60}
    assert raw.mean_same_class == 3 and mapped.mean_same_class is None
    assert record.mean_same_class == (30 + 60 + 60) / 3, "t = 3 has two pairs"
