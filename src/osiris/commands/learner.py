"""Commands on the state of a learner: `osiris observe`, `join`, `embed`, `export` and `status`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pyarrow
import pyarrow.parquet
import tyro
from msgspec import Meta
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional

from osiris.commands import command, typed_encoder
from osiris.commands.options import ignored_dashboards, print_help, read_options, refuse_others
from osiris.config import OPTIONS, Config
from osiris.console import console, notice, printable, say, warn
from osiris.errors import UserError
from osiris.export import export
from osiris.files import require_writable, write_atomically
from osiris.framework.own import named
from osiris.learner import Learner, join
from osiris.learner.episodes import each_episode
from osiris.presets import configure
from osiris.runs.directory import read_config


@dataclass(frozen=True)
class Own:
    """Options of the command itself."""

    state: Positional[Path]
    """The directory of the state, or a finished run of `osiris train`."""
    folder: Positional[Path | None] = None
    """The new images, at any depth below this folder: one episode."""
    name: str | None = None
    """Name of the episode; None means the name of the folder."""
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
    forget: tuple[Path, ...] = ()
    """Image files to remove from the memory and from the index. The weights keep what they have learned."""
    discard: bool = False
    """Go back to the state before an episode that was interrupted."""
    undo: bool = False
    """Go back to the state before the last episode (once: only that state is kept)."""
    new_source: bool = False
    """Continue the state although the source of its own methods, terms or objectives has changed."""
    quiet: bool = False
    """No progress display."""


NOT_OF_EPISODES = {
    **dict.fromkeys(("benchmark", "data_dir", "class_order", "shuffle_tasks", "validation"), "describes a benchmark"),
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
    need not repeat them.

    Examples:
      osiris observe state photos/2026-11
      osiris observe state photos/2026-12 --keep-tasks 3
      osiris observe state photos --each           2026-11, 2026-12, ... one after the other
      osiris observe other photos/2026-11 --encoder hf:facebook/dinov2-small
      osiris observe state photos/2027-01 --reference labelled
      osiris observe state --undo                  take back the last episode
      osiris observe state --forget photos/2026-11/passport.jpg
    """

    settings: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)


WHERE = ("state", "encoder", "method", "quiet", "device", "threads", "new_source")
"""Options that every kind of call takes: a state with parts of the user's own needs their names each time."""
ALONE = {
    "undo": (*WHERE, "undo"),
    "discard": (*WHERE, "discard"),
    "each": tuple(name for name in (*vars(Own(Path())), *OF_EPISODES) if name != "name"),
    "reference": (*WHERE, "reference", "new_reference", "forget"),
    "forget": (*WHERE, "forget"),
}
"""What a kind of call takes; the last two are those without a folder."""


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
    """Refuse a call that says nothing, and options that it would ignore."""
    if own.folder is None and not own.forget and own.reference is None and not own.discard and not own.undo:
        raise UserError(
            "give a folder of images to learn from, --reference FOLDER, --forget FILE, --discard or --undo."
        )
    if own.undo or own.discard:
        kind = "undo" if own.undo else "discard"
        refuse_others(names, ALONE[kind], f"with --{kind}")
    elif own.folder is None:
        kind = "reference" if own.reference is not None else "forget"
        refuse_others(names, ALONE[kind], f"with --{kind} and no folder to learn from")
    elif own.each:
        refuse_others(names, ALONE["each"], "with --each: every episode has the name of its folder")
    if own.new_reference and own.reference is None:
        raise UserError("--new-reference needs --reference FOLDER, the images that replace the earlier ones.")


def observe(own: Own, learner: Learner) -> int:
    if own.forget:
        count = learner.forget(own.forget)
        notice(f"{count} image{'s were' if count != 1 else ' was'} taken out of what the state holds.")
    if own.discard or own.undo:
        say(f"{learner.undo() if own.undo else learner.discard()} was taken back.")
        return 0
    if own.folder is None:
        if own.reference is not None:
            learner.measure(own.reference, own.new_reference)
            say(_after(learner))
        return 0
    for one in each_episode(own.folder) if own.each and own.folder.is_dir() else (own.folder,):
        learner.observe(
            one,
            own.name,
            own.quiet,
            own.keep_tasks,
            own.reference,
            own.only_if_better,
            own.new_reference,
            own.new_source,
        )
        unfinished = learner.status()["unfinished"]
        if unfinished is None:
            say(_after(learner))
        elif not own.each:  # the folder was learned in an earlier episode
            raise UserError(
                f"{unfinished} is not finished: give its images again, unchanged, or go back with osiris observe "
                f"{shlex.quote(str(own.state))} --discard."
            )
    count, shown = len(learner.status()["episodes"]), shlex.quote(str(own.state))
    say(f"{own.state}: {count} episode{'s' * (count > 1)}. `osiris status {shown}` shows details.")
    return 0


def _after(learner: Learner) -> str:
    return f"after {learner.metrics.task_names[-1]}: {learner.verdict()}"


@command("join")
def join_command(first: Positional[Path], second: Positional[Path], out: Path) -> None:
    """Write a state that has learned what two states have learned, from images that never met.

    For states of a method that learns by sums (a pretrained encoder without --method): the result is what one state
    would be that has seen the images of both, up to rounding. Neither of the two changes.

    Examples:
      osiris join camera-a camera-b --out both

    Args:
        first: A state; its name, settings and index count for the new one.
        second: Another one, with the same encoder and image size.
        out: A new directory.
    """
    progress = join(first, second, out)
    images = sum(episode.train for episode in progress.episodes)
    say(f"{out}: {len(progress.episodes)} episodes, {images} images.")


