"""The command line: `osiris COMMAND`. A command is imported when it is called: `osiris --help` answers at once."""

from __future__ import annotations

import ctypes
import errno
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import osiris
from osiris.errors import Diverged, Stopped, UserError, unknown
from osiris.invocation import typed
from osiris.training.interrupt import Interrupt

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("experiments", "train ft and osiris-d on built-in data and write a report, in minutes"),
    "train": ("train", "train one method on one benchmark"),
    "observe": ("observe", "learn from one more folder of images (the state lives in a directory)"),
    "undo": ("learner", "take back the last folder that a state has learned from"),
    "forget": ("learner", "take images out of a state"),
    "measure": ("learner", "measure a state on labelled images, without learning"),
    "embed": ("learner", "compute the features of images with the encoder of a state or run"),
    "index": ("index", "make or update the index of images, by which they are found"),
    "search": ("index", "find the images that are most similar to one image"),
    "map": ("map", "show all images of an index on one page"),
    "tag": ("tag", "propose tags for images, from a few examples of each"),
    "duplicates": ("index", "find copies of images, and look-alikes"),
    "novel": ("index", "list the images of a folder, those least like all known ones first"),
    "export": ("learner", "write the encoder of a state or run for use without osiris"),
    "join": ("learner", "add what two states have learned"),
    "status": ("learner", "show what a state has learned from and what it contains"),
    "sweep": ("sweep", "train several methods with several seeds"),
    "evaluate": ("evaluate", "evaluate a run, a checkpoint or any other encoder"),
    "report": ("results", "make an HTML page, figures and tables from runs"),
    "compare": ("results", "print a table of several runs, with tests over seeds"),
    "board": ("board", "make a page of results from run directories, checked before they are listed"),
    "reproduce": ("experiments", "train and report what one table or figure of the paper needs"),
    "paper": ("results", "print the paper's published numbers"),
    "list": ("list", "list methods, benchmarks and presets"),
    "data": ("data", "download, verify and look at a benchmark's images"),
    "bench": ("machine", "measure how fast osiris-d trains on this machine"),
    "doctor": ("machine", "show versions, device, threads, data and free disk space"),
}
"""Name -> module in `commands/`, and what it does."""

EXAMPLES = """examples:
  osiris observe state photos/2026-11             learn from your own photos, one folder at a time
  osiris observe state photos/2026-12 --reference labelled
  osiris index state photos                       then: osiris search state photos cat.jpg
  osiris demo
  osiris train --method osiris-d --benchmark split-cifar100-20 --preset fast --seed 0 --out runs/osiris-d-0
  osiris compare runs/*
  osiris report runs/* --out report"""


def usage() -> str:
    width = max(len(name) for name in COMMANDS)
    rows = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items())
    return (
        "osiris: unsupervised continual learning\n\n"
        "usage: osiris COMMAND [options]    (`osiris COMMAND --help` shows the options)\n\n"
        f"commands:\n{rows}\n\n{EXAMPLES}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the exit code."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if argv[0] in ("--version", "-V"):
        print(f"osiris {osiris.__version__}")
        return 0
    try:
        # From the first moment, also for commands that start others; training has an Interrupt of its own.
        with Interrupt(signal.SIGTERM, signal.SIGHUP) as interrupt, interrupt.at_once(), typed(argv):
            return dispatch(argv[0], argv[1:])
    except (UserError, Stopped, Diverged) as error:
        return _fail(str(error), error.exit_code)
    except SystemExit as finished:  # the parser has said what is wrong, or has printed the help
        return finished.code if isinstance(finished.code, int) else 0
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except MemoryError as error:
        return _fail(f"out of memory. {error}".strip(), 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno is None or error.filename is None:
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = "Make room, or choose another path." if full else "Choose another path, or change its permissions."
        return _fail(f"{error.filename}: {os.strerror(error.errno)}. {advice}", 2)


def dispatch(name: str, argv: list[str]) -> int:
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    module = importlib.import_module(f"osiris.commands.{COMMANDS[name][0]}")
    return getattr(module, f"{name}_command")(argv)


def _fail(message: str, code: int) -> int:
    from osiris.console import printable  # imports rich

    print(printable(f"osiris: {message}"), file=sys.stderr)
    return code


def keep_freed_memory() -> None:
    """Let glibc keep what torch frees. Otherwise it returns large activations to the system and takes them again in
    every step, which costs a pretrained encoder up to half of its time."""
    chosen = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
    if sys.platform == "linux" and not any(name in os.environ for name in chosen):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt:
            mmap_threshold, trim_threshold = -3, -1
            for size in (2**25, 2**30):  # older versions refuse the second
                mallopt(mmap_threshold, size)
            mallopt(trim_threshold, 2**31 - 1)


def entry() -> None:
    keep_freed_memory()
    code = main()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        if "OSIRIS_EXIT_CODE" in os.environ and os.environ["RANK"] == "0":
            Path(os.environ["OSIRIS_EXIT_CODE"]).write_text(str(code))
        # Threads of the process group may still run while the interpreter shuts down, and then abort the process, which
        # torchrun would report as a failure. All files are closed by now.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    entry()
