"""`torchrun -m osiris train` and `osiris train --processes`, with a worker that dies on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist

import fork_server
from osiris import processes
from osiris.files import read_json
from tiny_runs import arguments, log

pytestmark = pytest.mark.timeout(900)
TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1", "-m", "osiris"]


@pytest.fixture
def torchrun(
    arrays: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Two processes at work, and their run directory."""
    run = tmp_path / "run"
    typed = [*arguments(arrays, run), "--epochs", "10", "--save-every", "0"]
    launcher = getattr(request, "param", TORCHRUN)
    typed += ["--processes", "2"] if launcher is not TORCHRUN else []
    environment = {**os.environ, "OSIRIS_CACHE": str(tmp_path / "cache")}
    with (tmp_path / "output").open("wb") as output:
        command = [sys.executable, "-m", *launcher, *typed]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    deadline = time.monotonic() + 240
    while not (run / "log.jsonl").exists() or (run / "log.jsonl").stat().st_size < 4000:
        assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "output").read_text()
        time.sleep(0.05)
    yield process, run
    process.kill()
    process.wait()


def worker(run: Path) -> int:
    """The process that owns the run directory."""
    return int((run / ".lock").read_text().split()[1])


def test_a_dead_worker_is_replaced_and_the_run_goes_on(
    torchrun: tuple[subprocess.Popen[bytes], Path], arrays: str, tmp_path: Path
) -> None:
    process, run = torchrun
    os.kill(worker(run), signal.SIGKILL)
    assert process.wait(timeout=300) == 0, (tmp_path / "output").read_text()
    output = (tmp_path / "output").read_text()
    assert output.count("continuing") == 1 and "Traceback" not in output
    starts = read_json(run / "environment.json")
    assert [start["processes"] for start in starts] == [2, 2]
    steps = [line["total_step"] for line in log(run)]
    assert steps == sorted(set(steps)) and steps[-1] == 90

    typed = [*arguments(arrays, tmp_path / "alone"), "--epochs", "10"]
    assert fork_server.run("command", tmp_path / "output", arguments=typed) == 0
    alone, two = (json.loads((folder / "metrics.json").read_text()) for folder in (tmp_path / "alone", run))
    for protocol, values in alone["protocols"].items():
        assert two["protocols"][protocol]["A"] == pytest.approx(values["A"], abs=10)
    assert two["fingerprint"] == alone["fingerprint"]


@pytest.mark.slow
@pytest.mark.parametrize(("torchrun", "code"), [(TORCHRUN, 1), (["osiris"], 75)], indirect=["torchrun"])
def test_a_signal_to_the_launcher_saves_the_run(
    torchrun: tuple[subprocess.Popen[bytes], Path], code: int, tmp_path: Path
) -> None:
    """torchrun has an exit code of its own; `osiris train --processes` returns the run's. The run continues all the
    same, here in one process."""
    process, run = torchrun
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == code
    assert "the state is saved" in (tmp_path / "output").read_text()
    typed = ["train", "--resume", str(run), "--quiet"]
    assert fork_server.run("command", tmp_path / "more", arguments=typed) == 0, (tmp_path / "more").read_text()
    assert [start["processes"] for start in read_json(run / "environment.json")] == [2, 1]


def test_processes_meet_in_a_store_with_entries_of_earlier_starts() -> None:
    """Each round finds names, lists and addresses of earlier rounds in the store."""
    store = dist.HashStore()
    for round_ in range(3):
        with ThreadPoolExecutor(3) as threads:
            parts = list(threads.map(lambda number: processes.meet(store, number, 3), range(3)))
        assert not parts[0].check(["address"])
        parts[round_].set("address", f"of round {round_}")
        assert [part.get("address") for part in parts] == [f"of round {round_}".encode()] * 3
