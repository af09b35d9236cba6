"""Commands on the state of a learner: `osiris observe`, `embed`, `search`, `export` and `status`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich.table import Table
from tyro.conf import Positional

from osiris.console import console, notice, printable, say
from osiris.errors import UserError
from osiris.files import require_writable, write_atomically

THUMBNAIL = 96
COLUMNS = 6
"""Images per row of the contact sheet of a search."""


def observe_command(
    state: Positional[Path],
    folder: Positional[Path | None] = None,
    name: str | None = None,
    method: str | None = None,
    preset: str | None = None,
    encoder: str | None = None,
    epochs: int | None = None,
    memory_size: int | None = None,
    image_size: int | None = None,
    seed: int | None = None,
    keep_tasks: int | None = None,
    reference: Path | None = None,
    forget: tuple[Path, ...] = (),
    quiet: bool = False,
) -> None:
    """Learn from one more folder of unlabelled images. The state lives in a directory between the calls.

    The first call creates it. To continue an interrupted call, repeat it. Earlier images are not needed again:
    the state holds the images of its memory.

    Examples:
      osiris observe state photos/2026-11
      osiris observe state photos/2026-12 --keep-tasks 3
      osiris observe other photos/2026-11 --encoder hf:facebook/dinov2-small
      osiris observe state photos/2027-01 --reference labelled
      osiris observe state --forget photos/2026-11/passport.jpg

    Args:
        state: The directory of the state, or a finished run of `osiris train`.
        folder: The new images, at any depth below this folder: one episode.
        name: Name of the episode; None means the name of the folder.
        method: Only for a new state: None means osiris-d.
        preset: Only for a new state: None means fast.
        encoder: Only for a new state: `hf:NAME` or `timm:NAME` to start from a pretrained encoder.
        epochs: Only for a new state: passes over each episode; None means the preset's.
        memory_size: Only for a new state: images in the memory; None means the preset's.
        image_size: Only for a new state: side of the images in pixels; None means the median of the first folder, at
            most 224.
        seed: Only for a new state: None means 0.
        keep_tasks: Keep the weights of this many episodes, the latest ones; None means all.
        reference: Labelled images, one subfolder per class, that are not learned from: KNN on them after every
            episode, also in later calls. `osiris report STATE` shows it.
        forget: Image files to remove from the memory. The weights keep what they have learned.
        quiet: No progress display.
    """
    if folder is None and not forget and reference is None:
        raise UserError("give a folder of images to learn from, --reference FOLDER or --forget FILE.")
    from osiris.learner import Learner

    options = {"epochs": epochs, "memory_size": memory_size, "image_size": image_size}
    given = {option: value for option, value in options.items() if value is not None}
    learner = Learner(state, method, preset, seed, encoder, **given)
    if forget:
        notice(f"{learner.forget(forget)} images were removed from the memory.")
    if folder is None and reference is not None:
        learner.measure(reference)
    if folder is not None:
        learner.observe(folder, name, quiet, keep_tasks, reference)
        say(f"{state}: {len(learner.status()['episodes'])} episodes. `osiris status {state}` shows details.")


def embed_command(state: Positional[Path], folder: Positional[Path], out: Path = Path("features.parquet")) -> None:
    """Compute the features of all images below a folder with the newest encoder of a state or run.

    Examples:
      osiris embed state photos --out features.parquet
      osiris embed runs/x photos

    Args:
        state: The directory of a state or of a finished run.
        folder: A folder of images, at any depth, or one image file.
        out: A Parquet file with the columns path and vector. Files that cannot be decoded are left out and reported.
    """
    import pyarrow
    import pyarrow.parquet

    from osiris.learner import Learner

    require_writable(out.parent)
    paths, features, notices = Learner(state).embed_files(folder)
    notice(*notices)
    vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(features.ravel()), features.shape[1])
    table = pyarrow.table({"path": [str(path) for path in paths], "vector": vectors})
    write_atomically(out, lambda temporary: pyarrow.parquet.write_table(table, temporary))
    say(f"{len(paths)} vectors of {features.shape[1]} numbers in {out}")


def search_command(
    state: Positional[Path],
    folder: Positional[Path],
    query: Positional[Path],
    count: int = 12,
    out: Path = Path("search.png"),
) -> None:
    """Find the images below a folder whose features are nearest to those of one image.

    Prints a table of files and cosine similarities, and draws the images on a contact sheet.

    Examples:
      osiris search state photos cat.jpg
      osiris search state photos cat.jpg --count 30 --out cats.png

    Args:
        state: The directory of a state or of a finished run.
        folder: Where to search: all images below this folder.
        query: The image to search for.
        count: How many images to find.
        out: The contact sheet: the query, then the images found, in order.
    """

    from osiris.learner import Learner

    if count < 1:
        raise UserError(f"--count {count}: give a positive number.")
    if out.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise UserError(f"--out {out}: the contact sheet is an image; use a name that ends in .png or .jpg.")
    if not query.is_file():
        raise UserError(f"{query} does not exist; give the image file to search for.")
    require_writable(out.parent)
    hits, notices = Learner(state).search(folder, query, count)
    notice(*notices)
    table = Table(title=f"nearest to {printable(str(query))}")
    for column in ("", "image", "similarity"):
        table.add_column(column, justify="left" if column == "image" else "right", overflow="fold")
    for place, (path, similarity) in enumerate(hits, 1):
        table.add_row(str(place), printable(str(path)), f"{similarity:.3f}")
    console.print(table, markup=False)
    _draw_contact_sheet(query, [path for path, _ in hits], out)
    say(f"contact sheet: {out}")


def _draw_contact_sheet(query: Path, paths: list[Path], out: Path) -> None:
    """The query in a row of its own, then the images found, COLUMNS to a row."""
    import numpy as np
    import torch

    from osiris.data.decode import decode
    from osiris.report.benchmark_images import contact_sheet

    starts = range(0, len(paths), COLUMNS)
    rows = [[query], *(paths[start : start + COLUMNS] for start in starts)]
    images = [torch.from_numpy(np.stack([decode(path, THUMBNAIL) for path in row])) for row in rows]
    names = ["query", *(f"{start + 1} to {min(start + COLUMNS, len(paths))}" for start in starts)]
    sheet = contact_sheet(images, names, scale=1)
    kind = {".jpg": "JPEG", ".jpeg": "JPEG"}.get(out.suffix.lower(), out.suffix[1:].upper())
    write_atomically(out, lambda temporary: sheet.save(temporary, kind))


def export_command(
    state: Positional[Path],
    format: Literal["safetensors", "onnx", "torchscript", "timm"] = "safetensors",
    out: Path | None = None,
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
    """
    from osiris.export import export
    from osiris.learner import Learner

    out = out or Path(f"{state.resolve().name}-{format}")
    exported = export(Learner(state).run, out, format)
    say(f"{out}: {', '.join(exported.files)}")
    if exported.difference is None:
        notice("the features were not compared with those of osiris, because timm cannot be imported here.")
    else:
        say(f"features agree with those of osiris to {exported.difference:.1e} of the largest one")


