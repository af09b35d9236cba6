"""What a step asks of a GPU: operations, memory traffic and uploads, counted without one.

    python benchmarks/device.py [--method osiris-d]

The second task with the networks, views and losses of the preset `paper` on 32x32 images, 256 and those of the memory,
on the pretend CUDA device (tests/support/pretend_cuda.py), whose tensors have no values here. Traffic is what all
operations read and write, as if each went through the memory of the device. The passes
through the encoder are also counted alone. What `--compile` fuses is not counted.
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

BATCH = 256
MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)


@dataclass
class Counts:
    operations: int = 0
    bytes: int = 0
    uploads: int = 0


def forget_values(core: Any) -> None:
    """Tensors of the pretend device get shapes alone: computing in bf16 on a CPU takes minutes."""
    create, compute = core.OnCuda.__new__, core.compute

    def without_device(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ == "_to_copy" and isinstance(args[0], core.OnCuda):
            kwargs = {name: value for name, value in (kwargs or {}).items() if name != "device"}
        return compute(func, types, args, kwargs)

    core.OnCuda.__new__ = staticmethod(lambda cls, inner: create(cls, inner.to("meta")))
    core.compute = without_device
    library = core.torch.library.Library("aten", "IMPL")
    library.impl("_fused_sgd_", lambda *given, **named: None, "Meta")
    # A build of torch without CUDA has no kernel for this there, and would count the many operations it replaces.
    library.impl("mish_backward", lambda *given: None, "CUDA")
    core.library = library  # which would be undone with it


def counter(core: Any) -> Any:
    """A mode that counts what runs under it."""
    import numpy as np
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

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

    return Count()


def count_step(core: Any, method: str, precision: str) -> Counts:
    """The counts of one step in the second task, with the memory filled."""
    import numpy as np
    import torch

    from osiris.data.benchmark import Benchmark, Split
    from osiris.data.images import ArrayImages
    from osiris.framework.methods import find_method
    from osiris.presets import preset_config
    from osiris.training.engine import Engine
    from osiris.training.schedule import plan_episodes

    images = ArrayImages(np.zeros((4 * BATCH, 3, 32, 32), dtype=np.uint8))
    task = torch.arange(2).repeat_interleave(2 * BATCH)
    split = Split(images, task, task.clone())
    data = Benchmark("black", split, split, split, ("a", "b"), ((0,), (1,)), MEAN, STD)
    config = preset_config("paper", "tinyworld")
    learning = replace(config.learning, epochs=1)
    config = replace(
        config, learning=learning, engine=replace(config.engine, precision=precision, images_on_device=True)
    )
    chosen = find_method(method)
    first, second = plan_episodes(data, chosen, learning)
    with core.Cuda():
        engine = Engine(config, chosen, data, torch.device("cuda:0"))
        for phase, steps in ((first, 2), (second, 1)):
            engine.begin(phase)
            for step in range(steps):
                engine.step(phase, step)
            if phase is first:
                engine.end(phase)
        with counter(core) as count:
            engine.step(second, 1)
    return count.counts


def views_per_image(method: str) -> Any:
    from osiris.framework.cost import later_cost
    from osiris.framework.methods import find_method

    return later_cost(find_method(method))


def encoder_passes(cost: Any, precision: str) -> None:
    """The passes of a step through the encoder and the frozen encoder."""
    import torch

    from osiris.models.encoder import build_encoder
    from osiris.presets import preset_config

    for images, trained in ((cost.backward, True), (cost.frozen, False)):
        encoder = build_encoder(preset_config("paper", "tinyworld").encoder).requires_grad_(trained).to("cuda")
        views = torch.empty(round(images * BATCH), 3, 32, 32, device="cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            features = encoder(views)
        if trained:
            features.sum().backward()


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
    forget_values(core)
    core.torch.set_num_threads(1)
    cost = views_per_image(options.method)
    print(f"{'precision':16}{'operations':>12}{'traffic':>12}{'uploads':>10}")
    for precision in ("32", "bf16"):
        counts = count_step(core, options.method, precision)
        print(f"{precision:16}{counts.operations:12}{counts.bytes / 1e9:9.1f} GB{counts.uploads:10}", flush=True)
        with core.Cuda(), counter(core) as passes:
            encoder_passes(cost, precision)
        alone = passes.counts
        print(f"{'  encoder':16}{alone.operations:12}{alone.bytes / 1e9:9.1f} GB", flush=True)


if __name__ == "__main__":
    main()
