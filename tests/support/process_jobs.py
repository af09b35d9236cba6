"""What the tests of several processes compute, in one process or in a pool of two: same code, same arguments."""

import pickle
import traceback
from contextlib import nullcontext
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from osiris import processes
from osiris.data.stream import ordered
from osiris.errors import Stopped
from osiris.evaluation.features import embed_benchmark
from osiris.framework.composition import resolve
from osiris.framework.config import MethodConfig
from osiris.framework.methods import READINGS, TRAINED, Method
from osiris.learner import Learner
from osiris.models.external import encoder_name
from osiris.presets import configure
from osiris.runs.records import OverfittingLine, RunMetrics
from osiris.training import run as training_run
from osiris.training import schedule
from osiris.training.engine import Engine
from osiris.training.log import track_overfitting
from osiris.training.optimisers import build_optimiser
from osiris.training.schedule import Episode, plan_episodes
from osiris.training.summing import SummingEngine
from tiny_encoders import seeded
from tiny_runs import asked_to_stop, benchmark, config, train, with_learning

COMPOSED = {
    "predictor-bn": MethodConfig("cassle", past="predict(batch_norm=true,symmetric=true)"),
    "mixed-match": MethodConfig("lump", past="match:g+distil:h+elastic"),
    "er-byol": MethodConfig("er", objective="byol"),
    "cassle-barlow": MethodConfig("cassle", objective="barlow"),
    "osiris-d-vicreg": MethodConfig("osiris-d", objective="vicreg"),
    "osiris-r-simsiam": MethodConfig("osiris-r", objective="simsiam"),
    "er-mocov2+": MethodConfig("er", objective="mocov2+(queue_size=40)"),
    "pnr-mocov2+": MethodConfig("pnr", objective="mocov2+(queue_size=40)"),
    "osiris-d-mocov3": MethodConfig("osiris-d", objective="mocov3"),
    "cassle-swav": MethodConfig("cassle", objective="swav(clusters=9,frozen_epochs=0,queue_size=20,queue_epoch=1)"),
}
CASES = {name: MethodConfig(name) for name in (*TRAINED, *READINGS)} | COMPOSED
"""Every method of the zoo, the readings of er+, and compositions of what no single method has."""


