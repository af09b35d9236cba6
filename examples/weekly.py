"""New images arrive every week: learn from each folder in a process of its own, then compare with one run over all.

    python examples/weekly.py [PRESET]

The images are CIFAR-100's (with the preset smoke: noise). Both ways end with the same weights, bit for bit.
"""

import subprocess
import sys
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import load_file

import osiris
from osiris.data.config import BenchmarkConfig
from osiris.data.load import load_benchmark

preset = sys.argv[1] if len(sys.argv) > 1 else "fast"
smoke = preset == "smoke"
weeks, source = (2, None) if smoke else (10, load_benchmark(BenchmarkConfig("split-cifar100-10")))
for week in range(weeks):
    folder = Path("photos") / f"week-{week + 1:02d}"
    folder.mkdir(parents=True, exist_ok=True)
    if source is None:
        images = torch.randint(256, (12, 3, 32, 32), dtype=torch.uint8)
    else:
        images = source.train.images.take(source.training_indices(week)[:500])
    for number, image in enumerate(images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{number:04d}.png")
    command = [sys.executable, "-m", "osiris", "observe", "runs/state", str(folder), "--preset", preset, "--quiet"]
    subprocess.run([*command, "--image-size", "32"], check=True)

run = osiris.train("osiris-d", "folder:photos", preset=preset, out="runs/at-once", image_size=32)
for week in range(weeks):
    one, other = load_file(osiris.Learner("runs/state").run.weights[week]), load_file(run.weights[week])
    assert all(torch.equal(one[key], other[key]) for key in other), week
print(f"{weeks} weeks observed one by one and at once: the same weights")
print("features of the first week:", osiris.Learner("runs/state").embed("photos/week-01").shape)
