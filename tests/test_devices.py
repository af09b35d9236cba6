"""Which device a process takes, and how it is set up, with a simulated driver."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from osiris import devices
from osiris.config import EngineConfig
from osiris.devices import choose_device, faster_precision, open_device, peak_memory
from osiris.errors import UserError


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.device]]:
    """Two GPUs, of which the second has used a megabyte; the devices that were selected."""
    selected: list[torch.device] = []

    def used(device: Any = None) -> int:
        return 2**20 * (selected[-1] if device is None else device).index

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", selected.append)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", used)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda *given, **named: None)
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHINDUCTOR_DETERMINISTIC", "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.setenv(name, "")  # restored afterwards, also if it was not set
        monkeypatch.delenv(name)
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield selected
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def started_by_torchrun(patch: pytest.MonkeyPatch, rank: int, processes: int) -> None:
    patch.setenv("LOCAL_RANK", str(rank))
    patch.setenv("LOCAL_WORLD_SIZE", str(processes))


def test_every_process_selects_its_own_gpu(gpus: list[torch.device], monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_device("cuda:1") == open_device("cuda:1") == torch.device("cuda:1")
    for rank in range(2):
        started_by_torchrun(monkeypatch, rank, 2)
        assert open_device("auto") == gpus[-1] == torch.device("cuda", rank)
        assert peak_memory() == rank


@pytest.mark.parametrize(
    ("name", "processes", "message"),
    [
        ("cuda", 3, "3 processes need a GPU each, and there are 2"),
        ("cuda:1", 2, "would be shared by 2 processes"),
        ("cuda:2", 1, "cuda:2 does not exist"),
    ],
)
def test_a_gpu_that_is_shared_or_missing_is_refused(
    name: str, processes: int, message: str, gpus: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every process, so that none waits for the others."""
    for rank in range(processes):
        started_by_torchrun(monkeypatch, rank, processes)
        with pytest.raises(UserError, match=message):
            choose_device(name)


@pytest.mark.parametrize("tf32", [True, False])
def test_tf32_is_one_setting(tf32: bool, gpus: list[torch.device]) -> None:
    """torch's own default is off for matrix products and on for convolutions."""
    torch.backends.cudnn.allow_tf32 = not tf32
    open_device("cuda", tf32)
    assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == tf32
    assert not torch.backends.cudnn.benchmark and os.environ["TORCHINDUCTOR_DETERMINISTIC"] == "1"


def test_a_run_that_could_be_faster_says_so(gpus: list[torch.device], monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda:0")
    (line,) = faster_precision(EngineConfig(), cuda)
    assert "--tf32" in line and "--precision bf16" in line
    assert (
        faster_precision(EngineConfig(tf32=True), cuda) == faster_precision(EngineConfig(precision="bf16"), cuda) == []
    )
    assert faster_precision(EngineConfig(), torch.device("cpu")) == []
    monkeypatch.setattr(devices.torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert faster_precision(EngineConfig(), cuda) == []
