"""Options on the command line: one way from text to a config, and none that is given is ignored."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from osiris.cli import main
from osiris.commands import evaluate, observe
from osiris.commands.options import configured, read_options, refuse_others
from osiris.commands.train import Own, parse
from osiris.config import OPTIONS, to_dict, with_options
from osiris.errors import UserError
from osiris.files import write_json
from osiris.presets import configure


def as_text(value: object) -> list[str]:
    return [str(one) for one in value] if isinstance(value, tuple) else [str(value)]


def test_text_and_values_give_one_config() -> None:
    changed = {"epochs": 3, "blocks": (1, 1, 1), "width": 96, "view_size": None, "tf32": True, "cross_weight": 0.25}
    argv = ["--preset", "fast", "--blocks=1", "--blocks", "1", "1", "1", "--epochs=3", "--width", "96"]
    argv += ["--view-size", "None", "--tf32", "--dropout", "--no-dropout", "--merge", "1", "--cross_weight", "0.25"]
    args = parse([*argv, "--benchmark", "tinyworld"])
    assert args.settings == configure("tinyworld", "fast", options=changed)


def learner_choices(option: str) -> tuple[object, ...]:
    from osiris.conversion import choices_of

    return choices_of(OPTIONS[option])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--epoch", "3"], "unknown option --epoch. Did you mean --epochs?"),
        (["--epochs"], "--epochs needs a value"),
        (["--epochs", "--quiet"], "--epochs needs a value"),
        (["stray"], "unexpected argument 'stray'"),
        (["--optimiser", "sgdd"], "unknown --optimiser 'sgdd'. Did you mean 'sgd'?"),
        (["--images-on-device", "maybe"], "--images-on-device maybe: give true or false"),
        (["--blocks", "1", "x"], "--blocks x: give a whole number"),
        (["--processes", "0"], "--processes 0: give a whole number of at least 1"),
        (["--resume", "a", "--out", "b"], "leave out --config and --out"),
        (["--add-task", "photos"], "unknown option --add-task"),
    ],
)
def test_what_is_wrong_is_named(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *given]) == 2
    assert message in capsys.readouterr().err


def test_options_of_a_benchmark_are_refused_by_observe_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    for option, reason in observe.NOT_OF_EPISODES.items():
        flag = f"--{option.replace('_', '-')}"
        assert main(["observe", "state", "photos", flag, "1"]) == 2
        assert f"{flag} {reason}" in capsys.readouterr().err
    assert main(["observe", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--warmup-epochs" in text and "--label-column" not in text and "method options" in text


def test_an_option_that_a_kind_of_call_does_not_read_is_refused(capsys) -> None:
    """Every option of `evaluate`, with every kind of call: taken by name, or refused by name."""
    calls = {
        "reference": ["evaluate", "--encoder", "x", "--reference", "labelled"],
        "compatibility": ["evaluate", "--encoder", "x", "--compatibility"],
    }
    refused = 0
    for kind, argv in calls.items():
        own = vars(evaluate.Own(Path()))
        for option in sorted({*own, *evaluate.MEASURED} - {"target", "seed", "preset", kind}):
            if option in evaluate.ALONE[kind]:
                continue
            value = [] if isinstance(own.get(option), bool) else ["1"]
            value = [] if OPTIONS.get(option) is bool else value
            value = {"protocols": ["task-aware"], "baseline": ["pixels"]}.get(option, value)
            choices = [str(one) for one in learner_choices(option)] if option in evaluate.MEASURED else []
            flag = f"--{option.replace('_', '-')}"
            assert main([*argv, flag, *(choices[:1] or value_of(option) or value)]) == 2, option
            said = capsys.readouterr().err
            modes = option in evaluate.ALONE  # of two kinds of call, either is named
            assert modes or f"{flag} changes nothing" in said, (kind, said)
            refused += 1
    assert refused > 10


def test_observe_refuses_what_it_would_ignore(tmp_path: Path, capsys) -> None:
    state = tmp_path / "state"
    assert main(["observe", str(state), "photos", "--each", "--name", "x"]) == 2
    assert "--name changes nothing with --each" in capsys.readouterr().err
    for command in ("observe", "measure"):
        folder = ["photos"] * (command == "observe")
        assert main([command, str(state), *folder, "--new-reference"]) == 2
        assert "--new-reference needs --reference" in capsys.readouterr().err
    assert main(["forget", str(state)]) == 2
    assert "FILES" in capsys.readouterr().err
    assert not state.exists()


def value_of(option: str) -> list[str]:
    """A value that the type of an option allows."""
    values = {"image_size": "32", "stem_stride": "2", "view_size": "16", "codes": "256"}
    plain = "0.5" if "float" in str(OPTIONS.get(option)) else "9" if "int" in str(OPTIONS.get(option)) else None
    value = values.get(option, plain)
    return [] if value is None else [value]


def test_tables_of_the_paper_do_not_ignore_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "--table", "ablation", "--benchmark", "structured-cifar100"]) == 2
    assert "--benchmark structured-cifar100" in capsys.readouterr().err
    assert main(["paper", "--table", "environments", "--protocol", "task-aware"]) == 2
    assert main(["paper", "--table", "ablation", "--benchmark", "split-cifar100-20"]) == 0


def test_the_kind_of_the_images_decides_not_their_path() -> None:
    plain = configure("folder:/nowhere/photos", "fast")
    for place in ("tinyworld-photos", "my-cifar-pics", "tiny-imagenet"):
        for preset in ("fast", "paper"):
            named = configure(f"folder:/nowhere/{place}", preset)
            expected = with_options(
                configure("folder:/nowhere/photos", preset), {"benchmark": f"folder:/nowhere/{place}"}
            )
            assert named == expected
    assert configure("split-folder:photos-3", "fast").learning == plain.learning
    assert configure("split-cifar100-20", "paper").method.pocon_interval == 2000


def test_a_received_config_sends_nothing_to_dashboards(tmp_path: Path, capsys) -> None:
    config = with_options(configure("tinyworld", "smoke"), {"wandb": True, "tensorboard": True})
    write_json(tmp_path / "config.json", {"config": to_dict(config)})
    read, _ = configured({}, tmp_path)
    assert not read.engine.wandb and not read.engine.tensorboard
    assert "without --wandb this call is not" in capsys.readouterr().err
    assert configured({"wandb": True}, tmp_path)[0].engine.wandb


def test_a_label_column_with_another_name_is_hinted_at(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    from osiris.data.huggingface import splits_table

    images = [Image.fromarray(np.full((16, 16, 3), 20 * one, np.uint8)) for one in range(4)]
    data = datasets.Dataset.from_dict({"img": images, "y": [0, 1, 0, 1], "when": ["a", "a", "b", "b"]})
    data = data.cast_column("img", datasets.Image())
    found = splits_table("mine", {"train": data})
    assert any("(y, when)" in one and "give --label-column" in one for one in found.notices)
    assert not any("--label-column" in one for one in splits_table("mine", {"train": data}, labels="y").notices)


def test_refusals_name_the_option() -> None:
    with pytest.raises(UserError, match="--keep-tasks changes nothing with --compatibility: leave it out"):
        refuse_others({"compatibility", "keep_tasks"}, {"compatibility"}, "with --compatibility")
    given = read_options(Own, ["--epochs", "3", "--quiet"], "train")
    assert given.options == {"epochs": 3} and given.own.quiet and given.names == {"epochs", "quiet"}
    assert SimpleNamespace(**given.options).epochs == 3
