"""tinyworld: deterministic, ordered by environment, and not to be solved from raw pixels."""

import hashlib

import numpy as np
import pytest

from osiris.data import tinyworld
from osiris.data.catalogue import DATASETS
from osiris.data.tinyworld import objects, painting, shapes

CLASSES = len(tinyworld.CLASS_NAMES)


@pytest.fixture(scope="module")
def world() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    return *tinyworld.render("train", 40), *tinyworld.render("test", 10)


def test_ten_tasks_of_four_ordered_by_environment():
    assert CLASSES >= 40 and len(set(tinyworld.CLASS_NAMES)) == CLASSES
    assert [label for task in tinyworld.TASKS for label in task] == list(range(CLASSES))
    assert len(tinyworld.TASKS) == 10 and all(len(task) == 4 for task in tinyworld.TASKS)
    assert tinyworld.ENVIRONMENTS == (("indoor", (0, 1, 2, 3)), ("city", (4, 5, 6)), ("wild", (7, 8, 9)))


def test_more_images_never_change_the_earlier_ones():
    """Also across the border of a chunk, and for classes asked for alone and in another order."""
    many, labels = tinyworld.render("train", tinyworld.CHUNK + 5, [7, 30])
    few, _ = tinyworld.render("train", tinyworld.CHUNK - 3, [30])
    np.testing.assert_array_equal(many[labels == 30][: len(few)], few)
    swapped, swapped_labels = tinyworld.render("train", 3, [30, 7])
    assert swapped_labels.tolist() == [30] * 3 + [7] * 3
    np.testing.assert_array_equal(swapped[:3], few[:3])
    np.testing.assert_array_equal(swapped[3:], many[labels == 7][:3])


def test_the_pictures_are_the_same_on_every_cpu(monkeypatch):
    """Compared before they are rounded to eight bits, which hides most differences in the last digit."""
    digest = hashlib.sha256()

    def painted(*arguments):
        picture = painting.paint(*arguments)
        digest.update(picture.astype("<f4").tobytes())
        return picture

    monkeypatch.setattr(tinyworld, "paint", painted)
    digest.update(tinyworld.render("test", 2)[0].tobytes())
    assert digest.hexdigest()[:16] == "ba914f9a25bbb5fa"


def test_splits_classes_and_images_differ(world):
    images, labels, test_images, _ = world
    assert images.dtype == np.uint8 and (np.bincount(labels) == 40).all()
    flat = np.concatenate([images, test_images]).reshape(-1, 3 * 32 * 32)
    assert len(np.unique(flat, axis=0)) == len(flat)
    first = [images[labels == label][0].astype(int) for label in (0, 1)]
    assert np.abs(first[0] - first[1]).mean() > 2


def test_channel_statistics_are_those_of_the_images(world):
    pixels = world[0].astype(np.float64) / 255
    np.testing.assert_allclose(pixels.mean(axis=(0, 2, 3)), DATASETS["tinyworld"].mean, atol=0.01)
    np.testing.assert_allclose(pixels.std(axis=(0, 2, 3)), DATASETS["tinyworld"].std, atol=0.01)


def normalised(images: np.ndarray) -> np.ndarray:
    flat = images.reshape(len(images), -1).astype(np.float32) / 255 - 0.5
    return flat / np.linalg.norm(flat, axis=1, keepdims=True)


def nearest_neighbours(images: np.ndarray, labels: np.ndarray, queries: np.ndarray, answers: np.ndarray) -> float:
    """Accuracy of ten neighbours by the cosine of their pixels, weighted as in the protocol (tau = 0.1)."""
    cosine = normalised(queries) @ normalised(images).T
    neighbours = np.argsort(-cosine, axis=1)[:, :10]
    weights = np.exp(np.take_along_axis(cosine, neighbours, axis=1) / 0.1)
    votes = np.stack([(weights * (labels[neighbours] == label)).sum(1) for label in range(CLASSES)], axis=1)
    return float((votes.argmax(1) == answers).mean())


