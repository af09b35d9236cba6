"""Free composition: terms from text, options, readable names, and a record that gives the same method again."""

import json
import re
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import hypothesis
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from osiris.errors import UserError
from osiris.framework.composition import (
    parse_terms,
)
from osiris.framework.objectives import Objective
from osiris.framework.options import Configurable, from_dict
from osiris.framework.terms import (
    Contrast,
    Cross,
    Distil,
    Elastic,
    Expert,
    Match,
    Mixed,
    Negatives,
    Predict,
    Snapshot,
    Term,
    X,
)
from osiris.training.schedule import batch_positions
from tiny import composed, tiny_engine, train


def record(text: str, space: str = "h") -> list[dict]:
    return [term.to_dict() for term in parse_terms(text, space)]


def test_terms_from_text() -> None:
    assert record("replay+distil") == [
        {"kind": "contrast", "batch": "Y", "space": "h"},
        {"kind": "distil", "space": "h", "positive": "same"},
    ]
    assert record("union:g") == [{"kind": "contrast", "batch": "X+Y", "space": "g"}]
    assert record("contrast(batch=X+Y,space=g)") == [{"kind": "contrast", "batch": "X+Y", "space": "g"}]
    assert record("predict(symmetric=true)")[0]["symmetric"] is True
    assert record("mixed:g(alpha=1)") == [{"kind": "mixed", "alpha": 1.0, "space": "g"}]
    assert record("expert(interval=7)") == [{"kind": "expert", "interval": 7}]
    assert parse_terms("none", "h") == ()
    assert record("elastic + match") == [{"kind": "elastic", "normaliser": "sum"}, {"kind": "match", "space": "h"}]


options = {
    Contrast: st.builds(Contrast, st.sampled_from(["X", "Y", "X+Y"]), st.sampled_from(["g", "h"])),
    Negatives: st.builds(Negatives, st.sampled_from(["g", "h"])),
    Cross: st.builds(Cross, st.sampled_from(["g", "h"])),
    Distil: st.builds(Distil, st.sampled_from(["g", "h"]), st.sampled_from(["same", "other"])),
    Match: st.builds(Match, st.sampled_from(["g", "h"])),
    Mixed: st.builds(Mixed, st.floats(0.1, 5), st.sampled_from(["g", "h"])),
    Elastic: st.builds(Elastic, st.sampled_from(["sum", "max", "l2", "mean"])),
    Predict: st.builds(Predict, st.sampled_from(["same", "other"]), st.booleans(), st.booleans(), st.booleans()),
    Expert: st.builds(Expert, st.none() | st.integers(1, 9)),
    Snapshot: st.builds(Snapshot, st.none() | st.integers(1, 9)),
}


@hypothesis.settings(deadline=None)
@given(st.one_of(*options.values()))
def test_a_term_survives_json_and_text(term) -> None:
    """As recorded in config.json, and with every value as text, as typed on the command line."""
    wanted = term.to_dict()
    assert from_dict(Term, json.loads(json.dumps(wanted))).to_dict() == wanted
    typed = {key: value if value is None or key == "kind" else str(value) for key, value in wanted.items()}
    assert from_dict(Term, typed).to_dict() == wanted


def test_options_of_a_method() -> None:
    """They apply to all terms that have them; a preset's interval of pocon is a default."""
    assert composed(method="osiris-d(positive=other)").past[0].options["positive"] == "other"
    assert composed(method="ewc( normaliser = l2 )").past[0].options["normaliser"] == "l2"
    lump = composed(method="lump(alpha=1.5)", past="predict(symmetric=true)")
    assert lump.current[0].options["alpha"] == 1.5 and lump.name == "lump[past=predict(symmetric=true),alpha=1.5]"
    for chosen, expected in (
        ({"method": "pocon", "pocon_interval": 2000}, 2000),
        ({"method": "pocon(interval=7)", "pocon_interval": 2000}, 7),
        ({"method": "pocon", "past": "snapshot(interval=9)", "current": "expert(interval=9)"}, 9),
    ):
        assert [term.options["interval"] for term in composed(**chosen).terms] == [expected, expected]
    assert composed(method="ft", pocon_interval=2000).name == "ft"
    assert composed(method="osiris-d", second_space="fresh").second_space == "fresh"
    assert composed(method="er", replay_fraction=0.5).replay == 0.5


def test_new_terms_join_the_space_of_their_role() -> None:
    assert composed(method="osiris-d/shared-space", past="replay").past[0].options["space"] == "g"
    assert composed(method="osiris-d", past="replay").past[0].options["space"] == "h"
    assert composed(method="ft", past="replay").past[0].options["space"] == "h", "the isolated space by default"
    assert composed(method="ft", past="replay:g").past[0].options["space"] == "g"
    assert composed(method="er", current="union").current[0].options["space"] == "g"


def test_an_open_weight_is_each_terms_own() -> None:
    def past_weights(**chosen: Any) -> list[float]:
        return [weight for name, _, weight in composed(**chosen).weighted(20) if name.startswith("past")]

    assert past_weights(method="ewc") == [100]
    assert past_weights(method="ewc", past="distil") == [1], "100 is ewc's, not that of what replaces it"
    assert past_weights(method="ewc", past="elastic+distil") == [100, 1]
    assert past_weights(method="ewc", past_weight=7.0) == [7]
    assert past_weights(method="ft", past="elastic") == [100], "a role that was empty has no weight to keep"
    assert past_weights(method="osiris-d", past="elastic") == [0.5]


