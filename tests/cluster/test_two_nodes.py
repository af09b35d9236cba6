"""Two nodes with one process each compute the bits of one node with two: two network namespaces joined by a cable."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from osiris.files import read_json
from osiris.grids.slurm import rendezvous
from tiny_runs import arguments, assert_same_run, log, write_arrays

pytestmark = pytest.mark.slow
ADDRESSES = ("10.77.0.1", "10.77.0.2")


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """Names of two namespaces that reach each other through their interface eth0, and nothing else."""
    names = [f"osiris-{os.getpid()}-{node}" for node in range(2)]
    ends = [f"o{os.getpid()}-{node}" for node in range(2)]
    commands = [f"ip netns add {name}" for name in names]
    commands.append(f"ip link add {ends[0]} type veth peer name {ends[1]}")
    for name, end, address in zip(names, ends, ADDRESSES):
        commands += [f"ip link set {end} netns {name}", f"ip -n {name} link set {end} name eth0"]
        commands += [f"ip -n {name} addr add {address}/24 dev eth0", f"ip -n {name} link set eth0 up"]
        commands.append(f"ip -n {name} link set lo up")
    try:
        for command in commands:
            try:
                subprocess.run(command.split(), check=True, capture_output=True, text=True)
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"no network namespaces here: {command}: {getattr(error, 'stderr', '') or error}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def test_two_nodes_are_one_node_with_two_processes(
    namespaces: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node has its own cache and its own idea of --out; only the first one writes."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", ADDRESSES[0])
    torchrun, data = [sys.executable, "-m", "torch.distributed.run"], write_arrays(tmp_path / "tiny.npz")
    train = [["-m", "osiris", *arguments(data, tmp_path / out, "osiris-d")] for out in ("one", "first", "second")]
    subprocess.run([*torchrun, "--standalone", "--nproc-per-node=2", *train[0]], check=True)
    nodes = []
    for node, name in enumerate(namespaces):
        command = [*torchrun, *rendezvous(2, node), "--nproc-per-node=1", *train[1 + node]]
        environment = os.environ | {"OSIRIS_CACHE": str(tmp_path / f"cache{node}"), "GLOO_SOCKET_IFNAME": "eth0"}
        nodes.append(subprocess.Popen(["ip", "netns", "exec", name, *command], env=environment))
    try:
        assert [node.wait(timeout=900) for node in nodes] == [0, 0]
    finally:
        for node in nodes:
            node.kill()
    assert_same_run(tmp_path / "one", tmp_path / "first")
    assert log(tmp_path / "one") == log(tmp_path / "first")
    assert [start["processes"] for start in read_json(tmp_path / "first" / "environment.json")] == [2]
    assert not (tmp_path / "second").exists()
