"""What the tests of the pretend CUDA device compute, in a process of its own: `python cuda_jobs.py FOLDER`.

FOLDER has core.py, whose tensors say `cuda:0` and compute on the CPU, and its library. Each line of the standard input
is a job in JSON; each line of the output is its result, or the traceback of its error.
"""

# pyright: reportAttributeAccessIssue=false
import importlib
import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    core: Any = importlib.import_module("core")  # before torch, which it imports with the library loaded

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from osiris import cli
from osiris.evaluation.embedder import Embedder
from osiris.evaluation.evaluate import evaluate_encoder
from osiris.framework.composition import resolve
from osiris.framework.config import MethodConfig
from osiris.models.encoder import build_encoder
from osiris.presets import with_options
from osiris.training import estimate
from osiris.training.engine import Engine, StepResult
from osiris.training.schedule import Episode, plan_episodes
from tiny_runs import benchmark, config, write_arrays

GIGABYTE = 2**30


class Operations(TorchDispatchMode):
    """The names of all operations, and the number of copies from the host."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.uploads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, out = func.overloadpacket.__name__, func(*args, **(kwargs or {}))
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        self.names.add(name)
        if name in ("_to_copy", "copy_") and isinstance(out, core.OnCuda):
            self.uploads += any(not isinstance(leaf, core.OnCuda) for leaf in given)
        return out


def simulate_driver() -> None:
    """What torch asks the driver for, besides tensors: two devices with 40 GB, and gloo for NCCL. Their tensors have no
    addresses, by which the estimate of a run's memory tells them apart."""
    estimate.available_memory = lambda device: None
    torch.cuda.device_count, torch.cuda.set_device = lambda: 2, lambda device: None
    start = dist.init_process_group
    dist.init_process_group = lambda backends, **given: start(backends.replace("nccl", "gloo"), **given)
    torch.cuda.mem_get_info = lambda device=None: (32 * GIGABYTE, 40 * GIGABYTE)
    torch.cuda.is_initialized, torch.cuda.max_memory_allocated = lambda: True, lambda device=None: GIGABYTE
    torch.cuda.get_device_capability = lambda device=None: (8, 0)
    torch.cuda.get_device_name = lambda device=None: "a pretend device"


def on(device: str) -> AbstractContextManager[Any]:
    return core.Cuda() if device == "cuda" else nullcontext()


def build(method: dict[str, Any], device: str, options: dict[str, Any]) -> tuple[Engine, list[Episode]]:
    settings = with_options(config(), {"batch_size": 13, "memory_size": 16, "device": device, **options})
    data, chosen = benchmark(), resolve(MethodConfig(**method))
    engine = Engine(settings, chosen, data, torch.device("cuda:0" if device == "cuda" else "cpu"))
    plan = plan_episodes(data, chosen, settings.learning)
    return engine, [replace(phase, steps=2) for phase in plan[:2]]


@contextmanager
def counted(waits: list[str]) -> Iterator[None]:
    """Collects the operations inside for which the host would wait."""
    core.WAITS.clear()
    yield
    waits += core.WAITS


def plain(result: StepResult) -> dict[str, float]:
    return {name: float(value) for name, value in result.values.items()}


def train(engine: Engine, phase: Episode, steps: range, waits: list[str]) -> list[dict[str, float]]:
    """The values of some steps of a task."""
    if steps.start == 0:
        engine.begin(phase)
    values = []
    for step in steps:
        with counted(waits):
            result = engine.step(phase, step)
        values.append(plain(result))
    if steps.stop == phase.steps:
        engine.end(phase)
    return values


def steps(method: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The values of two steps of tasks 1 and 2 on both devices; on CUDA also waits, operations and uploads."""
    values: dict[str, Any] = {}
    for device in ("cpu", "cuda"):
        waits: list[str] = []
        with on(device):
            engine, plan = build(method, device, options)
            with Operations() as operations:
                values[device] = [row for phase in plan for row in train(engine, phase, range(2), waits)]
        values |= {"waits": waits, "operations": sorted(operations.names), "uploads": operations.uploads}
    return values


def resume(method: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The values of the last step of two tasks: uninterrupted, and by an engine that a saved state was loaded into."""
    values = []
    for interrupted in (False, True):
        with on("cuda"), tempfile.TemporaryDirectory() as folder:
            engine, (first, second) = build(method, "cuda", options)
            train(engine, first, range(2), [])
            train(engine, second, range(1), [])
            if interrupted:
                torch.save(engine.state(), Path(folder) / "state.pt")
                state = torch.load(Path(folder) / "state.pt", map_location="cpu", weights_only=True)
                engine, (first, second) = build(method, "cuda", options)
                engine.restore(state)
            values.append(train(engine, second, range(1, 2), []))
    return {"whole": values[0], "resumed": values[1]}


def evaluation(**options: Any) -> dict[str, Any]:
    """Features of the benchmark, and all numbers computed from them, on both devices."""
    values: dict[str, Any] = {}
    for device in ("cpu", "cuda"):
        with on(device):
            engine, _ = build({"method": "ft"}, device, {"probe": True, **options})
            encoder = engine.networks.encoder
            evaluation = evaluate_encoder(encoder, engine.benchmark, engine.config.evaluation, engine.device)
            assert evaluation is not None
            values[device] = evaluation.features.bank.cpu().flatten().tolist(), evaluation.numbers.plain()
    return values


def embed(checkpoint_file: str) -> dict[str, Any]:
    """Features of raw images by the encoder of a checkpoint, on both devices."""
    images, values = benchmark().train.images.take(torch.arange(6)), {}
    for device in ("cpu", "cuda"):
        with on(device):
            embedder = Embedder(Path(checkpoint_file), torch.device("cuda:0" if device == "cuda" else "cpu"))
            values[device] = embedder(images).features.flatten().tolist()
    return values


def command(arguments: list[str]) -> dict[str, Any]:
    """`osiris ARGUMENTS` with a GPU; what it prints to the standard error is for pytest."""
    with on("cuda"), redirect_stdout(sys.stderr):
        return {"code": cli.main(arguments)}


def tf32_after(arguments: list[str]) -> list[Any]:
    """Whether products and convolutions use TF32 in a command, which torch allows for convolutions by default."""
    torch.backends.cudnn.allow_tf32 = True
    command(arguments)
    return [bool(torch.backends.cuda.matmul.allow_tf32), bool(torch.backends.cudnn.allow_tf32)]


def arrays(path: str) -> str:
    return write_arrays(Path(path))


def serve() -> None:
    simulate_driver()
    torch.set_num_threads(1)
    build_encoder(config().encoder)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        job: Callable[..., Any] = globals()[name]
        try:
            answer = {"result": job(**arguments)}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
