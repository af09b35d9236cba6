"""The conventions of scikit-learn, by its own checks."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import base
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_array, check_is_fitted

from osiris.errors import UserError
from osiris.learner import Learner
from tiny_runs import pictures

OPTIONS: dict[str, Any] = {"preset": "smoke", "memory_size": 8, "epochs": 1, "batch_size": 8, "threads": 1}
FREE_SIZE = "images of any size are scaled, so the number of columns is not fixed"
EXPECTED_TO_FAIL = {
    "check_no_attributes_set_in_init": "`options` collects the options of osiris train",
    "check_do_not_raise_errors_in_init_or_set_params": "set_params refuses an unknown option at once",
    "check_n_features_in_after_fitting": FREE_SIZE,
    "check_n_features_in": FREE_SIZE,
    "check_transformer_general": FREE_SIZE,
    "check_fit2d_1sample": "the message speaks of images, not of samples",
}


def clone(learner: Learner) -> Learner:
    copy = base.clone(learner)
    assert isinstance(copy, Learner)
    return copy


class TableLearner(Learner):
    """scikit-learn checks estimators with tables of numbers: each row becomes an image of 8 x 8 pixels."""

    def observe(self, images: Any, *given: Any, **named: Any) -> Learner:
        return super().observe(self._draw(images), *given, **named)

    def embed(self, images: Any) -> np.ndarray:
        return super().embed(self._draw(images))

    def _draw(self, table: Any) -> np.ndarray:
        values = np.clip(128 + 20 * check_array(table), 0, 255).astype(np.uint8)
        return values[:, np.arange(64) % values.shape[1]].reshape(-1, 8, 8)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags


@pytest.mark.slow
@parametrize_with_checks(
    [TableLearner(**OPTIONS, image_size=8)], expected_failed_checks=lambda estimator: EXPECTED_TO_FAIL
)
def test_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def test_in_a_pipeline(tmp_path: Path) -> None:
    images, labels, _ = pictures(6, seed=1)
    images = images.transpose(0, 2, 3, 1)
    temporary = Learner(**OPTIONS, method="ft")
    with pytest.raises(NotFittedError):
        check_is_fitted(temporary)
    pipeline = make_pipeline(temporary, KNeighborsClassifier(1)).fit(images, labels)
    assert (pipeline.predict(images) == labels).all()
    check_is_fitted(temporary)
    first = temporary.transform(images)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(temporary)).transform(images), first)
    np.testing.assert_array_equal(clone(temporary).fit(images).transform(images), first)
    assert not np.allclose(temporary.partial_fit(images[::2]).transform(images), first), "it learned on"
    folder = temporary.folder
    temporary.fit(images)
    assert not folder.exists() and temporary.status()["episodes"] == [("episode 1", len(images))]

    kept = Learner(tmp_path / "state", method="ft", **OPTIONS).fit(images)
    assert pickle.loads(pickle.dumps(kept)).get_params() == kept.get_params()
    with pytest.raises(UserError, match=r"holds a state\. Call partial_fit to continue"):
        clone(kept).fit(images)
    frozen = make_pipeline(FrozenEstimator(kept), KNeighborsClassifier(1)).fit(images, labels)
    assert (frozen.predict(images) == labels).all() and len(kept.status()["episodes"]) == 1


def test_parameters() -> None:
    learner = Learner("state", "ft", epochs=3)
    assert repr(learner) == "Learner(path='state', method='ft', epochs=3)"
    assert clone(learner).set_params(epochs=4, seed=2).get_params()["epochs"] == 4
    assert learner.get_params()["epochs"] == 3 and learner.get_params()["seed"] is None
    with pytest.raises(ValueError, match="unknown option 'epoch'"):
        learner.set_params(epoch=4)
