"""What a step asks of a GPU: operations, memory traffic and uploads, counted without one.

    python benchmarks/device.py [--method osiris-d]

The second task with the networks, views and losses of the preset `paper` on 32x32 images, on the pretend CUDA device
(tests/support/pretend_cuda.py). Traffic is what all operations read and write, as if each went through the memory of
the device. It is a polynomial of the batch size (parameters, images, pairs of images), so three small batches determine
it for 256 + 192 images.
"""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
import pretend_cuda

BATCHES, PAPER = (4, 8, 12), 256


@dataclass
class Counts:
    operations: int = 0
    bytes: int = 0
    uploads: int = 0


def extrapolate(values: list[int]) -> float:
    """The value at the paper's batch size of the parabola through those at the small ones."""
    one, two, three = values
    first, second, third = BATCHES
    slope = (two - one) / (second - first)
    bend = ((three - two) / (third - second) - slope) / (third - first)
    return one + slope * (PAPER - first) + bend * (PAPER - first) * (PAPER - second)


def count_step(core: Any, method: str, batch: int, precision: str) -> Counts:
    """The counts of one step in the second task, with the memory filled."""
    import numpy as np
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    from osiris.bench import MEAN, STD
    from osiris.data.benchmark import Benchmark, Split
    from osiris.data.images import ArrayImages
    from osiris.framework.methods import find_method
    from osiris.presets import paper
    from osiris.training.engine import Engine
    from osiris.training.schedule import phases

    def traffic(tensor: torch.Tensor) -> int:
        """Bytes, without the repetitions of an expanded tensor."""
        sizes = [size for size, stride in zip(tensor.shape, tensor.stride()) if stride]
        return int(np.prod(sizes, dtype=np.int64)) * tensor.element_size()

    class Count(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.counts = Counts()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, core.OnCuda)]
            view = any(returned.alias_info and not returned.alias_info.is_write for returned in func._schema.returns)
            name = func.overloadpacket.__name__
            if made and not view and not name.startswith(("empty", "new_empty", "_unsafe_view")):
                self.counts.operations += 1
                self.counts.bytes += sum(map(traffic, (*given, *made)))
                copied = name in ("_to_copy", "copy_") and any(type(leaf) is torch.Tensor for leaf in given)
                self.counts.uploads += copied
            return out

    random = np.random.default_rng(0)
    images = ArrayImages(random.integers(0, 256, (4 * batch, 3, 32, 32), dtype=np.uint8))
    task = torch.arange(2).repeat_interleave(2 * batch)
    split = Split(images, task, task.clone())
    data = Benchmark("random", split, split, split, ("a", "b"), ((0,), (1,)), MEAN, STD)
    config = paper("tinyworld")
    learning = replace(config.learning, batch_size=batch, memory_size=2 * batch, epochs=1)
    config = replace(config, learning=learning, engine=replace(config.engine, precision=precision))
    chosen = find_method(method)
    first, second = phases(data, chosen, 1, batch)
    with core.Cuda():
        engine = Engine(config, chosen, data, torch.device("cuda:0"))
        for phase, steps in ((first, 2), (second, 1)):
            engine.begin(phase)
            for step in range(steps):
                engine.step(phase, step)
            if phase is first:
                engine.end(phase)
        with Count() as count:
            engine.step(second, 1)
    return count.counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="osiris-d")
    options = parser.parse_args()
    reason = pretend_cuda.missing()
    if reason is not None:
        sys.exit(reason)
    with tempfile.TemporaryDirectory() as folder:
        pretend_cuda.build(Path(folder))
        sys.path.insert(0, folder)
        core = importlib.import_module("core")  # before torch
    # A build of torch without CUDA has no kernel for this there, and would count the many operations it replaces.
    library = core.torch.library.Library("aten", "IMPL")
    library.impl("mish_backward", lambda *given: None, "CUDA")
    core.torch.set_num_threads(1)
    print(f"{'precision':12}{'operations':>12}{'traffic':>12}{'uploads':>10}")
    for precision in ("32", "bf16"):
        counts = [count_step(core, options.method, batch, precision) for batch in BATCHES]
        gigabytes = extrapolate([count.bytes for count in counts]) / 1e9
        print(f"{precision:12}{counts[-1].operations:12}{gigabytes:9.1f} GB{counts[-1].uploads:10}", flush=True)


if __name__ == "__main__":
    main()
