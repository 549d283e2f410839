"""How much attention each key receives: what policies rank tokens by. Plain torch, span by span."""

from __future__ import annotations

import torch
from torch import Tensor

from epicrag.kernels.reference import rotate, visible
from epicrag.kernels.rounding import Rounded, span_keys
from epicrag.kernels.tables import LayerKind, Rows, Span


def column_sums(
    queries: Tensor,
    keys: Tensor,
    rows: Rows,
    kind: LayerKind,
    scale: float,
    rounded: Rounded | None = None,
) -> list[Tensor]:
    """Sum the attention that the queries of one request pay to each key, for each head and span.

    queries: (T, H, Dk), rotated at their positions, of which `rows` names the ones that count and what they
    see; keys: (G, R, Dk), one layer of the pool, with its rows in 8 bits. Probabilities are over all that a query sees, in every span.
    Returns (H, length) for each span of `rows`; keys that no query sees and holes get 0. The scores of one
    span exist at a time, and are worked out twice: for the sum that they are divided by, and for the result.
    """
    groups, n_heads = keys.shape[0], queries.shape[1]
    wide = torch.promote_types(queries.dtype, torch.float32)
    asking = queries[rows.low : rows.high].to(wide)  # (S, H, D)
    n, _, dim = asking.shape
    folded = asking.reshape(n, groups, n_heads // groups, dim).permute(1, 2, 0, 3)  # (G, r, S, D)
    total = folded.new_full(folded.shape[:3], float("-inf"))
    last = int(rows.positions[-1])
    seen = [span for span in rows.spans if span.length and span.first <= last]
    for span in seen:
        scores = _scores(folded, keys, rounded, span, rows.positions, kind, scale)
        total = torch.logaddexp(total, scores.logsumexp(-1))
    sums = []
    for span in rows.spans:
        if span.length == 0 or span.first > last:
            sums.append(folded.new_zeros(n_heads, span.length))
            continue
        scores = _scores(folded, keys, rounded, span, rows.positions, kind, scale)
        sums.append((scores - total[..., None]).exp().sum(2).flatten(0, 1))
    return sums


def _scores(
    folded: Tensor,
    keys: Tensor,
    rounded: Rounded | None,
    span: Span,
    positions: Tensor,
    kind: LayerKind,
    scale: float,
) -> Tensor:
    """Scores of queries (G, r, S, D) against one span, (G, r, S, length); -inf where nothing is seen."""
    key = span_keys(keys, rounded, span.start, span.length).to(folded.dtype)
    if span.change >= 0:
        local = torch.arange(span.local, span.local + span.length, device=key.device)
        change = keys[:, span.change : span.change + 1].to(folded.dtype).expand_as(key)
        key = key + rotate(change, local, kind.rotary)
    turned = rotate(folded, -span.delta, kind.rotary) if span.delta else folded
    scores: Tensor = turned.flatten(1, 2) @ key.mT * scale
    if kind.softcap:
        scores = kind.softcap * torch.tanh(scores / kind.softcap)
    scores = scores.view(*folded.shape[:3], span.length)
    if span.bias:
        scores = scores + span.bias
    if span.holes is not None:
        scores[..., span.holes] = float("-inf")
    if kind.window is not None or span.last > int(positions[0]):
        seen = visible(positions, span.positions(positions.device), kind.window)
        scores = scores.masked_fill(~seen, float("-inf"))
    return scores
