"""What changes the fingerprint of a protocol, and that numbers of different ones are not mixed."""

import dataclasses

import pytest
import torch

from osiris.errors import UserError
from osiris.evaluation.config import ProtocolConfig
from osiris.evaluation.fingerprint import protocol_fingerprint, require_same

PROTOCOL = ProtocolConfig(k=3, random_encoders=2)


@pytest.fixture
def benchmark_(make_benchmark):
    return make_benchmark(torch.arange(60) % 6, torch.arange(24) % 6, ((0, 1), (2, 3), (4, 5)))


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("k", {"protocol": ProtocolConfig(k=4, random_encoders=2)}),
        ("temperature", {"protocol": ProtocolConfig(k=3, random_encoders=2, temperature=0.2)}),
        ("encoder", {"encoder": {"width": 64}}),
        ("split", {"benchmark": {"checksum": "other"}}),
        ("task_order", {"benchmark": {"tasks": ((2, 3), (0, 1), (4, 5))}}),
    ],
)
def test_fingerprint_changes_with_what_matters(benchmark_, field, changed):
    before = protocol_fingerprint(benchmark_, PROTOCOL, {"width": 6})
    benchmark = dataclasses.replace(benchmark_, **changed.get("benchmark", {}))
    after = protocol_fingerprint(benchmark, changed.get("protocol", PROTOCOL), changed.get("encoder", {"width": 6}))
    assert before.hash != after.hash
    with pytest.raises(UserError, match=rf"different protocols.*\n  {field}: .*runs/a.*runs/b\nCompare"):
        require_same({"runs/a": before, "runs/b": after})


def test_fingerprint_does_not_change_with_what_does_not_matter(benchmark_):
    before = protocol_fingerprint(benchmark_, PROTOCOL, {"width": 6, "norm": "gn"})
    other = dataclasses.replace(PROTOCOL, keep_features=True, evaluate_every=5, probe=True)
    assert before == protocol_fingerprint(benchmark_, other, {"norm": "gn", "width": 6})
    require_same({"a": before, "b": before})