def test_stored_embeddings_are_those_of_the_space_they_are_compared_in() -> None:
    """`match` in h: the memory keeps embeddings of h from task 2 on, and before that those of g, whose copy h is."""
    engine, stretch = tiny_engine(composed(method="ft", past="match:h"), epochs=1, memory_size=40)
    train(engine, stretch[:1])
    engine.begin(stretch[1])
    slots = engine.memory.filled
    with torch.no_grad():
        list(engine.networks.heads["h"].parameters())[-1].neg_()
    indices = batch_positions(stretch[1], 0, 0)
    views = engine._views({"X": (engine._take(stretch[1], indices), len(indices), "augment.x")}, 1, 0)["X"]
    wanted = engine.represent({X: views}, {X: len(indices)})(X, head="h")[0].detach()
    engine.step(stretch[1], 0)
    stored = engine.memory.field("embedding_h", torch.arange(slots, slots + len(indices)))
    torch.testing.assert_close(stored, wanted)
    assert set(engine.memory.fields) == {"embedding_h"}


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"past": "replai"}, "Did you mean 'replay'"),
        ({"past": "replay:k"}, "space"),
        ({"past": "elastic:h"}, "has no option `space`"),
        ({"past": "distil(positiv=same)"}, "Did you mean 'positive'"),
        ({"past": "distil(positive=both)"}, "same, other"),
        ({"past": "predict(symmetric=maybe)"}, "symmetric=maybe.*bool"),
        ({"current": "mixed(alpha=x)", "replay_fraction": 1.0}, "mixed.alpha=x.*float"),
        ({"past": "distil(positive=other"}, "cannot read the term"),
        ({"current": "none"}, "at least one current term"),
        ({"current": "mixed"}, "--replay-fraction 1"),
        ({"method": "lump(alpha=0)"}, r"mixed\(alpha=0\): Expected `float` > 0.0."),
        ({"method": "cromo(alpha=0)"}, r"cross-mix\(alpha=0\): Expected `float` > 0.0."),
        ({"method": "pocon(interval=0)"}, r"expert\(interval=0\): Expected `int` >= 1."),
        ({"method": "cla-e(rate=5)"}, r"align-average\(rate=5\): Expected `float` <= 1.0."),
        ({"cross_weight": -1.0}, "--cross-weight"),
        ({"past_weight": float("inf")}, "--past-weight"),
        ({"past_weight": float("nan")}, "--past-weight"),
        ({"replay_fraction": 0.0}, "--replay-fraction"),
        ({"replay_fraction": 1.5}, "--replay-fraction"),
        ({"method": "ft(positive=other)"}, "unknown option of ft"),
        ({"method": "ewc(normaliser=maxx)"}, "Did you mean 'max'"),
        ({"method": "osiris"}, "unknown method"),
        ({"method": "Osiris-D"}, "Did you mean 'osiris-d'"),
        ({"method": "er+/plus-foo"}, "plus-replay"),
        ({"method": "osiris-d/no-crosss"}, "Did you mean 'no-cross'"),
        ({"method": "ft/no-past"}, "changes nothing in ft"),
        ({"method": "cassle/shared-space"}, "changes nothing"),
        ({"method": "osiris-d/renormalised"}, "changes nothing"),
        ({"method": "er+/plus-current/no-past"}, "changes nothing in er\\+/plus-current"),
        ({"method": "ft", "cross_weight": 0.3}, "--cross-weight changes nothing"),
        ({"method": "ft", "past_weight": 3.0}, "--past-weight changes nothing"),
        ({"method": "er", "second_space": "fresh"}, "--second-space changes nothing"),
        ({"method": "cassle", "replay_fraction": 0.5}, "--replay-fraction changes nothing"),
        ({"method": "offline", "past": "replay"}, "no second task"),
        ({"past": "replay+none"}, "leave it out of a sum"),
        ({"method": "ft", "current": "elastic"}, "nothing to learn from"),
        ({"method": "ft", "past": "match:h", "second_space": "fresh"}, "starts as a copy of g"),
        ({"method": "cromo", "current": "mixed"}, "replays at most 64"),
        ({"method": "cromo(symmetric=true)"}, r"predict\(symmetric=...\) changes nothing with paired"),
        ({"method": "cromo(positive=other)"}, r"predict\(positive=...\) changes nothing with paired"),
    ],
)
def test_mistakes_get_one_clear_message(chosen: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        composed(**chosen)


def numbers(kind: type[Configurable]) -> list[str]:
    """The options that are numbers."""
    hints = get_type_hints(kind)
    return [one.name for one in fields(kind) if {float, int} & {hints[one.name], *get_args(hints[one.name])}]


OPTIONS = [
    (name, option)
    for base in (Term, Objective)
    for name, kind in base.kinds().items()
    if kind.__module__.startswith("osiris.")
    for option in numbers(kind)
]


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_no_option_takes_a_number_that_means_nothing(name: str, option: str) -> None:
    """From text and in Python."""
    base = Term if name in Term.kinds() else Objective
    for value in (float("nan"), float("inf"), -1.0, -1):
        message = re.escape(f"{name}({option}={value}): ")
        with pytest.raises(UserError, match=message):
            base.kinds()[name](**{option: value})
        with pytest.raises(UserError, match=message):
            from_dict(base, {"kind": name, option: str(value)})
