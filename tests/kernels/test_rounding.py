"""Rows in 8 bits: how far rounding moves a number, and attention over them against the widened numbers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epicrag.kernels import native, ops, reference
from epicrag.kernels.rounding import round_rows, widen_rows
from epicrag.kernels.select import column_sums

ROWS, MANY = 300, 1200
KIND = ops.LayerKind(ops.Rotary(1.0 / (10000 ** (torch.arange(0, 16, 2) / 16)), 16))


@pytest.mark.parametrize("scale", [1e-7, 1e-3, 1.0, 100.0, 30000.0])
def test_no_number_moves_by_more_than_half_a_step(scale):
    x = torch.randn(3, 50, 64) * scale
    whole, scales = round_rows(x)
    assert whole.dtype == torch.int8 and scales.dtype == torch.float16
    error = (widen_rows(whole, scales, torch.float32) - x).abs()
    assert (error <= scales.float()[..., None] * 0.5001 + 2.0**-25).all()
    # The step is as small as the largest number of the row allows, but for the rounding of the scale itself.
    least = x.abs().amax(-1) / 127
    assert (scales.float() <= least * 1.002 + 2.0**-24).all()


def test_the_largest_number_of_a_row_is_never_cut_off():
    x = torch.randn(2000, 8) * torch.logspace(-6, 4, 2000)[:, None]
    whole, scales = round_rows(x)
    assert whole.abs().max() <= 127 and whole.min() >= -127
    top = widen_rows(whole, scales, torch.float32).abs().amax(-1)
    assert ((top - x.abs().amax(-1)).abs() <= scales.float() * 0.5001 + 2.0**-25).all()


def test_rows_of_zeros_stay_zeros():
    whole, scales = round_rows(torch.zeros(2, 3, 8))
    assert not widen_rows(whole, scales, torch.float32).any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e9])
def test_what_8_bits_cannot_hold_is_refused(bad):
    x = torch.zeros(1, 2, 8)
    x[0, 1, 3] = bad
    with pytest.raises(ValueError, match="8 bits"):
        round_rows(x)


def layer(dtype, groups=2, dim=16, value_dim=16):
    """A layer with both kinds of rows, and the same in float64, every number written out behind the plain rows."""
    keys, values = torch.randn(groups, ROWS, dim).to(dtype), torch.randn(groups, ROWS, value_dim)
    values = values.to(dtype)
    whole_keys, key_scales = round_rows(torch.randn(groups, MANY, dim) * 2)
    whole_values, value_scales = round_rows(torch.randn(groups, MANY, value_dim))
    rounded = ops.Rounded(whole_keys, whole_values, key_scales.float(), value_scales.float())
    plain = (
        torch.cat((keys.double(), widen_rows(whole_keys, key_scales, torch.float64)), 1),
        torch.cat((values.double(), widen_rows(whole_values, value_scales, torch.float64)), 1),
    )
    return keys, values, rounded, plain


@st.composite
def prompts(draw: st.DrawFn):
    """Chunks of both kinds at growing offsets, then the request's own tokens."""
    spans, place = [], draw(st.sampled_from([0, 40]))
    for number in range(draw(st.integers(1, 4))):
        length = draw(st.sampled_from([1, 7, 8, 20, 63, 130, 256, 257]))
        holes = draw(st.sets(st.integers(0, length - 1), max_size=5))
        holes = holes if len(holes) < length else set()
        first = draw(st.sampled_from([0, ROWS]))
        last = (250 if not first else ROWS + MANY) - length
        if first > last:
            first, last = ROWS, ROWS + MANY - length
        spans.append(
            ops.Span(
                draw(st.integers(first, last)),
                length,
                place - draw(st.sampled_from([0, 20])),
                place,
                draw(st.sampled_from([0.0, -4.0])),
                change=draw(st.sampled_from([-1, 290 + number])),
                holes=torch.tensor(sorted(holes)) if holes else None,
            )
        )
        place += length
    n = draw(st.sampled_from([1, 2, 9, 20, 33]))
    positions = torch.arange(place, place + n)
    spans.append(ops.Span(250, n, 0, place))
    return positions, spans


