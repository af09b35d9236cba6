"""How well vectors of an earlier encoder serve queries of a later one: a linear map between the two, and recall."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor

PENALTIES = tuple(10 ** (exponent / 2) for exponent in range(8, -9, -1))
"""From strong to weak, 1e4 to 1e-4: among equal errors the map nearest to the identity is chosen."""


def fit_map(old: Tensor, new: Tensor) -> Tensor:
    """float32 [d, d] on the CPU: W such that `apply_map(old, W)` approximates the L2-normalised `new`; both [n, d], row
    by row the same image.

    Ridge regression towards the identity, W = I + X'(XX' + l I)^-1 (Y - X), where X and Y are the L2-normalised rows.
    l is the one of `PENALTIES` with the least squared leave-one-out error.
    """
    assert old.shape == new.shape and len(old) > 0, (old.shape, new.shape)
    rows, target = (functional.normalize(part.cpu().double(), dim=1) for part in (old, new))
    change = target - rows
    # X'(XX' + l I)^-1 = (X'X + l I)^-1 X' = basis diag(1 / (values + l)) left', from the smaller of XX' and X'X
    if len(rows) < rows.shape[1]:
        values, left = torch.linalg.eigh(rows @ rows.T)
        basis = rows.T @ left
    else:
        values, basis = torch.linalg.eigh(rows.T @ rows)
        left = rows @ basis
    values, projected, fitted = values.clamp_min(0), left.T @ change, rows @ basis
    best, least = torch.empty(0), torch.inf
    for penalty in PENALTIES:
        solution = projected / (values + penalty).unsqueeze(1)
        leverage = (fitted * left) @ (1 / (values + penalty))  # the diagonal of the hat matrix
        error = float(((change - fitted @ solution) / (1 - leverage).unsqueeze(1)).square().sum())
        if error < least * (1 - 1e-9):  # a tie up to rounding: with one pair, every error is the same
            best, least = solution, error
    return (torch.eye(rows.shape[1], dtype=torch.float64) + basis @ best).float()


def apply_map(vectors: Tensor, weight: Tensor) -> Tensor:
    """float32 [n, d]: `vectors`, L2-normalised, mapped by the result of `fit_map`, and L2-normalised again."""
    return functional.normalize(functional.normalize(vectors.float(), dim=1) @ weight.to(vectors.device), dim=1)


def recall_at(k: int, found: Tensor, truth: Tensor) -> float:
    """Mean over queries of the share of the k true neighbours that were found. `found` and `truth`: indices
    [queries, at least k], nearest first; no index occurs twice in a row."""
    assert len(found) == len(truth) > 0 and min(found.shape[1], truth.shape[1]) >= k >= 1, (found.shape, truth.shape)
    return float((found[:, :k, None] == truth[:, None, :k]).any(dim=1).double().mean())
