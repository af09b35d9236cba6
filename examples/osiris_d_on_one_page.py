"""Osiris-D on one page: data, views, networks, losses, memory, training and evaluation in plain PyTorch.

Images without labels arrive in tasks, one task after the other. One encoder f learns from all of them by minimising

    L = L_current(X) + lambda_1 L_cross(X, Y) + lambda_2 L_past(X)

X is a batch of the current task, Y a batch from a small memory. L_current (plasticity) acts in the space of a projector
g; L_cross (consolidation) and L_past (stability) act in the space of another projector h, where they do not disturb it.
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TAU, LAMBDA_1, LAMBDA_2 = 0.1, 0.5, 0.5  # temperature and weights; with both weights 0 this is fine-tuning
TINTS = [(1.0, 0.5, 0.5), (0.5, 1.0, 0.5), (0.5, 0.5, 1.0), (1.0, 1.0, 0.5)]


def draw(task: int, shape: int, count: int, size: int = 24) -> Tensor:
    """[count, 3, size, size]: flowers with 2 to 5 petals (the class). Each task has its own tint and surface."""
    x, y, radius, light, dark = torch.rand(5, count, 1, 1)
    line = torch.linspace(-1, 1, size)
    rows, columns = line[:, None] + 0.6 * y - 0.3, line + 0.6 * x - 0.3
    petals = 1 + 0.4 * torch.cos((shape + 2) * torch.atan2(rows, columns))
    distance = torch.hypot(rows, columns) / (0.45 + 0.25 * radius) / petals
    stripes, bars = torch.sin(9 * rows), torch.sin(9 * columns)
    surface = [distance > 0, distance > 0.6, stripes > 0, stripes * bars > 0][task]  # full, hollow, striped, chequered
    grey = torch.where((distance < 1) & surface, 0.5 + 0.5 * light, 0.4 * dark)
    images = grey[:, None] * torch.tensor(TINTS[task]).view(3, 1, 1)
    return (images + 0.1 * torch.randn_like(images)).clamp(0, 1)


def two_views(images: Tensor) -> Tensor:
    """[2, N, 3, H, W]: random crop, flip, brightness, contrast and grey, some of the paper's augmentations."""
    count, images = 2 * len(images), torch.cat([images, images])
    sides = torch.empty(count, 2).uniform_(0.45, 1)
    centre = (1 - sides) * torch.empty(count, 2).uniform_(-1, 1)
    sides[:, 0] *= 2 * torch.randint(2, (count,)) - 1  # a negative width flips
    crop = torch.cat([torch.diag_embed(sides), centre[:, :, None]], dim=2)
    images = F.grid_sample(images, F.affine_grid(crop, list(images.shape), align_corners=False), align_corners=False)
    brightness, contrast = torch.empty(2, count, 1, 1, 1).uniform_(0.6, 1.4)
    mean = images.mean((1, 2, 3), keepdim=True)
    images = (brightness * (mean + contrast * (images - mean))).clamp(0, 1)
    images = torch.where(torch.rand(count, 1, 1, 1) < 0.2, images.mean(1, keepdim=True), images)
    return images.unflatten(0, (2, -1))


def build_encoder(width: int = 32) -> nn.Module:
    """f. The paper's ResNet-18 also has GroupNorm and Mish: statistics of a batch would mix tasks."""
    layers: list[nn.Module] = []
    for inputs, outputs in [(3, width), (width, 2 * width), (2 * width, 4 * width)]:
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.GroupNorm(outputs // 4, outputs), nn.Mish()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def build_projector(features: int = 128) -> nn.Module:
    """g and h."""
    return nn.Sequential(nn.Linear(features, 512), nn.ReLU(), nn.Linear(512, 64, bias=False))


def contrast(z: Tensor) -> Tensor:
    """Eq. 1, L^SSL(A): each view finds the other view of its image among all views of the other images."""
    anchors, n = z.flatten(0, 1), z.shape[1]
    logits = (anchors @ anchors.T / TAU).fill_diagonal_(-torch.inf)
    return F.cross_entropy(logits, torch.arange(2 * n).roll(n))


def cross(a: Tensor, b: Tensor) -> Tensor:
    """Eq. 2, L^SSL(A, B): each view of A finds the other view of its image among all views of B."""
    positive = (a * a.flip(0)).sum(-1).flatten()
    logits = torch.cat([positive[:, None], a.flatten(0, 1) @ b.flatten(0, 1).T], dim=1) / TAU
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))


