"""Attention by column, span by span, against one softmax over the whole prompt in float64."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from epicrag.kernels import ops, reference
from epicrag.kernels.select import column_sums

GROUPS, REPEAT, DIM, ROWS = 2, 3, 16, 200


def kind(window: int | None = None, softcap: float | None = None) -> ops.LayerKind:
    return ops.LayerKind(
        ops.Rotary(1.0 / (10000 ** (torch.arange(0, DIM, 2) / DIM)), DIM), window, softcap
    )


def explicit(queries, keys, rows, style, scale):
    """(H, N): every key rotated to its place, one softmax, summed over the queries."""
    all_keys, hidden, places = [], [], []
    for span in rows.spans:
        key = keys[:, span.start : span.start + span.length]
        if span.change >= 0:
            local = torch.arange(span.local, span.local + span.length)
            key = key + reference.rotate(
                keys[:, span.change, None].expand_as(key), local, style.rotary
            )
        all_keys.append(reference.rotate(key, span.delta, style.rotary))
        bias = torch.full((span.length,), span.bias, dtype=torch.float64)
        if span.holes is not None:
            bias[span.holes] = float("-inf")
        hidden.append(bias)
        places.append(span.positions(keys.device))
    key = torch.cat(all_keys, 1).repeat_interleave(REPEAT, 0)
    scores = torch.einsum("shd,hnd->hsn", queries[rows.low : rows.high], key) * scale
    if style.softcap:
        scores = style.softcap * torch.tanh(scores / style.softcap)
    scores = scores + torch.cat(hidden)
    place, at = torch.cat(places)[None, :], rows.positions[:, None]
    seen = place <= at
    if style.window is not None:
        seen &= place > at - style.window
    return scores.masked_fill(~seen, float("-inf")).softmax(-1).sum(1)


@st.composite
def prompts(draw: st.DrawFn) -> ops.Rows:
    """Chunks with holes and changes, then the request's own tokens, of which the last ones ask."""
    spans, own, place, row = [], [], 0, 0
    for _ in range(draw(st.integers(0, 4))):
        length = draw(st.integers(1, 20))
        holes = sorted(draw(st.sets(st.integers(0, length - 1), max_size=4)))
        own.extend(place + hole for hole in holes)
        spans.append(
            ops.Span(
                row,
                length,
                place,
                place,
                draw(st.sampled_from([0.0, -4.0])),
                change=draw(st.sampled_from([-1, 199])),
                holes=torch.tensor(holes) if holes else None,
            )
        )
        row += length
        place += length + draw(st.integers(0, 2))
    own.extend(range(place, place + draw(st.integers(1, 6))))
    positions = torch.tensor(own)
    spans.append(ops.Span(100, len(own), 0, own[0], explicit=positions))
    low = draw(st.integers(0, len(own) - 1))
    high = draw(st.integers(low + 1, len(own)))
    return ops.Rows(low, high, positions[low:high], spans)


@given(prompts(), st.sampled_from([None, 7, 1000]), st.sampled_from([None, 5.0]))
def test_any_prompt_equals_one_explicit_softmax(rows, window, softcap):
    queries = torch.randn(rows.high, GROUPS * REPEAT, DIM, dtype=torch.float64)
    keys = torch.randn(GROUPS, ROWS, DIM, dtype=torch.float64)
    style = kind(window, softcap)
    got = column_sums(queries, keys, rows, style, 0.3)
    assert [part.shape for part in got] == [(GROUPS * REPEAT, s.length) for s in rows.spans]
    assert (torch.cat(got, 1) - explicit(queries, keys, rows, style, 0.3)).abs().max() < 1e-11
    assert torch.cat(got, 1).sum(1).allclose(torch.tensor(rows.high - rows.low).double())


def test_sixteen_bits_are_summed_in_float32():
    spans = [ops.Span(0, 50, 10, 10), ops.Span(60, 4, 0, 100)]
    rows = ops.Rows(0, 4, torch.arange(100, 104), spans)
    queries = torch.randn(4, GROUPS * REPEAT, DIM).bfloat16()
    keys = torch.randn(GROUPS, ROWS, DIM).bfloat16()
    got = torch.cat(column_sums(queries, keys, rows, kind(), 0.3), 1)
    assert got.dtype == torch.float32
    want = explicit(queries.double(), keys.double(), rows, kind(), 0.3)
    assert (got - want).abs().max() < 1e-2


def test_keys_behind_every_query_get_nothing():
    spans = [ops.Span(0, 5, 0, 0), ops.Span(5, 5, 50, 50)]
    rows = ops.Rows(0, 1, torch.tensor([4]), spans)
    queries, keys = torch.randn(1, GROUPS * REPEAT, DIM), torch.randn(GROUPS, ROWS, DIM)
    before, behind = column_sums(queries, keys, rows, kind(), 1.0)
    assert not behind.any()
    assert before.sum(1).allclose(torch.ones(GROUPS * REPEAT))


@pytest.mark.parametrize("bias", [0.0, -3.0])
def test_an_offset_moves_no_attention_when_all_move_with_it(bias):
    """Relocation is relative: shifting every position alike changes no sum."""
    spans = [ops.Span(0, 5, 0, 0, bias), ops.Span(5, 5, 5, 5)]
    keys, query = torch.randn(GROUPS, ROWS, DIM), torch.randn(1, GROUPS * REPEAT, DIM)
    rotary = kind().rotary
    here = column_sums(
        reference.rotate(query, 9, rotary),
        keys,
        ops.Rows(0, 1, torch.tensor([9]), spans),
        kind(),
        1.0,
    )
    moved = [replace(s, delta=s.delta + 100, first=s.first + 100) for s in spans]
    there = column_sums(
        reference.rotate(query, 109, rotary),
        keys,
        ops.Rows(0, 1, torch.tensor([109]), moved),
        kind(),
        1.0,
    )
    assert torch.cat(here, 1).allclose(torch.cat(there, 1), atol=1e-4)
