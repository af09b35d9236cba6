"""The model card of an exported encoder: README.md in the layout of the Hugging Face hub."""

from __future__ import annotations

from osiris.console import printable
from osiris.evaluation.encoder_files import LoadedEncoder
from osiris.evaluation.runs import Run

USAGE = {
    "safetensors": """\
`load_encoder.py` needs torch, safetensors and Pillow, but not osiris:

```python
import torch
from load_encoder import load, read_image

features = load()(torch.stack([read_image("image.jpg")]))
```""",
    "timm": """\
`load_timm.py` builds the same network in timm, without osiris:

```python
from load_timm import load

features = load()(images)  # normalised images [B, 3, H, W]
```""",
    "torchscript": """\
```python
import torch

features = torch.jit.load("model.pt")(images)  # normalised images [B, 3, H, W]
```""",
    "onnx": """\
```python
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
(features,) = session.run(["features"], {"images": images})  # float32, normalised images [B, 3, H, W], any B
```

The metadata of `model.onnx` has the entries of `config.json`, each as JSON.""",
}

CARD = """\
---
library_name: {library}
tags: [image-feature-extraction, self-supervised-learning, continual-learning]
---
# Image encoder trained by {method}

Maps RGB images of {size} x {size} pixels to {features} features. Trained without labels by
[osiris](https://pypi.org/project/osiris-ucl/), from {count} episodes of images, one after the other.

## Use

{usage}

Preprocessing: scale the short side to {size} pixels (bicubic), take the centre square, divide RGB values by 255,
subtract {mean} and divide by {std}. Compare features by cosine similarity. `config.json` has all of this.

{check}

## Training

| | |
|---|---|
{rows}

{accuracy}

## Limits

- Features suit images like those of the episodes. Nothing is known about others.
- The weights were computed from the training images. Treat them as you treat those.
"""


def model_card(run: Run, loaded: LoadedEncoder, format: str, difference: float | None) -> str:
    metrics = run.metrics
    assert loaded.mean is not None and loaded.std is not None
    health = metrics.evaluations[-1].health
    encoder = ", ".join(f"{name} {value}" for name, value in loaded.description.items())
    rows = {
        "method": run.method,
        "preset, seed": f"{metrics.preset}, {run.seed}",
        "encoder": encoder,
        "episodes": ", ".join(metrics.task_names[:20]) + (", ..." if len(metrics.task_names) > 20 else ""),
        "images": f"{metrics.fingerprint.train_images:,}",
        "effective rank of the features": f"{health.effective_rank:.1f} of {health.dimension}",
    }
    accuracies = [f"{one.A:.1f} % ({name})" for name, one in metrics.protocols.items() if one.A is not None]
    measured = f"KNN accuracy over all tasks after the last one: {', '.join(accuracies)}." if accuracies else ""
    if difference is None:
        check = "The features were not compared with those of osiris, because timm could not be imported."
    else:
        check = f"Features agree with those of osiris to {difference:.1e} of the largest one."
    return CARD.format(
        library="timm" if format == "timm" else "onnx" if format == "onnx" else "pytorch",
        method=_plain(run.method),
        size=loaded.image_size,
        features=health.dimension,
        count=len(metrics.task_names),
        usage=USAGE[format],
        mean=tuple(round(value, 4) for value in loaded.mean),
        std=tuple(round(value, 4) for value in loaded.std),
        check=check,
        rows="\n".join(f"| {name} | {_plain(str(text))} |" for name, text in rows.items()),
        accuracy=measured or "The images have no labels, so accuracy was not measured.",
    )


def _plain(text: str) -> str:
    """Names of episodes are names of folders: they must not end a row of the table or add markup."""
    return printable(text).replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")
