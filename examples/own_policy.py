"""A replay policy of your own: half of every batch Y comes from the newest images of the memory.

python examples/own_policy.py [PRESET]

From the command line, in the folder of this file:
    osiris train --method er --memory-policy own_policy:Fresh --benchmark tinyworld --preset fast
"""

import sys

import torch

import osiris


class Fresh(osiris.Memory):
    """A reservoir (the base class chooses what enters); half of what is read is among its newest third."""

    kind = "fresh"

    def sample(self, count, generator):
        newest = self.step[: self.filled].cpu().argsort(descending=True)
        young = newest[: max(count, self.filled // 3)]
        half = young[torch.randperm(len(young), generator=generator)[: count // 2]]
        others = torch.randperm(self.filled, generator=generator)
        others = others[~torch.isin(others, half)]
        return torch.cat([half, others])[:count]


if __name__ == "__main__":
    preset = sys.argv[1] if len(sys.argv) > 1 else "fast"
    run = osiris.train("er", "tinyworld", memory_policy="fresh", preset=preset, out="runs/fresh")
    print(f"accuracy {run.metrics['class-agnostic'].A:.1f} percent")
