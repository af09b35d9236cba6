"""Hyper-parameter search: ranges, trials, halving, and that no test image is used."""

import math
import shlex
from collections import Counter
from pathlib import Path

import pytest
import torch

from osiris.cli import main
from osiris.commands import parse_arguments, sweep
from osiris.data.config import BenchmarkConfig
from osiris.data.load import load_benchmark
from osiris.errors import UserError
from osiris.evaluation.scores import Health, ProtocolScores, Scores
from osiris.grids.attempts import status_of
from osiris.grids.grid import Grid, GridDirectory, GridRun
from osiris.grids.journal import read_journal
from osiris.grids.search import Halving, halvings_of, ladder, parse_range, score, search, spread_trials
from tiny_runs import assert_same_run, config, pretend_evaluated, train, write_arrays

RATE = "learning_rate=0.01..0.3:log"


def test_ranges() -> None:
    rate, size, norm = map(parse_range, (RATE, "memory-size=100..500", "norm=gn,bn"))
    assert [rate.value(at) for at in (0, 0.5, 1)] == ["0.01", "0.0548", "0.3"]
    assert [size.value(at) for at in (0, 0.5, 1)] == ["100", "300", "500"] and size.option == "memory_size"
    assert [norm.value(at) for at in (0, 0.49, 0.5, 1)] == ["gn", "gn", "bn", "bn"]
    for wrong in ("learning_rate", "learning_rate=0.3..0.01", "tau=0..1:log", "tau=1..2:ln", "tau=a..b"):
        with pytest.raises(UserError, match="write NAME=LOW"):
            parse_range(wrong)


def test_trials_cover_the_range_evenly_and_are_always_the_same() -> None:
    ranges = [parse_range(RATE), parse_range("tau=0.05..0.5")]
    trials = spread_trials(ranges, 20)
    assert trials == spread_trials(ranges, 20) and len(set(trials)) == 20
    rates = sorted(math.log(float(dict(trial)["learning_rate"]) / 0.01) / math.log(30) for trial in trials)
    assert all(abs(rate - (i + 0.5) / 20) < 0.03 for i, rate in enumerate(rates)), "one in each twentieth"


@pytest.mark.parametrize(
    ("tasks", "trials", "rungs"),
    [
        (10, 20, [(3, 20), (5, 10), (10, 5)]),
        (20, 20, [(3, 20), (5, 10), (10, 5), (20, 3)]),
        (5, 20, [(3, 20), (5, 10)]),
        (10, 2, [(5, 2), (10, 1)]),
        (1, 20, [(1, 20)]),
    ],
)
def test_half_the_trials_learn_twice_the_tasks(tasks: int, trials: int, rungs: list[tuple[int, int]]) -> None:
    assert ladder(tasks, trials) == rungs


def scores(accuracy: list[float | None]) -> Scores:
    health = Health(dimension=8, feature_deviation=1, spread=1, effective_rank=8, uniformity=None, alignment=None)
    knn = ProtocolScores(accuracy=accuracy, top5=accuracy, per_class=[], k_effective=[])
    return Scores(labelled=True, bank_size=1, test_size=1, health=health, protocols={"class-agnostic": knn})


def test_the_best_trials_go_on_and_failed_ones_do_not(tmp_path: Path) -> None:
    """A is the learning rate here, and trials above 0.15 fail."""
    directory, launched = GridDirectory(tmp_path), list[tuple[int | None, list[GridRun]]]()
    (halving,) = halvings_of(Grid(("osiris-d",), preset="smoke"), [parse_range(RATE)], 8)
    assert all(("validation", "true") in trial.settings and trial.seed == 0 for trial in halving.trials)
    rate = {trial: float(dict(trial.settings)["learning_rate"]) for trial in halving.trials}

    def launch(runs: list[GridRun]) -> None:
        launched.append((directory.stop_after, runs))
        for run in runs:
            if rate[run] < 0.15:
                accuracy = [rate[run]] * (directory.stop_after or 0) + [99.0] * 5  # of tasks that come later
                pretend_evaluated(directory.folder(run), directory.stop_after or 0, scores([None, *accuracy[1:]]))

    search(directory, [halving], launch)
    good = sorted((trial for trial in halving.trials if rate[trial] < 0.15), key=lambda trial: -rate[trial])
    assert len(good) < 8
    assert [(tasks, len(runs)) for tasks, runs in launched] == [(3, 8), (5, 4), (10, 2)]
    assert [set(runs) for _, runs in launched[1:]] == [set(good[:4]), set(good[:2])]
    assert all(halving.scores[trial][1] == pytest.approx(rate[trial]) for trial in good), "of the tasks so far"
    assert set(halving.ranking()[:2]) == set(good[:2]) and halving.ranking()[2:] == good[2:]
    states = Counter(status_of(directory, trial).state for trial in halving.trials)
    assert states["dropped"] == len(good) - 2, "sweep status does not wait for them"
    search(directory, [halving], launch)
    assert len(read_journal(directory, good[-1])) == 1, "said once"
    rows = (tmp_path / "search.csv").read_text().splitlines()
    assert len(rows) == 9 and f"learning_rate={rate[good[2]]:.3g}," in rows[3] and ",5," in rows[3]
    assert rows[-1].endswith(",0,,,"), "a failed trial has no number"


def test_a_score_is_the_mean_over_the_tasks_seen(tmp_path: Path) -> None:
    directory, run = GridDirectory(tmp_path), GridRun("osiris-d", "tinyworld", 0, "smoke")
    accuracy = [None, 40.0, 10.0, 90.0, 95.0]
    for tasks in range(1, 6):
        pretend_evaluated(directory.folder(run), tasks, scores(accuracy))
        known = [value for value in accuracy[:tasks] if value is not None]
        assert score(directory, run, tasks) == (pytest.approx(sum(known) / len(known)) if known else None)
    assert score(directory, run, 6) is None


