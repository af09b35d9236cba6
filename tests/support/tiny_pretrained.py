"""Vision models of transformers with random weights in a local directory, in place of those of the hub."""

from __future__ import annotations

import json
from pathlib import Path

import torch


def save_vision_model(folder: Path, kind: str) -> Path:
    """Two layers, 16 features, images of 16 pixels (`clip`: with its text model, as on the hub)."""
    import transformers

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
            config = transformers.AutoConfig.for_model(kind, **sizes, **options)
        transformers.AutoModel.from_config(config).save_pretrained(folder)
    record = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2] * 3, "crop_size": {"height": 16, "width": 16}}
    (folder / "preprocessor_config.json").write_text(json.dumps(record | {"size": {"shortest_edge": 20}}))
    return folder
