"""Training on a CUDA device that is not there: tensors that say `cuda:0` and compute on the CPU.

This finds tensors on the wrong device and steps for which the host waits, and nothing about kernels or speed. Skipped
where there is no such device (pretend_cuda.py).
"""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pretend_cuda
from osiris.framework.methods import READINGS, TRAINED
from process_jobs import COMPOSED
from quick import quick
from tiny import OBJECTIVES
from tiny_runs import arguments, contents, episode, log

METHODS = {name: {"method": name} for name in (*TRAINED, *READINGS)}
METHODS |= {name: {key: value for key, value in vars(one).items() if value} for name, one in COMPOSED.items()}
METHODS |= {f"ft with {name}": {"method": "ft", "objective": name} for name in OBJECTIVES}
DISTINCT = {"osiris-d", "ewc", "pocon", "cromo", "minred", "cla-r", "er-byol", "cassle-swav", "pnr-mocov2+"}


class Process:
    """Functions of cuda_jobs.py in a process that has the device."""

    def __init__(self, folder: Path, **environment: str) -> None:
        search = os.pathsep.join(filter(None, sys.path))
        self.process = subprocess.Popen(
            [sys.executable, Path(pretend_cuda.__file__).with_name("cuda_jobs.py"), folder],
            env={**os.environ, "PYTHONPATH": search, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, job: str, **given: Any) -> Any:
        self.start(job, **given)
        return self.result()

    def start(self, job: str, **given: Any) -> None:
        print(json.dumps((job, given)), file=self.process.stdin, flush=True)

    def result(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process of the pretend device has ended"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the device."""
    reason = pretend_cuda.missing()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("cuda")
    pretend_cuda.build(folder)
    return folder


@pytest.fixture(scope="module")
def pretend(device: Path) -> Iterator[Process]:
    process = Process(device)
    yield process
    process.close()


NOT_DETERMINISTIC = re.compile(
    "_?adaptive_.*_pool.d_backward|avg_pool3d_backward|upsample_.*linear.*_backward|reflection_pad.d_backward|"
    "nll_loss2d.*|grid_sampler.*_backward|cumsum|put_|histc|median"
)
"""Operations that have no deterministic kernel on CUDA (torch.use_deterministic_algorithms)."""


def assert_like_the_cpu(values: dict[str, Any], rel: float = 1e-3) -> None:
    """The losses of the CPU, no wait for the device, and only deterministic operations."""
    assert_close(values["cuda"], values["cpu"], rel)
    assert values["waits"] == []
    assert [name for name in values["operations"] if NOT_DETERMINISTIC.fullmatch(name)] == []


def assert_close(one: list[dict[str, float]], other: list[dict[str, float]], rel: float) -> None:
    assert len(one) == len(other) > 0
    for left, right in zip(one, other):
        assert left == {name: pytest.approx(value, rel=rel, abs=rel, nan_ok=True) for name, value in right.items()}


@pytest.mark.parametrize("name", quick(DISTINCT, METHODS))
def test_a_step_has_the_losses_of_the_cpu_and_the_host_never_waits(name: str, pretend: Process) -> None:
    assert_like_the_cpu(pretend("steps", method=METHODS[name]))


def test_constants_and_parameters_of_views_are_not_uploaded_one_by_one(pretend: Process) -> None:
    """In a step of the first task at most 6 copies: images, parameters of two views, three lists of the memory. Of the
    second task 9: also the slots of Y and the parameters of its views. The images once in each task, and five constants
    once in each process."""
    values = pretend("steps", method={"method": "osiris-d"}, views="paper")
    assert values["uploads"] <= 2 * 6 + 2 * 9 + 2 + 5


@pytest.mark.parametrize("keep", [True, False])
def test_images_on_the_device_or_on_the_host(keep: bool, pretend: Process) -> None:
    """cromo reads images of a whole task for its memory, too."""
    assert_like_the_cpu(pretend("steps", method={"method": "cromo"}, images_on_device=keep))


def test_the_encoder_of_fast_is_deterministic(pretend: Process) -> None:
    assert_like_the_cpu(pretend("steps", method={"method": "er"}, family="fast", width=32, blocks=[1, 1]))


@pytest.mark.parametrize("optimiser", quick({"muon"}, ["adamw", "lars", "muon"]))
def test_every_optimiser(optimiser: str, pretend: Process) -> None:
    assert_like_the_cpu(pretend("steps", method={"method": "osiris-d"}, optimiser=optimiser, learning_rate=0.001))


PRECISIONS = [(precision, norm) for precision in ("bf16", "16") for norm in ("gn", "bn")]


@pytest.mark.parametrize(("precision", "norm"), quick({("bf16", "gn"), ("16", "gn")}, PRECISIONS))
def test_half_precision(precision: str, norm: str, pretend: Process) -> None:
    values = pretend("steps", method={"method": "osiris-d"}, precision=precision, norm=norm, learning_rate=0.001)
    for row in (*values["cuda"], *values["cpu"]):
        row.pop("gradient_norm")  # the first steps of `16` overflow
    assert_like_the_cpu(values, rel=0.05)


OPTIMISERS = [(optimiser, precision) for optimiser in ("sgd", "adamw", "lars", "muon") for precision in ("32", "16")]


@pytest.mark.parametrize(("optimiser", "precision"), quick({("muon", "32"), ("sgd", "16")}, OPTIMISERS))
def test_a_resumed_run_has_the_same_losses(optimiser: str, precision: str, pretend: Process) -> None:
    values = pretend("resume", method={"method": "osiris-d"}, optimiser=optimiser, precision=precision)
    assert str(values["resumed"]) == str(values["whole"])  # as text: the norm of a step that overflows is nan


def test_an_evaluation_has_the_numbers_of_the_cpu(pretend: Process) -> None:
    values = pretend("evaluation")
    (features, numbers), (expected, other) = values["cuda"], values["cpu"]
    assert features == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert numbers["protocols"] == other["protocols"]
    assert numbers["health"] == pytest.approx(other["health"], rel=1e-3)


def test_a_whole_run(tmp_path: Path, pretend: Process) -> None:
    """From the command line, with a stop and a resume: the files of an uninterrupted run. Then evaluate and embed."""
    name = pretend("arrays", path=str(tmp_path / "tiny.npz"))
    runs = tmp_path / "whole", tmp_path / "resumed"
    for run in runs:
        typed = [argument if argument != "cpu" else "cuda" for argument in arguments(name, run, "osiris-d")]
        if run.name == "resumed":
            assert pretend("command", arguments=[*typed, "--stop-after-task", "1"]) == {"code": 0}
        assert pretend("command", arguments=typed) == {"code": 0}
    assert contents(runs[0]) == contents(runs[1])
    typed = ["evaluate", str(runs[0]), "--device", "cuda"]
    assert pretend("command", arguments=typed) == {"code": 0}
    assert pretend("tf32_after", arguments=typed) == [False, False]
    values = pretend("embed", checkpoint_file=str(episode(runs[0], 3).weights))
    assert values["cuda"] == pytest.approx(values["cpu"], rel=1e-4, abs=1e-5)


@pytest.mark.slow
def test_two_processes_with_a_gpu_each(tmp_path: Path, device: Path, pretend: Process) -> None:
    """The whole run of two processes is that of one up to rounding. Gloo stands in for NCCL."""
    name = pretend("arrays", path=str(tmp_path / "tiny.npz"))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    common = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    pair = [Process(device, RANK=str(rank), LOCAL_RANK=str(rank), **common) for rank in range(2)]
    runs = tmp_path / "one", tmp_path / "two"
    one, two = ([word if word != "cpu" else "cuda" for word in arguments(name, run, "osiris-d")] for run in runs)
    for process in pair:
        process.start("command", arguments=two)
    assert pretend("command", arguments=one) == {"code": 0}
    assert [process.result() for process in pair] == [{"code": 0}] * 2
    for process in pair:
        process.close()
    for alone, together in zip(log(runs[0]), log(runs[1]), strict=True):
        assert together["terms"] == pytest.approx(alone["terms"], rel=0.02)
