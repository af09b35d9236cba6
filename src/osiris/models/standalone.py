"""Load the encoder in this folder without osiris. Needs torch and safetensors; Pillow and NumPy to read image files.

import torch
from load_encoder import load, read_image

encoder = load()
features = encoder(torch.stack([read_image("cat.jpg"), read_image("dog.jpg")]))  # float32 [2, D]

osiris trains the same networks: `models/standalone.py` is copied beside an exported encoder, so it imports torch alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

HERE = Path(__file__).parent


def read_config(folder: str | Path = HERE) -> dict[str, Any]:
    return json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))


def load(folder: str | Path = HERE) -> nn.Module:
    """The encoder in evaluation mode: normalised images [B, 3, H, W] to features [B, D]."""
    network = build(read_config(folder)["encoder"])
    network.load_state_dict(load_file(Path(folder) / "model.safetensors"))
    return network.eval()


def read_image(path: str | Path, folder: str | Path = HERE) -> Tensor:
    """float32 [3, H, W]: the centre square of an image file, scaled and normalised as in training. HEIC photos need
    pillow-heif. 16-bit grey keeps its high byte and floats up to 1 are scaled; Pillow would clip both."""
    import numpy as np
    from PIL import Image, ImageOps

    if Path(path).suffix.lower() in (".heic", ".heif"):
        import pillow_heif  # type: ignore[import-not-found]

        pillow_heif.register_heif_opener()
    preprocessing = read_config(folder)["preprocessing"]
    size = preprocessing["image_size"]
    with Image.open(path) as file:
        if file.format in ("EPS", "IPTC"):  # Pillow would run Ghostscript
            raise OSError(f"{file.format} is not read")
        file.draft("RGB", (2 * size, 2 * size))
        image = ImageOps.exif_transpose(file)
    if image.mode.startswith(("I", "F")):
        values = np.nan_to_num(np.asarray(image).astype(np.float64))
        if image.mode.startswith("I;16") or values.max(initial=0) > 255:
            values //= 256
        elif image.mode == "F" and values.max(initial=0) <= 1:
            values = np.rint(values * 255)
        image = Image.fromarray(values.clip(0, 255).astype(np.uint8))
    image = image.convert("RGB")
    side, (width, height) = min(image.size), image.size
    if image.size != (size, size):
        left, top = (width - side) / 2, (height - side) / 2
        image = image.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
    mean, std = (torch.tensor(preprocessing[name])[:, None, None] for name in ("mean", "std"))
    return (pixels - mean) / std


def build(config: dict[str, Any]) -> nn.Module:
    """The network that `encoder` in config.json describes, with random weights."""
    network = FastEncoder(config) if config["family"] == "fast" else ResNet(config)
    return Joined(network, config["layers"]) if "layers" in config else network


Norm = Callable[[int], nn.Module]
Activation = Callable[[], nn.Module]


def norm_and_activation(config: dict[str, Any]) -> tuple[Norm, Activation]:
    if config["norm"] == "bn":
        return nn.BatchNorm2d, nn.ReLU
    return lambda channels: nn.GroupNorm(min(32, channels // 4), channels), nn.Mish


class Block(nn.Module):
    """Two 3x3 convolutions and a residual."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm, activation: Activation) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = norm(outputs)
        self.act = activation()
        self.downsample = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.act(self.bn1(self.conv1(images)))
        return self.act(self.bn2(self.conv2(hidden)) + self.downsample(images))


class ResNet(nn.Module):
    """A ResNet of basic blocks, with GroupNorm and Mish or with BatchNorm and ReLU: images [B, 3, H, W] to features
    [B, 8 * width]. Parameter names are those of timm's and torchvision's resnet18."""

    def __init__(self, config: dict[str, Any], layers: tuple[Norm, Activation] | None = None) -> None:
        """`layers`: other implementations of the norm and the activation."""
        super().__init__()
        norm, activation = layers or norm_and_activation(config)
        width = channels = config["width"]
        if config["stem"] == "large":
            self.conv1, self.maxpool = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.MaxPool2d(3, 2, 1)
        else:
            self.conv1, self.maxpool = nn.Conv2d(3, width, 3, config["stem_stride"], 1, bias=False), nn.Identity()
        self.bn1, self.act1 = norm(width), activation()
        for stage, count in enumerate(config["blocks"]):
            blocks = nn.Sequential()
            for number in range(count):
                stride = 2 if stage > 0 and number == 0 else 1
                blocks.append(Block(channels, width * 2**stage, stride, norm, activation))
                channels = width * 2**stage
            self.add_module(f"layer{stage + 1}", blocks)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.maxpool(self.act1(self.bn1(self.conv1(images))))
        for stage in range(1, 5):
            hidden = self.get_submodule(f"layer{stage}")(hidden)
        return hidden.mean((2, 3), dtype=torch.float32 if hidden.dtype.itemsize < 4 else None)


