"""The layout of a map: its repulsion against a loop over all pairs, and what it keeps of neighbourhoods."""

import numpy as np
import torch

from osiris.evaluation.knn import neighbours_of
from osiris.index.layout import (
    EARLY,
    LATER,
    Neighbours,
    _affinities,
    _attraction,
    _repulsion,
    lay_out,
    principal,
    steps,
)
from osiris.index.places import forget_places, read_places, write_places

RANDOM = np.random.default_rng(0)


def clusters(per_cluster: int, size: int = 24, count: int = 6) -> tuple[np.ndarray, np.ndarray]:
    centres = np.random.default_rng(1).standard_normal((count, size))
    rows = np.repeat(centres, per_cluster, axis=0) + 0.5 * np.random.default_rng(2).standard_normal(
        (count * per_cluster, size)
    )
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit.astype(np.float32), np.repeat(np.arange(count), per_cluster)


def near(vectors: np.ndarray, count: int = 15) -> Neighbours:
    bank = torch.from_numpy(vectors)
    cosines, rows = neighbours_of(bank, bank, count, torch.arange(len(bank)))
    return Neighbours(rows.numpy(), cosines.numpy())


def kept(places: np.ndarray, known: Neighbours, count: int = 10) -> float:
    """Part of the nearest vectors of each that are among the nearest on the map."""
    apart = ((places[:, None] - places[None]) ** 2).sum(axis=2)
    np.fill_diagonal(apart, np.inf)
    found = np.argsort(apart, axis=1)[:, :count]
    return float(np.mean([len({*a} & {*b}) / count for a, b in zip(found.tolist(), known.rows[:, :count].tolist())]))


def test_repulsion_is_that_of_all_pairs() -> None:
    for spread in (0.01, 3.0, 10.0):
        places = RANDOM.standard_normal((200, 2)) * spread
        apart = places[:, None] - places[None]
        kernel = 1 / (1 + (apart**2).sum(axis=2))
        total = kernel.sum() - len(places)
        expected = (apart * (kernel**2)[..., None]).sum(axis=1) / total
        assert np.abs(_repulsion(places) - expected).max() < 0.1 * np.abs(expected).max()


def test_attraction_is_that_of_a_loop() -> None:
    vectors, _ = clusters(10)
    affinities = _affinities(near(vectors))
    dense, places = affinities.toarray(), RANDOM.standard_normal((len(vectors), 2))
    assert np.allclose(dense, dense.T) and np.isclose(dense.sum(), 1) and (dense.diagonal() == 0).all()
    expected = np.zeros_like(places)
    for i, j in np.argwhere(dense > 0):
        apart = places[i] - places[j]
        expected[i] += dense[i, j] * apart / (1 + apart @ apart)
    assert np.allclose(_attraction(affinities, places), expected)


def test_a_map_keeps_neighbourhoods_and_is_the_same_each_time() -> None:
    vectors, label = clusters(40)
    known, components = near(vectors), (vectors - vectors.mean(axis=0)) @ principal(vectors, np.arange(len(vectors)), 2)
    places = lay_out(components, known)
    assert (places == lay_out(components, known)).all()
    assert kept(places, known) > kept(components, known) + 0.15
    apart = np.linalg.norm(places[:, None] - places[None], axis=2) + 1e9 * np.eye(len(places))
    assert (label[apart.argmin(axis=1)] == label).mean() > 0.95


def test_images_that_are_added_find_their_neighbours_and_the_others_stay() -> None:
    vectors, label = clusters(40)
    rows = np.arange(len(vectors))
    old = rows % 4 != 0
    first = vectors[old]
    components = (first - first.mean(axis=0)) @ principal(first, np.arange(len(first)), 2)
    start = np.zeros((len(vectors), 2))
    start[old] = lay_out(components, near(first))
    places = lay_out(start, near(vectors), old)
    assert (places[old] == start[old]).all()
    apart = np.linalg.norm(places[~old][:, None] - places[old][None], axis=2)
    assert (label[old][apart.argmin(axis=1)] == label[~old]).mean() > 0.9
    assert len(np.unique(places[~old].round(6), axis=0)) == (~old).sum(), "they do not lie on each other"


def test_principal_components() -> None:
    for shape in ((200, 12), (12, 200)):
        vectors = np.random.default_rng(3).standard_normal(shape).astype(np.float32) * np.linspace(3, 1, shape[1])
        found = principal(vectors, np.arange(len(vectors)), 5)
        expected = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)[2][:5].T
        assert np.allclose(np.abs((found * expected).sum(axis=0)), 1, atol=1e-4)


def test_steps_are_counted(monkeypatch) -> None:
    vectors, _ = clusters(5)
    done = 0

    class Count:
        def advance(self) -> None:
            nonlocal done
            done += 1

    lay_out(vectors[:, :2], near(vectors), None, Count())  # pyright: ignore
    assert done == EARLY + LATER == steps(added=False)
    lay_out(vectors[:, :2], near(vectors), np.arange(len(vectors)) > 3, Count())  # pyright: ignore
    assert done == steps(added=False) + steps(added=True)


def test_places_are_kept_and_forgotten(tmp_path) -> None:
    digests = RANDOM.integers(0, 256, (4, 16), dtype=np.uint8)
    places = RANDOM.standard_normal((4, 2))
    assert read_places(tmp_path) == {}
    write_places(tmp_path, digests, places)
    assert read_places(tmp_path) == {one.tobytes(): tuple(place) for one, place in zip(digests, places.tolist())}
    forget_places(tmp_path, {one.tobytes() for one in digests[1:]})
    assert [*read_places(tmp_path)] == [one.tobytes() for one in digests[1:]]
    (tmp_path / "layout.safetensors").write_bytes(b"damaged")
    assert read_places(tmp_path) == {}
    write_places(tmp_path, digests, places)
    forget_places(tmp_path, set())
    assert not [*tmp_path.iterdir()]
