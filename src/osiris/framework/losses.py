"""The losses: pure functions of embeddings, without state, model or trainer.

A batch of embeddings is `z` of shape [2, N, d]: two views of N images. The caller has L2-normalised it, except where a
function says `raw`. `tau` is the temperature. The paper's Eq. 1 prints tau outside the exponential; it belongs inside:
exp(s / tau).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor


def contrast(z: Tensor, tau: float = 0.1, decoupled: bool = False) -> Tensor:
    r"""Eq. 1, L^SSL(A; f, g): each view finds the other view of its image among all views of all other images.

    -log exp(z_i . z_i' / tau) / (exp(z_i . z_i' / tau) + sum_{j != i} exp(z_i . z_j / tau)), mean over the 2N anchors.
    `decoupled` (DCL): the positive is not in the denominator, so the value can be negative.
    """
    anchors = z.flatten(0, 1)
    logits, target = _without_itself(anchors, anchors, tau), _other_view(z.shape[1], z.device)
    return _decoupled(logits, target) if decoupled else F.cross_entropy(logits, target)


def temporal_class(z: Tensor, label: Tensor, tau: float = 0.1) -> Tensor:
    r"""TC (Memory Storyboard): as `contrast`, with all views of the images of one `label` [N] as positives.

    Mean over anchors a, and over the other views p with its label, of -log exp(a . p / tau) / sum_{j != a} exp(a . j /
    tau). With a label of its own for each image it is `contrast`.
    """
    anchors, labels = z.flatten(0, 1), label.repeat(2)
    itself = torch.eye(len(anchors), dtype=torch.bool, device=z.device)
    logits = (anchors @ anchors.T / tau).masked_fill(itself, -torch.inf)
    positive = (labels[:, None] == labels) & ~itself
    each = (logits.masked_fill(~positive, 0).sum(1)) / positive.sum(1) - logits.logsumexp(1)
    return -each.mean()


def contrast_with_negatives(z: Tensor, others: Tensor, tau: float = 0.1, decoupled: bool = False) -> Tensor:
    r"""L^ER+ = L^SSL(X, X u Y): as `contrast`, with all views of `others` [2, M, d] as further negatives."""
    anchors = z.flatten(0, 1)
    parts = [_without_itself(anchors, anchors, tau), anchors @ others.flatten(0, 1).T / tau]
    logits, target = torch.cat(parts, dim=1), _other_view(z.shape[1], z.device)
    return _decoupled(logits, target) if decoupled else F.cross_entropy(logits, target)


def cross(a: Tensor, b: Tensor, tau: float = 0.1, decoupled: bool = False) -> Tensor:
    r"""Eq. 2, L^SSL(A, B; f, f): positives within A, negatives from B alone. No comparison inside A.

    -log exp(a_i . a_i' / tau) / (exp(a_i . a_i' / tau) + sum_{j in B} exp(a_i . b_j / tau)), mean over 2|A| anchors.
    """
    anchors, negatives = a.flatten(0, 1), b.flatten(0, 1)
    positive = (anchors * a.flip(0).flatten(0, 1)).sum(1, keepdim=True) / tau
    logits = torch.cat([positive, anchors @ negatives.T / tau], dim=1)
    return (logits[:, 1 if decoupled else 0 :].logsumexp(1) - logits[:, 0]).mean()


def distil(p: Tensor, q: Tensor, tau: float = 0.1, positive: str = "same", keep_other: bool = False) -> Tensor:
    r"""Eq. 2, L^SSL(X, X; f1, f2): anchors p = f1(x) find their image among q = f2(x), both [2, N, d].

    positive="same": the same view of the image, as in the runs behind the published numbers; "other": the other view,
    as Eq. 2 is written. The remaining view of the image is left out, unless `keep_other` adds it to the denominator
    (as the original code of CaSSLe does). Negatives are all views of the other images.
    """
    assert positive in ("same", "other"), positive
    views, images, _ = p.shape
    count = views * images
    logits = p.flatten(0, 1) @ q.flatten(0, 1).T / tau
    same, other = torch.arange(count, device=p.device), _other_view(images, p.device)
    target, remaining = (same, other) if positive == "same" else (other, same)
    if not keep_other:
        logits = logits.masked_fill(remaining[:, None] == same, float("-inf"))
    return F.cross_entropy(logits, target)


def pseudo_contrast(z: Tensor, past: Tensor, tau: float = 0.1, decoupled: bool = False) -> Tensor:
    r"""PNR's L_current: as `contrast`, and each anchor has the past embeddings of all other views as negatives.

    The past embedding of the same view is left out; that of the other view of the image is a negative.
    """
    anchors = z.flatten(0, 1)
    parts = [_without_itself(anchors, anchors, tau), _without_itself(anchors, past.flatten(0, 1), tau)]
    logits, target = torch.cat(parts, dim=1), _other_view(z.shape[1], z.device)
    return _decoupled(logits, target) if decoupled else F.cross_entropy(logits, target)


def pseudo_distil(
    p: Tensor, past: Tensor, z: Tensor, tau: float = 0.1, positive_in_denominator: bool = False
) -> Tensor:
    r"""PNR's L_past: as `contrast`, with predictions p as anchors and the past embedding of the same view as positive.

    Negatives are the past embeddings and the current embeddings z of all other views. As in the original code, the
    positive is not in the denominator, so the value can be negative.
    """
    anchors = p.flatten(0, 1)
    logits = torch.cat([anchors @ past.flatten(0, 1).T / tau, _without_itself(anchors, z.flatten(0, 1), tau)], dim=1)
    same = torch.arange(len(anchors), device=p.device)
    return F.cross_entropy(logits, same) if positive_in_denominator else _decoupled(logits, same)


def match(p: Tensor, q: Tensor) -> Tensor:
    r"""||p - q||^2, mean over all vectors: DER, POCON, BYOL and others. For unit vectors this is 2 - 2 cos(p, q)."""
    return (p - q).square().sum(-1).mean()


def negative_cosine(p: Tensor, q: Tensor) -> Tensor:
    r"""-cos(p, q), mean over all unit vectors: PFR, CLA, SimSiam."""
    return match(p, q) / 2 - 1


def weighted_decoupled(z: Tensor, tau: float = 0.1, sigma: float = 0.5) -> Tensor:
    r"""DCLW: the positive of image i is multiplied by w_i = 2 - N softmax_i(cos(z_1i, z_2i) / sigma)."""
    similarity = (z[0] * z[1]).sum(-1)
    weight = 2 - len(similarity) * (similarity / sigma).softmax(0)
    # DCL with weight 1, corrected by the difference in the positives: both views of an image have the same one.
    return contrast(z, tau, decoupled=True) - ((weight - 1) * similarity / tau).mean()


def barlow(a: Tensor, b: Tensor, off_diagonal: float = 5e-3, scale: float = 0.1) -> Tensor:
    r"""Barlow Twins on raw [N, d]: scale [sum_i (C_ii - 1)^2 + lambda sum_{i != j} C_ij^2], C the cross-correlation.

    Columns are standardised over the batch with the biased variance + 1e-5.
    """
    a, b = ((z - z.mean(0)) / (z.var(0, unbiased=False) + 1e-5).sqrt() for z in (a, b))
    correlation = a.T @ b / len(a)
    diagonal = correlation.diagonal()
    on, off = (diagonal - 1).square().sum(), correlation.square().sum() - diagonal.square().sum()
    return scale * (on + off_diagonal * off)


def vicreg(z: Tensor, invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0) -> Tensor:
    r"""VICReg on raw [2, N, d], with unbiased variance and covariance; both regularisers are summed over the views."""
    centred = z - z.mean(1, keepdim=True)
    covariances = centred.transpose(1, 2) @ centred / (z.shape[1] - 1)
    variances = covariances.diagonal(dim1=1, dim2=2)
    spread = (1 - (variances + 1e-4).sqrt()).relu().mean(1).sum()
    off_diagonal = (covariances.square().sum() - variances.square().sum()) / z.shape[2]
    return invariance * F.mse_loss(z[0], z[1]) + variance * spread + covariance * off_diagonal


def queued(z: Tensor, keys: Tensor, queues: Tensor, tau: float = 0.2) -> Tensor:
    r"""MoCo: z finds its key among the rows of a queue. z and keys [2, N, d], queues [2, K, d]; mean over all views."""
    positive = (z * keys).sum(-1, keepdim=True)
    logits = torch.cat([positive, z @ queues.transpose(1, 2)], dim=2) / tau
    return (logits.logsumexp(2) - logits[..., 0]).mean()


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float = 0.05, iterations: int = 3) -> Tensor:
    r"""SwAV's targets from scores [..., N, K]: exp(scores / epsilon) with columns, then rows, brought to equal mass.

    The rows of the result sum to 1. Logarithms keep exp from overflowing.
    """
    logarithms = scores / epsilon
    for _ in range(iterations):
        logarithms = logarithms - logarithms.logsumexp(-2, keepdim=True)
        logarithms = logarithms - logarithms.logsumexp(-1, keepdim=True)
    return logarithms.exp()


def assignment(scores: Tensor, targets: Tensor, tau: float = 0.1) -> Tensor:
    r"""Cross-entropy of softmax(scores / tau) with target distributions over clusters, mean over all views."""
    return -(targets * (scores / tau).log_softmax(-1)).sum(-1).mean()


def elastic(parameters: Iterable[Tensor], anchors: Iterable[Tensor], importance: Iterable[Tensor]) -> Tensor:
    r"""(Theta - Theta*)^T F (Theta - Theta*) with diagonal F: the L_past of EWC."""
    terms = [(f * (theta - anchor).square()).sum() for theta, anchor, f in zip(parameters, anchors, importance)]
    return torch.stack(terms).sum()


def _without_itself(anchors: Tensor, rows: Tensor, tau: float) -> Tensor:
    """Logits [n, n] of anchors and rows, both [n, d]; each anchor is masked from the row with its own number."""
    itself = torch.eye(len(anchors), dtype=torch.bool, device=anchors.device)
    return (anchors @ rows.T / tau).masked_fill(itself, float("-inf"))


def _decoupled(logits: Tensor, target: Tensor) -> Tensor:
    """Mean of -logit of the target + logsumexp of the other logits."""
    positive = logits.gather(1, target[:, None])
    negatives = logits.scatter(1, target[:, None], float("-inf"))
    return (negatives.logsumexp(1) - positive[:, 0]).mean()


def _other_view(images: int, device: torch.device) -> Tensor:
    """For each row of a flattened [2, N] batch, the row of the other view of the same image."""
    index = torch.arange(images, device=device)
    return torch.cat([index + images, index])
