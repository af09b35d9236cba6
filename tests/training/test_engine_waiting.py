"""Nothing in a step waits for the device.

On the meta device tensors have no values: whatever asks for one (item, bool, nonzero, a copy back) fails. The host's
own tensors are real. So a step that runs there never looks at what the device computed.
"""

from typing import Any

import pytest
import torch

from osiris.framework.composition import resolve
from osiris.training import engine as engine_module
from osiris.training.engine import Engine
from osiris.training.optimisers import LARS
from osiris.training.schedule import plan_episodes
from process_jobs import CASES
from tiny_runs import benchmark, config, with_learning

NAMES = ("er+", "der", "lump", "ewc", "cassle", "pocon", "osiris-r", "osiris-d", "minred", "mixed-match")


@pytest.mark.whole
@pytest.mark.parametrize(("name", "norm"), [*((name, "gn") for name in NAMES), ("osiris-d", "bn"), ("pocon", "bn")])
def test_a_step_never_asks_the_device(name: str, norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first and the second task; the fused optimisers refuse the meta device, so LARS stands in for them."""

    def build(model: Any, settings: Any) -> LARS:
        return LARS([p for p in model.parameters() if p.requires_grad], 0.1)

    monkeypatch.setattr(engine_module, "build_optimiser", build)
    settings = with_learning(config(norm=norm), memory_size=16)
    method, data = resolve(CASES[name]), benchmark()
    engine = Engine(settings, method, data, torch.device("meta"))
    monkeypatch.setattr(engine, "represent", _without_autocast(engine))
    for episode in plan_episodes(data, method, settings.learning)[:2]:
        result = engine.step(episode, 0)
        assert result.finite.device.type == "meta"
    with pytest.raises(RuntimeError):
        result.finite.item()


def _without_autocast(engine: Engine) -> Any:
    """autocast does not know the meta device."""

    def represent(views: Any, counts: Any, encode: Any = ("X",)) -> Any:
        as_is = lambda: torch.autocast("cpu", enabled=False)  # noqa: E731
        return engine_module.Representations(engine.networks, views, counts, encode, None, as_is)

    return represent
