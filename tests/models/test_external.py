"""Encoders that osiris does not define itself: registering, building, freezing."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from osiris.errors import UserError
from osiris.grids.grid import GridRun
from osiris.models.config import EncoderConfig
from osiris.models.encoder import build_encoder, feature_count
from osiris.models.external import architecture_of, encoder_name, freeze_layers, register_encoder
from osiris.models.normalisation import BatchNorm
from osiris.presets import configure


class Small(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, 4)
        self.norm = nn.BatchNorm2d(width)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(4)])
        self.head = nn.Linear(width, 6)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.norm(self.stem(images)).mean((2, 3))
        for layer in self.layers:
            hidden = hidden + layer(hidden).relu()
        return self.head(hidden)


def build(encoder: nn.Module | type[nn.Module] | partial[nn.Module], seed: int = 0) -> nn.Module:
    return build_encoder(EncoderConfig(encoder=encoder_name(encoder)), seed)


def test_a_function_is_seeded_and_a_module_is_copied() -> None:
    one, same, other = build(Small, 1).state_dict(), build(Small, 1).state_dict(), build(Small, 2).state_dict()
    assert torch.equal(one["stem.weight"], same["stem.weight"])
    assert not torch.equal(one["stem.weight"], other["stem.weight"])
    module = Small()
    built = build(module, seed=7)
    assert built is not module and torch.equal(built.get_parameter("stem.weight"), module.stem.weight)
    with torch.no_grad():
        module.stem.weight.zero_()
    assert build(partial(Small, width=4)).get_parameter("stem.weight").shape[0] == 4


def test_batch_norm_uses_the_batch_of_all_processes() -> None:
    module, images = Small(), torch.randn(4, 3, 8, 8)
    built = build(module)
    assert isinstance(built.get_submodule("norm"), BatchNorm) and type(module.norm) is nn.BatchNorm2d
    torch.testing.assert_close(built(images), module(images))


def test_the_name_and_the_constructor_are_recorded_but_never_imported() -> None:
    name = register_encoder(Small, "small-8")
    assert name == "own:small-8"
    architecture = architecture_of(name, build_encoder(EncoderConfig(encoder=name)))
    assert architecture["constructor"].endswith("test_external.Small")
    with pytest.raises(UserError, match=r"os\.system.*register_encoder"):
        build_encoder(EncoderConfig(encoder="own:system"), architecture={"constructor": "os.system"})
    with pytest.raises(UserError, match="not a name"):
        register_encoder(Small, "../x")
    register_encoder(lambda: 3, "three")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="returned int"):
        build_encoder(EncoderConfig(encoder="own:three"))


def test_the_number_of_features_is_found_by_a_forward_pass() -> None:
    module = Small().train()
    before = module.norm.running_mean.clone()  # pyright: ignore[reportOptionalMemberAccess]
    assert feature_count(module, (3, 8, 8)) == 6 and module.training and module.norm.running_mean is not None
    assert torch.equal(module.norm.running_mean, before)
    with pytest.raises(UserError, match=r"fails for images of 2x2 pixels"):
        feature_count(module, (3, 2, 2))
    with pytest.raises(UserError, match=r"returned \(2, 8, 2, 2\)"):
        feature_count(module.stem, (3, 8, 8))
    with pytest.raises(UserError, match="no parameters"):
        feature_count(nn.Flatten(), (3, 8, 8))


@pytest.mark.parametrize(("part", "trained"), [(0.0, ["layers.0", "layers.1", "head"]), (0.5, ["layers.2", "head"])])
def test_the_first_layers_and_what_precedes_them_are_frozen(part: float, trained: list[str]) -> None:
    module = Small()
    freeze_layers(module, part)
    frozen = {name.rpartition(".")[0] for name, value in module.named_parameters() if not value.requires_grad}
    assert {"stem", "norm"} <= frozen and not frozen & set(trained)
    freeze_layers(module, 1.0)
    assert [name for name, value in module.named_parameters() if value.requires_grad] == ["head.weight", "head.bias"]
    with pytest.raises(UserError, match="list of layers"):
        freeze_layers(nn.Linear(2, 2), 0.5)


def test_presets_suit_the_encoder() -> None:
    with pytest.raises(UserError, match="unknown encoder 'resnet19'"):
        configure("tinyworld", "fast", "resnet19")
    named = configure("tinyworld", "fast", "resnet34")
    assert GridRun("er", "tinyworld", 0, "fast", (("encoder", "resnet34"),)).config.encoder == named.encoder
    assert named.encoder == EncoderConfig(blocks=(3, 4, 6, 3)) and named.learning.view_size is None
    own = configure("tinyworld", "fast", encoder_name(Small))
    assert own.encoder.description == {"encoder": "own:Small"} and own.learning.optimiser == "adamw"
    assert configure("tinyworld", "paper", encoder_name(Small)).learning.optimiser == "sgd"
    assert "encoder" not in configure("tinyworld", "fast").encoder.description
