"""Table 1 as measured: gradient reach, costs and storage, each against what is known by other means."""

import json
from typing import ClassVar

import pytest
import torch

from osiris.cli import main
from osiris.commands.list import Args, measured_tables, methods_tables
from osiris.exact.moments import Moments
from osiris.framework import losses
from osiris.framework.composition import method_from_dict, method_to_dict
from osiris.framework.cost import Cost, Storage, later_cost, measure_cost, measure_storage, throughput
from osiris.framework.methods import READINGS, ZOO, find_method, past
from osiris.framework.representations import Networks, Representations
from osiris.framework.terms import StepContext, Term, X, Y
from osiris.framework.tracing import Path, trace
from osiris.models.config import EncoderConfig, ProjectorConfig
from osiris.models.encoder import build_encoder
from osiris.models.joined import join
from osiris.paper.table1 import Facts, facts, measure_ticks
from osiris.reporting.framework_tables import cost_table, methods_table
from tiny import PAPER, tiny_engine, train

RESNET, PROJECTOR = EncoderConfig(), ProjectorConfig()
ENCODER, HEAD, PREDICTOR, ADAPTER = 11_168_832, 1_312_768, 526_464, 2_100_224
"""Parameters: ResNet-18; 512*2048 + 2048 + 2048*128; 2 * 128*2048 + 2048 + 128; 4 * 512*1024 + 2*1024 + 2*512."""
PIXELS = 500 * 3 * 32 * 32


@pytest.fixture(scope="module")
def rows() -> dict[str, Facts]:
    return {name: facts(name, RESNET, PROJECTOR, 500, 32) for name in PAPER}


@pytest.mark.whole
def test_measured_ticks_differ_from_the_papers_for_ewc_and_cassle(rows: dict[str, Facts]) -> None:
    different = {name: row.differences for name, row in rows.items() if row.differences}
    assert different == {"ewc": ("isolated",), "cassle": ("isolated",)}
    assert rows["ewc"].measured == (True, False, True) and rows["cassle"].measured == (False, False, True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("osiris-d/shared-space", (False, True, True)),
        ("osiris-d/no-cross", (True, False, True)),
        ("osiris-d/no-past", (True, True, True)),
        ("osiris-d/no-cross/no-past", (True, False, False)),
        ("er+/plus-current", (False, True, True)),
    ],
)
def test_ticks_of_ablations(name: str, expected: tuple[bool, bool, bool]) -> None:
    """Without L_past the cross term still makes f learn from the memory."""
    assert measure_ticks(find_method(name)) == expected


def test_costs(rows: dict[str, Facts]) -> None:
    """Encoder passes per image of X, forward + backward."""
    written = {name: {key: str(cost) for key, cost in row.cost.items()} for name, row in rows.items()}
    ft, replay = {"f: X": "2+2"}, {"f: X": "2+2", "f: Y": "1.5+1.5"}
    expected = dict.fromkeys(("ft", "ewc", "offline", "d1-only"), ft)
    expected |= dict.fromkeys(("er", "er+", "er++", "der", "osiris-r"), replay)
    assert written == expected | {
        "lump": {"f: mix(0.4)": "2+2"},
        "cassle": {**ft, "f*: X": "2+0"},
        "pocon": {**ft, "expert: X": "2+2", "frozen: X": "4+0"},
        "osiris-d": {**replay, "f*: X": "2+0"},
    }


def test_a_frozen_network_runs_only_on_what_is_asked() -> None:
    """osiris-d's checkpoint never sees Y; without L_past there is no checkpoint at all."""
    assert "f*: Y" not in measure_cost(find_method("osiris-d"))
    assert set(measure_cost(find_method("osiris-d/no-past"))) == {"f: X", "f: Y"}
    assert set(measure_cost(find_method("osiris-d/no-cross"))) == {"f: X", "f*: X"}, "no Y is encoded without a use"
    assert not find_method("osiris-d/no-cross").reads_memory


