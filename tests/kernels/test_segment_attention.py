"""The CPU back end against the reference, which rotates every key and masks in full."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epicrag.kernels import ops, reference

GROUPS, REPEAT, DIM, ROWS = 2, 3, 16, 400


def make_rotary(dim: int = DIM, interleaved: bool = False) -> ops.Rotary:
    return ops.Rotary(1.0 / (10000 ** (torch.arange(0, dim, 2) / dim)), dim, interleaved)


def pool(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.randn(2, GROUPS, ROWS, DIM, dtype=dtype))  # type: ignore[return-value]


def agree(positions, spans, spec, shifts=None, dtype=torch.float64, tolerance=1e-11):
    keys, values = pool(dtype)
    queries = torch.randn(len(positions), GROUPS * REPEAT, DIM, dtype=dtype)
    want, _ = reference.segment_attention(
        queries.double(), positions, keys.double(), values.double(), spans, spec, 0.3, shifts
    )
    prepared = ops.prepare(positions, spans, spec, torch.promote_types(dtype, torch.float32))
    got = ops.segment_attention(
        queries, keys, values, prepared, 0.3, None if shifts is None else shifts.to(dtype)
    )
    assert (got.double() - want).abs().max() < tolerance


@st.composite
def prompts(draw: st.DrawFn):
    """Chunks at growing offsets, with the request's own tokens between, inside and behind them."""
    spans, own, place, row = [], [], 0, 0
    for _ in range(draw(st.integers(0, 5))):
        fresh = draw(st.integers(0, 3))
        own.extend(range(place, place + fresh))
        place += fresh
        length = draw(st.integers(1, 20))
        first = draw(st.integers(0, length - 1))
        own.extend(range(place, place + first))
        bias = draw(st.sampled_from([0.0, -4.0]))
        spans.append(ops.Span(row + first, row + first, length - first, place, place + first, bias))
        row += length
        place += length
    own.extend(range(place, place + draw(st.integers(1, 6))))
    if own[0] > 0 and spans:  # something must be visible to the first query
        own.insert(0, 0) if spans[0].first > 0 else None
    positions = torch.tensor(own)
    spans.append(ops.Span(200, 200, len(own), 0, own[0], explicit=positions))
    return positions, spans


@settings(max_examples=60, deadline=None)
@given(prompts(), st.booleans(), st.sampled_from([16, 8]))
def test_any_prompt_equals_the_reference(prompt, interleaved: bool, dim: int):
    positions, spans = prompt
    agree(positions, spans, make_rotary(dim, interleaved))


@settings(max_examples=20, deadline=None)
@given(prompts())
def test_shifted_values_equal_the_reference(prompt):
    positions, spans = prompt
    shifts = torch.randn(len(spans), GROUPS, DIM, dtype=torch.float64)
    agree(positions, spans, make_rotary(), shifts)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_other_precisions_agree_within_their_own(dtype, tolerance):
    positions = torch.tensor([30, 31, 32])
    spans = [ops.Span(0, 0, 20, 10, 10), ops.Span(50, 50, 3, 0, 30, explicit=positions)]
    agree(positions, spans, make_rotary(), dtype=dtype, tolerance=tolerance)


def test_scattered_queries_inside_a_span_see_only_what_stands_before_them():
    positions = torch.tensor([3, 7, 19, 40])
    spans = [
        ops.Span(0, 0, 30, 0, 0),
        ops.Span(60, 60, 4, 0, 3, explicit=positions),
    ]
    agree(positions, spans, make_rotary())


def test_rows_outside_the_spans_are_never_read():
    keys, values = pool(torch.float32)
    positions = torch.tensor([8, 9])
    spans = [ops.Span(4, 4, 8, 0, 0), ops.Span(100, 100, 2, 0, 8, explicit=positions)]
    spec = make_rotary()
    queries = torch.randn(2, GROUPS * REPEAT, DIM)
    prepared = ops.prepare(positions, spans, spec, torch.float32)
    clean = ops.segment_attention(queries, keys, values, prepared, 0.3)
    for tensor in (keys, values):
        tensor[:, :4], tensor[:, 12:100], tensor[:, 102:] = torch.nan, torch.nan, torch.nan
    assert torch.equal(ops.segment_attention(queries, keys, values, prepared, 0.3), clean)


def test_a_query_that_sees_nothing_is_an_error():
    spans = [ops.Span(0, 0, 5, 10, 10)]
    keys, values = pool()
    prepared = ops.prepare(torch.tensor([3, 20]), spans, make_rotary(), torch.float64)
    with pytest.raises(ValueError, match="see no key"):
        ops.segment_attention(torch.randn(2, 6, DIM).double(), keys, values, prepared, 0.3)


def test_shapes_that_do_not_fit_are_an_error():
    keys, values = pool()
    spans = [ops.Span(0, 0, 5, 0, 0)]
    prepared = ops.prepare(torch.tensor([9]), spans, make_rotary(), torch.float64)
    with pytest.raises(ValueError, match="do not fit"):
        ops.segment_attention(torch.randn(1, 5, DIM).double(), keys, values, prepared, 0.3)


def test_the_face_says_which_back_end_and_why():
    assert ops.choice(torch.device("cpu")).name == "cpu"
    assert "no key copied" in ops.choice(torch.device("cpu")).why
