import pytest

from osiris.framework import cost
from osiris.framework.methods import find_method

PASSES = {
    "ft": (2, 0),
    "er": (3.5, 0),
    "er+": (3.5, 0),
    "er++": (3.5, 0),
    "der": (3.5, 0),
    "lump": (2, 0),
    "osiris-r": (3.5, 0),
    "osiris-d": (3.5, 2),
    "ewc": (2, 0),
    "cassle": (2, 2),
    "pocon": (4, 4),
    "offline": (2, 0),
    "d1-only": (2, 0),
}


@pytest.mark.parametrize("name", PASSES)
def test_passes_for_each_image(name: str):
    later = cost.later_cost(find_method(name))
    assert (later.backward, later.frozen) == PASSES[name]


def test_the_first_task_costs_as_much_as_ft():
    work = cost.encoder_work(find_method("osiris-d"), [100, 100, 100], epochs=2)
    assert work == 200 * 6 + 400 * (3.5 * 3 + 2)
    assert cost.encoder_work(find_method("offline"), [100, 100, 100], 2) == 600 * 6


def test_estimate_and_throughput():
    found = cost.estimate(work=7200.0, flops_per_view=1e6, forwards_per_second=2.0)
    assert found.flops == 7.2e9 and found.hours == 1.0
    assert cost.estimate(1.0, 1.0, None).hours is None
    assert cost.throughput([5.0, 100.0, 102.0]) == 100.0