def distil(p: Tensor, q: Tensor) -> Tensor:
    """Eq. 2, L^SSL(X, X; p, q): each view embedded by p finds itself among the other images embedded by q."""
    n = p.shape[1]
    other_view = torch.eye(2 * n, dtype=torch.bool).roll(n, dims=1)
    logits = (p.flatten(0, 1) @ q.flatten(0, 1).T / TAU).masked_fill(other_view, -torch.inf)
    return F.cross_entropy(logits, torch.arange(2 * n))


def losses(f: nn.Module, g: nn.Module, h: nn.Module, f_star: nn.Module, x: Tensor, y: Tensor | None) -> list[Tensor]:
    """L_current, L_cross, L_past (Sec. 3.2) of views [2, N, 3, H, W] of X and Y; without Y (task 1) L_current alone."""

    def embed(projector: nn.Module, features: Tensor) -> Tensor:
        return F.normalize(projector(features), dim=1).unflatten(0, (2, -1))

    features = f(x.flatten(0, 1))
    current = contrast(embed(g, features))
    if y is None:
        return [current]
    now, memory = embed(h, features), embed(h, f(y.flatten(0, 1)))
    past = embed(h, f_star(x.flatten(0, 1)))  # the frozen encoder with the live h: gradient into h, none into f*
    return [current, (cross(now, memory) + cross(memory, now)) / 2, (distil(now, past) + distil(past, now)) / 2]


def offer(memory: list[Tensor], image: Tensor, number: int, size: int) -> None:
    """A reservoir: offer `number` (from 0) takes the next free slot; later a slot drawn from 0 to `number`, if any."""
    slot = number if number < size else int(torch.rand((), dtype=torch.float64) * (number + 1))
    if slot < size:
        memory[slot : slot + 1] = [image]


@torch.no_grad()
def knn(f: nn.Module, bank: Tensor, bank_class: Tensor, test: Tensor, k: int = 20) -> Tensor:
    """The class of each test image: the k nearest images of the bank vote with exp(cosine similarity / 0.1)."""
    similarity, nearest = (F.normalize(f(test)) @ F.normalize(f(bank)).T).topk(k)
    votes = torch.zeros(len(test), int(bank_class.max()) + 1)
    return votes.scatter_add(1, bank_class[nearest], torch.exp(similarity / 0.1)).argmax(1)


def main(per_class: int = 150, epochs: int = 8, batch: int = 48, memory_size: int = 200) -> None:
    torch.manual_seed(0)
    tasks = [torch.cat([draw(task, shape, per_class) for shape in range(4)]) for task in range(4)]
    test = torch.cat([draw(task, shape, per_class // 3) for task in range(4) for shape in range(4)])
    bank_class, test_class = (torch.arange(16).repeat_interleave(n) for n in (per_class, per_class // 3))
    f, g, h = build_encoder(), build_projector(), build_projector()
    parameters = [p for network in (f, g, h) for p in network.parameters()]
    optimiser = torch.optim.AdamW([{"params": [p], "weight_decay": 0.05 * (p.ndim > 1)} for p in parameters])

    def report(name: str) -> None:
        hit = (knn(f, torch.cat(tasks), bank_class, test) == test_class).float()
        print(f"{name:14}" + "".join(f"{100 * part.mean():8.1f}" for part in (hit, *hit.chunk(4))))

    print("KNN, percent       all  task 1  task 2  task 3  task 4")
    report("untrained")
    f_star, memory, offers = f, [], 0
    for task, images in enumerate(tasks):
        if task == 1:
            h.load_state_dict(g.state_dict())  # h starts as a copy of g
        for x in (part for _ in range(epochs) for part in images[torch.randperm(len(images))].split(batch)):
            slots = torch.randperm(len(memory))[: len(x) * 3 // 4]
            y = two_views(torch.stack([memory[slot] for slot in slots])) if task > 0 else None
            current, *others = losses(f, g, h, f_star, two_views(x), y)
            optimiser.zero_grad()
            (current + sum(weight * term for weight, term in zip((LAMBDA_1, LAMBDA_2), others))).backward()
            optimiser.step()
            for number, image in enumerate(x, offers):
                offer(memory, image, number, memory_size)
            offers += len(x)
        f_star = copy.deepcopy(f).requires_grad_(False)
        report(f"after task {task + 1}")


if __name__ == "__main__":
    torch.set_num_threads(1)  # the tensors are small
    main()
