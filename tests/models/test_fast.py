"""The `fast` encoder: whitening stem, standardised filters, and what its fit to the first task promises."""

import pytest
import torch
from torch import Tensor

from osiris.config import Config, LearningConfig
from osiris.data.benchmark import Benchmark
from osiris.data.images import ArrayImages
from osiris.errors import UserError
from osiris.framework.methods import find_method
from osiris.models.config import EncoderConfig
from osiris.models.encoder import build_encoder
from osiris.models.fast import FastEncoder, ScaledConv, patches, principal_components, whitening_filters
from osiris.models.standalone import quarters
from osiris.training.engine import Engine
from tiny import HEADS, tiny_benchmark

CONFIG = EncoderConfig(family="fast", width=32, blocks=(1, 1))


@pytest.fixture
def images() -> Tensor:
    """Smooth noise: neighbouring pixels are correlated, as in photographs."""
    noise = torch.randn(64, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.avg_pool2d(noise, 5, 1, 2) * 5


def test_whitened_responses_are_uncorrelated_with_unit_variance(images: Tensor) -> None:
    filters = whitening_filters(images, 5, 16)
    assert torch.equal(filters[:8], -filters[8:])
    responses = patches(images, 5) @ filters[:8].flatten(1).T
    covariance = torch.cov(responses.T)
    torch.testing.assert_close(covariance, torch.eye(8), atol=0.02, rtol=0)


def test_patches_against_a_naive_loop() -> None:
    """Channels, rows, columns, as filters hold them; every second pixel along the shorter side of 23 x 31."""
    images = torch.randn(2, 3, 23, 31, generator=torch.Generator().manual_seed(0))
    expected = [
        [
            float(image[channel, top + row, left + column])
            for channel in range(3)
            for row in range(5)
            for column in range(5)
        ]
        for image in images
        for top in range(0, 23 - 5 + 1, 2)
        for left in range(0, 31 - 5 + 1, 2)
    ]
    assert torch.equal(patches(images, 5), torch.tensor(expected))


def test_principal_components_do_not_depend_on_the_sign_of_a_solver(images: Tensor) -> None:
    variances, directions = principal_components(patches(images, 3))
    assert bool((variances[:-1] >= variances[1:]).all())
    torch.testing.assert_close(directions @ directions.T, torch.eye(27), atol=1e-5, rtol=0)
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    assert bool((largest > 0).all())


def test_a_fitted_layer_has_zero_mean_and_unit_variance(images: Tensor) -> None:
    encoder = build_encoder(CONFIG, seed=1, images=images)
    assert isinstance(encoder, FastEncoder)
    outputs: list[Tensor] = []
    layers = [layer for layer in encoder.modules() if isinstance(layer, ScaledConv)]
    for layer in layers:
        layer.register_forward_hook(lambda layer, inputs, output: outputs.append(output.clone()))
    features = encoder(images)
    assert features.shape == (64, CONFIG.features) == (64, 4 * 64)
    assert len(outputs) == len(layers) == 6
    for output in outputs:
        std, mean = torch.std_mean(output, (0, 2, 3))
        torch.testing.assert_close(mean, torch.zeros_like(mean), atol=1e-4, rtol=0)
        torch.testing.assert_close(std, torch.ones_like(std), atol=0.02, rtol=0)


def test_filters_are_standardised_and_their_scale_does_not_matter() -> None:
    layer = ScaledConv(16, 32, 3)
    filters = layer.filters().flatten(1)
    torch.testing.assert_close(filters.sum(1), torch.zeros(32), atol=1e-5, rtol=0)
    torch.testing.assert_close(filters.norm(dim=1), torch.ones(32), atol=1e-4, rtol=0)
    before, inputs = filters.detach().clone(), torch.randn(2, 16, 6, 6)
    expected = layer(inputs)
    layer.weight.data.mul_(3).add_(1)
    torch.testing.assert_close(layer.filters().flatten(1), before, atol=1e-4, rtol=0)
    torch.testing.assert_close(layer(inputs), expected, atol=1e-3, rtol=0)


def test_the_fit_is_a_function_of_seed_and_images(images: Tensor) -> None:
    one, two = (build_encoder(CONFIG, seed=1, images=images).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    other = build_encoder(CONFIG, seed=2, images=images).state_dict()
    assert torch.equal(one["conv1.weight"], other["conv1.weight"]), "the stem depends on the images alone"
    assert not torch.equal(one["blocks.0.conv1.weight"], other["blocks.0.conv1.weight"])
    loaded = build_encoder(CONFIG)
    loaded.load_state_dict(one)
    torch.testing.assert_close(loaded(images[:4]), build_encoder(CONFIG, seed=1, images=images)(images[:4]))


@pytest.mark.parametrize("side", [16, 24, 32, 64])
def test_any_image_size(side: int) -> None:
    assert build_encoder(CONFIG)(torch.randn(2, 3, side, side)).shape == (2, CONFIG.features)


@pytest.mark.parametrize("config", [EncoderConfig(family="fast", width=20), EncoderConfig(family="fast", blocks=())])
def test_a_shape_that_cannot_work_is_refused(config: EncoderConfig) -> None:
    with pytest.raises(UserError, match=r"--width|--blocks"):
        build_encoder(config)


def test_all_methods_start_from_the_fit_to_the_first_task() -> None:
    """Later tasks' images leave no trace in the encoder before they are seen; frozen copies start as the encoder."""
    config = Config(encoder=CONFIG, projector=HEADS, learning=LearningConfig(batch_size=8, memory_size=12))

    def states(name: str, benchmark: Benchmark) -> dict[str, Tensor]:
        engine = Engine(config, find_method(name), benchmark, torch.device("cpu"))
        for module in engine.model.modules():
            if isinstance(module, FastEncoder):
                assert torch.equal(module.conv1.weight, engine.networks.encoder.get_parameter("conv1.weight"))
        return engine.networks.encoder.state_dict()

    benchmark, other = tiny_benchmark(size=16), tiny_benchmark(size=16)
    later = other.train.task > 0
    assert isinstance(other.train.images, ArrayImages)
    other.train.images.array[later.numpy()] = 255 - other.train.images.array[later.numpy()]
    reference = states("ft", benchmark)
    for name in ("osiris-d", "pocon", "offline"):
        assert all(torch.equal(reference[key], value) for key, value in states(name, other).items()), name
    other.train.images.array[:, 0] = 255 - other.train.images.array[:, 0]
    assert not torch.equal(reference["conv1.weight"], states("ft", other)["conv1.weight"])


@pytest.mark.parametrize("side", [1, 2, 3, 4, 5])
def test_quarters_on_cuda_are_those_of_the_cpu(side: int) -> None:
    """The slices that are used there, on a tensor that says so."""

    class OnCuda(Tensor):
        device = torch.device("cuda")  # pyright: ignore[reportAssignmentType]

    images = torch.randn(2, 3, side, side + 1)
    torch.testing.assert_close(Tensor(quarters(images.as_subclass(OnCuda))), quarters(images))
