"""The shapes of projectors and predictors."""

from torch import nn

from osiris.models.heads import adapter, predictor, projector
from osiris.models.normalisation import BatchNorm


def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in module.named_parameters()}


def test_projector_predictor_and_adapter() -> None:
    assert shapes(projector(512, 2048, 128)) == {
        "fc1.weight": (2048, 512),
        "fc1.bias": (2048,),
        "fc2.weight": (128, 2048),
    }
    assert shapes(predictor(128, 2048)) == {
        "fc1.weight": (2048, 128),
        "fc1.bias": (2048,),
        "fc2.weight": (128, 2048),
        "fc2.bias": (128,),
    }
    assert any(isinstance(layer, BatchNorm) for layer in predictor(8, 16, batch_norm=True))
    layers = list(adapter(512))
    assert [type(layer).__name__ for layer in layers] == ["Linear", "ReLU"] * 3 + ["Linear"]
    widths = [(layer.in_features, layer.out_features) for layer in layers if isinstance(layer, nn.Linear)]
    assert widths == [(512, 1024), (1024, 512), (512, 1024), (1024, 512)]
