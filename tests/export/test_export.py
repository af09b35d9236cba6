"""An exported encoder computes the features of osiris, without osiris."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from osiris import cli
from osiris.augment.views import normalise
from osiris.config import to_dict
from osiris.data.folder import EXTENSIONS, register_heic
from osiris.data.images import decode
from osiris.errors import UserError
from osiris.evaluation.encoder_files import LoadedEncoder, load_checkpoint
from osiris.export import export
from osiris.export.export import UNFINISHED
from osiris.learner import Learner
from osiris.models.config import EncoderConfig
from osiris.models.encoder import build_encoder
from osiris.models.standalone import build, read_image
from tiny_runs import pictures

RESNET: dict[str, Any] = {"width": 8, "blocks": (1, 1, 1, 1), "stem_stride": 1, "family": "resnet"}
FAST: dict[str, Any] = {"width": 32, "blocks": (1, 1), "family": "fast"}
TRAINED: dict[str, Any] = {"method": "osiris-r", "memory_size": 8, "epochs": 1, "batch_size": 8}
READOUT: dict[str, Any] = {"method": "readout"}
LEARNERS: dict[str, dict[str, Any]] = {
    **{"resnet": RESNET | TRAINED, "fast": FAST | TRAINED},
    **{"readout of resnet": RESNET | READOUT, "readout of fast": FAST | READOUT},
}


@pytest.fixture(scope="module", params=list(LEARNERS))
def learner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Learner:
    folder = tmp_path_factory.mktemp("run") / request.param
    learner = Learner(folder, preset="smoke", image_size=16, **LEARNERS[request.param])
    return learner.observe(pictures(4, seed=1)[0], name="a | name")


def loaded(learner: Learner) -> LoadedEncoder:
    return load_checkpoint(learner.run.checkpoint())


def import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_loader_script_gives_the_same_features(
    learner: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = export(learner.run, tmp_path / "out")
    assert exported.difference is not None and exported.difference < 1e-5
    assert sorted(exported.files) == sorted(path.name for path in (tmp_path / "out").iterdir())
    config, encoder = json.loads((tmp_path / "out" / "config.json").read_text()), loaded(learner)
    for part in ("preprocessing", "pretrained_cfg"):
        assert config[part]["mean"] == pytest.approx(encoder.mean) and config[part]["std"] == pytest.approx(encoder.std)
    assert encoder.mean != encoder.std and config["pretrained_cfg"]["input_size"] == [3, 16, 16]
    card = (tmp_path / "out" / "README.md").read_text()
    assert learner.run.method in card and "a \\| name" in card and "load_encoder" in card
    photo = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(photo).save(tmp_path / "photo.jpg", quality=90)
    expected = learner.embed(tmp_path / "photo.jpg")
    for name in [name for name in sys.modules if name.split(".")[0] == "osiris"]:
        monkeypatch.setitem(sys.modules, name, None)
    script = import_file(tmp_path / "out" / "load_encoder.py")
    features = script.load()(script.read_image(tmp_path / "photo.jpg")[None])
    (tmp_path / "page.jpg").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n%%EOF\n"
    )
    with pytest.raises(OSError, match="EPS is not read"):
        script.read_image(tmp_path / "page.jpg")
    np.testing.assert_allclose(features.detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def write_formats(folder: Path) -> list[Path]:
    """Every format and kind of pixels that docs/own-data.md names."""
    random = np.random.default_rng(0)
    colour = Image.fromarray(random.integers(0, 256, (60, 50, 3), dtype=np.uint8)).resize((300, 250))
    grey, deep = colour.convert("L"), random.integers(0, 2**16, (30, 40))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    kinds: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        **{f"colour.{end}": (colour, {}) for end in ("png", "bmp", "webp", "tif", "ppm", "jp2", "avif")},
        "photo.jpg": (colour, {"quality": 90}),
        "turned.jpg": (colour, {"exif": exif}),
        "cmyk.jpg": (colour.convert("CMYK"), {}),
        "grey.pgm": (grey, {}),
        "palette.png": (colour.convert("P"), {}),
        "transparent.png": (colour.convert("RGBA"), {}),
        "black and white.png": (colour.convert("1"), {}),
        "grey and transparent.png": (colour.convert("LA"), {}),
        "animation.gif": (colour, {"save_all": True, "append_images": [colour.rotate(90)]}),
        "16 bit.png": (Image.fromarray(deep.astype(np.uint16)), {}),
        "16 bit.tif": (Image.fromarray(deep.astype(np.uint16)), {}),
        "16 bit, dark.png": (Image.fromarray((deep // 300).astype(np.uint16)), {}),
        "32 bit.tif": (Image.fromarray(deep.astype(np.int32)), {}),
        "32 bit, dark.tif": (Image.fromarray((deep // 300).astype(np.int32)), {}),
        "floats.tif": (Image.fromarray((deep / 2**16).astype(np.float32)), {}),
        "large floats.tif": (Image.fromarray(deep.astype(np.float32)), {}),
    }
    if register_heic():
        kinds["photo.heic"] = colour, {}
    for name, (image, options) in kinds.items():
        image.save(folder / name, **options)
    return sorted(folder.iterdir())


def test_the_loader_script_reads_every_format_as_osiris_does(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    preprocessing = {"image_size": 24, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}
    (tmp_path / "config.json").write_text(json.dumps({"preprocessing": preprocessing}))
    paths = write_formats(tmp_path / "images")
    assert {path.suffix for path in paths} >= {end for end in EXTENSIONS if end not in (".jpeg", ".tiff")}
    for path in paths:
        expected = normalise(torch.from_numpy(decode(path, 24))[None], preprocessing["mean"], preprocessing["std"])[0]
        torch.testing.assert_close(read_image(path, tmp_path), expected, rtol=0, atol=1e-5, msg=path.name)


def test_an_encoder_that_computes_other_features_is_not_exported(
    learner: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules["osiris.export.export"], "largest_difference", lambda *_: float("nan"))
    assert cli.main(["export", str(learner.path), "--out", str(tmp_path / "out")]) == 2
    assert "computes different features" in capsys.readouterr().err and not list((tmp_path / "out").iterdir())


def test_onnx_with_any_batch_and_the_preprocessing_in_its_metadata(learner: Learner, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    exported = export(learner.run, tmp_path / "out", "onnx")
    assert exported.difference is not None and exported.difference < 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    metadata = session.get_modelmeta().custom_metadata_map
    preprocessing = json.loads(metadata["preprocessing"])
    assert preprocessing["image_size"] == 16 and preprocessing["mean"] == pytest.approx(loaded(learner).mean)
    images = torch.from_numpy(pictures(4, seed=1)[0])
    inputs = normalise(images, preprocessing["mean"], preprocessing["std"]).numpy()
    for count in (1, 7):
        (features,) = session.run(None, {"images": inputs[:count]})
        np.testing.assert_allclose(features, learner.embed(images.numpy()[:count]), rtol=1e-4, atol=1e-4)


def test_torchscript(learner: Learner, tmp_path: Path) -> None:
    assert (export(learner.run, tmp_path / "out", "torchscript").difference or 0) < 1e-5
    extra = {"config.json": ""}
    module = torch.jit.load(str(tmp_path / "out" / "model.pt"), _extra_files=extra)
    assert json.loads(extra["config.json"])["preprocessing"]["image_size"] == 16
    assert module(torch.zeros(5, 3, 16, 16)).shape == (5, json.loads(extra["config.json"])["num_features"])


def test_timm(learner: Learner, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["export", str(learner.path), "--format", "timm", "--out", str(tmp_path / "out")])
    if loaded(learner).description["family"] == "fast" or learner.run.method == "readout":
        assert code == 2 and "use " in capsys.readouterr().err
        return
    assert code == 0 and (tmp_path / "out" / "load_timm.py").exists()


CONFIGS = [
    EncoderConfig(),
    EncoderConfig(width=16, blocks=(1, 2, 1, 1), stem_stride=2),
    EncoderConfig(width=8, norm="bn"),
    EncoderConfig(width=16, stem="large"),
    EncoderConfig(family="fast", width=32, blocks=(1, 2)),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("script", ["load_encoder", "load_timm"])
def test_networks_of_the_scripts(config: EncoderConfig, script: str) -> None:
    if script == "load_timm":
        try:
            import timm  # type: ignore[import-not-found]  # noqa: F401
        except (ImportError, RuntimeError) as error:
            pytest.skip(f"timm cannot be imported: {error}")
        from osiris.export.load_timm import build as make
    else:
        make = build
    if script == "load_timm" and config.family == "fast":
        pytest.skip("timm has no such network")
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    encoder = build_encoder(config, zero_init_last=False, images=images.repeat(9, 1, 1, 1)).eval()
    network = make(to_dict(config))
    network.load_state_dict(encoder.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(network.eval()(images), encoder(images), rtol=1e-4, atol=1e-4)


def test_what_cannot_be_exported(
    learner: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["export", str(learner.path), "--format", "onnx", "--out", str(tmp_path / "out")]) == 2
    assert "-e '.[onnx]'" in capsys.readouterr().err
    assert cli.main(["export", str(learner.path), "--out", str(learner.path)]) == 2
    assert cli.main(["export", str(tmp_path / "nothing")]) == 2


def test_an_encoder_does_not_take_the_config_of_another_one(tmp_path: Path) -> None:
    """model.safetensors would be built and its images normalised as config.json says, which is that of model.pt."""
    options: dict[str, Any] = {"image_size": 16, "memory_size": 8, "epochs": 1, "batch_size": 8}
    runs = [
        Learner(tmp_path / seed, "ft", "smoke", seed=int(seed), **RESNET, **options)
        .observe(pictures(4, seed=1)[0], name="a")
        .run
        for seed in "01"
    ]
    out = tmp_path / "out"
    for format in ("safetensors", "torchscript"):
        export(runs[0], out, format)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(UserError, match=r"model.safetensors is another encoder, .*choose another folder"):
        export(runs[1], out, "torchscript")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    (out / "model.safetensors").unlink()
    export(runs[1], out, "torchscript")


def test_what_a_killed_export_has_left_goes_with_the_next_one(learner: Learner, tmp_path: Path) -> None:
    left = tmp_path / f"{UNFINISHED}abc"
    left.mkdir()
    (left / "model.onnx").write_bytes(b"half a mo")
    export(learner.run, tmp_path, "onnx")
    assert not any(path.name.startswith(".") for path in tmp_path.iterdir()) and (tmp_path / "model.onnx").exists()
