"""The example osiris_d_on_one_page computes what the package computes, on a page that stands alone."""

import ast
import copy
from pathlib import Path

import osiris_d_on_one_page as page
import pytest
import torch
from torch import Tensor, nn

from osiris.config import LearningConfig
from osiris.evaluation.knn import Question, ask
from osiris.framework.methods import OSIRIS_D
from osiris.framework.representations import Frozen, Representations, copy_state
from osiris.framework.terms import StepContext, TaskContext
from osiris.framework.trainable import TrainableMethod
from osiris.memory import Memory
from osiris.models.config import ProjectorConfig
from osiris.training.optimisers import build_optimiser
from tiny import situation

Step = tuple[Tensor, Tensor | None]


def test_it_is_one_page_of_plain_torch() -> None:
    text = Path(page.__file__).read_text()
    assert len(text.splitlines()) <= 150
    nodes = list(ast.walk(ast.parse(text)))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in modules} == {"copy", "torch"}


@pytest.mark.parametrize("task", [0, 1])
def test_losses_and_gradients_are_those_of_the_package(task: int) -> None:
    case = situation(OSIRIS_D, task=task)
    total, terms = case.values()
    total.backward()
    gradients = case.gradients()
    case.model.zero_grad()
    heads, frozen = case.networks.heads, case.networks.past["encoder"]
    assert isinstance(frozen, Frozen)
    networks = case.networks.encoder, heads["g"], heads["h"], frozen.network
    values = page.losses(*networks, case.views["X"], case.views.get("Y"))
    own = torch.stack([weight * value for weight, value in zip((1, page.LAMBDA_1, page.LAMBDA_2), values)]).sum()
    own.backward()
    torch.testing.assert_close([*values, own], [*terms.values(), total], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(case.gradients(), gradients, rtol=1e-8, atol=1e-12)


def test_training_gives_the_weights_of_the_package(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """The page runs at a small size; the package learns from the same views, starting from the same weights."""
    steps: list[Step] = []
    networks: list[list[nn.Module]] = []
    offers: list[tuple[int, int]] = []
    own_losses, own_offer = page.losses, page.offer

    def recorded(f: nn.Module, g: nn.Module, h: nn.Module, f_star: nn.Module, x: Tensor, y: Tensor | None):
        if not steps:
            networks.extend([copy.deepcopy([f, g, h]), [f, g, h]])
        steps.append((x, y))
        return own_losses(f, g, h, f_star, x, y)

    def counted(memory: list[Tensor], image: Tensor, number: int, size: int) -> None:
        offers.append((number, len(steps)))
        own_offer(memory, image, number, size)

    monkeypatch.setattr(page, "losses", recorded)
    monkeypatch.setattr(page, "offer", counted)
    torch.set_default_dtype(torch.float64)
    try:
        page.main(per_class=4, epochs=2, batch=6, memory_size=10)
        start, end = networks
        model = learn(start, steps, per_task=2 * 3)
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(capsys.readouterr().out.splitlines()) == 1 + 1 + len(page.TINTS)
    presented = [step for step, (x, _) in enumerate(steps, 1) for _ in range(x.shape[1])]
    assert offers == list(enumerate(presented)), "every image, after the step that learned from it"
    for own, module in zip(end, [model.networks.encoder, *model.networks.heads.values()]):
        torch.testing.assert_close([*own.parameters()], [*module.parameters()], rtol=1e-6, atol=1e-9)


def learn(start: list[nn.Module], steps: list[Step], per_task: int) -> TrainableMethod:
    """The package's osiris-d, trained on the given views."""
    tasks = len(steps) // per_task
    model = TrainableMethod(OSIRIS_D, start[0], ProjectorConfig(512, 64), image_shape=(3, 24, 24), task_count=tasks)
    for head, network in zip(model.networks.heads.values(), start[1:]):
        copy_state(network, head)
    optimiser = build_optimiser(model, LearningConfig(optimiser="adamw", learning_rate=1e-3, weight_decay=0.05))
    for task in range(tasks):
        context = TaskContext(model.networks, optimiser, seed=0, task=task, task_count=tasks, steps=per_task)
        model.begin_task(context)
        for x, y in steps[task * per_task : (task + 1) * per_task]:
            assert model.replayed(task, x.shape[1]) == (0 if y is None else y.shape[1])
            rep = Representations(model.networks, {"X": x} if y is None else {"X": x, "Y": y})
            loss, _ = model(rep, StepContext(model.memory, None, seed=0, task=task, step=0))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            model.after_step(context)
        model.end_task(context)
    return model


def test_the_memory_keeps_what_the_package_keeps() -> None:
    size = 5
    memory, own = Memory(size, (3, 2, 2)), []
    images = torch.arange(75, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 2, 2)
    for batch in images.split([size, *[7] * 10]):  # the first fills it: the page draws nothing then, the package does
        torch.manual_seed(memory.offers)
        for number, image in enumerate(batch, memory.offers):
            page.offer(own, image, number, size)
        rows, slots = memory.admit(len(batch), torch.Generator().manual_seed(memory.offers))
        memory.write(slots, batch[rows], rows, task=0, step=0)
        memory.advance(len(batch))
        assert torch.equal(torch.stack(own), memory.images)


def test_the_knn_answers_as_the_package_does() -> None:
    torch.manual_seed(0)
    bank, test, classes = torch.randn(90, 8), torch.randn(40, 8), torch.arange(90) % 6
    expected = ask(bank, test, [Question("class", classes, 6)], k=20, temperature=0.1)["class"].prediction
    assert torch.equal(page.knn(nn.Identity(), bank, classes, test), expected)


def test_the_page_of_the_docs_includes_the_example() -> None:
    """In the block form: `ruff format` takes the short form for Python and breaks it."""
    text = Path(page.__file__).parents[1].joinpath("docs", "one-page.md").read_text(encoding="utf-8")
    assert "\n--8<--\nexamples/osiris_d_on_one_page.py\n--8<--\n" in text
