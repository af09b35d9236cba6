"""Two processes give what one gives: gradients, parameters, memory, Fisher, features, and the whole run."""

from pathlib import Path

import pytest
import torch

import process_jobs
from fork_server import Failed, Pool
from osiris import processes
from osiris.errors import Stopped
from process_jobs import CASES
from quick import quick
from tiny_runs import log

DISTINCT = (
    *("osiris-d", "der", "ewc", "lump", "er+/plus-current", "pocon", "pnr", "cromo", "minred", "cla-r", "cla-b"),
    *("predictor-bn", "mixed-match", "er-byol", "cassle-barlow", "osiris-d-vicreg", "er-mocov2+", "cassle-swav"),
)
"""Methods whose terms, objectives or memory gather something else from the processes."""
PAIRS = [(name, norm) for name in CASES for norm in ("gn", "bn")]
BATCH_NORM = {(name, "bn") for name in ("osiris-d", "ewc", "lump", "predictor-bn")}


@pytest.mark.parametrize(("name", "norm"), quick({(name, "gn") for name in DISTINCT} | BATCH_NORM, PAIRS))
def test_gradients_of_two_processes_are_those_of_one(name: str, norm: str, pool: Pool) -> None:
    """In float64, at every step of three tasks, of every parameter; at the end every buffer, such as the Fisher."""
    alone = process_jobs.gradients(CASES[name], norm)
    together = pool.run("gradients", method=CASES[name], norm=norm)
    for one, *others in zip(alone, *together):
        for other in others:
            process_jobs.assert_same_gradients(one, other)
    for key, value in together[0][-1].items():
        assert torch.equal(value, together[1][-1][key]), f"{key} differs between the processes"
    memory = [key for key in alone[-1] if key.startswith("memory.") and "field" not in key]
    assert all(torch.equal(alone[-1][key], together[0][-1][key]) for key in memory)


@pytest.mark.parametrize("norm", ["gn", "bn"])
def test_sharded_features_are_the_same(norm: str, pool: Pool) -> None:
    alone = process_jobs.features(norm)
    first, second = pool.run("features", norm=norm)
    for one, two, three in zip(alone, first, second):
        assert torch.equal(two, three)
        torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-5)
    assert len(first[0]) == 84 and len(first[1]) == 24


def test_gathering_passes_gradients_back(pool: Pool) -> None:
    rows, gradient = process_jobs.gathered_gradient()
    for others in pool.run("gathered_gradient"):
        assert torch.equal(others[0], rows) and torch.allclose(others[1], gradient, rtol=1e-12)


def test_messages(pool: Pool) -> None:
    for flags, said, nothing, shares in pool.run("messages"):
        assert flags == (True, True, False) and said == b"from the first" and nothing is None and shares == [3, 4]
    assert processes.agree(True, False) == (True, False) and processes.broadcast(b"x") == b"x"


@pytest.mark.parametrize(("ranks", "speaker"), [([0], 0), ([1], 1), ([0, 1], 0)])
def test_where_one_fails_all_leave_and_one_speaks(ranks: list[int], speaker: int, pool: Pool) -> None:
    with pytest.raises(Failed) as failed:
        pool.run("failing", ranks=ranks)
    kinds = [error and error[0] for error in failed.value.errors]
    assert kinds == ["ValueError" if rank == speaker else "Elsewhere" for rank in range(2)]
    assert pool.run("failing", ranks=[]) == [0, 1]


def test_one_process_of_a_machine_goes_first(pool: Pool, tmp_path: Path) -> None:
    assert pool.run("turns", folder=tmp_path) == [0, 1]


def test_a_whole_run_in_two_processes(pool: Pool, tmp_path: Path) -> None:
    """It stops in both when one is asked to, continues, and ends with the numbers of one process; only one writes."""
    alone = process_jobs.whole_run(tmp_path / "alone")
    with pytest.raises(Failed) as failed:
        pool.run("whole_run", each=({}, {"stop_in": (1, 1)}), out=tmp_path / "two")
    assert [error and error[:2] for error in failed.value.errors][1] == ("Elsewhere", str(Stopped.exit_code))
    assert failed.value.errors[0] is not None and failed.value.errors[0][0] == "Stopped"
    first, second = pool.run("whole_run", out=tmp_path / "two")
    assert second is None and alone is not None
    for protocol, metrics in alone.protocols.items():
        assert pytest.approx(metrics.A, abs=5) == first[protocol].A
    lines = log(tmp_path / "two")
    assert [line["total_step"] for line in lines] == sorted({line["total_step"] for line in lines})
    assert lines[-1]["total_step"] == log(tmp_path / "alone")[-1]["total_step"]
    assert lines[0]["loss"] == pytest.approx(log(tmp_path / "alone")[0]["loss"], rel=1e-4)
