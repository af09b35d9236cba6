"""`osiris observe`: learn from one more folder of images."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from msgspec import Meta
from tyro.conf import Positional

from osiris.commands.options import ignored_dashboards, print_help, read_options, refuse_others
from osiris.config import OPTIONS, Config
from osiris.console import say
from osiris.data.video import EVERY, frames_of, is_video
from osiris.errors import UserError
from osiris.learner import Learner
from osiris.learner.episodes import each_episode
from osiris.own import named
from osiris.presets import configure
from osiris.runs.directory import read_config


@dataclass(frozen=True)
class Own:
    """Options of the command itself."""

    state: Positional[Path]
    """The directory of the state, or a finished run of `osiris train`."""
    folder: Positional[Path]
    """The new images, at any depth below this folder: one episode. Or a video file."""
    name: str | None = None
    """Name of the episode; None means the name of the folder."""
    every: float = EVERY
    """Of a video: seconds between two frames that are used."""
    each: bool = False
    """Each folder in the given folder is an episode; they are learned in the order of their names."""
    keep_tasks: Annotated[int, Meta(ge=1)] | None = None
    """Keep the weights of this many episodes, the latest ones; None means all."""
    reference: Path | None = None
    """Labelled images, one subfolder per class, that are not learned from: KNN on them after every episode, also in
    later calls. `osiris report STATE` shows it."""
    new_reference: bool = False
    """The images of --reference differ from those of earlier calls, and replace them."""
    only_if_better: bool = False
    """Keep the encoder from before the episode if the labelled images get significantly worse."""
    new_source: bool = False
    """Continue the state although the source of its own methods, terms or objectives has changed."""
    quiet: bool = False
    """No progress display."""
    verbose: bool = False
    """Also show the terms of the loss, the speed and the health of the features (`log.jsonl` has them in any case)."""


NOT_OF_EPISODES = {
    **dict.fromkeys(("benchmark", "data_dir", "class_order", "shuffle_tasks", "validation"), "describes a benchmark"),
    **dict.fromkeys(("stream", "stream_seed", "frames", "points", "boundaries", "past_model"), "is for a stream"),
    **dict.fromkeys(("train_per_class", "bank_per_class", "test_per_class"), "describes images with classes"),
    **dict.fromkeys(("image_column", "label_column", "episode_column"), "describes a `dataset:`"),
    **dict.fromkeys(("protocols", "probe", "random_encoders"), "is for images with classes (see --reference)"),
    "track_overfitting": "needs the images of all episodes",
}
"""Options of a run that a state cannot honour, and why."""
OF_EPISODES = tuple(option for option in OPTIONS if option not in NOT_OF_EPISODES)


@dataclass(frozen=True)
class Args(Own):
    """Learn from one more folder of unlabelled images. The state lives in a directory between the calls.

    The first call creates it. To continue an interrupted call, repeat it. Earlier images are not needed again:
    the state holds the images of its memory. The options of a run are those of a new state (preset: fast); later calls
    need not repeat them. `osiris undo` takes the last episode back, `osiris forget` an image.

    Examples:
      osiris observe state photos/2026-11
      osiris observe state photos/2026-12 --keep-tasks 3
      osiris observe state clips/2026-11.mp4 --every 2
      osiris observe state photos --each           2026-11, 2026-12, ... one after the other
      osiris observe other photos/2026-11 --encoder hf:facebook/dinov2-small
      osiris observe state photos/2027-01 --reference labelled
    """

    settings: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)


OF_EACH = tuple(name for name in (*Own.__dataclass_fields__, *OF_EPISODES) if name != "name")
"""What a call with --each takes."""


def observe_command(argv: list[str]) -> int:
    given = read_options(Own, argv, "observe", ("state", "folder"), OF_EPISODES, NOT_OF_EPISODES)
    own, options = given.own, named(given.options)
    if given.help:
        preset, encoder = options.pop("preset", None) or "fast", options.pop("encoder", None)
        settings = configure("", preset, encoder, options)
        print_help(Args, "observe", Args(**vars(own), settings=settings), hidden=NOT_OF_EPISODES)
    check_call(own, given.names)
    if (own.state / "config.json").exists():
        ignored_dashboards(read_config(own.state), options)
    return observe(own, Learner(own.state, **options))


def check_call(own: Own, names: frozenset[str]) -> None:
    """Refuse options that the call would ignore."""
    if own.each:
        refuse_others(names, OF_EACH, "with --each: every episode has the name of its folder")
    if own.new_reference and own.reference is None:
        raise UserError("--new-reference needs --reference FOLDER, the images that replace the earlier ones.")


def observe(own: Own, learner: Learner) -> int:
    for one in each_episode(own.folder) if own.each and own.folder.is_dir() else (own.folder,):
        learner.observe(
            frames_of(one, own.every),
            own.name or (one.name if is_video(one) else None),
            own.quiet,
            own.keep_tasks,
            own.reference,
            own.only_if_better,
            own.new_reference,
            own.new_source,
            own.verbose,
        )
        unfinished = learner.status()["unfinished"]
        if unfinished is None:
            say(learner.last_verdict())
        elif not own.each:  # the folder was learned in an earlier episode
            raise UserError(
                f"{unfinished} is not finished: give its images again, unchanged, or go back with osiris undo "
                f"{shlex.quote(str(own.state))}."
            )
    count, shown = len(learner.status()["episodes"]), shlex.quote(str(own.state))
    say(f"{own.state}: {count} episode{'s' * (count > 1)}. `osiris status {shown}` shows details.")
    return 0
