import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeClassifier
from sklearn.preprocessing import StandardScaler

from osiris.evaluation.config import PROBE, PROTOCOLS, RAW, ProtocolConfig
from osiris.evaluation.evaluate import evaluate_features
from osiris.evaluation.features import Features
from osiris.evaluation.probe import RIDGES, ask, fit, solutions
from osiris.evaluation.protocols import questions
from osiris.evaluation.statistics import mean

PROBED = tuple(name for name in PROTOCOLS if name.endswith(PROBE))


def images(count, dimension, classes=3, seed=0):
    random = torch.Generator().manual_seed(seed)
    features = torch.randn(count, dimension, generator=random) * torch.logspace(-2, 2, dimension) + 5
    return features, torch.randint(0, classes, (count,), generator=random)


@pytest.mark.parametrize("shape", [(120, 7), (40, 90)])
@pytest.mark.parametrize("ridge", [1e-3, 1.0])
def test_the_same_as_the_ridge_classifier_of_scikit_learn(shape, ridge):
    """More images than features, and fewer: outputs and predictions."""
    (features, label), (queries, _) = images(*shape), images(50, shape[1], seed=1)
    scaler = StandardScaler().fit(features.double().numpy())
    theirs = RidgeClassifier(alpha=ridge * shape[0]).fit(scaler.transform(features.double().numpy()), label.numpy())
    expected = theirs.decision_function(scaler.transform(queries.double().numpy()))  # of targets -1 and 1
    ours = solutions(features, label, 3, [ridge])[0].outputs(queries).numpy()
    np.testing.assert_allclose(2 * ours - 1, expected, atol=1e-5)
    assert (ours.argmax(1) == theirs.predict(scaler.transform(queries.double().numpy()))).all()


def test_the_minimum_is_the_minimum():
    """The gradient of the objective, written out in NumPy, vanishes at the solution."""
    features, label = images(60, 5)
    fitted = solutions(features, label, 3, [0.1])[0]
    rows = features.double().numpy()
    rows = (rows - rows.mean(0)) / rows.std(0)
    weight = fitted.weight.numpy() * features.double().numpy().std(0)[:, None]
    residual = rows @ weight + fitted.bias.numpy() - np.eye(3)[label.numpy()]
    assert np.abs(rows.T @ residual / 60 + 0.1 * weight).max() < 1e-9
    assert np.abs(residual.mean(0)).max() < 1e-9


def test_the_scale_of_features_does_not_matter():
    features, label = images(100, 6)
    one, other = fit(features, label, 3), fit(features * torch.logspace(3, -3, 6), label, 3)
    torch.testing.assert_close(
        one.outputs(features), other.outputs(features * torch.logspace(3, -3, 6)), atol=1e-4, rtol=0
    )
    assert one.ridge == other.ridge


def test_the_ridge_is_chosen_on_held_out_images():
    """200 noise features for 100 images: only a large ridge generalises. A thin boundary among many images: a small one
    does as well."""
    random = torch.Generator().manual_seed(1)
    label = torch.arange(100) % 2
    noisy = torch.randn(100, 200, generator=random)
    noisy[:, 0] += 2 * label
    assert fit(noisy, label, 2).ridge >= 1e-1
    clear = torch.randn(4000, 3, generator=random)
    clear[:, 1] = clear[:, 0] + 0.01 * clear[:, 1]  # the class is in a small difference of two features
    assert fit(clear, (clear[:, 1] > clear[:, 0]).long(), 2).ridge < 1e-3 < max(RIDGES)


def test_all_protocols_on_separable_features(make_benchmark):
    bank_label, test_label = torch.arange(240) % 6, torch.arange(60) % 6
    benchmark = make_benchmark(bank_label, test_label, ((4, 1), (0, 5), (3, 2)))
    centres = 4 * torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    features = Features(centres[bank_label] + torch.randn(240, 10), centres[test_label] + torch.randn(60, 10))
    numbers = evaluate_features(features, benchmark, ProtocolConfig(k=5, probe=True, protocols=RAW)).numbers
    assert tuple(numbers.protocols) == (*RAW, *PROBED)
    for name in PROBED:
        assert min(value or 0 for value in numbers.protocols[name].accuracy) > 95, name
    assert len(numbers.protocols["task-aware-probe"].ridges) == 3
    assert len(numbers.protocols["class-agnostic-probe"].ridges) == 1
    assert numbers.protocols["class-agnostic"].ridges == []


def test_numbers_of_the_knn_do_not_change(clustered):
    """With the probe there are more of them, and no others."""
    features, benchmark = clustered
    plain, probed = (evaluate_features(features, benchmark, ProtocolConfig(probe=probe)) for probe in (False, True))
    with_probe = probed.numbers.plain()
    for name in ("class-agnostic-probe", "task-aware-probe"):
        assert (mean(with_probe["protocols"].pop(name)["accuracy"]) or 0) > 30
        assert f"prediction.{name}" in probed.arrays and f"prediction.{name}" not in plain.arrays
    assert with_probe == plain.numbers.plain()


def test_answers_are_those_of_the_classes_that_are_asked_for(make_benchmark):
    """Noise: a masked answer is of the task, and one of the task's own probe as well."""
    bank_label, test_label = torch.arange(120) % 6, torch.arange(30) % 6
    benchmark = make_benchmark(bank_label, test_label, ((4, 1), (0, 5), (3, 2)))
    assert benchmark.test is not None
    answers = ask(torch.randn(120, 4), torch.randn(30, 4), questions(benchmark, PROBED))
    classes = torch.tensor(benchmark.tasks)[benchmark.test.task]
    for name in ("task-aware-probe", "task-aware-masked-probe"):
        assert (answers[name].prediction[:, None] == classes).any(dim=1).all()
        assert (answers[name].classes[:, 2:] == -1).all()
    whole, masked = (answers[name].classes for name in ("class-agnostic-probe", "task-aware-masked-probe"))
    assert not torch.equal(whole[:, 0], masked[:, 0])
    inside = (whole[:, 0, None] == classes).any(dim=1)
    assert torch.equal(whole[inside, 0], masked[inside, 0])


def test_tiny_banks_and_constant_features():
    features = torch.tensor([[1.0, 7.0], [2.0, 7.0], [3.0, 7.0]])
    fitted = fit(features, torch.tensor([0, 0, 1]), 2)
    assert fitted.outputs(torch.tensor([[2.5, 7.0]])).isfinite().all()
    assert (fitted.weight[1] == 0).all() and fitted.ridge == pytest.approx(1e-2)
    collapsed = fit(torch.ones(10, 4), torch.tensor([0] * 7 + [1] * 3), 2)
    assert collapsed.outputs(torch.ones(1, 4))[0].tolist() == pytest.approx([0.7, 0.3])
