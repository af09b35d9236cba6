"""Commands on the state of a learner: `osiris undo`, `forget`, `measure`, `join`, `embed`, `export` and `status`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Literal

import pyarrow
import pyarrow.parquet
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional

from osiris.commands import command, typed_encoder
from osiris.console import console, notice, printable, say, warn
from osiris.errors import UserError
from osiris.export import export
from osiris.files import require_writable, write_atomically
from osiris.learner import Learner, join
from osiris.own import named


@command("undo")
def undo_command(state: Positional[Path], encoder: str | None = None, method: str | None = None) -> None:
    """Take the last episode back, also one that was interrupted: the state is what it was before, bit for bit.

    Once: only the state before the last episode is kept. Before the first episode there was nothing, so the files of
    the state are removed.

    Examples:
      osiris undo state

    Args:
        state: The directory of the state.
        encoder: For a state whose encoder is your own: `package.module:function`.
        method: For a state whose method is your own: `module:name`.
    """
    say(f"{own_learner(state, encoder, method).undo()} was taken back.")


@command("forget")
def forget_command(
    state: Positional[Path], files: Positional[tuple[Path, ...]], encoder: str | None = None, method: str | None = None
) -> None:
    """Take images out of what a state holds: its sums (exactly), its memory, and its index.

    Weights that were trained keep what they have learned. A file or folder that does not exist any more can be taken
    out of the index alone.

    Examples:
      osiris forget state photos/2026-11/passport.jpg
      osiris forget state photos/2026-10           the rows of a folder that is gone, in the index

    Args:
        state: The directory of the state.
        files: Image files, or folders.
        encoder: For a state whose encoder is your own: `package.module:function`.
        method: For a state whose method is your own: `module:name`.
    """
    if not files:
        raise UserError("FILES is missing: the images to take out. See `osiris forget --help`.")
    count = own_learner(state, encoder, method).forget(files)
    notice(f"{count} image{'s were' if count != 1 else ' was'} taken out of what the state has learned from.")


@command("measure")
def measure_command(
    state: Positional[Path],
    reference: Path | None = None,
    new_reference: bool = False,
    encoder: str | None = None,
    method: str | None = None,
    device: str | None = None,
    threads: int | None = None,
) -> None:
    """Measure the episodes of a state on labelled images, without learning, and print the verdict.

    Examples:
      osiris measure state --reference labelled
      osiris measure state                         again, with the labelled images of earlier calls

    Args:
        state: The directory of the state.
        reference: Labelled images, one subfolder per class, that are not learned from. Later calls of `osiris observe`
            measure on them too.
        new_reference: The images of --reference differ from those of earlier calls, and replace them.
        encoder: For a state whose encoder is your own: `package.module:function`.
        method: For a state whose method is your own: `module:name`.
        device: cpu, cuda, mps or auto.
        threads: Of the CPU.
    """
    if new_reference and reference is None:
        raise UserError("--new-reference needs --reference FOLDER, the images that replace the earlier ones.")
    options = {name: value for name, value in (("device", device), ("threads", threads)) if value is not None}
    learner = own_learner(state, encoder, method, **options)
    learner.measure(reference, new_reference)
    say(learner.last_verdict())


def own_learner(state: Path, encoder: str | None, method: str | None, **options: Any) -> Learner:
    """The learner of a state; what is the user's own is imported, because the user named it."""
    given = {name: value for name, value in (("encoder", encoder), ("method", method)) if value is not None}
    return Learner(state, **named(given | options))


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
        undo = f"osiris undo {shlex.quote(str(state))}"
        back = f", or take it back with: {undo}" if "observe" in status["way_on"] else ""
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
        say(learner.last_verdict())
    if status["index"] is not None:
        say(str(status["index"]))


def _three(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
