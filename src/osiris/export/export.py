"""Write the encoder of a run such that it runs without osiris, and check that it computes the same features."""

from __future__ import annotations

import importlib.util
import inspect
import io
import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from jinja2 import Environment, PackageLoader
from safetensors.torch import save
from torch import Tensor, nn

from osiris.console import printable
from osiris.errors import UserError, install_extra
from osiris.evaluation.encoder_files import LoadedEncoder, load_checkpoint
from osiris.evaluation.reference import against
from osiris.export import load_timm
from osiris.files import require_writable, write_atomically, write_json, write_text
from osiris.models import standalone
from osiris.models.joined import LAYERS, JoinedEncoder
from osiris.models.manifold import JoinedManifold
from osiris.runs.directory import RunDirectory
from osiris.runs.run import Run

Format = Literal["safetensors", "onnx", "torchscript", "timm"]
TOLERANCE = 1e-4
"""Largest difference from the features of osiris, relative to the largest feature."""
MODELS = ("model.safetensors", "model.pt", "model.onnx")
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
Network = Callable[[Tensor], Tensor]
"""Normalised images [B, 3, H, W] to features [B, D]."""


@dataclass(frozen=True)
class Exported:
    """What `export` wrote."""

    files: list[str]
    difference: float | None
    """Largest difference between features of the export and of osiris, relative to the largest feature; None: timm is
    not there to run the export."""


UNFINISHED = ".osiris-export-"
"""The beginning of the name of a folder that an export which is killed leaves behind."""


def export(run: Run, out: Path, format: Format = "safetensors") -> Exported:
    """Write the newest encoder of a run or state to the folder `out`, with config.json and a model card."""
    loaded = load_checkpoint(run.checkpoint())
    family = loaded.description.get("family")
    if isinstance(loaded.module, JoinedManifold):
        raise UserError("the encoder of the method smt cannot be exported yet; use osiris embed.")
    if format in ("safetensors", "timm") and family not in (("resnet",) if format == "timm" else ("resnet", "fast")):
        name = loaded.description.get("encoder", f"family {family}")
        raise UserError(f"--format {format} is not available for the encoder {name}; use --format onnx.")
    if format == "timm" and isinstance(loaded.module, JoinedEncoder):
        raise UserError("--format timm is not available for a readout of several layers; use safetensors or onnx.")
    if RunDirectory(out).has_learned:
        raise UserError(f"--out {out} is a run directory; choose another folder.")
    require_writable(out)
    write, load = FORMATS[format]
    config, network = description(run, loaded), loaded.module.eval()
    if family in ("resnet", "fast"):  # made of torch's own layers, as the loader script builds it
        network = standalone.build(config["encoder"]).eval()
        network.load_state_dict(loaded.module.state_dict())
    out.mkdir(parents=True, exist_ok=True)
    for killed in out.glob(f"{UNFINISHED}*"):
        shutil.rmtree(killed, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix=UNFINISHED, dir=out
    ) as made:  # an earlier export stays until this one is complete
        place = Path(made)
        files = [*write(network, config, place), "config.json", "README.md"]
        write_json(place / "config.json", config)
        refuse_other_encoder(out, place)
        try:
            difference = largest_difference(loaded, load(place))
        except (ImportError, RuntimeError):  # RuntimeError: a torchvision that was built for another torch
            if format != "timm":
                raise
            difference = None
        if difference is not None and not difference < TOLERANCE:
            raise UserError(f"as {format}, the encoder computes different features (difference {difference:.1e}).")
        write_text(place / "README.md", model_card(run, loaded, format, difference))
        for name in files:
            (place / name).replace(out / name)
    return Exported(files, difference)


def refuse_other_encoder(out: Path, made: Path) -> None:
    """The formats of one encoder may share a folder. Those of another one would be read with the wrong config.json."""
    before = out / "config.json"
    others = [name for name in MODELS if (out / name).exists() and not (made / name).exists()]
    if others and before.exists() and before.read_bytes() != (made / "config.json").read_bytes():
        raise UserError(f"{out / others[0]} is another encoder, which needs its config.json; choose another folder.")


def model_card(run: Run, loaded: LoadedEncoder, format: Format, difference: float | None) -> str:
    """README.md in the layout of the Hugging Face hub."""
    metrics, health = run.metrics, run.metrics.evaluations[-1].health
    assert loaded.mean is not None and loaded.std is not None
    rows = {
        "method": run.method,
        "preset, seed": f"{metrics.preset}, {run.seed}",
        "encoder": loaded.description.get("encoder")
        or ", ".join(f"{name} {value}" for name, value in loaded.description.items()),
        "episodes": ", ".join(metrics.task_names[:20]) + (", ..." if len(metrics.task_names) > 20 else ""),
        "images": f"{metrics.fingerprint.train_images:,}",
        "effective rank of the features": f"{health.effective_rank:.1f} of {health.dimension}",
    }
    templates = Environment(loader=PackageLoader("osiris.export", ""), trim_blocks=True, keep_trailing_newline=True)
    return templates.get_template("card.md").render(
        format=format,
        library=format if format in ("timm", "onnx") else "pytorch",
        method=_plain(run.method),
        size=loaded.image_size,
        features=health.dimension,
        count=len(metrics.task_names),
        pretrained=metrics.start is not None,
        mean=tuple(round(value, 4) for value in loaded.mean),
        std=tuple(round(value, 4) for value in loaded.std),
        difference=difference,
        rows={name: _plain(text) for name, text in rows.items()},
        reference=_reference(run),
        accuracies=[f"{one.A:.1f}% ({name})" for name, one in metrics.protocols.items() if one.A is not None],
    )


