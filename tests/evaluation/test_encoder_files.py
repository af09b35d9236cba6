import dataclasses
import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from osiris.errors import UserError
from osiris.evaluation.encoder_files import find_prefix, load_checkpoint, load_encoder, map_keys
from osiris.models import pretrained
from osiris.models.config import EncoderConfig
from osiris.models.encoder import build_encoder

SMALL = EncoderConfig(width=8, blocks=(1, 2, 1, 1))
BATCH = EncoderConfig(width=8, blocks=(1, 1, 1, 1), norm="bn")


def randomised(config: EncoderConfig):
    """An encoder whose every parameter and buffer is distinct, so that a mixed-up key shows."""
    encoder = build_encoder(config, seed=3)
    for number, (name, tensor) in enumerate(encoder.state_dict().items()):
        if tensor.is_floating_point() and "running_var" not in name:
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(number)) * 0.1)
    return encoder.eval()


def foreign_names(state, prefix, **renames):
    renamed = {}
    for name, value in state.items():
        for old, new in renames.items():
            name = name.replace(old, new)
        renamed[prefix + name] = value
    return renamed


@pytest.mark.parametrize("config", [SMALL, BATCH], ids=["gn", "bn"])
@pytest.mark.parametrize(
    ("prefix", "renames"),
    [
        ("", {}),
        ("encoder.", {}),
        ("backbone.", {"downsample": "shortcut"}),
        ("module.backbone.", {"downsample": "shortcut"}),
        ("model.module.encoder.", {"bn1": "gn1", "bn2": "gn2"}),
        ("net.", {"bn1": "norm1", "bn2": "norm2"}),
    ],
)
def test_naming_schemes_come_back_to_the_same_encoder(tmp_path, config, prefix, renames):
    encoder = randomised(config)
    state = foreign_names(encoder.state_dict(), prefix, **renames)
    state |= {
        "projector.0.weight": torch.zeros(2),
        prefix + "fc.weight": torch.zeros(3),
        prefix + "linear.bias": torch.ones(1),
    }
    save_file(state, tmp_path / "weights.safetensors")
    loaded = load_encoder(tmp_path / "weights.safetensors")
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(loaded.module.eval()(images), encoder(images))
    assert loaded.description["norm"] == config.norm and loaded.description["width"] == 8 and loaded.mean is None


@pytest.mark.parametrize(
    "wrap", [lambda s: {"state_dict": s, "epoch": 3}, lambda s: {"model": {"state_dict": s}}, dict]
)
def test_torch_checkpoints_in_containers(tmp_path, wrap):
    encoder = randomised(SMALL)
    torch.save(wrap(foreign_names(encoder.state_dict(), "encoder.")), tmp_path / "last.ckpt")
    loaded = load_encoder(tmp_path / "last.ckpt")
    images = torch.randn(2, 3, 16, 16)
    assert "stem_padding" not in loaded.description and torch.equal(loaded.module.eval()(images), encoder(images))


def test_lightning_files_have_a_stem_padded_by_two(tmp_path):
    """CaSSLe and solo-learn: a 3x3 stem with padding 2 makes 18 x 18 of 16 x 16."""
    encoder = randomised(BATCH)
    record = {"state_dict": foreign_names(encoder.state_dict(), "encoder."), "pytorch-lightning_version": "1.5"}
    torch.save(record, tmp_path / "cassle.ckpt")
    loaded = load_encoder(tmp_path / "cassle.ckpt")
    images = torch.randn(2, 3, 16, 16)
    assert loaded.description["stem_padding"] == 2 and loaded.module.get_submodule("conv1")(images).shape[-1] == 18
    ours = load_encoder(tmp_path / "cassle.ckpt", stem_padding=1)
    assert "stem_padding" not in ours.description and torch.equal(ours.module.eval()(images), encoder(images))


