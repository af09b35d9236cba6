"""Numbers behind the figures, on hand-made arrays: forgotten neighbours and shares of the memory."""

from pathlib import Path

import numpy as np

from osiris.reporting.figures.images import memory_shares, most_forgotten, task_shares
from osiris.reporting.studies import studies
from osiris.runs.run import load_runs


def test_the_most_forgotten_queries_are_chosen():
    before = np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 1, 1]], dtype=bool)
    after = np.array([[0, 0, 0], [1, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]], dtype=bool)
    task = np.array([0, 0, 0, 0, 1, 2])
    assert most_forgotten(before, after, task, last_task=2, count=9) == [0, 2], "two per task, none of the last"
    assert most_forgotten(before, after, task, last_task=3, count=9) == [0, 5, 2]
    assert most_forgotten(before, after, task, last_task=3, count=1) == [0]


def test_shares_of_each_task_leave_empty_slots_out():
    memories = [np.array([0, 0, 0, 0]), np.array([0, 1, 1, 0]), np.array([0, 1, 2, 2])]
    assert task_shares(memories, 3).tolist() == [[1, 0, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]]
    assert task_shares([np.array([-1, 0, -1, 1])], 2).tolist() == [[0.5, 0.5]]
    assert task_shares([np.array([-1, -1])], 2).tolist() == [[0, 0]]


def test_the_bands_of_a_state_have_the_names_of_its_episodes(real_runs: dict[str, Path]):
    (study,), _ = studies(load_runs([real_runs["osiris-d"]]))
    study.episode_names, study.word = [f"week {number}" for number in range(10)], "episode"
    made = memory_shares(study)
    assert (
        made is not None and made.title == "Which episodes the memory holds" and "share of one episode" in made.caption
    )
    names = [text.get_text() for text in made.canvas.axes[0].texts]
    assert len(names) > 3 and set(names) <= set(study.episode_names)
