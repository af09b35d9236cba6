"""The losses: pure functions of embeddings. No state, no model, no trainer.

An embedding batch is `z` of shape [2, N, d]: two views of N images, already L2-normalised by the caller. `tau` is the
temperature. The paper's Eq. 1 prints tau outside the exponential; it belongs inside: exp(s / tau).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor


def contrast(z: Tensor, tau: float = 0.1) -> Tensor:
    r"""Eq. 1, L^SSL(A; f, g): each view finds the other view of its image among all views of all other images.

    -log exp(z_i . z_i' / tau) / (exp(z_i . z_i' / tau) + sum_{j != i} exp(z_i . z_j / tau)), mean over the 2N anchors.
    """
    return contrast_with_negatives(z, None, tau)


def contrast_with_negatives(z: Tensor, others: Tensor | None, tau: float = 0.1) -> Tensor:
    r"""L^ER+ = L^SSL(X, X u Y): as `contrast`, with all views of `others` [2, M, d] as further negatives."""
    views, images, _ = z.shape
    anchors = z.flatten(0, 1)
    logits = anchors @ anchors.T / tau
    itself = torch.eye(views * images, dtype=torch.bool, device=z.device)
    logits = logits.masked_fill(itself, float("-inf"))
    if others is not None and others.shape[1] > 0:
        logits = torch.cat([logits, anchors @ others.flatten(0, 1).T / tau], dim=1)
    return F.cross_entropy(logits, _other_view(images, z.device))


def cross(a: Tensor, b: Tensor, tau: float = 0.1) -> Tensor:
    r"""Eq. 2, L^SSL(A, B; f, f): positives within A, negatives from B alone. No comparison inside A.

    -log exp(a_i . a_i' / tau) / (exp(a_i . a_i' / tau) + sum_{j in B} exp(a_i . b_j / tau)), mean over 2|A| anchors.
    """
    anchors, negatives = a.flatten(0, 1), b.flatten(0, 1)
    positive = (anchors * a.flip(0).flatten(0, 1)).sum(1, keepdim=True) / tau
    logits = torch.cat([positive, anchors @ negatives.T / tau], dim=1)
    return (logits.logsumexp(1) - logits[:, 0]).mean()


def distil(p: Tensor, q: Tensor, tau: float = 0.1, positive: str = "same", keep_other: bool = False) -> Tensor:
    r"""Eq. 2, L^SSL(X, X; f1, f2): anchors p = f1(x) find their image among q = f2(x), both [2, N, d].

    positive="same": the same view of the image, as in the runs behind the published numbers; "other": the other view,
    as Eq. 2 reads. The remaining view of the image is no negative, unless `keep_other` puts it into the denominator
    (as CaSSLe's original code does). Negatives are all views of the other images.
    """
    assert positive in ("same", "other"), positive
    views, images, _ = p.shape
    count = views * images
    logits = p.flatten(0, 1) @ q.flatten(0, 1).T / tau
    same, other = torch.arange(count, device=p.device), _other_view(images, p.device)
    target, remaining = (same, other) if positive == "same" else (other, same)
    if not keep_other:
        excluded = torch.zeros(count, count, dtype=torch.bool, device=p.device)
        excluded[same, remaining] = True
        logits = logits.masked_fill(excluded, float("-inf"))
    return F.cross_entropy(logits, target)


def match(p: Tensor, q: Tensor) -> Tensor:
    r"""||p - q||^2, mean over all vectors: the stored embeddings of DER, the encoder outputs of POCON."""
    return (p - q).square().sum(-1).mean()


def elastic(parameters: Iterable[Tensor], anchors: Iterable[Tensor], importance: Iterable[Tensor]) -> Tensor:
    r"""(Theta - Theta*)^T F (Theta - Theta*) with diagonal F: the L_past of EWC."""
    terms = [(f * (theta - anchor).square()).sum() for theta, anchor, f in zip(parameters, anchors, importance)]
    return torch.stack(terms).sum()


def _other_view(images: int, device: torch.device) -> Tensor:
    """For each row of a flattened [2, N] batch, the row of the other view of the same image."""
    index = torch.arange(images, device=device)
    return torch.cat([index + images, index])