class ScaledConv(nn.Conv2d):
    """A convolution whose filters are standardised, with a gain and a bias for each output channel."""

    bias: nn.Parameter

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, kernel // 2)
        self.gain = nn.Parameter(torch.ones(outputs))
        nn.init.normal_(self.weight)
        nn.init.zeros_(self.bias)

    def filters(self) -> Tensor:
        """The standardised filters: each has zero mean and unit norm."""
        centred = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return centred * torch.rsqrt(centred.square().sum((1, 2, 3), keepdim=True) + 1e-4)

    def forward(self, input: Tensor) -> Tensor:
        filters = self.filters() * self.gain[:, None, None, None]
        return F.conv2d(input, filters, self.bias, self.stride, self.padding)


class FastBlock(nn.Module):
    """Two 3x3 convolutions and a residual."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = ScaledConv(inputs, outputs, 3, stride)
        self.conv2 = ScaledConv(outputs, outputs, 3)
        self.downsample = ScaledConv(inputs, outputs, 1, stride) if stride != 1 or inputs != outputs else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.conv2(F.silu(self.conv1(images), inplace=True))
        return F.silu(hidden + self.downsample(images), inplace=True)


def quarters(images: Tensor) -> Tensor:
    """[B, 4 C]: means over the quarters of [B, C, H, W]; where a side is odd, they share its middle."""
    if images.device.type != "cuda":
        return F.adaptive_avg_pool2d(images, 2).flatten(1)
    # On CUDA, the backward pass of adaptive pooling is not deterministic.
    rows, columns = ((slice((side + 1) // 2), slice(side // 2, None)) for side in images.shape[2:])
    return torch.stack([images[:, :, i, j].mean((2, 3)) for i in rows for j in columns], 2).flatten(1)


class FastEncoder(nn.Module):
    """Whitening stem, residual blocks without normalisation layers, features of the four quarters of the image."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, channels = config["width"], config["width"] // 2
        self.conv1, self.maxpool = nn.Conv2d(3, channels, 5, 2, 2), nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential()
        for stage, blocks in enumerate(config["blocks"]):
            for block in range(blocks):
                self.blocks.append(FastBlock(channels, width * 2**stage, 2 if stage > 0 and block == 0 else 1))
                channels = width * 2**stage

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.maxpool(F.silu(self.conv1(images), inplace=True))
        return quarters(self.blocks(hidden))


class Layers(nn.Module):
    """A network; gives the means of some of its layers and its own features, side by side."""

    def __init__(self, network: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.network, self.names = network, names

    def forward(self, images: Tensor) -> Tensor:
        seen: dict[str, Tensor] = {}

        def keep(name: str) -> Callable[..., None]:
            return lambda module, inputs, output: seen.update({name: output.mean((2, 3)).float()})

        hooks = [self.network.get_submodule(name).register_forward_hook(keep(name)) for name in self.names]
        try:
            features = self.network(images).float()
        finally:
            for hook in hooks:
                hook.remove()
        return torch.cat([*(seen[name] for name in self.names), features], 1)


class Readout(nn.Module):
    """A linear map of joined layers."""

    def __init__(self, joined: int, dimension: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(joined))
        self.register_buffer("projection", torch.zeros(joined, dimension))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, joined: Tensor) -> Tensor:
        return (joined - self.get_buffer("centre")) @ self.get_buffer("projection")


class Joined(nn.Sequential):
    """The features are a readout of several layers."""

    def __init__(self, network: nn.Module, record: dict[str, Any]) -> None:
        super().__init__()
        self.layers = Layers(network, record["names"])
        self.readout = Readout(sum(record["sizes"]), record["dimension"])
