"""Train an encoder of your own: any module from images [B, 3, H, W] to features [B, D].

python examples/own_encoder.py [PRESET]
"""

import sys

from torch import Tensor, nn

import osiris


class Patches(nn.Module):
    """A patch embedding, a few residual layers, and the mean over the patches."""

    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Conv2d(3, width, kernel_size=4, stride=4)
        self.layers = nn.ModuleList([nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)) for _ in range(depth)])

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.embedding(images).flatten(2).transpose(1, 2)
        for layer in self.layers:
            tokens = tokens + layer(tokens).relu()
        return tokens.mean(1)


preset = sys.argv[1] if len(sys.argv) > 1 else "fast"
run = osiris.train("osiris-d", "tinyworld", preset=preset, encoder=Patches, out="runs/own-encoder")
print(f"accuracy {run.metrics['class-agnostic'].A:.1f} percent, untrained encoder", end=" ")
print(f"{run.metrics['class-agnostic'].untrained:.1f} percent")

# In another process, make the class known first: run directories name an encoder but hold no code.
osiris.register_encoder(Patches)
encoder = osiris.load_run("runs/own-encoder").encoder()
print(f"{sum(parameter.numel() for parameter in encoder.parameters()):,} parameters")
