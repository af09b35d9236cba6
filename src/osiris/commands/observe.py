"""`osiris observe`: learn from one more folder of images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from osiris.errors import UserError


@dataclass(frozen=True)
class Args:
    """Learn from one more folder of unlabelled images. The state lives in a directory between the calls.

    The first call creates it. To continue an interrupted call, repeat it. Earlier images are not needed again:
    the state holds the images of its memory.

    Examples:
      osiris observe state photos/2026-11
      osiris observe state photos/2026-12 --keep-tasks 3
      osiris observe other photos/2026-11 --encoder hf:facebook/dinov2-small
      osiris observe state photos/2027-01 --reference labelled
      osiris observe state --forget photos/2026-11/passport.jpg
    """

    state: Annotated[Path, tyro.conf.Positional]
    """The directory of the state, or a finished run of `osiris train`."""
    folder: Annotated[Path | None, tyro.conf.Positional] = None
    """The new images, at any depth below this folder: one episode."""
    name: str | None = None
    """Name of the episode; None means the name of the folder."""
    method: str | None = None
    """Only for a new state: None means osiris-d."""
    preset: str | None = None
    """Only for a new state: None means fast."""
    encoder: str | None = None
    """Only for a new state: `hf:NAME` or `timm:NAME` to start from a pretrained encoder."""
    epochs: int | None = None
    """Only for a new state: passes over each episode; None means the preset's."""
    memory_size: int | None = None
    """Only for a new state: images in the memory; None means the preset's."""
    image_size: int | None = None
    """Only for a new state: side of the images in pixels; None means the median of the first folder, at most 224."""
    seed: int | None = None
    """Only for a new state: None means 0."""
    keep_tasks: int | None = None
    """Keep the weights of this many episodes, the latest ones; None means all."""
    reference: Path | None = None
    """Labelled images, one subfolder per class, that are not learned from: KNN on them after every episode, also in
    later calls. `osiris report STATE` shows it."""
    forget: tuple[Path, ...] = ()
    """Image files to remove from the memory. The weights keep what they have learned."""
    quiet: bool = False
    """No progress display."""


def run(args: Args) -> int:
    if args.folder is None and not args.forget and args.reference is None:
        raise UserError("give a folder of images to learn from, --reference FOLDER or --forget FILE.")
    from osiris.console import notice, say
    from osiris.learner import Learner

    names = ("epochs", "memory_size", "image_size")
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    learner = Learner(args.state, args.method, args.preset, args.seed, args.encoder, **options)
    if args.forget:
        notice(f"{learner.forget(args.forget)} images were removed from the memory.")
    if args.folder is None and args.reference is not None:
        learner.measure(args.reference)
    if args.folder is not None:
        learner.observe(args.folder, args.name, args.quiet, args.keep_tasks, args.reference)
        episodes = len(learner.status()["episodes"])
        say(f"{args.state}: {episodes} episodes. `osiris status {args.state}` shows details.")
    return 0