def test_storage_by_arithmetic(rows: dict[str, Facts]) -> None:
    """Pixels of the memory and parameters, 8 bytes each in the paper's count."""
    expected = dict.fromkeys(("ft", "offline", "d1-only"), 0) | dict.fromkeys(("er", "er+", "er++", "lump"), 8 * PIXELS)
    assert {name: row.storage.paper for name, row in rows.items()} == expected | {
        "der": 8 * (PIXELS + 500 * 128),
        "osiris-r": 8 * (PIXELS + HEAD),
        "ewc": 8 * 2 * ENCODER,
        "cassle": 8 * (ENCODER + HEAD + PREDICTOR),
        "pocon": 8 * (3 * ENCODER + HEAD + 2 * ADAPTER),
        "osiris-d": 8 * (PIXELS + HEAD + ENCODER),
    }
    stored = {name: row.storage.stored for name, row in rows.items()}
    assert stored["er"] == PIXELS + 500 * 24, "one byte per channel, and 24 per slot"
    assert stored["osiris-d"] == PIXELS + 500 * 24 + 4 * (HEAD + ENCODER)
    assert stored["der"] == PIXELS + 500 * 24 + 4 * 500 * 128


def test_storage_of_ablations_in_words() -> None:
    def of(name: str) -> Storage:
        return measure_storage(find_method(name), RESNET, PROJECTOR, 500, (3, 32, 32))

    assert of("osiris-d/no-past").parameters == {"h": HEAD}
    assert of("osiris-d/no-cross").slots == 0, "without L_cross nothing reads the memory"
    assert "h" not in of("osiris-d/shared-space").parameters
    assert of("ft").described == "nothing" and "500 images" in of("osiris-d").described


def test_work_of_a_run_and_speed() -> None:
    """The first task costs as much as ft: 6 forward passes of an image; osiris-d then has 3.5 + 2 * 3.5 + 2."""
    assert later_cost(find_method("osiris-d")).work == 3.5 * 3 + 2 and later_cost(find_method("offline")).work == 6
    assert throughput([5.0, 100.0, 102.0]) == 100.0


def test_stored_bytes_are_those_of_the_tensors() -> None:
    engine, _ = tiny_engine("der", memory_size=12)
    counted = measure_storage(find_method("der"), engine.config.encoder, engine.config.projector, 12, (3, 8, 8))
    memory = [value for name, value in engine.memory.state_dict().items() if "extra_state" not in name]
    assert counted.stored == sum(value.numel() * value.element_size() for value in memory)


def test_a_method_by_sums_has_costs_and_storage_but_no_losses() -> None:
    """Its bytes are those of the sums over images and drawings, and of the map."""
    encoder = EncoderConfig(width=8, blocks=(1, 1, 1, 1))
    row = facts("readout", encoder, PROJECTOR, 500, 16)
    joined = join(build_encoder(encoder), None, (3, 16, 16))
    sums = Moments.zero(sum(joined.layers.sizes)).tensors()
    kept = [*2 * [sums["total"], sums["outer"]], joined.readout.projection]
    assert row.storage.stored == sum(value.numel() * value.element_size() for value in kept)
    assert row.measured is None and row.terms == () and (row.kind, row.origin) == ("sums", "osiris")
    assert row.cost == {"f: X": Cost(forward=1, backward=0)}
    (line,) = methods_table([row]).rows
    assert "✓" not in line and "".join(map(str, line[2:5])) == ""


REACH = {
    "ft": {"current": ("f g", "X")},
    "er": {"current": ("f g", "X"), "past": ("f g", "Y")},
    "er+": {"current": ("f g", "X Y")},
    "er++": {"current": ("f g", "X Y")},
    "der": {"current": ("f g", "X"), "past": ("f g", "Y")},
    "lump": {"current": ("f g", "X Y")},
    "ewc": {"current": ("f g", "X"), "past": ("f", "")},
    "cassle": {"current": ("f g", "X"), "past": ("f g p", "X")},
    "pocon": {"current": ("f φ q m", "X"), "past": ("f n", "X")},
    "osiris-r": {"current": ("f g", "X"), "cross": ("f h", "X Y"), "past": ("f h", "Y")},
    "osiris-d": {"current": ("f g", "X"), "cross": ("f h", "X Y"), "past": ("f h", "X")},
    "osiris-d/shared-space": {"current": ("f g", "X"), "cross": ("f g", "X Y"), "past": ("f g", "X")},
}
"""The networks that get a gradient from each term (q, m: projector and adapter of the expert φ), and the images."""