def test_a_finished_trial_keeps_its_score_after_fewer_tasks(tmp_path: Path) -> None:
    """The same search again would otherwise drop the best trial, whose A falls as tasks are added."""
    out = tmp_path / "run"
    metrics = train(config(), out)
    assert metrics is not None
    directory, run = GridDirectory(tmp_path), GridRun("osiris-d", "tinyworld", 0, "smoke")
    directory.folder = lambda run: out
    matrix = metrics["class-agnostic"].accuracy_matrix
    assert score(directory, run, 2) == pytest.approx(sum(matrix[1][:2]) / 2)  # pyright: ignore
    assert score(directory, run, 3) == metrics["class-agnostic"].A != score(directory, run, 2)


def test_trials_that_went_further_come_first() -> None:
    """A after more tasks is usually lower: it does not compare with A after fewer."""
    runs = [GridRun("osiris-d", "tinyworld", 0, "smoke", (("tau", str(tau)),)) for tau in range(1, 6)]
    scores = dict(zip(runs, [(3, 80.0), (10, 20.0), (5, 50.0), (10, 30.0)]))
    halving = Halving(runs, [(3, 5), (5, 3), (10, 2)], scores)
    assert halving.ranking() == [runs[3], runs[1], runs[2], runs[0]], "one has failed"
    assert halving.at(2) == [runs[1], runs[3]] and halving.at(0) == runs


def test_validation_images_come_from_the_training_images(tmp_path: Path) -> None:
    name = write_arrays(tmp_path / "tiny.npz")
    usual, held_out = (load_benchmark(BenchmarkConfig(name, validation=flag)) for flag in (False, True))
    assert usual.test is not None and held_out.test is not None

    def images(split) -> set[bytes]:
        return {image.numpy().tobytes() for image in split.images.take(torch.arange(len(split)))}

    train, validation = images(held_out.train), images(held_out.test)
    assert train | validation == images(usual.train) and not train & validation
    assert not (train | validation | images(held_out.bank)) & images(usual.test)
    assert images(held_out.bank) == train and len(held_out.test) == len(usual.train) // 7
    assert held_out.checksum != usual.checksum and held_out.test.label is not None
    assert set(held_out.test.label.tolist()) == set(range(6))


def test_a_run_that_stops_after_a_task_continues_to_the_same_bits(tmp_path: Path) -> None:
    for stop_after in (1, 1, 2, None):
        metrics = train(config(), tmp_path / "halted", stop_after=stop_after)
        assert (metrics is None) == (stop_after is not None)
    train(config(), tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "halted")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--search", RATE, "--set", "learning_rate=0.1"], "both in --set and in --search"),
        (["--search", RATE, "--trials", "1"], "at least 2 trials"),
        (["--search", "rate=0.1..0.2"], "unknown option 'rate'"),
        (["--search", RATE, "--plan"], "leave out --plan"),
    ],
)
def test_a_search_that_cannot_work_is_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "--methods", "ft", "--preset", "smoke", "--out", str(tmp_path / "grid"), *options]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ") and not (tmp_path / "grid").exists()


def test_a_trial_that_went_further_ranks_before_a_better_one_that_did_not() -> None:
    (halving,) = halvings_of(Grid(("osiris-d",), preset="smoke"), [parse_range(RATE)], 3)
    halving.scores |= zip(halving.trials, [(3, 90.0), (5, 40.0), (5, 60.0)])
    assert halving.ranking() == [halving.trials[number] for number in (2, 1, 0)]


def test_a_damaged_evaluation_does_not_end_a_trial(tmp_path: Path) -> None:
    """Training computes it again."""
    (run,) = Grid(("ft",), seeds=(0,), preset="smoke").runs()
    directory = GridDirectory(tmp_path, [run], stop_after=2)
    path = pretend_evaluated(directory.folder(run), 2, scores([50.0, 70.0, 99.0]))
    assert directory.finished(run) and score(directory, run, 2) == 60
    for damaged in ("", "{}", "[" * 100_000):
        path.write_text(damaged)
        assert not directory.finished(run) and score(directory, run, 2) is None


@pytest.mark.slow
def test_a_search_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["epochs=1", "train_per_class=8", "bank_per_class=8", "test_per_class=2"]
    command = ["sweep", "--methods", "osiris-d", "--preset", "smoke", "--search", RATE, "--trials", "2"]
    assert main([*command, "--set", *sizes, "--out", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "after 10 tasks" in output and "after 5 tasks" in output and "--set epochs=1" in output
    assert "validation" not in output.splitlines()[-2], "the command for the test images"
    assert len(list(tmp_path.glob("runs/*/metrics.json"))) == 1


def test_the_command_for_the_test_images_can_be_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of methods and values may hold what a shell would interpret."""
    grid = Grid(("lump(alpha=1)",), seeds=(0,), preset="smoke", settings={"blocks": ("1 1 1 1",)})
    (halving,) = halvings_of(grid, [parse_range(RATE)], 2)
    halving.scores[halving.trials[0]] = 10, 50.0
    monkeypatch.setattr(sweep, "run_search", lambda *args: [halving])
    options = ["--methods", "lump(alpha=1)", "--search", RATE, "--out", str(tmp_path)]
    assert sweep.sweep_command(options) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("osiris sweep")]
    args = parse_arguments(sweep.Args, shlex.split(line)[2:], "sweep")
    assert args.methods == grid.methods and args.set == ("blocks=1 1 1 1", "=".join(halving.trials[0].settings[1]))
