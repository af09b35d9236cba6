"""The sparse manifold transform against loops in float64; order, parts, joint learning; what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from osiris.errors import UserError
from osiris.exact import manifold, spectrum
from osiris.exact.manifold import LAYERS, Active, ManifoldConfig, PatchCodes, averaging, cut, layers
from osiris.exact.spectrum import CodeSums, _ImageSums, episode_sums, solve
from osiris.models.encoder import feature_count
from osiris.models.manifold import JoinedManifold, Manifold

CONFIG = ManifoldConfig(codes=32, side=8, patch=3, stride=2, density=0.2, dimensions=6, grid=2, sampled=2)
STD = (0.2, 0.25, 0.3)


def pictures(count: int, seed: int = 0, size: int = 8) -> Tensor:
    """uint8 images with edges: blocks of colours and noise."""
    random = torch.Generator().manual_seed(seed)
    blocks = (
        torch.rand(count, 3, 2, 2, generator=random).repeat_interleave(size // 2, 2).repeat_interleave(size // 2, 3)
    )
    return ((blocks * 0.8 + 0.2 * torch.rand(count, 3, size, size, generator=random)) * 255).to(torch.uint8)


def naive_patches(image: Tensor, config: ManifoldConfig) -> list[Tensor]:
    """Of one image [3, H, H] with values in [0, 1], row by row."""
    patches = []
    for top in range(0, config.side - config.patch + 1, config.stride):
        for left in range(0, config.side - config.patch + 1, config.stride):
            patch = image[:, top : top + config.patch, left : left + config.patch].double()
            patches.append(torch.cat([channel.flatten() - channel.mean() for channel in patch]))
    return patches


def naive_codes(codes: PatchCodes, image: Tensor) -> list[Tensor]:
    """alpha of each patch of a uint8 image."""
    rows = []
    for patch in naive_patches(image / 255, codes.config):
        white = patch @ codes.whitening.double()
        white = white / white.norm() if white.norm() > 1e-6 else white * 0
        rows.append(torch.tensor([float(float(white @ atom.double()) > codes.threshold) for atom in codes.dictionary]))
    return rows


@pytest.fixture(autouse=True)
def exact_cosines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cosines in float32, so that no code differs from the naive one by rounding."""
    monkeypatch.setattr(manifold, "fast_bfloat16", lambda: False)


@pytest.fixture
def codes() -> PatchCodes:
    return PatchCodes.of(pictures(40), CONFIG)


def test_patches_are_those_of_a_naive_loop() -> None:
    images = pictures(3) / 255
    expected = torch.stack([patch for image in images for patch in naive_patches(image, CONFIG)])
    assert torch.allclose(cut(images, CONFIG).double(), expected, atol=1e-6)


def test_grey_patches_have_one_channel() -> None:
    config = replace(CONFIG, grey=True)
    images = pictures(3) / 255
    luma = 0.299 * images[:, 0] + 0.587 * images[:, 1] + 0.114 * images[:, 2]
    expected = torch.stack([patch for image in luma for patch in naive_patches(image[None], config)])
    assert torch.allclose(cut(images, config).double(), expected, atol=1e-6)
    codes = PatchCodes.of(pictures(40), config)
    encoder = Manifold.of(codes, solve(episode_sums(codes, pictures(60)), config), (1.0, 1.0, 1.0))
    grey = luma[:, None].expand(-1, 3, -1, -1)
    assert torch.allclose(encoder(images), encoder(grey), atol=1e-4)
    assert not torch.allclose(encoder(images)[:1], encoder(images)[1:2], atol=0.1)


def test_the_density_is_that_of_new_images() -> None:
    """Within the deviation of a threshold from some hundred patches."""
    for density in (0.05, 0.2):
        config = replace(CONFIG, density=density, sampled=1)
        patches = episode_sums(PatchCodes.of(pictures(40), config), pictures(200, seed=1)).even_patches
        assert float(patches.total.sum()) / patches.count / config.codes == pytest.approx(density, rel=0.2)


def test_images_with_few_different_patches_have_codes() -> None:
    """Halves in black and white: more cosines than the density are 1, and none is above that."""
    images = torch.zeros(40, 3, 8, 8, dtype=torch.uint8)
    images[::2, :, :, 4:] = images[1::2, :, :, :4] = 255
    codes = PatchCodes.of(images, CONFIG)
    assert codes.threshold == 0.99
    assert float(episode_sums(codes, images).even_patches.total.sum()) > 0


