"""Which cases are `whole`, and which test files touch a file: `make check` relies on both."""

from pathlib import Path

import pytest

from needs import ROOT, TESTS, is_whole, touching


@pytest.mark.parametrize(
    ("file", "function", "fixtures", "whole"),
    [
        ("learner/test_undo.py", "test_the_last_episode_is_undone_once", [], True),
        ("training/test_run_killed.py", "test_killed_again_and_again", ["uninterrupted"], True),
        ("reporting/test_studies.py", "anything", ["many_runs", "real_runs"], True),
        ("evaluation/test_knn.py", "test_same_predictions_as_naive_loops", [], False),
        ("training/test_engine_precision.py", "test_lower_precision_stays_finite_and_near", [], False),
    ],
)
def test_what_trains_a_run_is_whole(file: str, function: str, fixtures: list[str], whole: bool) -> None:
    assert is_whole(TESTS / file, function, fixtures) == whole


def names(changed: str) -> list[str]:
    return [str(path.relative_to(TESTS)) for path in touching(ROOT / changed)]


def test_what_touches_a_file() -> None:
    near = names("src/osiris/learner/undo.py")
    assert {"learner/test_undo.py", "learner/test_learner.py"} <= set(near) and "augment/test_views.py" not in near
    assert "training/test_run_killed.py" in names("src/osiris/training/run.py")
    assert "test_cli.py" in names("src/osiris/commands/train.py")
    assert names("tests/test_needs.py") == ["test_needs.py"]
    assert "test_one_page.py" in names("examples/osiris_d_on_one_page.py")
    assert all(path.startswith("reporting/") for path in names("tests/reporting/conftest.py"))


def test_it_reads_helpers_and_support_too(tmp_path: Path) -> None:
    test = tmp_path / "test_x.py"
    test.write_text(
        "import tiny_runs\nfrom osiris import cli as c\n\ndef helper():\n    return c.main([])\n\n"
        "def test_a():\n    helper()\n\ndef test_b():\n    tiny_runs.config()\n\ndef test_c():\n    tiny_runs.train()\n"
    )
    assert [is_whole(test, name, []) for name in ("test_a", "test_b", "test_c")] == [True, False, True]
