"""`osiris train`: one method on one benchmark into one run directory."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from osiris.commands import metrics_table, parse_arguments
from osiris.config import Config
from osiris.console import console, messages, notice, printable, say
from osiris.data.catalogue import parse_name
from osiris.errors import Stopped, UserError
from osiris.framework.composition import resolve
from osiris.learner import Learner
from osiris.models.external import typed_encoder
from osiris.presets import choose_preset, configure, describe, own_data, with_encoder
from osiris.runs.directory import default_out, read_config
from osiris.training.run import Opening, train


@dataclass(frozen=True)
class Args:
    """Train one method on one benchmark. The preset sets the default of every option.

    Without --preset: `paper` on a GPU, `fast` on a CPU.

    Examples:
      osiris train --method osiris-d --benchmark tinyworld --preset fast --seed 0 --out runs/x
      osiris train --method ft --benchmark split-cifar100-20 --preset fast --epochs 8
      osiris train --method osiris-d --past replay+distil --cross-weight 0.3 --benchmark tinyworld --preset fast
      osiris train --encoder hf:facebook/dinov2-small --benchmark folder:photos --image-size 112
      osiris train --resume runs/x                 continue an interrupted run
      osiris train --resume runs/x --add-task photos/december
      osiris train --config runs/x/config.json --out runs/again
      osiris train --processes 2 --benchmark tinyworld --preset fast --out runs/two
    """

    config: Annotated[Config, tyro.conf.arg(name="")]
    out: Path | None = None
    """The run directory; None means runs/BENCHMARK-METHOD-seedN. The same command again resumes the run."""
    resume: Path | None = None
    """Resume the run in this directory, with its own settings."""
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """Take all settings from this config.json of another run; other options change them."""
    quiet: bool = False
    """No progress display."""
    add_task: tuple[Path, ...] = ()
    """Add one more task, a folder of images, to a finished run (--resume). Its earlier images are not needed."""
    processes: int = 1
    """Processes on this machine that share each batch (one per GPU). For several machines, use torchrun."""
    stop_after_task: int | None = None
    """Stop after this many tasks. The same command without it continues the run."""
    no_lock: bool = False
    """Do not lock the run directory (for file systems without locks). Make sure that no other process uses it."""


def parse(argv: list[str]) -> Args:
    """Defaults depend on preset, benchmark, encoder and objective, so those are read first; others override them."""
    first, help_wanted = argparse.ArgumentParser(add_help=False, allow_abbrev=False), {"-h", "--help"} & set(argv)
    first.add_argument("--processes", type=int, default=1)
    for option in ("--preset", "--benchmark", "--encoder", "--objective", "--device", "--init", "--image-size"):
        first.add_argument(option)
    first.add_argument("--pretrained", action=argparse.BooleanOptionalAction)
    for option in ("--resume", "--config"):
        first.add_argument(option, type=Path)
    known, rest = first.parse_known_args(argv)
    if known.processes < 1:
        raise UserError(f"--processes is {known.processes}; give a number of at least 1.")
    if known.processes > 1 and not help_wanted and "OSIRIS_EXIT_CODE" not in os.environ:
        raise SystemExit(launch(known.processes, ["train", *argv]))
    reason = ""
    if known.preset is not None and (known.resume is not None or known.config is not None):
        raise UserError("--preset cannot be combined with --resume or --config, which contain every setting.")
    if known.encoder is not None:
        known.encoder = typed_encoder(known.encoder)
    source: Path | None = known.resume or known.config
    if source is not None:
        base, out = read_config(source), known.resume
        base = base if known.encoder is None else with_encoder(base, known.encoder)
        base.check()
    else:
        name = known.preset
        if name is None and help_wanted:
            name = "fast"
        elif name is None:
            name, reason = choose_preset(known.device or "auto")
        given = {name: getattr(known, name) for name in ("objective", "init", "pretrained", "image_size")}
        given = {name: value for name, value in given.items() if value is not None}
        if not str(known.image_size).isdecimal():
            given.pop("image_size", None)  # the parser below says what is wrong with it
        base, out = configure(known.benchmark or "tinyworld", name, known.encoder, given, strict=False), None
    for option in ("benchmark", "objective", "device", "init", "image_size"):
        if getattr(known, option) is not None:
            rest += [f"--{option.replace('_', '-')}", getattr(known, option)]
    if known.pretrained is not None:
        rest.append("--pretrained" if known.pretrained else "--no-pretrained")
    args = parse_arguments(Args, rest, "train", Args(base, out, resume=known.resume, config_file=known.config))
    if known.resume is None:  # a mistake is reported before anything else is printed
        args.config.check()
        resolve(args.config.method)
    if source is None:
        parse_name(args.config.data.benchmark)
    if reason and not args.quiet:
        chosen = describe(args.config) if own_data(args.config.data.benchmark) else ""
        notice(f"no --preset given: {base.preset}, because {reason}{chosen}.")
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
    config, out = args.config, args.out or default_out(args.config)
    if not args.quiet:
        text = f"{config.method.method} on {config.data.benchmark}, preset {config.preset}, seed {config.seed} -> {out}"
        messages.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    if args.add_task:
        for folder in args.add_task:
            Learner(out).observe(Path(str(folder).removeprefix("folder:")), quiet=args.quiet)
        return 0
    own = (config.encoder.encoder or "").startswith("own:")
    again = "Give the same command again to continue." if own else None
    opening = Opening(config, out, quiet=args.quiet, lock=not args.no_lock, again=again)
    metrics = train(opening, stop_after=args.stop_after_task)
    if metrics is not None:
        console.print(metrics_table([metrics]))
        say(f"run directory: {out}")
    return 0
