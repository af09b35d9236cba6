"""Encoders of transformers and timm. Tiny models with random weights stand in for those of the hub."""

import importlib
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import osiris
from osiris import cli
from osiris.errors import UserError
from osiris.evaluation.encoder_files import checkpoint_encoder, load_encoder
from osiris.files import load_tensors
from osiris.learner import Learner
from osiris.models.config import EncoderConfig
from osiris.models.encoder import build_encoder, feature_count
from osiris.models.external import architecture_of, freeze_layers
from osiris.models.pretrained import IMAGENET, Preprocessing, preprocessing
from osiris.presets import configure
from osiris.training.estimate import encoder_flops
from tiny_encoders import save_vision_model
from tiny_runs import episode, pictures

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_vision_model(tmp_path_factory.mktemp("dinov2"), "dinov2")


def test_weights_come_from_the_directory_and_later_from_the_checkpoint(folder: Path) -> None:
    config, images = EncoderConfig(encoder=f"hf:{folder}"), torch.randn(2, 3, 16, 16)
    encoder = build_encoder(config, seed=3).eval()
    model = transformers.AutoModel.from_pretrained(folder)
    torch.testing.assert_close(encoder(images), model(images).pooler_output)
    assert feature_count(encoder, (3, 24, 24)) == 16  # position embeddings are interpolated
    architecture = json.loads(json.dumps(architecture_of(config.encoder, encoder)))
    again = build_encoder(EncoderConfig(encoder="hf:gone"), architecture=architecture).eval()
    again.load_state_dict(encoder.state_dict())
    assert torch.equal(again(images), encoder(images))


@pytest.mark.parametrize("kind", ["vit", "resnet", "clip", "swin"])
def test_families_give_one_vector_per_image(kind: str, tmp_path: Path) -> None:
    encoder = build_encoder(EncoderConfig(encoder=f"hf:{save_vision_model(tmp_path, kind)}"))
    assert encoder(torch.randn(3, 3, 32, 32)).shape == (3, 16)
    encoder(torch.randn(4, 3, 16, 16)).square().sum().backward()
    assert all(value.grad is not None for value in encoder.parameters())
    freeze_layers(encoder, 0.5)  # of stages: the first; of blocks in one list: the first half
    frozen = [name for name, value in encoder.named_parameters() if not value.requires_grad]
    places = {"swin": ("layers.0.blocks.1", "layers.1."), "resnet": ("stages.0", "stages.1.layers.0.layer")}
    first, last = places.get(kind, ("layers.0", "layers.1"))
    assert any(first in name for name in frozen) and not any(last in name for name in frozen)


def test_size_and_normalisation_come_from_the_model(folder: Path, tmp_path: Path) -> None:
    assert preprocessing(f"hf:{folder}") == Preprocessing(16, (0.5, 0.4, 0.3), (0.2, 0.2, 0.2))
    (tmp_path / "config.json").write_text("{}")
    assert preprocessing(f"hf:{tmp_path}") == Preprocessing(224, *IMAGENET)
    config = configure("tinyworld", "fast", f"hf:{folder}")
    assert config.data.image_size == 16 and config.learning.freeze == 0.5 and config.learning.learning_rate == 1e-4
    loaded = load_encoder(f"hf:{folder}")
    assert (loaded.image_size, loaded.mean) == (16, (0.5, 0.4, 0.3)) and "encoder" in loaded.description
    assert encoder_flops(EncoderConfig(encoder=f"hf:{folder}"), 16) > 2 * 4 * 3 * 64 * 16


def test_a_pretrained_encoder_is_evaluated_as_it_is(folder: Path, tmp_path: Path, capsys) -> None:
    data = ["--benchmark", "tinyworld", "--bank-per-class", "3", "--test-per-class", "1", "--k", "2"]
    command = ["evaluate", "--encoder", f"hf:{folder}", "--out", str(tmp_path), "--threads", "1"]
    assert cli.main([*command, *data, "--image-size", "24"]) == 0 and "fingerprint" in capsys.readouterr().out


