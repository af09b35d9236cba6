"""Grids on a real SLURM cluster: a controller and two nodes that slurm.sh starts on this machine."""

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from osiris.cli import main
from osiris.files import read_json
from osiris.grids import slurm
from osiris.grids.attempts import status_of
from osiris.grids.grid import Grid, GridDirectory, GridRun
from osiris.grids.journal import last_step, read_journal
from osiris.grids.runner import make_launcher, run_grids
from osiris.grids.slurm import SlurmOptions, queued_jobs
from tiny_runs import write_arrays

pytestmark = pytest.mark.slow
SETTINGS = {"epochs": "10", "batch_size": "12", "memory_size": "12", "k": "3", "threads": "1"}
SETTINGS |= {"save_every": "0", "log_every": "1"}
SCRIPT = Path(__file__).parent / "slurm.sh"


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    pytest.importorskip("submitit", reason="the extra `slurm` is not installed")
    folder = Path(tempfile.mkdtemp(prefix="slurm"))  # the path of a socket must be short
    started = subprocess.run([SCRIPT, "start", folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if started.returncode != 0:
        shutil.rmtree(folder)
        pytest.skip(f"SLURM cannot start here: {started.stdout.strip()}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        patch.setattr(slurm, "POLL", 1.0)
        yield
        subprocess.run([SCRIPT, "stop", folder], check=True)
    shutil.rmtree(folder)


@pytest.fixture
def small_grid(tmp_path: Path) -> Callable[..., Grid]:
    """Runs of 90 steps on three tasks of tiny images."""
    benchmark = write_arrays(tmp_path / "tiny.npz")

    def grid(*methods: str, **settings: str) -> Grid:
        values = {name: (value,) for name, value in (SETTINGS | settings).items()}
        return Grid(methods, (benchmark,), (0,), "smoke", values)

    return grid


def until(condition: Callable[[], bool], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def starts(directory: GridDirectory, run: GridRun) -> int:
    return sum(entry.event == "start" for entry in read_journal(directory, run))


def job_of(directory: GridDirectory, run: GridRun) -> str:
    """The job that was submitted last for this run."""
    return [entry.job for entry in read_journal(directory, run) if entry.event == "submit"][-1]


def test_jobs_that_are_requeued_time_out_or_die_continue_to_the_same_bits(
    small_grid: Callable[..., Grid], tmp_path: Path
) -> None:
    grid = small_grid("ft", "er", "osiris-d")
    directory = GridDirectory(tmp_path / "grid")
    command = ["sweep", "--methods", *grid.methods, "--benchmarks", *grid.benchmarks, "--seeds", "0"]
    command += ["--preset", "smoke", "--set", *(f"{name}={value}" for name, value in SETTINGS.items())]
    command += ["--out", str(directory.path), "--launcher", "slurm"]
    assert main([*command, "--time", "30", "--no-wait"]) == 0
    jobs = {run: job_of(directory, run) for run in grid.runs()}
    assert len({str(job).split("_")[0] for job in jobs.values()}) == 1, "one array job"
    launcher = make_launcher(directory, slurm=SlurmOptions(time=30))
    watching = threading.Thread(target=run_grids, args=(launcher, [grid]), daemon=True)
    watching.start()
    preempted, timed_out, _ = grid.runs()
    for run in grid.runs():
        until(lambda run=run: last_step(directory.folder(run) / "log.jsonl").total_step > 2)
        assert status_of(directory, run).state == "running"
        if run == preempted:
            subprocess.run(["scontrol", "requeue", str(jobs[run])], check=True)
        elif run == timed_out:
            subprocess.run(["scancel", "--signal=USR2", str(jobs[run])], check=True)
        else:
            os.kill(int((directory.folder(run) / ".lock").read_text().split()[1]), signal.SIGKILL)
    watching.join(timeout=600)
    assert [job_of(directory, run) == jobs[run] for run in grid.runs()] == [True, True, False], "requeued or again"
    for run in grid.runs():
        assert starts(directory, run) == 2
        assert "continuing" in (directory.path / "attempts" / f"{run.name}.err").read_text()
    here = GridDirectory(tmp_path / "here")
    run_grids(make_launcher(here, jobs=1), [grid])
    for run in grid.runs():
        assert (directory.folder(run) / "metrics.json").read_bytes() == (here.folder(run) / "metrics.json").read_bytes()
    run_grids(make_launcher(directory, slurm=SlurmOptions()), [grid])
    assert not queued_jobs() and starts(directory, preempted) == 2, "a finished grid starts nothing"


def test_two_processes_on_one_node_and_one_on_each_of_two_nodes_agree(
    small_grid: Callable[..., Grid], tmp_path: Path
) -> None:
    grid = small_grid("osiris-d")
    (run,) = grid.runs()
    folders = {}
    for nodes in (1, 2):
        directory = GridDirectory(tmp_path / f"nodes{nodes}")
        run_grids(make_launcher(directory, processes=2 // nodes, slurm=SlurmOptions(time=30, nodes=nodes)), [grid])
        folders[nodes] = directory.folder(run)
        assert directory.finished(run), status_of(directory, run)
        assert [start["processes"] for start in read_json(folders[nodes] / "environment.json")] == [2]
    one, two = ((folder / "metrics.json").read_bytes() for folder in folders.values())
    assert one == two


def test_a_mistake_of_the_user_is_not_tried_again(small_grid: Callable[..., Grid], tmp_path: Path) -> None:
    grid = small_grid("er", memory_size="4")
    directory = GridDirectory(tmp_path)
    run_grids(make_launcher(directory, retries=3, slurm=SlurmOptions(time=30)), [grid])
    status = status_of(directory, directory.runs[0])
    assert status.state == "failed" and "the memory holds 4 images" in status.detail
    assert starts(directory, directory.runs[0]) == 1
