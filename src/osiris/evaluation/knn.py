"""Weighted KNN (Sec. 4.1): L2-normalised features, k neighbours, each votes for its class with exp(cosine / 0.1).

The similarities of a chunk of test images to the whole bank are computed once; every protocol is a `Question` put to
them. Exact, float32, on the device of the features; memory is bounded by the chunk, whatever the size of the bank.

Ties, so that a prediction is a function of the similarities alone:
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
"""Similarities held at a time (128 MiB). A constant: results must not depend on the memory that happens to be free."""
DEPTH = 5
"""Classes ranked for each test image (top-5 accuracy)."""


@dataclass(frozen=True)
class Question:
    """One way to ask the neighbours: who may vote, for what, and which answers are allowed."""

    name: str
    bank_class: Tensor
    """int64 [bank]: what each bank image votes for."""
    class_count: int
    columns: tuple[Tensor, ...] | None = None
    """For each group the bank images that may vote; None: the whole bank for every test image."""
    allowed: Tensor | None = None
    """bool [groups, classes]: the answers allowed to each group (its votes are masked); None: all."""
    group: Tensor | None = None
    """int64 [test]: the group of each test image; -1: not asked."""


@dataclass(frozen=True)
class Ranking:
    """The answer to a question."""

    classes: Tensor
    """int64 [test, 5]: classes by falling vote; -1 where no further class has a vote (or the image was not asked)."""
    k_effective: tuple[int, ...]
    """Neighbours that voted, for each group: k, or the size of the bank if that is smaller."""

    @property
    def prediction(self) -> Tensor:
        return self.classes[:, 0]


@contextmanager
def full_precision() -> Iterator[None]:
    """No TF32 or bfloat16 inside: they change which image is the k-th neighbour."""
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
    height = max(1, CHUNK_ENTRIES // (16 * columns))  # the search below holds a few integers per similarity
    for rows in tied.split(height):
        chosen = _lowest_of_equals(similarity[rows], values[rows, -1:], k)
        indices[rows] = chosen
        values[rows] = similarity[rows].gather(1, chosen)
    return values.cpu(), indices.cpu()


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


def rank(votes: Tensor, allowed: Tensor | None = None) -> Tensor:
    """int64 [rows, 5]: classes by falling vote, equal votes by rising index, -1 for classes without a vote.

    With `allowed` (bool, broadcast over rows) all other classes are excluded. If no neighbour has an allowed class, the
    lowest allowed class comes first: all are tied at zero.
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
    """The answers of the bank's features [N, d] about the test features [M, d], by the name of the question."""
    bank, test = functional.normalize(bank.float(), dim=1), functional.normalize(test.float(), dim=1)
    answers = {question.name: torch.full((len(test), DEPTH), -1, dtype=torch.int64) for question in questions}
    for rows, similarity in similarity_chunks(test, bank):
        whole = None
        for question in questions:
            answer = answers[question.name][rows]
            if question.columns is None:
                whole = whole or nearest(similarity, k)
                answer[:] = _answer_whole(question, rows, whole, temperature)
            else:
                _answer_by_group(question, rows, similarity, k, temperature, answer)
    return {
        question.name: Ranking(answers[question.name], _k_effective(question, len(bank), k)) for question in questions
    }


def _answer_whole(question: Question, rows: slice, neighbours: tuple[Tensor, Tensor], temperature: float) -> Tensor:
    values, indices = neighbours
    votes = vote(values, question.bank_class[indices], question.class_count, temperature)
    if question.allowed is None:
        return rank(votes)
    assert question.group is not None
    return rank(votes, question.allowed[question.group[rows]])


def _answer_by_group(
    question: Question, rows: slice, similarity: Tensor, k: int, temperature: float, answer: Tensor
) -> None:
    assert question.columns is not None and question.group is not None
    group = question.group[rows]
    for number, columns in enumerate(question.columns):
        members = (group == number).nonzero().squeeze(1)
        if len(members) == 0 or len(columns) == 0:
            continue
        device = similarity.device
        part = similarity[members.to(device).unsqueeze(1), columns.to(device)]
        values, indices = nearest(part, k)
        votes = vote(values, question.bank_class[columns[indices]], question.class_count, temperature)
        answer[members] = rank(votes)


def _k_effective(question: Question, bank_size: int, k: int) -> tuple[int, ...]:
    if question.columns is None:
        return (min(k, bank_size),)
    return tuple(min(k, len(columns)) for columns in question.columns)
