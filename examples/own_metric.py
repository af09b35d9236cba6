"""A metric of your own: how much closer images of one class are to each other than images of all classes.

python examples/own_metric.py [PRESET]

From the command line, in the folder of this file, in training or afterwards:
    osiris train --method osiris-d --metrics own_metric:Separation --benchmark tinyworld --preset fast --out runs/x
    osiris evaluate runs/x --metrics "own_metric:Separation(images=500)"
"""

import sys

import torch.nn.functional as functional

import osiris


class Separation(osiris.Metric):
    """100 times the mean cosine similarity of test images within classes, minus that of all pairs."""

    kind = "separation"
    better = "higher"
    images: int = 1000

    def measure(self, features, benchmark):
        test = benchmark.test
        if features.test is None or test is None or test.label is None:
            return None
        every = max(1, len(features.test) // self.images)
        unit = functional.normalize(features.test[::every], dim=1).cpu()
        similarity, label = unit @ unit.T, test.label[::every]
        same = (label[:, None] == label).fill_diagonal_(False)
        return 100 * float(similarity[same].mean() - similarity.mean())


if __name__ == "__main__":
    preset = sys.argv[1] if len(sys.argv) > 1 else "fast"
    run = osiris.train("osiris-d", "tinyworld", metrics=["separation"], preset=preset, out="runs/separation")
    print(f"separation {run.metrics.evaluations[-1].own['separation'].value:.1f}")
