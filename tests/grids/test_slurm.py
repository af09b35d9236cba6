"""What `--launcher slurm` asks for and refuses; tests/cluster submits real jobs."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from osiris.cli import main
from osiris.commands import train
from osiris.errors import UserError
from osiris.grids import slurm
from osiris.grids.attempts import training_command
from osiris.grids.grid import Grid, GridDirectory
from osiris.grids.journal import read_journal
from osiris.grids.runner import make_launcher, run_grids
from osiris.grids.slurm import SlurmOptions, rendezvous


def test_options_become_parameters_of_sbatch() -> None:
    options = SlurmOptions("gpu", time=60, gpus=2, nodes=2, slurm=("account=vision", "--mem=16G"))
    parameters = options.parameters(processes=2, jobs=5)
    assert parameters["additional_parameters"] == {"requeue": True, "account": "vision", "mem": "16G"}
    wanted = {"partition": "gpu", "gpus_per_node": 2, "cpus_per_task": 2, "nodes": 2, "array_parallelism": 5}
    assert wanted.items() <= parameters.items()
    assert SlurmOptions(time=1).parameters(1, None)["signal_delay_s"] < 60, "within the time limit"
    with pytest.raises(UserError, match="NAME=VALUE"):
        SlurmOptions(slurm=("account",)).parameters(1, None)


def test_jobs_are_submitted_once_each_with_the_config_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit", reason="the extra `slurm` is not installed")
    submitted: list[slurm.Job] = []

    def submit_array(work: list[slurm.Job]) -> list[SimpleNamespace]:
        submitted.extend(work)
        return [SimpleNamespace(job_id=f"7_{submitted.index(job)}") for job in work]

    monkeypatch.setattr(slurm, "_executor", lambda *_: SimpleNamespace(submit_array=submit_array))
    monkeypatch.setattr(slurm, "queued_jobs", lambda: {"7_0"})
    grid, directory = Grid(("ft", "er"), seeds=(0,), preset="smoke"), GridDirectory(tmp_path)
    for _ in range(2):
        run_grids(make_launcher(directory, slurm=SlurmOptions(wait=False)), [grid])
    assert [job.run.method for job in submitted] == ["ft", "er", "er"], "the first one is still in the queue"
    for job in submitted:
        args = train.parse(training_command(job.directory, job.run)[4:])
        assert args.settings == job.run.config and args.out == tmp_path / "runs" / job.run.name
    assert [entry.job for entry in read_journal(directory, submitted[1].run)] == ["7_1", "7_2"]


def test_nodes_meet_at_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "40007")
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1")
    assert rendezvous(1, 0) == ["--standalone"]
    assert rendezvous(2, 1) == ["--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1", "--master-port=20007"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--launcher", "slurm"], "-e '.[slurm]'"),
        (["--partition", "gpu"], "need --launcher slurm"),
        (["--no-wait"], "need --launcher slurm"),
    ],
)
def test_the_command_says_what_is_missing(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert main(["sweep", "--methods", "ft", "--out", str(tmp_path / "grid"), *options]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "grid").exists()