@pytest.mark.parametrize("name", REACH)
def test_what_each_term_trains_and_learns_from(name: str) -> None:
    found = {term.name: (" ".join(term.reaches), " ".join(term.learns_from)) for term in trace(find_method(name))}
    assert found == REACH[name]


def test_paths_of_osiris_d_and_cassle() -> None:
    """The past encoder with the live h, and the past encoder with the past g."""
    past = {name: trace(find_method(name))[-1] for name in ("osiris-d", "cassle", "der", "ewc")}
    assert past["osiris-d"].paths == (Path("X", "f", ("h",)), Path("X", "f*", ("h",), ("f*",)))
    assert past["cassle"].paths == (Path("X", "f", ("g", "p")), Path("X", "f*", ("g*",), ("f*", "g*")))
    assert past["der"].stored == ("stored embedding",)
    assert past["ewc"].stored == ("F, theta*",) and past["ewc"].paths == ()


def test_a_recorded_composition_is_the_method() -> None:
    """A report knows a method from config.json alone."""
    for name in [*ZOO, *READINGS, "osiris-d/shared-space", "osiris-d/no-cross", "osiris-r/no-past"]:
        record = method_to_dict(find_method(name))
        assert method_to_dict(method_from_dict(json.loads(json.dumps(record)))) == record


class Unusual(Term):
    """Sees Y through the past encoder without a projector; a buffer without dimensions, and a head in a container."""

    kind: ClassVar[str] = "unusual-2"
    needs: ClassVar[frozenset[str]] = frozenset({"f*"})

    @property
    def inputs(self) -> tuple[str, ...]:
        return (X, Y)

    def attach(self, networks: Networks, seed: int) -> None:
        self.register_buffer("level", torch.tensor(1.0))
        features = next(iter(networks.heads["g"].parameters())).shape[1]
        self.heads = torch.nn.ModuleDict({"first": torch.nn.Linear(features, 4, bias=False)})
        self.nothing = torch.nn.Identity()

    def loss(self, rep: Representations, context: StepContext) -> torch.Tensor:
        kept = losses.match(rep(Y, head=())[0], rep(Y, head=(), encoder="f*")[0])
        first, second = rep(X, head=self.heads["first"])
        return self.get_buffer("level") * kept + losses.match(first, second)


def test_a_term_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ZOO, "unusual", ZOO["ft"] | past(Unusual()))
    row = facts("unusual", EncoderConfig(width=8), PROJECTOR, 50, 16)
    assert {key: str(cost) for key, cost in row.cost.items()} == {"f: X": "2+2", "f: Y": "1.5+1.5", "f*: Y": "1.5+0"}
    assert row.terms[1].reaches == ("f", "heads") and row.kind == "replay" and row.measured == (True, False, True)
    table = cost_table([row])
    assert "frozen: Y" in [column.name for column in table.columns]
    engine, stretch = tiny_engine(ZOO["unusual"], epochs=1)
    assert all(bool(result.finite) for result in train(engine, stretch[:2]))


def test_a_term_that_does_not_say_what_it_needs() -> None:
    class Silent(Unusual):
        kind: ClassVar[str] = "silent"
        needs: ClassVar[frozenset[str]] = frozenset()

    engine, stretch = tiny_engine(ZOO["ft"] | past(Silent()), epochs=1)
    with pytest.raises(AssertionError, match="needs ="):
        train(engine, stretch[:2])


def test_the_list_command(capsys: pytest.CaptureFixture[str]) -> None:
    tables = methods_tables(Args(cost=True))
    assert measured_tables(Args()) == tables, "the methods have changed: see osiris.commands.list.write_tables"
    assert main(["list", "methods", "--cost"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in ZOO)
    assert "- ✓ [1]" in text and "✓ - [2]" in text and "5.5+3.5" in text
    assert "width 64, 500 images of 32x32" in text
    assert main(["list", "methods", "--memory-size", "0"]) == 2
    assert "--memory-size" in capsys.readouterr().err
    assert main(["list", "presets", "--benchmark", "tinyworld", "--format", "markdown"]) == 0
    assert "| setting | paper | paper-released | gpu | fast | fast-long | smoke |" in capsys.readouterr().out
    assert main(["list", "benchmarks"]) == 0
    assert "structured-tiny-imagenet" in capsys.readouterr().out