def _reference(run: Run) -> str:
    """What the labelled images of `osiris observe --reference` say about the encoder; empty without them."""
    known = run.observations
    last = known.episodes[-1] if known.episodes else None
    scores = None if last is None or last.task != len(run.metrics.task_names) - 1 else last.reference
    if scores is None:
        return ""
    change = against(known.start, scores)
    start = f"; the pretrained start {known.start.accuracy:.1f}% ({change})" if known.start and change else ""
    accuracy = "{:.1f}% (95% interval {:.1f} to {:.1f})".format(scores.accuracy, *scores.interval)
    return (
        f"{accuracy} on {scores.images} labelled images of {len(scores.classes)} classes, each classified by its "
        f"{scores.k} nearest among the others; raw pixels {scores.pixels:.1f}%, chance {scores.chance:.1f}%{start}"
    )


def _plain(text: str) -> str:
    """Names of episodes are names of folders: they must not end a row of the table or add markup."""
    return printable(text).replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")


def description(run: Run, loaded: LoadedEncoder) -> dict[str, Any]:
    """config.json of the export. `pretrained_cfg` says in timm's words what `preprocessing` says."""
    assert loaded.mean is not None and loaded.std is not None and loaded.image_size is not None
    size = loaded.image_size
    with torch.no_grad():
        features = loaded.module.eval()(torch.zeros(1, 3, size, size)).shape[1]
    layers = {LAYERS: loaded.module.record} if isinstance(loaded.module, JoinedEncoder) else {}
    return {
        "encoder": loaded.description | layers,
        "num_features": features,
        "preprocessing": {
            "image_size": size,
            "resize": "short side to image_size (bicubic), then the centre square",
            "scale": "RGB from 0 to 255 divided by 255, minus mean, divided by std",
            "mean": list(loaded.mean),
            "std": list(loaded.std),
        },
        "pretrained_cfg": {
            "input_size": [3, size, size],
            "interpolation": "bicubic",
            "crop_pct": 1.0,
            "mean": list(loaded.mean),
            "std": list(loaded.std),
            "num_classes": 0,
            "first_conv": "conv1",
        },
        "training": {"method": run.method, "preset": run.metrics.preset, "seed": run.seed},
    }


def _write_weights(script: str, source: ModuleType, network: nn.Module, _: dict[str, Any], out: Path) -> list[str]:
    tensors = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    content = save(tensors)  # in memory: on a full disk, the library's own error says neither errno nor file
    write_atomically(out / "model.safetensors", lambda temporary: temporary.write_bytes(content))
    write_text(out / script, inspect.getsource(source))
    return ["model.safetensors", script]


def _write_torchscript(network: nn.Module, config: dict[str, Any], out: Path) -> list[str]:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch announces that TorchScript will not be developed further
        traced = torch.jit.freeze(torch.jit.trace(network, _example(config)))
        content = io.BytesIO()  # on a full disk, torch would end the process
        torch.jit.save(traced, content, _extra_files={"config.json": json.dumps(config)})
    write_atomically(out / "model.pt", lambda temporary: temporary.write_bytes(content.getvalue()))
    return ["model.pt"]


def _load_torchscript(folder: Path) -> Network:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.load(str(folder / "model.pt"))


def _write_onnx(network: nn.Module, config: dict[str, Any], out: Path) -> list[str]:
    """The batch may have any size. The entries of config.json are its metadata, each as JSON."""
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"--format onnx needs the package {missing[0]}: {install_extra('onnx')}.")
    import onnx

    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about operators that this network does not use
        logger.setLevel(logging.ERROR)  # about torchvision, which is not needed
        program = torch.onnx.export(
            network,
            (_example(config),),
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
    logger.setLevel(level)
    assert program is not None
    model = program.model_proto
    for name, value in config.items():
        model.metadata_props.append(onnx.StringStringEntryProto(key=name, value=json.dumps(value)))
    write_atomically(out / "model.onnx", lambda temporary: onnx.save(model, temporary))
    return ["model.onnx"]


def _load_onnx(folder: Path) -> Network:
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(["features"], {"images": images.numpy()})[0])


def _example(config: dict[str, Any]) -> Tensor:
    size = config["preprocessing"]["image_size"]
    return torch.zeros(2, 3, size, size)


Write = Callable[[nn.Module, dict[str, Any], Path], list[str]]
FORMATS: dict[Format, tuple[Write, Callable[[Path], Network]]] = {
    "safetensors": (partial(_write_weights, "load_encoder.py", standalone), standalone.load),
    "timm": (partial(_write_weights, "load_timm.py", load_timm), load_timm.load),
    "torchscript": (_write_torchscript, _load_torchscript),
    "onnx": (_write_onnx, _load_onnx),
}
"""How to write the network to a folder (returns the names of the files), and how to run it from there."""


def largest_difference(loaded: LoadedEncoder, network: Network) -> float:
    """Between the export and osiris on random images, for batches of one and of three, relative to the largest."""
    size, differences = loaded.image_size or 32, []
    with torch.no_grad():
        for count in (1, 3):
            images = torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(count))
            expected = loaded.module(images)
            differences.append(float((network(images) - expected).abs().max() / expected.abs().max().clamp_min(1e-9)))
    return max(differences)
