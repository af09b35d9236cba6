"""`osiris train`: one method on one benchmark into one run directory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro
from msgspec import Meta

from osiris.commands import metrics_table
from osiris.commands.options import configured, print_help, read_options
from osiris.config import Config
from osiris.console import console, messages, notice, printable, say
from osiris.errors import Stopped, UserError
from osiris.framework.composition import resolve
from osiris.framework.methods import OWN
from osiris.presets import describe, own_data
from osiris.runs.directory import default_out
from osiris.training.run import Opening, train


@dataclass(frozen=True)
class Own:
    """Options of the command itself."""

    out: Path | None = None
    """The run directory; None means runs/BENCHMARK-METHOD-seedN. The same command again resumes the run."""
    resume: Path | None = None
    """Resume the run in this directory, with its own settings."""
    config: Path | None = None
    """Take all settings from this config.json of another run; other options change them."""
    quiet: bool = False
    """No progress display."""
    processes: Annotated[int, Meta(ge=1, le=4096)] = 1
    """Processes on this machine that share each batch (one per GPU). For several machines, use torchrun."""
    stop_after_task: Annotated[int, Meta(ge=1)] | None = None
    """Stop after this many tasks. The same command without it continues the run."""
    new_source: bool = False
    """Continue the run although the source of its own methods, terms or objectives has changed."""


@dataclass(frozen=True)
class Args(Own):
    """Train one method on one benchmark. The preset sets the default of every option.

    Without --preset: `paper` on a GPU, `fast` on a CPU.

    Examples:
      osiris train --method osiris-d --benchmark tinyworld --preset fast --seed 0 --out runs/x
      osiris train --method ft --benchmark split-cifar100-20 --preset fast --epochs 8
      osiris train --method osiris-d --past replay+distil --cross-weight 0.3 --benchmark tinyworld --preset fast
      osiris train --method mymethod:mine --benchmark tinyworld --preset fast
      osiris train --encoder hf:facebook/dinov2-small --benchmark folder:photos --image-size 112
      osiris train --resume runs/x                 continue an interrupted run
      osiris train --config runs/x/config.json --out runs/again
      osiris train --processes 2 --benchmark tinyworld --preset fast --out runs/two
    """

    settings: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)


def parse(argv: list[str]) -> Args:
    given = read_options(Own, argv, "train")
    own = given.own
    if own.processes > 1 and not given.help and "OSIRIS_EXIT_CODE" not in os.environ:
        raise SystemExit(launch(own.processes, ["train", *argv]))
    if own.resume is not None and (own.config is not None or own.out is not None):
        raise UserError("--resume continues a run where it is: leave out --config and --out.")
    source = own.resume or own.config
    config, reason = configured(given.options, source, in_help=given.help)
    args = Args(**vars(replace(own, out=own.resume or own.out)), settings=config)
    if given.help:
        print_help(Args, "train", args)
    if own.resume is None:  # a mistake is reported before anything else is printed
        config.check()
        resolve(config.method)
    if reason and not own.quiet:
        chosen = describe(config) if own_data(config.data.benchmark) else ""
        notice(f"no --preset given: {config.preset}, because {reason}{chosen}.")
    return args


def launch(processes: int, arguments: list[str]) -> int:
    """Run `osiris ARGUMENTS` in several processes through torchrun. torchrun reports every failure as 1, so the exit
    code is that of the first process."""
    with tempfile.TemporaryDirectory() as folder:
        code_file = Path(folder) / "code"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        torchrun = subprocess.Popen(
            [*command, "-m", "osiris", *arguments], env=os.environ | {"OSIRIS_EXIT_CODE": str(code_file)}
        )
        try:
            code = torchrun.wait()
        except (Stopped, KeyboardInterrupt) as stop:
            if isinstance(stop, Stopped):  # Ctrl-C reaches every process of the terminal by itself
                torchrun.terminate()
            code = torchrun.wait()
        return int(code_file.read_text()) if code_file.exists() else code


def train_command(argv: list[str]) -> int:
    args = parse(argv)
    config, out = args.settings, args.out or default_out(args.settings)
    if not args.quiet:
        text = f"{config.method.method} on {config.data.benchmark}, preset {config.preset}, seed {config.seed} -> {out}"
        messages.print(printable(text), markup=False, highlight=False, soft_wrap=True)
    own = (config.encoder.encoder or "").startswith("own:") or config.method.method in OWN
    again = "Give the same command again to continue." if own else None
    opening = Opening(config, out, quiet=args.quiet, again=again, new_source=args.new_source)
    metrics = train(opening, stop_after=args.stop_after_task)
    if metrics is not None:
        console.print(metrics_table([metrics]))
        say(f"run directory: {out}")
    return 0