def write_checkpoint(path, config: EncoderConfig, **metadata):
    encoder = randomised(config)
    images = {"mean": [0.5] * 3, "std": [0.25] * 3, "image_size": 32}
    described = json.dumps({"encoder": dataclasses.asdict(config), "task": 2, **images, **metadata})
    state = foreign_names(encoder.state_dict(), "encoder.") | {"g.fc1.weight": torch.zeros(2)}
    save_file(state, path, {"osiris": described})
    return encoder


def test_a_checkpoint_of_osiris_is_built_as_it_says(tmp_path):
    """A stride leaves no trace in the shapes: the file's own description decides."""
    path = tmp_path / "task-03.safetensors"
    config = EncoderConfig(width=8, blocks=(1, 1, 1, 1), stem_stride=2)
    encoder = write_checkpoint(path, config, mean=[0.1, 0.2, 0.3], std=[1, 1, 1], image_size=16)
    images = torch.randn(2, 3, 16, 16)
    for loaded in (load_encoder(path), load_checkpoint(path)):
        assert torch.equal(loaded.module.eval()(images), encoder(images))
        assert loaded.description["stem_stride"] == 2
        assert (loaded.mean, loaded.std, loaded.image_size) == ((0.1, 0.2, 0.3), (1, 1, 1), 16)


def test_a_checkpoint_loads_without_the_compiler_of_torch(tmp_path):
    """It takes two seconds to import, and initial values on the meta device would need it."""
    write_checkpoint(tmp_path / "task-03.safetensors", SMALL)
    code = "import sys; from osiris.evaluation.encoder_files import load_checkpoint\n"
    code += "load_checkpoint(__import__('pathlib').Path(sys.argv[1])); sys.exit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "task-03.safetensors")], check=True)


NAN, INFINITY = float("nan"), float("inf")
PRETRAINED = {"encoder": {"encoder": "hf:facebook/x"}}
VIT = {"model_type": "vit"}


@pytest.mark.parametrize(
    "metadata",
    [
        *("[]", "3", "null", '"encoder"', "text", "[" * 100_000, {"encoder": 3}, {"encoder": None}, {"encoder": []}),
        *({"encoder": {"width": value}} for value in ("x", -1, 10**9)),
        *({"encoder": {"width": 8, "blocks": value}} for value in ([1, 1, 1, 10**8], [1] * 10**5, "1111")),
        *({"encoder": value} for value in ({"family": "x"}, {"norm": 3}, {"encoder": 3}, {"encoder": "own:x"})),
        *({"mean": value} for value in ("abc", [1], [1] * 4, ["x"] * 3, [NAN] * 3, 3)),
        *({"std": value} for value in ([0] * 3, [-1] * 3, [INFINITY] * 3)),
        *({"image_size": value} for value in ("big", -1, 0, 10_000, 10**9, 3.5, True)),
        *(PRETRAINED | {"architecture": value} for value in (None, 3, {}, {"transformers": 3}, {"transformers": {}})),
        PRETRAINED | {"architecture": {"transformers": VIT | {"hidden_size": "x"}}},
        PRETRAINED | {"architecture": {"transformers": VIT | {"num_attention_heads": 0}}},
        PRETRAINED | {"architecture": {"transformers": VIT | {"num_hidden_layers": 10**8}}},
        PRETRAINED | {"architecture": {"transformers": {"model_type": "convnext", "depths": [10**8] * 4}}},
    ],
    ids=str,
)
@pytest.mark.parametrize("load", [load_encoder, load_checkpoint])
def test_hostile_metadata_is_refused_in_one_line(load, metadata, tmp_path, monkeypatch):
    """At once, and without a look at the hub or at a directory that the file names."""
    monkeypatch.setattr(pretrained, "load_pretrained", lambda name: pytest.fail("a file chose what to load"))
    path = tmp_path / "task-01.safetensors"
    state = foreign_names(randomised(BATCH).state_dict(), "encoder.")
    good = {"encoder": dataclasses.asdict(BATCH), "mean": [0.5] * 3, "std": [0.25] * 3, "image_size": 16}
    save_file(state, path, {"osiris": json.dumps(good)})
    assert load(path).image_size == 16
    text = metadata if isinstance(metadata, str) else json.dumps(good | metadata)
    save_file(state, path, {"osiris": text})
    with pytest.raises(UserError) as caught:
        load(path)
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 1000


