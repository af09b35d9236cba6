"""Storage by arithmetic on the paper's sizes."""

import pytest

from osiris.framework.methods import find_method
from osiris.framework.storage import Storage, measure_storage
from osiris.models.config import EncoderConfig, ProjectorConfig

ENCODER = 11_168_832
PROJECTOR = 512 * 2048 + 2048 + 2048 * 128
PREDICTOR = 128 * 2048 + 2048 + 2048 * 128 + 128
ADAPTER = 512 * 1024 + 1024 + 1024 * 512 + 512 + 512 * 1024 + 1024 + 1024 * 512 + 512
PIXELS = 500 * 3 * 32 * 32
EXPECTED = {
    "ft": 0,
    "er": PIXELS,
    "er+": PIXELS,
    "er++": PIXELS,
    "lump": PIXELS,
    "der": PIXELS + 500 * 128,
    "osiris-r": PIXELS + PROJECTOR,
    "osiris-d": PIXELS + PROJECTOR + ENCODER,
    "ewc": 2 * ENCODER,
    "cassle": ENCODER + PROJECTOR + PREDICTOR,
    "pocon": 3 * ENCODER + PROJECTOR + 2 * ADAPTER,
    "offline": 0,
    "d1-only": 0,
}


def of(name: str) -> Storage:
    return measure_storage(find_method(name), EncoderConfig(), ProjectorConfig(), 500, (3, 32, 32))


@pytest.mark.parametrize("name", EXPECTED)
def test_the_paper_counts_64_bits_for_everything(name: str):
    assert of(name).paper == 8 * EXPECTED[name]


def test_what_is_stored_here_is_smaller():
    assert of("er").stored == PIXELS + 24 * 500
    assert of("der").stored == PIXELS + 24 * 500 + 4 * 500 * 128
    assert of("osiris-d").stored == PIXELS + 24 * 500 + 4 * (PROJECTOR + ENCODER)
    assert of("ewc").stored == 4 * 2 * ENCODER


def test_ablations_store_what_their_terms_need():
    assert of("osiris-d/no-past").parameters == {"h": PROJECTOR}
    assert of("osiris-d/no-cross").slots == 0, "without L_cross nothing reads the memory"
    assert "h" not in of("osiris-d/shared-space").parameters


def test_it_says_what_is_counted():
    assert of("ft").described == "nothing"
    assert "500 images" in of("osiris-d").described and "11,168,832" in of("osiris-d").described
