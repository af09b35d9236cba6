from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from osiris.evaluation.runs import load_runs
from osiris.report.benchmark_images import find_images
from osiris.report.figures.unlabelled import feature_drift, same_looking
from osiris.report.studies import studies


def test_copies_look_the_same_even_if_brighter():
    images = torch.randint(0, 200, (6, 3, 36, 36), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    images[4] = images[1]
    images[5] = images[2] + 20
    assert same_looking(images) == [[1, 4], [2, 5]]
    assert same_looking(torch.full((3, 3, 36, 36), 7, dtype=torch.uint8)) == [], "plain images have no edges to compare"


def test_drift_compares_each_checkpoint_with_the_one_before(real_runs: dict[str, Path]):
    (study,), _ = studies(load_runs([real_runs["osiris-d"]]))
    benchmark = find_images(study).benchmark
    assert benchmark is not None
    x, moved = feature_drift(study.runs[0], benchmark)
    assert x.tolist() == list(range(2, 11)) and (moved >= -1e-6).all() and moved.max() > 0
    assert np.isfinite(moved).all() and moved.max() < 2