def test_larger_images_are_averaged() -> None:
    images = pictures(3, size=24) / 255
    assert torch.allclose(cut(images, CONFIG), cut(functional.avg_pool2d(images, 3), CONFIG), atol=1e-6)
    assert averaging(3, 2).tolist() == [
        [pytest.approx(2 / 3), pytest.approx(1 / 3), 0],
        [0, pytest.approx(1 / 3), pytest.approx(2 / 3)],
    ]


def test_sums_are_those_of_a_naive_loop_over_images_and_their_mirror_images(
    codes: PatchCodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V and S of both, in the basis of sums and differences of the halves: each block, and zero between them."""
    monkeypatch.setattr(spectrum, "COLUMNS", 5)
    images, half = pictures(7), CONFIG.half
    within, between, count = torch.zeros(32, 32), torch.zeros(32, 32), 0
    exchange = [*range(half, 32), *range(half)]
    for image in images:
        rows = naive_codes(codes, image)
        for row in rows[:: CONFIG.sampled]:
            within += torch.outer(row, row) + torch.outer(row[exchange], row[exchange])
            count += 1
        total = torch.stack(rows).sum(0)
        between += torch.outer(total, total) + torch.outer(total[exchange], total[exchange])
    sums = episode_sums(codes, images)
    assert sums.even_patches.count == sums.odd_patches.count == count
    assert sums.even_images.count == sums.odd_images.count == 7
    identity = torch.eye(half)
    even, odd = torch.cat([identity, identity]), torch.cat([identity, -identity])
    for one, other, naive in (
        (sums.even_patches, sums.odd_patches, within),
        (sums.even_images, sums.odd_images, between),
    ):
        assert naive.abs().sum() > 100
        assert torch.equal(one.outer, (even.T @ naive @ even / 2).double())
        assert torch.equal(other.outer, (odd.T @ naive @ odd / 2).double())
        assert not (even.T @ naive @ odd).any()


def test_totals_and_mirror_images(codes: PatchCodes) -> None:
    images = pictures(6)
    total = sum(sum(naive_codes(codes, image)) for image in images)
    assert isinstance(total, Tensor)
    sums, mirror = episode_sums(codes, images), episode_sums(replace_sampling(codes), images.flip(3))
    assert torch.equal(sums.even_images.total, (total[: CONFIG.half] + total[CONFIG.half :]).double())
    assert torch.equal(sums.odd_images.total, (total[: CONFIG.half] - total[CONFIG.half :]).double())
    whole = episode_sums(replace_sampling(codes), images)
    assert torch.equal(whole.even_patches.outer, mirror.even_patches.outer)
    assert torch.equal(whole.odd_images.outer, mirror.odd_images.outer)
    assert torch.equal(whole.odd_images.total, -mirror.odd_images.total)


def replace_sampling(codes: PatchCodes) -> PatchCodes:
    """With 3 x 3 places at the same places in the mirror, and all patches in the sums."""
    config = replace(CONFIG, sampled=1, patch=4)
    return PatchCodes.of(pictures(40), config) if codes.config != config else codes


def naive_solution(sums: CodeSums, config: ManifoldConfig) -> tuple[Tensor, Tensor]:
    """Eigenvalues and directions [K, d] of the whole problem, without blocks."""
    half = config.half
    identity = torch.eye(half, dtype=torch.float64)
    basis = torch.cat([torch.cat([identity, identity]), torch.cat([identity, -identity])], dim=1) / 2**0.5

    def whole(even: Tensor, odd: Tensor) -> Tensor:
        return basis @ torch.block_diag(even, odd) @ basis.T

    within = whole(sums.even_patches.outer, sums.odd_patches.outer) / (2 * sums.even_patches.count)
    between = whole(sums.even_images.outer, sums.odd_images.outer) / (2 * sums.even_images.count * config.places**2)
    within = within + config.ridge * within.diagonal().mean() * torch.eye(config.codes, dtype=torch.float64)
    values, vectors = torch.linalg.eig(torch.linalg.solve(within, between))
    order = values.real.argsort(descending=True)[1 : config.dimensions + 1]
    return values.real[order], vectors.real[:, order]


def test_the_solution_is_that_of_the_whole_problem(codes: PatchCodes) -> None:
    sums = episode_sums(codes, pictures(60))
    projection = solve(sums, CONFIG)
    values, vectors = naive_solution(sums, CONFIG)
    assert torch.allclose(projection.eigenvalues, values, rtol=1e-8)
    found = functional.normalize(projection.weight.double(), dim=0)
    assert torch.allclose(
        (found * functional.normalize(vectors, dim=0)).sum(0).abs(), torch.ones(6).double(), atol=1e-6
    )
    swapped = projection.weight.roll(CONFIG.half, 0)
    assert torch.allclose(swapped, projection.weight * projection.sign)
    assert torch.equal(projection.weight.amax(0), projection.weight.abs().amax(0)), "the largest entry is positive"
    assert {1.0, -1.0} == set(projection.sign.tolist())


def test_episodes_one_after_the_other_are_joint_learning(codes: PatchCodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, after every episode, in another order, in parts, and after an episode was taken out again."""
    monkeypatch.setattr(spectrum, "IMAGE_ROWS", 7)
    monkeypatch.setattr(spectrum, "PATCH_ENTRIES", 500)
    monkeypatch.setattr(spectrum, "COLUMNS", 5)
    images, sums = pictures(50), CodeSums.zero(CONFIG)
    episodes = [images[:9], images[9:30], images[30:31], images[31:]]
    for number, episode in enumerate(episodes):
        sums = sums + episode_sums(codes, episode)
        joint = episode_sums(codes, torch.cat(episodes[: number + 1]))
        one, other = (Manifold.of(codes, solve(each, CONFIG), STD)(images / 255) for each in (sums, joint))
        assert torch.equal(one, other)
    assert_equal(sums, episode_sums(codes, images[torch.randperm(50)]))
    assert_equal(sums, episode_sums(codes, iter(images.split(11))))
    assert_equal(sums - episode_sums(codes, episodes[1]), episode_sums(codes, torch.cat([images[:9], images[30:]])))


def assert_equal(one: CodeSums, other: CodeSums) -> None:
    assert all(torch.equal(value, other.tensors()[name]) for name, value in one.tensors().items())


def test_to_tensors_and_back(codes: PatchCodes) -> None:
    sums = episode_sums(codes, pictures(9))
    assert_equal(CodeSums.from_tensors(sums.tensors()), sums)
    with pytest.raises(ValueError, match="no sums"):
        CodeSums.from_tensors({})


def test_sums_beyond_float32_are_exact() -> None:
    """4097 ones at the same place of a code: their square is odd and above 2^24."""
    sums = _ImageSums(CONFIG)
    sums.add(Active(np.array([4097, *[0] * 8]), np.zeros(4097, np.int64)))
    even, odd = sums.moments()
    assert even.outer[0, 0] == odd.outer[0, 0] == 4097**2


@pytest.fixture
def encoder(codes: PatchCodes) -> Manifold:
    return Manifold.of(codes, solve(episode_sums(codes, pictures(60)), CONFIG), STD)


def test_features_are_those_of_a_naive_loop(codes: PatchCodes, encoder: Manifold) -> None:
    images = pictures(4)

    def maps(image: Tensor) -> Tensor:
        """[3, 3, d]"""
        rows = [functional.normalize(alpha @ encoder.projection, dim=0) for alpha in naive_codes(codes, image)]
        return torch.stack(rows).view(3, 3, -1)

    for image, found in zip(images, encoder((images / 255 - 0.5) / torch.tensor(STD)[:, None, None])):
        both = maps(image) + maps(image).flip(1) * encoder.sign
        quarters = []
        for rows in ([1, 0.5, 0], [0, 0.5, 1]):
            weights = torch.outer(torch.tensor(rows), torch.tensor([1, 0.5, 0])) / 2.25
            quarters.append((both * weights[:, :, None]).sum((0, 1)))
        expected = torch.stack(quarters, dim=1).flatten()
        expected = functional.normalize(expected.sign() * expected.abs().sqrt(), dim=0)
        assert torch.allclose(found, expected, atol=1e-3)
    assert encoder(images / 255).shape == (4, CONFIG.features)
    assert encoder(images[:0] / 255).shape == (0, CONFIG.features)
    assert feature_count(encoder, (3, 8, 8)) == CONFIG.features


def test_layers_side_by_side(encoder: Manifold) -> None:
    codes = PatchCodes.of(pictures(40), replace(CONFIG, grey=True, patch=4))
    other = Manifold.of(codes, solve(episode_sums(codes, pictures(60)), codes.config), STD)
    joined, images = JoinedManifold([encoder, other]), pictures(6) / 255
    cosines = [functional.normalize(each(images), dim=1) @ each(images).T for each in (joined, encoder, other)]
    assert torch.allclose(cosines[0], (cosines[1] + cosines[2]) / 2, atol=1e-5)
    assert torch.allclose(cosines[0].diagonal(), torch.ones(6), atol=1e-5)
    assert feature_count(joined, (3, 8, 8)) == joined(images).shape[1]


def test_dense_and_sparse_features_agree(encoder: Manifold) -> None:
    images = pictures(5) / 255
    dense = encoder._pool(encoder._dense(images * encoder.scale))
    assert torch.allclose(encoder(images), dense, atol=1e-4)


def test_export_to_onnx(encoder: Manifold, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    images, batch = pictures(5) / 255, ({0: torch.export.Dim("batch")},)
    program = torch.onnx.export(encoder, (images[:2],), input_names=["images"], dynamic_shapes=batch, verbose=False)
    assert program is not None
    program.save(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    found = torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
    assert torch.allclose(found, encoder(images), atol=1e-4)


def test_mirror_images_have_the_same_features() -> None:
    config = replace(CONFIG, patch=4)
    codes = PatchCodes.of(pictures(40), config)
    encoder = Manifold.of(codes, solve(episode_sums(codes, pictures(60)), config), STD)
    images = pictures(5) / 255
    assert torch.allclose(encoder(images), encoder(images.flip(3)), atol=1e-5)


def test_several_threads_give_the_same_sums(codes: PatchCodes) -> None:
    expected, threads = episode_sums(codes, pictures(30)), torch.get_num_threads()
    torch.set_num_threads(threads + 2)
    try:
        assert_equal(episode_sums(codes, pictures(30)), expected)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.skipif(not manifold.fast_bfloat16(), reason="this CPU has no product in bfloat16")
def test_bfloat16_changes_few_codes(codes: PatchCodes, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = episode_sums(codes, pictures(60))
    monkeypatch.setattr(manifold, "fast_bfloat16", lambda: True)
    rounded = episode_sums(codes, pictures(60))
    assert torch.allclose(rounded.even_images.total, exact.even_images.total, rtol=0.03)


def test_what_cannot_be_learned_is_refused(codes: PatchCodes, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="one image has nothing to be compared with"):
        solve(episode_sums(codes, pictures(1)), CONFIG)
    with pytest.raises(UserError, match="the images are flat"):
        PatchCodes.of(torch.zeros(40, 3, 8, 8, dtype=torch.uint8), CONFIG)
    with pytest.raises(UserError, match="all black"):
        solve(episode_sums(codes, torch.zeros(5, 3, 8, 8, dtype=torch.uint8)), CONFIG)
    with pytest.raises(UserError, match="1 images have 9 patches with a pattern; 32 codes need more than 16"):
        PatchCodes.of(pictures(1), CONFIG)
    monkeypatch.setattr(ManifoldConfig, "bytes_needed", 10**15)
    with pytest.raises(UserError, match=r"need 1000000\.0 GB of memory"):
        episode_sums(codes, pictures(2))


def test_fewer_images_than_dimensions_give_finite_features(codes: PatchCodes) -> None:
    encoder = Manifold.of(codes, solve(episode_sums(codes, pictures(3)), CONFIG), STD)
    assert encoder(pictures(4) / 255).isfinite().all()
    assert int(encoder.projection.any(0).sum()) < CONFIG.dimensions


def test_layers_share_their_settings() -> None:
    config = ManifoldConfig(codes=256, dimensions=16)
    assert [(one.patch, one.grey) for one in layers(config)] == list(LAYERS)
    assert {replace(one, patch=6, grey=False) for one in layers(config)} == {config}


@pytest.mark.parametrize(
    "change",
    [{"codes": 33}, {"patch": 9}, {"stride": 0}, {"density": 0.6}, {"dimensions": 32}, {"grid": 4}, {"sampled": 0}],
)
def test_impossible_settings_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(UserError):
        replace(CONFIG, **change)