def status_command(state: Positional[Path]) -> None:
    """Show the episodes of a state or run, what its memory holds, the health of its features, and its size on disk.

    drift: how far the episode moved the features of the memory's images (1 - cosine). reference: KNN accuracy on the
    labelled images of `osiris observe --reference`.

    Examples:
      osiris status state

    Args:
        state: The directory of a state or run.
    """

    from osiris.learner import Learner

    status = Learner(state).status()
    table = Table(title=f"{printable(str(state))}: {status['bytes'] / 2**20:.1f} MB on disk")
    for column in ("episode", "images", "in the memory", "drift", "reference"):
        table.add_column(column, justify="left" if column == "episode" else "right")
    observed = {one.task: one for one in status["observations"].episodes}
    for number, ((name, images), in_memory) in enumerate(zip(status["episodes"], status["memory"])):
        one = observed.get(number)
        drift = "" if one is None or one.drift is None else f"{one.drift:.3f}"
        accuracy = "" if one is None or one.reference is None else f"{one.reference.accuracy:.1f} %"
        table.add_row(printable(name), str(images), str(in_memory), drift, accuracy)
    table.add_section()
    table.add_row("all", str(sum(count for _, count in status["episodes"])), str(sum(status["memory"])))
    console.print(table, markup=False)
    if status["unfinished"] is not None:
        notice(f"{status['unfinished']} is not finished: observe it again to continue.")
    health = status["health"]
    if health is not None:
        text = f"features: {health.dimension} numbers, effective rank {health.effective_rank:.1f}"
        say(f"{text}, spread {health.spread:.2f}")
