"""Encoders that osiris does not define itself, tiny and with random weights: a module, and models of transformers."""

import importlib
import json
from pathlib import Path

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A layer with what depends on the mode."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.line, self.norm, self.drop = nn.Linear(width, width), nn.BatchNorm1d(width), nn.Dropout(0.5)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.drop(self.norm(self.line(hidden)).relu())


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.norm(self.stem(images)).mean((2, 3))
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


def seeded(training: bool = True) -> Normed:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Normed().train(training)


def save_vision_model(folder: Path, kind: str) -> Path:
    """Two layers, 16 features, images of 16 pixels. `clip`: with its text model, as on the hub; `vit`: with dropout."""
    transformers = importlib.import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16, "patch_size": 8}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if kind == "clip":
            vision, text = sizes | {"intermediate_size": 32}, sizes | {"intermediate_size": 32, "vocab_size": 9}
            del text["image_size"], text["patch_size"]
            config = transformers.CLIPConfig(vision_config=vision, text_config=text, projection_dim=8)
        elif kind == "resnet":
            config = transformers.ResNetConfig(
                embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
            )
        elif kind == "swin":
            stages = {"embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": 2}
            config = transformers.SwinConfig(image_size=16, patch_size=2, **stages)
        else:
            options = {"mlp_ratio": 2, "use_mask_token": False} if kind == "dinov2" else {"intermediate_size": 32}
            options |= {"hidden_dropout_prob": 0.3} if kind == "vit" else {}
            config = transformers.AutoConfig.for_model(kind, **sizes, **options)
        transformers.AutoModel.from_config(config).save_pretrained(folder)
    record = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2] * 3, "crop_size": {"height": 16, "width": 16}}
    (folder / "preprocessor_config.json").write_text(json.dumps(record | {"size": {"shortest_edge": 20}}))
    return folder