def test_raw_pixels_do_not_solve_it(world):
    """Nearest class mean below 40%; the colour alone near chance inside an environment; KNN far from solved."""
    images, labels, test_images, test_labels = world
    flat, queries = (part.reshape(len(part), -1).astype(np.float32) for part in (images, test_images))
    means = np.stack([flat[labels == label].mean(axis=0) for label in range(CLASSES)])
    distances = (means**2).sum(1) - 2 * queries @ means.T
    assert (distances.argmin(1) == test_labels).mean() < 0.30

    colours, query_colours = (part.mean(axis=(2, 3)) for part in (images, test_images))
    centres = np.stack([colours[labels == label].mean(axis=0) for label in range(CLASSES)])
    nearest = ((query_colours[:, None] - centres) ** 2).sum(-1).argmin(1)
    assert (nearest == test_labels).mean() < 0.15

    assert nearest_neighbours(*world) < 0.40


KINDS = {name: draw for task in objects.TASKS for name, draw in task.kinds.items()}


@pytest.mark.parametrize("draw", KINDS.values(), ids=KINDS)
def test_every_object_fits_and_is_seen(draw):
    """Inside 1.15 of the unit circle, covering a fair part of it; what is painted on it lies mostly inside."""
    line = np.linspace(-1.5, 1.5, 121, dtype=np.float32)
    u, v = (part[None] for part in np.meshgrid(line, line))
    body, marks = draw(u, v, np.full((1, 1, 1), 0.5, np.float32))
    inside = body < 0
    assert not inside[np.hypot(u, v) > 1.15].any()
    assert 0.2 < inside.sum() / (np.hypot(u, v) < 1).sum() < 0.95
    if marks is not None:
        assert 0.02 < ((marks < 0) & inside).sum() / inside.sum() < 0.7


def test_kinds_of_a_task_differ_in_structure():
    """Drawn alike in place, size and angle, two kinds of a task still differ in a good part of the object."""
    line = np.linspace(-1, 1, 65, dtype=np.float32)
    u, v = (part[None] for part in np.meshgrid(line, line))
    half = np.full((1, 1, 1), 0.5, np.float32)
    for task in objects.TASKS:
        pictures = []
        for draw in task.kinds.values():
            body, marks = draw(u, v, half)
            pictures.append((body < 0) * 1 + (0 if marks is None else (body < 0) & (marks < 0)))
        for a in range(4):
            for b in range(a):
                assert (pictures[a] != pictures[b]).mean() > 0.02, (task.name, a, b)


def test_one_variation_at_a_time_changes_the_picture():
    """Every one of the first numbers of an image (place, size, angle, stretch, structure, colours) matters."""
    about = KINDS["striped cushion"], 0.5, painting.ENVIRONMENTS[0]
    base = np.full((1, painting.PARAMETERS), 1 << 62, np.uint64)
    picture = painting.paint(*about, base)
    for column in range(12):
        other = base.copy()
        other[0, column] = np.uint64(3 << 62)
        assert np.abs(painting.paint(*about, other) - picture).mean() > 1e-4, column


def test_distances_are_exact_where_they_can_be():
    point = np.array([[[3.0]]], np.float32), np.array([[[4.0]]], np.float32)
    assert shapes.circle(*point, 1.0).item() == pytest.approx(4)
    assert shapes.box(*point, 1.0, 1.0).item() == pytest.approx(np.hypot(2, 3))
    assert shapes.segment(*point, (0, 0), (0, 4), 0.5).item() == pytest.approx(2.5)
    assert shapes.ring(shapes.circle(*point, 5.5), 0.2).item() == pytest.approx(0.3)
    centre = np.zeros((1, 1, 1), np.float32)
    assert shapes.polygon(centre, centre, 4, 1.0).item() == pytest.approx(-np.sqrt(0.5))
    along, across = shapes.fold(*point, 4)
    assert (along.item(), across.item()) == pytest.approx((4, 3))
