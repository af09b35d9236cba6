"""Weighted KNN (Sec. 4.1): L2-normalised features, k neighbours, each votes for its class with exp(cosine / 0.1).

The similarities of a chunk of test images to the whole bank are computed once; every protocol is a `Question` that is
answered from them. Exact, float32, on the device of the features; the size of a chunk bounds the memory.

Ties are broken such that a prediction is a function of the similarities alone:
- equal similarities at the k-th place: the bank image with the lower index votes;
- equal votes: the class with the lower index wins. Votes are summed as integers (fixed point), because a sum of floats
  depends on its order and would break ties at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor

CHUNK_ENTRIES = 1 << 25
"""Similarities in memory at a time (128 MiB). Constant, so that results do not depend on the free memory."""
DEPTH = 5
"""Classes ranked for each test image (top-5 accuracy)."""


@dataclass(frozen=True)
class Question:
    """Which bank images vote on a test image, for what, and which answers are allowed."""

    name: str
    bank_class: Tensor
    """int64 [bank]: what each bank image votes for."""
    class_count: int
    columns: tuple[Tensor, ...] | None = None
    """The bank images that vote on each group of test images; None: the whole bank votes on every test image."""
    allowed: Tensor | None = None
    """bool [groups, classes]: the answers allowed for each group (other votes do not count); None: all."""
    group: Tensor | None = None
    """int64 [test]: the group of each test image; -1: no answer."""

    def k_effective(self, bank_size: int, k: int) -> tuple[int, ...]:
        """Neighbours that vote, for each group: k, or the size of the bank if that is smaller."""
        sizes = [bank_size] if self.columns is None else map(len, self.columns)
        return tuple(min(k, size) for size in sizes)


@dataclass(frozen=True)
class Ranking:
    """The answer to a question."""

    classes: Tensor
    """int64 [test, 5]: classes by decreasing vote; -1 if no further class has a vote or the image has no answer."""
    k_effective: tuple[int, ...]
    """See `Question.k_effective`."""
    ridges: tuple[float | None, ...] = ()
    """Of a linear probe: the ridge for each group of test images."""

    @property
    def prediction(self) -> Tensor:
        return self.classes[:, 0]


@contextmanager
def full_precision() -> Iterator[None]:
    """Turns off TF32 and bfloat16, which change which image is the k-th neighbour."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def similarity_chunks(queries: Tensor, bank: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """(rows, cosine similarities [rows, bank]) for L2-normalised `queries` and `bank`."""
    height = max(1, CHUNK_ENTRIES // len(bank))
    for start in range(0, len(queries), height):
        rows = slice(start, min(start + height, len(queries)))
        with full_precision(), torch.autocast(queries.device.type, enabled=False):
            similarity = queries[rows] @ bank.T
        yield rows, similarity


def nearest(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(values, indices), each [rows, min(k, columns)] on the CPU; equal values at the k-th place: lower index first."""
    columns = similarity.shape[1]
    if k >= columns:
        return similarity.cpu(), torch.arange(columns).expand(len(similarity), columns)
    values, indices = similarity.topk(k + 1, dim=1)
    tied = (values[:, k - 1] == values[:, k]).nonzero().squeeze(1)
    values, indices = values[:, :k], indices[:, :k]
    height = max(1, CHUNK_ENTRIES // (16 * columns))  # the search below needs a few integers per similarity
    for rows in tied.split(height):
        chosen = _lowest_of_equals(similarity[rows], values[rows, -1:], k)
        indices[rows] = chosen
        values[rows] = similarity[rows].gather(1, chosen)
    return values.cpu(), indices.cpu()


def neighbours_of(bank: Tensor, queries: Tensor, k: int, own: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(similarities, indices), each [queries, min(k, bank)]: the nearest bank images of each query, nearest first.
    `own`: the position of each query in the bank; it comes last."""
    bank, queries = functional.normalize(bank.float(), dim=1), functional.normalize(queries.float(), dim=1)
    ranked = []
    for rows, similarity in similarity_chunks(queries, bank):
        if own is not None:
            similarity[torch.arange(len(similarity)), own[rows].to(similarity.device)] = -torch.inf
        values, indices = nearest(similarity, k)
        values, order = values.sort(dim=1, descending=True, stable=True)
        ranked.append((values[:, :k], indices.gather(1, order)[:, :k]))
    values, indices = map(torch.cat, zip(*ranked))
    return values, indices


def _lowest_of_equals(similarity: Tensor, threshold: Tensor, k: int) -> Tensor:
    """Indices [rows, k]: all columns above the threshold, then those equal to it from the lowest index on."""
    above, equal = similarity > threshold, similarity == threshold
    room = k - above.sum(dim=1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(dim=1) <= room))
    return chosen.nonzero()[:, 1].view(len(similarity), k)


def vote(similarity: Tensor, classes: Tensor, class_count: int, temperature: float) -> Tensor:
    """int64 [rows, class_count]: sum of exp(cosine / temperature) over neighbours [rows, k] of each class.

    A row's votes are scaled so that its nearest neighbour weighs 1 (no effect on their order), then to fixed point with
    as many bits as k of them can be added without overflow.
    """
    votes = torch.zeros(len(similarity), class_count, dtype=torch.int64)
    k = similarity.shape[1]
    if k == 0:
        return votes
    exact = similarity.double()
    weight = ((exact - exact.amax(dim=1, keepdim=True)) / temperature).exp()
    bits = 62 - k.bit_length()
    return votes.scatter_add_(1, classes, (weight * 2.0**bits).round().long())


def rank_classes(votes: Tensor, allowed: Tensor | None = None) -> Tensor:
    """int64 [rows, 5]: classes by decreasing vote, equal votes by increasing index, -1 for classes without a vote.

    With `allowed` (bool, broadcast over rows) other classes do not count. If no allowed class has a vote, all of them
    are tied at zero and the lowest comes first.
    """
    if allowed is not None:
        votes = votes.masked_fill(~allowed, -1)
    ordered, classes = votes.sort(dim=1, descending=True, stable=True)
    ordered, classes = ordered[:, :DEPTH], classes[:, :DEPTH]
    without = ordered <= 0
    if allowed is not None:
        without[:, 0] = ordered[:, 0] < 0
    ranking = torch.full((len(votes), DEPTH), -1, dtype=torch.int64)
    ranking[:, : classes.shape[1]] = classes.masked_fill(without, -1)
    return ranking


def ask(bank: Tensor, test: Tensor, questions: Sequence[Question], k: int, temperature: float) -> dict[str, Ranking]:
    """Question -> answer, from the features of the bank [N, d] and of the test images [M, d]."""
    bank, test = functional.normalize(bank.float(), dim=1), functional.normalize(test.float(), dim=1)
    answers = {question.name: torch.full((len(test), DEPTH), -1, dtype=torch.int64) for question in questions}
    for rows, similarity in similarity_chunks(test, bank):
        whole = None
        for question in questions:
            if question.columns is None:
                whole = whole or nearest(similarity, k)
            _answer(question, rows, similarity, whole, k, temperature, answers[question.name][rows])
    return {one.name: Ranking(answers[one.name], one.k_effective(len(bank), k)) for one in questions}


def _answer(
    question: Question,
    rows: slice,
    similarity: Tensor,
    whole: tuple[Tensor, Tensor] | None,
    k: int,
    temperature: float,
    answer: Tensor,
) -> None:
    """Fill `answer` for a chunk of test images. `whole`: the neighbours among all bank images."""
    if question.columns is None:
        assert whole is not None
        values, indices = whole
        votes = vote(values, question.bank_class[indices], question.class_count, temperature)
        answer[:] = rank_classes(votes, None if question.allowed is None else question.allowed[_group(question, rows)])
        return
    for number, columns in enumerate(question.columns):
        members = (_group(question, rows) == number).nonzero().squeeze(1)
        if len(members) and len(columns):
            part = similarity[members.to(similarity.device).unsqueeze(1), columns.to(similarity.device)]
            values, indices = nearest(part, k)
            votes = vote(values, question.bank_class[columns[indices]], question.class_count, temperature)
            answer[members] = rank_classes(votes)


def _group(question: Question, rows: slice) -> Tensor:
    assert question.group is not None
    return question.group[rows]