def worker(rank: int, store: str, connection: Connection) -> NoReturn:
    """One process of the pool: joins the other once, then computes what it is told."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    while True:
        name, arguments = pickle.loads(connection.recv_bytes())
        try:
            answer = globals()[name](**arguments), None
        except BaseException as error:
            answer = None, (type(error).__name__, str(error), traceback.format_exc())
        connection.send_bytes(pickle.dumps(answer))  # plain: torch's own way shares memory


def build(
    method: MethodConfig, norm: str = "gn", learning_rate: float = 0.05, **engine: Any
) -> tuple[Engine, list[Episode]]:
    settings = with_learning(config(norm=norm, **engine), batch_size=13, memory_size=16, learning_rate=learning_rate)
    data, chosen = benchmark(), resolve(method)
    built = Engine(settings, chosen, data, torch.device("cpu"))
    return built, plan_episodes(data, chosen, settings.learning)


def in_double(engine: Engine) -> Engine:
    """Networks, terms and images in float64: differences are then mistakes, not rounding."""
    engine.model.double()
    engine.optimiser = build_optimiser(engine.model, engine.config.learning)
    make = engine.two_views.apply
    engine.two_views.apply = lambda batches, drawn: [views.double() for views in make(batches, drawn)]
    return engine


def gradients(method: MethodConfig, norm: str, **engine: Any) -> list[dict[str, Tensor]]:
    """Of the first steps of two tasks and the beginning of a third, in float64; at the end the state of the run.

    13 + 15 images a task: shares of X are 6 and 7, or 7 and 8; those of Y 4 and 5, or 5 and 6.
    """
    built, stretch = build(method, norm, learning_rate=0.01, **engine)
    in_double(built)
    seen: list[dict[str, Tensor]] = []
    for phase in stretch:
        phase = replace(phase, steps=min(phase.steps, 2 if phase.task < 2 else 1))
        built.begin(phase)
        for step in range(phase.steps):
            result = built.step(phase, step)
            values = {f"value.{name}": value for name, value in result.values.items()}
            seen.append(
                values | {name: p.grad.clone() for name, p in built.model.named_parameters() if p.grad is not None}
            )
        built.end(phase)
    return [*seen, built.model.state_dict()]


def assert_same_gradients(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """A gradient that vanishes (the branch behind a zero-initialised norm) is compared with the scale of all."""
    assert one.keys() == other.keys()
    scale = max(float(value.double().norm()) for value in one.values())
    for key in one:
        difference = float((other[key].double() - one[key].double()).norm())
        assert difference <= 1e-6 * max(float(one[key].double().norm()), 1e-6 * scale), key


def features(norm: str) -> tuple[Tensor, Tensor]:
    """Of a network after two steps, so that BatchNorm has statistics."""
    engine, (phase, *_) = build(MethodConfig("ft"), norm)
    for step in range(2):
        engine.step(phase, step)
    embedded = embed_benchmark(engine.networks.encoder, engine.benchmark, engine.device, shared=True)
    assert embedded.test is not None
    return embedded.bank, embedded.test


def whole_run(out: Path, stop_in: tuple[int, int] | None = None) -> RunMetrics | None:
    """Of osiris-d on the tiny benchmark; `stop_in`: the task and step at which this process is asked to stop."""
    with asked_to_stop(*stop_in) if stop_in else nullcontext():
        return train(config(), out)


def tracked() -> OverfittingLine:
    """A measurement of overfitting in the third task."""
    engine, stretch = build(MethodConfig("osiris-d"), "bn", learning_rate=0.005)
    for phase in stretch[:2]:
        for step in range(2):
            engine.step(phase, step)
    measured = track_overfitting(engine, stretch[2], 1)
    assert measured is not None
    return measured


def failing(ranks: list[int]) -> int:
    """Some processes fail at work that all of them must do."""
    with processes.together():
        if processes.rank() in ranks:
            raise ValueError(f"process {processes.rank()}")
    return processes.rank()


def turns(folder: Path) -> int:
    """How many had been there before this process did its work."""
    import os

    os.environ["LOCAL_RANK"] = str(processes.rank())

    def work() -> int:
        before = len(list(folder.iterdir()))
        (folder / str(processes.rank())).touch()
        return before

    return processes.in_turn(work)


def messages() -> tuple[tuple[bool, ...], bytes, dict[str, Tensor] | None, list[int]]:
    first = processes.rank() == 0
    flags = processes.agree(first, not first, False)
    said = processes.broadcast(b"from the first" if first else b"ignored")
    nothing = processes.broadcast(None if first else {"x": torch.ones(1)})
    shares = [len(range(7)[processes.share(7, process)]) for process in range(processes.world_size())]
    return flags, said, nothing, shares


def gathered_gradient() -> tuple[Tensor, Tensor]:
    """Gradients of a function of all five rows with respect to each of them, gathered again."""
    whole = torch.linspace(-1, 1, 10, dtype=torch.float64).view(5, 2)
    own = whole[processes.share(5)].clone().requires_grad_()
    rows = processes.gather(own, 5)
    (rows.softmax(0).square().sum() + (rows[0] * rows[4]).sum()).backward()
    assert own.grad is not None
    return rows.detach(), processes.gather(own.grad / processes.world_size(), 5)


WEEKS = ("week 1", "week 2", "week 3")
PRETRAINED: dict[str, Any] = {
    **{"image_size": 16, "memory_size": 12, "epochs": 2, "batch_size": 8, "learning_rate": 1e-2, "threads": 1},
    **{"projector_hidden": 16, "projector_output": 8, "device": "cpu"},
}


def start_from(encoder: str) -> str | nn.Module:
    return seeded() if encoder == "own" else encoder


def observe_weeks(
    photos: Path, out: Path, encoder: str, options: dict[str, Any], stop_in: tuple[int, int] | None = None
) -> None:
    """One call of a learner for each folder; `stop_in`: the task and step at which one call is asked to stop."""
    for task, week in enumerate(WEEKS):

        def observe(week: str = week) -> None:
            learner = Learner(out, "osiris-d", "smoke", encoder=start_from(encoder), **PRETRAINED, **options)
            learner.observe(photos / week)

        if stop_in is not None and task == stop_in[0]:
            with asked_to_stop(*stop_in), pytest.raises(Stopped):
                observe()
        observe()


def observe_by_sums(photos: Path, out: Path, method: str, stop_in: tuple[int, int] | None = None) -> None:
    """One call for each folder, in steps of a few images; `stop_in`: see `observe_weeks`."""
    options: dict[str, Any] = {"smt": {"method": "smt", "codes": 128}, "readout": {"encoder": seeded()}}[method]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "IMAGES_PER_STEP", 9)
        for task, week in enumerate(WEEKS):
            if stop_in is not None and task == stop_in[0]:
                with asked_to_stop(*stop_in, SummingEngine), pytest.raises((Stopped, processes.Elsewhere)):
                    Learner(out, image_size=16, threads=1, device="cpu", **options).observe(photos / week)
            Learner(out, image_size=16, threads=1, device="cpu", **options).observe(photos / week)


def train_weeks(photos: Path, out: Path, encoder: str, options: dict[str, Any]) -> None:
    """One run over all folders."""
    name = encoder_name(start_from(encoder))
    settings = configure(f"folder:{photos}", "smoke", name, {"method": "osiris-d"} | PRETRAINED | options)
    training_run.train(training_run.Opening(settings, out, quiet=True))


def stream(method: Method) -> dict[str, Tensor]:
    """The parameters, the past and the memory after a stream, in float64."""
    settings = with_learning(config(), batch_size=7, memory_size=16, epochs=1, passes=2, learning_rate=0.01)
    data = ordered(benchmark(), "tasks")
    engine = in_double(Engine(settings, method, data, torch.device("cpu")))
    (episode,) = plan_episodes(data, method, settings.learning)
    for _ in engine.learn(episode):
        pass
    state = {name: value for name, value in engine.model.state_dict().items() if "field" not in name}
    return state | {"renewals": torch.tensor(engine.renewals), "views": torch.tensor(sorted(engine.views.values()))}
