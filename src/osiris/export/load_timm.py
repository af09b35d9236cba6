"""Build the encoder in this folder as a timm model, without osiris. Needs timm and safetensors.

    from load_timm import load

    model = load()
    features = model(images)              # float32 [B, D] of normalised images [B, 3, H, W]
    maps = model.forward_features(images)  # float32 [B, D, h, w]

`preprocessing` in config.json says how to scale and normalise images; `model.pretrained_cfg` says it in timm's words.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import nn

HERE = Path(__file__).parent


def load(folder: str | Path = HERE) -> nn.Module:
    """The encoder in evaluation mode."""
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    model = build(config["encoder"])
    model.load_state_dict(load_file(Path(folder) / "model.safetensors"))
    model.pretrained_cfg = config["pretrained_cfg"]
    return model.eval()


def build(config: dict[str, Any]) -> nn.Module:
    """timm's ResNet with the norm, activation and stem of this encoder, with random weights."""
    from timm.models.resnet import BasicBlock, ResNet  # pyright: ignore[reportMissingImports]

    width = config["width"]

    def group_norm(channels: int, **_: Any) -> nn.Module:
        return nn.GroupNorm(max(1, min(32, channels // 4)), channels)

    model = ResNet(
        BasicBlock,
        layers=config["blocks"],
        num_classes=0,
        stem_type="deep",  # timm's plain stem has 64 channels; this one has 2 * stem_width, and is replaced below
        stem_width=width // 2,
        channels=[width * 2**stage for stage in range(4)],
        act_layer=nn.ReLU if config["norm"] == "bn" else nn.Mish,
        norm_layer=nn.BatchNorm2d if config["norm"] == "bn" else group_norm,
    )
    if config["stem"] == "large":
        model.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
    else:
        model.conv1 = nn.Conv2d(3, width, 3, config["stem_stride"], 1, bias=False)
        model.maxpool = nn.Identity()
    return model