@command("embed")
def embed_command(
    state: Positional[Path],
    folder: Positional[Path],
    out: Path = Path("features.parquet"),
    encoder: str | None = None,
) -> None:
    """Compute the features of all images below a folder with the newest encoder of a state or run.

    Examples:
      osiris embed state photos --out features.parquet
      osiris embed runs/x photos

    Args:
        state: The directory of a state or of a finished run.
        folder: A folder of images, at any depth, or one image file.
        out: A Parquet file with the columns path and vector. Files that cannot be decoded, or whose names are not
            UTF-8, are left out and reported.
        encoder: For a state whose encoder is your own: `package.module:function`, as it was given to `osiris observe`
            or `osiris train`.
    """
    if out.suffix.lower() != ".parquet":
        raise UserError(f"--out {out}: the features are written as Parquet; use a name that ends in .parquet.")
    require_writable(out.parent)
    paths, features, notices = Learner(state, encoder=typed_encoder(encoder)).embed_files(folder)
    named = [row for row, path in enumerate(paths) if _is_text(path)]
    unnamed = [path for path in paths if not _is_text(path)]
    notice(*notices, *(f"{path} was left out: its name is not UTF-8. Rename it." for path in unnamed))
    vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(features[named].ravel()), features.shape[1])
    table = pyarrow.table({"path": [str(paths[row]) for row in named], "vector": vectors})

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            pyarrow.parquet.write_table(table, file)

    write_atomically(out, write)
    say(f"{len(named)} vectors of {features.shape[1]} numbers in {out}")


def _is_text(path: Path) -> bool:
    try:
        return bool(str(path).encode())
    except UnicodeEncodeError:
        return False


@command("export")
def export_command(
    state: Positional[Path],
    format: Literal["safetensors", "onnx", "torchscript", "timm"] = "safetensors",
    out: Path | None = None,
    encoder: str | None = None,
) -> None:
    """Write the newest encoder of a state or run to a folder, so that it runs without osiris.

    The folder also gets config.json (architecture and preprocessing) and a model card. The features are compared with
    those of osiris; the largest difference is printed.

    Examples:
      osiris export state
      osiris export state --format onnx --out encoder-onnx
      osiris export runs/x --format timm

    Args:
        state: The directory of a state or of a finished run.
        format: safetensors: weights and a loader script that needs torch alone. onnx: any batch size, preprocessing in
            its metadata (needs the extra `onnx`). torchscript: one file for torch.jit.load. timm: weights and a script
            that builds the same network in timm (encoders of the family resnet).
        out: The folder; None means STATE-FORMAT in the current directory.
        encoder: For a state whose encoder is your own: `package.module:function`, as it was given to `osiris observe`
            or `osiris train`.
    """
    out = out or Path(f"{state.resolve().name}-{format}")
    exported = export(Learner(state, encoder=typed_encoder(encoder)).run, out, format)
    say(f"{out}: {', '.join(exported.files)}")
    if exported.difference is None:
        notice("the features were not compared with those of osiris, because timm cannot be imported here.")
    else:
        say(f"features agree with those of osiris to {exported.difference:.1e} of the largest one")


@command("status")
def status_command(state: Positional[Path]) -> None:
    """Show the episodes of a state or run, what its memory holds, the health of its features, and its size on disk.

    drift: how far the episode moved the features of the memory's images (1 - cosine). from start: how far they are from
    those of a pretrained start. reference: KNN accuracy on the labelled images of `osiris observe --reference`, in
    percent, with its 95% interval.

    Examples:
      osiris status state

    Args:
        state: The directory of a state or run.
    """
    learner = Learner(state)
    status = learner.status()
    table = Table(title=escape(f"{printable(str(state))}: {status['bytes'] / 2**20:.1f} MB on disk"))
    memory = status["memory_size"] > 0
    for column in ("episode", "images", *["in the memory"] * memory, "drift", "from start", "reference"):
        table.add_column(column, justify="left" if column == "episode" else "right")
    observed = {one.task: one for one in status["observations"].episodes}
    for number, ((name, images), in_memory) in enumerate(zip(status["episodes"], status["memory"])):
        one = observed.get(number)
        moved = ("", "") if one is None else [_three(value) for value in (one.drift, one.from_start)]
        scores = None if one is None else one.reference
        accuracy = "" if scores is None else "{:.1f} ({:.1f} to {:.1f})".format(scores.accuracy, *scores.interval)
        table.add_row(printable(name), str(images), *[str(in_memory)] * memory, *moved, accuracy)
    table.add_section()
    all_images = sum(count for _, count in status["episodes"])
    table.add_row("all", str(all_images), *[str(sum(status["memory"]))] * memory)
    console.print(table, markup=False)
    if status["unfinished"] is not None:
        discard = f"osiris observe {shlex.quote(str(state))} --discard"
        back = f", or take it back with: {discard}" if "observe" in status["way_on"] else ""
        number, planned = len(status["episodes"]), status["planned"]
        place = f" (task {number} of {planned})" if number <= planned and not back else ""
        notice(f"{status['unfinished']}{place} is not finished. Continue with: {status['way_on']}{back}")
    health = status["health"]
    if health is not None:
        text = f"features: {health.dimension} numbers; effective rank {health.effective_rank:.1f}, spread "
        say(f"{text}{health.spread:.2f}, over the images that the last episode was evaluated on")
        metrics = learner.metrics
        for name, numbers in metrics.protocols.items():
            if numbers.gain is not None:
                say(f"{name} KNN: A {numbers.A:.1f}, start {numbers.untrained:.1f}, G {numbers.gain}")
        if metrics.harm:
            warn(metrics.harm)
    if status["observations"].episodes:
        say(_after(learner))
    if status["index"] is not None:
        say(str(status["index"]))


def _three(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