@settings(max_examples=60, deadline=None)
@given(
    prompts(),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from([None, 50]),
    st.sampled_from([None, 5.0]),
    st.sampled_from([8, 16, 24]),
)
def test_attention_over_rounded_rows_is_attention_over_what_they_stand_for(
    prompt, dtype, window, softcap, value_dim
):
    positions, spans = prompt
    kind = ops.LayerKind(KIND.rotary, window, softcap)
    keys, values, rounded, plain = layer(dtype, value_dim=value_dim)
    queries = torch.randn(len(positions), 6, 16, dtype=dtype)
    rows = ops.Rows(0, len(positions), positions, spans)
    prepared = ops.prepare([rows], kind, dtype)
    got = ops.segment_attention(queries, keys, values, prepared, 0.3, rounded)
    want = reference.segment_attention(queries.double(), positions, *plain, spans, kind, 0.3)[0]
    # As over plain rows of the type: scales are applied to sums of products, in float32 in the compiled kernel.
    assert (got.double() - want).abs().max() < (2e-5 if dtype == torch.float32 else 1e-10)
    by_hand = reference.segment_attention(
        queries, positions, keys, values, spans, kind, 0.3, rounded
    )[0]
    assert (by_hand.double() - want).abs().max() < 1e-4


@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("spoilt", [None, "key_scales", "value_scales", "keys", "values"])
def test_the_compiled_kernel_reads_every_scale_and_number(dtype, spoilt):
    keys, values, rounded, plain = layer(dtype)
    spans = [ops.Span(ROWS + 600, 300, 0, 0), ops.Span(10, 20, 300, 300), ops.Span(40, 2, 0, 320)]
    positions = torch.tensor([320, 321])
    queries = torch.randn(2, 6, 16)
    table = native.prepare_native([ops.Rows(0, 2, positions, spans)], KIND)
    want = reference.segment_attention(queries.double(), positions, *plain, spans, KIND, 0.3)[0]
    if spoilt:
        getattr(rounded, spoilt)[1, 899] += 100
    got = native.attend(queries, keys, values, table, 0.3, rounded=rounded)
    assert bool((got - want).abs().max() < 1e-5) == (spoilt is None)


@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
def test_a_request_over_rounded_rows_gives_the_same_bits_alone_and_in_a_batch():
    keys, values, rounded, _ = layer(torch.float32)
    spans = [[ops.Span(ROWS + 100 * n, 90 + n, 5, 5), ops.Span(n, 1, 0, 200)] for n in range(4)]
    queries = torch.randn(4, 6, 16)
    where = torch.tensor([200])
    together = native.prepare_native([ops.Rows(n, n + 1, where, spans[n]) for n in range(4)], KIND)
    got = native.attend(queries, keys, values, together, 0.3, rounded=rounded)
    for n in range(4):
        alone = native.prepare_native([ops.Rows(0, 1, where, spans[n])], KIND)
        one = native.attend(queries[n : n + 1], keys, values, alone, 0.3, rounded=rounded)
        assert torch.equal(one, got[n : n + 1])


@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
def test_rows_that_are_not_there_are_refused():
    keys, values, rounded, _ = layer(torch.float32)
    where = torch.tensor([10])
    inside = native.prepare_native(
        [ops.Rows(0, 1, where, [ops.Span(ROWS + MANY - 5, 5, 0, 0)])], KIND
    )
    behind = native.prepare_native(
        [ops.Rows(0, 1, where, [ops.Span(ROWS + MANY - 4, 5, 0, 0)])], KIND
    )
    queries = torch.randn(1, 6, 16)
    native.attend(queries, keys, values, inside, 0.3, rounded=rounded)
    with pytest.raises(ValueError, match="do not fit"):
        native.attend(queries, keys, values, inside, 0.3)
    with pytest.raises(ValueError, match="do not fit"):
        native.attend(queries, keys, values, behind, 0.3, rounded=rounded)
    with pytest.raises(ValueError, match="do not fit"):
        spoilt = rounded._replace(key_scales=rounded.key_scales.half())
        native.attend(queries, keys, values, inside, 0.3, rounded=spoilt)


def test_how_much_attention_rounded_keys_receive():
    keys, _, rounded, (plain, _) = layer(torch.float64)
    spans = [ops.Span(ROWS + 3, 40, 2, 2), ops.Span(7, 12, 42, 42), ops.Span(100, 3, 0, 54)]
    rows = ops.Rows(0, 3, torch.arange(54, 57), spans)
    queries = torch.randn(3, 6, 16, dtype=torch.float64)
    got = column_sums(queries, keys, rows, KIND, 0.3, rounded)
    want = column_sums(queries, plain, rows, KIND, 0.3)
    for mine, theirs in zip(got, want, strict=True):
        assert torch.allclose(mine, theirs)
