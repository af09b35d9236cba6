"""What `--launcher slurm` asks for and refuses; tests/cluster submits real jobs."""

import sys
from pathlib import Path

import pytest

from osiris.cli import main
from osiris.errors import UserError
from osiris.sweep.slurm import SlurmOptions, rendezvous


def test_options_become_parameters_of_sbatch() -> None:
    options = SlurmOptions("gpu", time=60, gpus=2, nodes=2, slurm=("account=vision", "--mem=16G"))
    parameters = options.parameters(processes=2, jobs=5)
    assert parameters["additional_parameters"] == {"requeue": True, "account": "vision", "mem": "16G"}
    wanted = {"partition": "gpu", "gpus_per_node": 2, "cpus_per_task": 2, "nodes": 2, "array_parallelism": 5}
    assert wanted.items() <= parameters.items()
    assert SlurmOptions(time=1).parameters(1, None)["signal_delay_s"] < 60, "within the time limit"
    with pytest.raises(UserError, match="NAME=VALUE"):
        SlurmOptions(slurm=("account",)).parameters(1, None)


def test_nodes_meet_at_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "40007")
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1")
    assert rendezvous(1, 0) == ["--standalone"]
    assert rendezvous(2, 1) == ["--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1", "--master-port=20007"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--launcher", "slurm"], "osiris-ucl[slurm]"),
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
