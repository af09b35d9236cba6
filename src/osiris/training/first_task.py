"""The first task is the same for every method, bit for bit: a grid trains it once, and its other runs take it.

A file holds what the first task leaves behind before the method ends it in its own way (Fisher, snapshots): f, g, the
networks of the objective, the memory, the state of their optimiser, and the log. Everything is stored by name, because
methods have other parameters besides.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from osiris import processes
from osiris.console import notice, warn
from osiris.errors import UserError
from osiris.files import write_atomically
from osiris.framework.composition import method_to_dict
from osiris.framework.methods import Method
from osiris.training import checkpoint
from osiris.training.config import Config
from osiris.training.engine import Engine
from osiris.training.run_directory import differences, settings

PARTS = ("networks.encoder.", "networks.heads.g.", "networks.objective.", "memory.")
"""What the first task changes. Everything else starts as the method creates it."""


def identity(config: Config, method: Method) -> dict[str, Any] | None:
    """What the first task depends on; None if no other run can have the same one, or if it is evaluated on the way."""
    if method.stream != "continual" or config.evaluation.evaluate_every or config.engine.track_overfitting:
        return None
    if any(term.follows_first_task for term in method.terms):
        return None
    kept = {
        name: value
        for name, value in settings(config).items()
        if name != "preset" and not name.startswith(("method.", "evaluation."))
    }
    fields = sorted(field for _, term, _ in method.weighted(0) for field in term.memory_fields)
    engine = {"engine.device": config.engine.device, "engine.micro_batch": config.engine.micro_batch}
    memory = {"memory": method.memory, "stored with the memory": fields}
    return kept | engine | memory | {"objective": method_to_dict(method)["objective"]}


@dataclass
class Progress:
    """Where a run stands after its first task."""

    log: list[dict[str, Any]]
    bad_steps: int
    seconds: float


class FirstTask:
    """`--first-task FILE`: take the first task from the file, or train it and write the file."""

    def __init__(self, path: Path | None, engine: Engine) -> None:
        own = None if path is None else identity(engine.config, engine.method)
        self.path, self.engine = None if own is None else path, engine
        self.identity = {"processes": processes.world_size(), "data": list(engine.benchmark.contents)} | (own or {})

    def take(self) -> Progress | None:
        """Put the state of the file into the engine. None if there is no file, or if it does not fit this run."""
        state = processes.broadcast(processes.on_first(self._read))
        if state is None:
            return None
        model, optimiser = self.engine.model, self.engine.optimiser
        initial = model.state_dict()
        assert state["model"].keys() == {name for name in initial if name.startswith(PARTS)}
        model.load_state_dict(initial | state["model"])
        parameters = dict(model.named_parameters())
        for name, values in state["optimiser"].items():
            device = parameters[name].device
            optimiser.state[parameters[name]] = {key: value.to(device) for key, value in values.items()}
        self.engine.scaler.load_state_dict(state["scaler"])
        return Progress(**state["progress"])

    def _read(self) -> dict[str, Any] | None:
        if self.path is None or not self.path.exists():
            return None
        try:
            state = checkpoint.read_state(self.path)
        except UserError as error:
            warn(f"{error} The first task is trained again.")
            return None
        other = differences(state["identity"], self.identity)
        if other:
            warn(f"{self.path} holds another first task: {other}. The first task is trained again.")
            return None
        notice(f"the first task is taken from {self.path}")
        return state

    def give(self, progress: Progress) -> None:
        """Write the file if there is none."""
        if self.path is None or self.path.exists():
            return
        engine = self.engine
        names: dict[Tensor, str] = {parameter: name for name, parameter in engine.model.named_parameters()}
        state = {
            "identity": self.identity,
            "model": {name: value for name, value in engine.model.state_dict().items() if name.startswith(PARTS)},
            "optimiser": {
                names[parameter]: values
                for parameter, values in engine.optimiser.state.items()
                if names[parameter].startswith(PARTS)
            },
            "scaler": engine.scaler.state_dict(),
            "progress": vars(progress),
        }
        with checkpoint.writing(self.path.parent):
            write_atomically(self.path, lambda temporary: torch.save(checkpoint.sealed(state), temporary))
