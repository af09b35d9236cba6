"""Learn from your own images, here an array; a folder, a torch Dataset or a Hugging Face Dataset work the same way.

python examples/own_images.py [PRESET]
"""

import sys

import numpy as np

import osiris

random = np.random.default_rng(0)
months = np.arange(3).repeat(64)  # images arrive in three episodes, whose colours change
images = (random.normal(0, 30, (192, 32, 32, 3)) + 60 * months[:, None, None, None] + 60).clip(0, 255).astype(np.uint8)

bench = osiris.benchmark_from(images, episodes=months, name="months")
run = osiris.train("osiris-d", bench, preset=sys.argv[1] if len(sys.argv) > 1 else "fast", out="runs/months")
print(run.metrics.missing)  # without labels there is no accuracy
print(f"effective rank {run.metrics.evaluations[-1].health.effective_rank:.1f}")
print("features:", tuple(run.embed(images[:8]).shape))