def test_hostile_state_dicts_are_refused(tmp_path):
    save_file({"conv1.weight": torch.zeros(3), "layer1.0.conv1.weight": torch.zeros(3)}, tmp_path / "a.safetensors")
    torch.save({1: torch.zeros(1)}, tmp_path / "numbers.pt")
    inside_itself = {}
    inside_itself["state_dict"] = inside_itself
    torch.save(inside_itself, tmp_path / "cycle.pt")
    for name in ("a.safetensors", "numbers.pt", "cycle.pt"):
        with pytest.raises(UserError, match="no ResNet encoder"):
            load_encoder(tmp_path / name)
    save_file(randomised(SMALL).state_dict(), tmp_path / "good.safetensors")
    with pytest.raises(UserError, match="no ResNet encoder under this prefix"):
        load_encoder(tmp_path / "good.safetensors", prefix="other.")


@pytest.mark.parametrize(
    ("contradiction", "message"),
    [
        ({"arch": "resnet18"}, "not a resnet18"),
        ({"prefix": "g."}, "'encoder.', not 'g.'"),
        ({"stem_padding": 2}, "leave"),
    ],
)
def test_a_checkpoint_of_osiris_is_not_contradicted(tmp_path, contradiction, message):
    write_checkpoint(tmp_path / "task-03.safetensors", SMALL)
    with pytest.raises(UserError, match=message):
        load_encoder(tmp_path / "task-03.safetensors", **contradiction)


def test_a_second_copy_of_the_encoder_is_left_alone():
    state = randomised(SMALL).state_dict()
    both = foreign_names(state, "backbone.") | foreign_names(state, "momentum_backbone.")
    assert find_prefix(list(both)) == "backbone." and map_keys(both).keys() == state.keys()
    several = foreign_names(state, "student.") | foreign_names(state, "other.")
    with pytest.raises(UserError, match=r"several encoders.*'other\.', 'student\.'"):
        map_keys(several)
    assert map_keys(several, "student.").keys() == state.keys()


def test_mistakes_are_explained(tmp_path):
    state = randomised(SMALL).state_dict()
    save_file(state, tmp_path / "small.safetensors")
    del state["layer3.0.conv2.weight"]
    save_file(state, tmp_path / "broken.safetensors")
    (tmp_path / "text.safetensors").write_text("hello")
    torch.save({"head.weight": torch.ones(1)}, tmp_path / "head.pt")
    torch.save(nn.Linear(2, 2), tmp_path / "module.pt")
    for name, arch, message in (
        ("small.safetensors", "resnet18", "not a resnet18"),
        ("small.safetensors", "resnet-18", "Did you mean 'resnet18'"),
        ("missing.pt", None, "is not a file"),
        ("broken.safetensors", None, r"1 missing, such as layer3\.0\.conv2\.weight"),
        ("text.safetensors", None, "not a safetensors file"),
        ("head.pt", None, r"no ResNet encoder among the entries head\.weight"),
        ("module.pt", None, "without running code"),
    ):
        with pytest.raises(UserError, match=message):
            load_encoder(str(tmp_path / name), arch=arch)


def test_python_entry(tmp_path, monkeypatch):
    (tmp_path / "my_encoders.py").write_text(
        "from torch import nn\ndef flat():\n    return nn.Flatten()\ndef wrong():\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loaded = load_encoder("my_encoders:flat")
    assert isinstance(loaded.module, nn.Flatten) and loaded.description == {"entry": "my_encoders:flat"}
    assert str(tmp_path) not in sys.path
    for entry, message in (
        ("my_encoders:wrong", r"returned int, not a torch\.nn\.Module"),
        ("my_encoders:nothing", "has no function 'nothing'"),
        ("not_there:flat", "No module named 'not_there'"),
    ):
        with pytest.raises(UserError, match=message):
            load_encoder(entry)
