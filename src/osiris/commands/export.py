"""`osiris export`: the encoder of a state or run, for use without osiris."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class Args:
    """Write the newest encoder of a state or run to a folder, so that it runs without osiris.

    The folder also gets config.json (architecture and preprocessing) and a model card. The features are compared with
    those of osiris; the largest difference is printed.

    Examples:
      osiris export state
      osiris export state --format onnx --out encoder-onnx
      osiris export runs/x --format timm
    """

    state: Annotated[Path, tyro.conf.Positional]
    """The directory of a state or of a finished run."""
    format: Literal["safetensors", "onnx", "torchscript", "timm"] = "safetensors"
    """safetensors: weights and a loader script that needs torch alone. onnx: any batch size, preprocessing in its
    metadata (needs the extra `onnx`). torchscript: one file for torch.jit.load. timm: weights and a script that builds
    the same network in timm (encoders of the family resnet)."""
    out: Path | None = None
    """The folder; None means STATE-FORMAT in the current directory."""


def run(args: Args) -> int:
    from osiris.console import notice, say
    from osiris.export import export
    from osiris.learner import Learner

    out = args.out or Path(f"{args.state.resolve().name}-{args.format}")
    exported = export(Learner(args.state).run, out, args.format)
    say(f"{out}: {', '.join(exported.files)}")
    if exported.difference is None:
        notice("the features were not compared with those of osiris, because timm cannot be imported here.")
    else:
        text = f"features agree with those of osiris to {exported.difference:.1e} of the largest one"
        say(text)
    return 0