def test_pickles_other_models_and_missing_weights_are_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def attempt() -> None:
        build_encoder(EncoderConfig(encoder=f"hf:{tmp_path}"))

    record = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(record))
    torch.save(transformers.AutoModel.from_pretrained(folder).state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="safetensors"):
        attempt()
    save_file({"embeddings.cls_token": torch.zeros(1, 1, 16)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"has no weights for model\.embeddings"):
        attempt()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(UserError, match=r"^hf:.* is a model of the type bert; supported are"):
        attempt()
    with pytest.raises(UserError, match="neither a directory nor"):
        preprocessing(f"hf:{tmp_path / 'nowhere'}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for _ in range(2):
        with pytest.raises(UserError, match="the hub cannot be reached"):
            preprocessing("hf:nobody/nothing")
    assert capsys.readouterr().err.count("asking the Hugging Face hub") == 1
    with pytest.raises(UserError, match="does not describe"):
        build_encoder(EncoderConfig(encoder="hf:x"), architecture={})
    hostile = {"transformers": record | {"attn_implementation": "someone/kernel", "auto_map": {"AutoModel": "x.Y"}}}
    built = build_encoder(EncoderConfig(encoder="hf:x"), architecture=hostile)
    assert built.get_submodule("model").config._attn_implementation == "sdpa"  # pyright: ignore


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *[("config.json", text) for text in ("[" * 10**5, "[]", '{"model_type": "vit", "image_size": "x"}')],
        *[("config.json", f'{{"model_type": "vit", "vision_config": {value}}}') for value in ("3", "[]")],
        *[
            ("preprocessor_config.json", text)
            for text in ("[" * 10**5, "3", '{"image_mean": "x"}', '{"image_mean": [1]}')
        ],
        *[("preprocessor_config.json", '{"crop_size": 1e400}'), ("model.safetensors", "12345678abc")],
    ],
    ids=lambda text: text[:40],
)
def test_damaged_files_of_a_model_are_refused_in_one_line(
    name: str, text: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder, tmp_path / "model")
    (tmp_path / "model" / name).write_text(text)
    command = ["evaluate", "--encoder", f"hf:{tmp_path / 'model'}", "--benchmark", "tinyworld", "--image-size", "16"]
    assert cli.main([*command, "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"^--encoder hf:.* -e '\.\[transformers\]'"):
        build_encoder(EncoderConfig(encoder=f"hf:{folder}"))
    with pytest.raises(UserError, match=r"-e '\.\[timm\]'"):
        build_encoder(EncoderConfig(encoder="timm:resnet18"))


class Tiny(nn.Module):
    """What timm would build: a model without a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.default_cfg = {"architecture": "tiny"}

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.stem(images).mean((2, 3))


def test_timm_models_are_read_from_safetensors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """timm does not import beside a CPU-only torch, so a stand-in checks what is asked of it."""
    asked: list[tuple[str, dict]] = []

    def create_model(name: str, **options: object) -> nn.Module:
        asked.append((name, options))
        return Tiny()

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    record = {"mean": [0.5] * 3, "std": [0.25] * 3, "input_size": [3, 24, 24], "classifier": "head"}
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "tiny", "pretrained_cfg": record}))
    config, source = EncoderConfig(encoder=f"timm:{tmp_path}"), Tiny()
    with pytest.raises(UserError, match=r"no model\.safetensors"):
        build_encoder(config)
    save_file(source.state_dict() | {"head.weight": torch.zeros(5, 8)}, tmp_path / "model.safetensors")
    encoder, images = build_encoder(config), torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(encoder(images), source(images))  # another memory layout
    assert asked == [("tiny", {"pretrained": False, "num_classes": 0})]
    assert preprocessing(f"timm:{tmp_path}") == Preprocessing(24, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    again = build_encoder(EncoderConfig(encoder="timm:x"), architecture=architecture_of("timm:x", encoder))
    assert again.state_dict().keys() == encoder.state_dict().keys()
    with pytest.raises(UserError, match=r"^.hf-hub:someone/model. is not the name of a timm architecture"):
        build_encoder(EncoderConfig(encoder="timm:x"), architecture={"timm": "hf-hub:someone/model"})
    (tmp_path / "model.safetensors").write_text("12345678abc")
    with pytest.raises(UserError, match="is damaged or not a safetensors file"):
        build_encoder(config)


@pytest.mark.parametrize("text", ["[]", '{"architecture": 5}', '{"architecture": "tiny", "pretrained_cfg": []}'])
def test_a_damaged_description_of_timm_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError):
        preprocessing(f"timm:{tmp_path}")


def test_timm_itself(tmp_path: Path) -> None:
    try:
        timm = importlib.import_module("timm")
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"timm needs torchvision, which does not import beside a CPU-only torch ({error})")
    model = timm.create_model("resnet10t", num_classes=0)
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "resnet10t", "num_classes": 0}))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    encoder = build_encoder(EncoderConfig(encoder=f"timm:{tmp_path}")).eval()
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(encoder(images), model.eval()(images))


def test_a_learner_continues_from_a_pretrained_encoder_and_does_not_need_its_files_again(tmp_path: Path) -> None:
    folder, state = save_vision_model(tmp_path / "model", "vit"), tmp_path / "state"
    images, _, tasks = pictures(5, seed=3)
    for task in range(2):
        (tmp_path / str(task)).mkdir()
        for number, image in enumerate(images[tasks == task]):
            Image.fromarray(image.transpose(1, 2, 0)).save(tmp_path / str(task) / f"{number}.png")
    options = ["--preset", "smoke", "--epochs", "2", "--memory-size", "12", "--quiet"]
    assert (
        cli.main(
            ["observe", str(state), str(tmp_path / "0"), "--encoder", f"hf:{folder}", "--method", "osiris-d", *options]
        )
        == 0
    )
    pretrained = build_encoder(EncoderConfig(encoder=f"hf:{folder}"))
    folder.rename(tmp_path / "moved")
    learner = Learner(state).observe(tmp_path / "1")
    learned = osiris.load_run(state).encoder()
    changed = [name for name, value in learned.named_parameters() if not value.equal(pretrained.get_parameter(name))]
    assert changed and not any("embeddings" in name or "layers.0." in name for name in changed)  # freeze 0.5
    assert any("layers.1." in name for name in changed)
    assert learner.config.data.image_size == 16 and learner.embed(tmp_path / "1").shape[1] == 16
    tensors, metadata = load_tensors(episode(state, 2).weights)
    encoder, batch = checkpoint_encoder(tensors, metadata), torch.randn(2, 3, 16, 16)
    assert metadata["mean"] == [0.5, 0.4, 0.3] and torch.equal(encoder.eval()(batch), learned(batch))
    with pytest.raises(UserError, match=r"encoder\.encoder is 'hf:"):
        Learner(state, encoder="hf:other").observe(tmp_path / "1")
