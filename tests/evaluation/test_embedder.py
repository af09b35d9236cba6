from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from osiris.config import to_dict
from osiris.errors import UserError
from osiris.evaluation.embedder import Embedder
from osiris.files import save_tensors
from osiris.models.config import EncoderConfig
from osiris.models.encoder import build_encoder


def test_arrays_and_files_have_the_same_features(tmp_path: Path):
    config = EncoderConfig(width=8, blocks=(1, 1, 1, 1))
    tensors = {f"encoder.{name}": value for name, value in build_encoder(config).state_dict().items()}
    metadata = {"encoder": to_dict(config), "mean": [0.5] * 3, "std": [0.25] * 3, "image_size": 16}
    save_tensors(tmp_path / "task-01.safetensors", tensors, metadata)
    embedder = Embedder(tmp_path / "task-01.safetensors")
    images = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), dtype=np.uint8)
    paths = [tmp_path / f"{number}.png" for number in range(5)]
    for path, image in zip(paths, images):
        Image.fromarray(image).save(path)
    expected = embedder(paths).features
    for same in (images, images.transpose(0, 3, 1, 2), torch.from_numpy(images)):
        torch.testing.assert_close(embedder(same).features, expected)
    paths[2].write_bytes(b"not an image")
    with pytest.raises(UserError, match=r"2\.png cannot be decoded"):
        embedder(paths)
    assert embedder(paths, strict=False).rows == [0, 1, 3, 4]
