"""The compiled attention of many queries against the reference in float64, alone and in a batch."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epicrag.kernels import native, ops, reference
from epicrag.kernels.rounding import round_rows, widen_rows

pytestmark = pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))

ROWS = 1500
FIRST_OWN, FIRST_CHANGE = 1000, 1480


def make_rotary(dim: int, interleaved: bool = False, start: int = 0) -> ops.Rotary:
    inv_freq = 1.0 / (10000 ** (torch.arange(0, dim, 2) / max(dim, 1)))
    return ops.Rotary(inv_freq, dim, interleaved, start)


KIND = ops.LayerKind(make_rotary(64))


def flat(prompts) -> list[ops.Rows]:
    lows = [0]
    for positions, _ in prompts:
        lows.append(lows[-1] + len(positions))
    return [
        ops.Rows(low, high, *prompt)
        for (low, high), prompt in zip(pairwise(lows), prompts, strict=True)
    ]


def attend(queries, keys, values, rows, kind=KIND, scale=0.2, rounded=None):
    """Into poisoned memory, with a guard behind it."""
    n, heads, value_dim = len(queries), queries.shape[1], values.shape[2]
    guarded = torch.full((n + 1, heads, value_dim), torch.nan)
    guarded[n] = 7.0
    table = native.prepare_native(rows, kind)
    got = native.attend_many(queries, keys, values, table, scale, out=guarded[:n], rounded=rounded)
    assert (guarded[n] == 7.0).all() and got.isfinite().all()
    return got


def expected(queries, rows, keys, values, kind=KIND, scale=0.2):
    wide = keys.double(), values.double()
    parts = [
        reference.segment_attention(
            queries[r.low : r.high].double(), r.positions, *wide, r.spans, kind, scale
        )[0]
        for r in rows
    ]
    return torch.cat(parts)


@st.composite
def prompts(draw: st.DrawFn):
    """Chunks at growing offsets with tokens between and scattered inside, then a question; own rows in two runs."""
    spans, own, place = [], [], draw(st.sampled_from([0, 0, 700]))
    for number in range(draw(st.integers(0, 4))):
        fresh = draw(st.integers(0, 3))
        own.extend(range(place, place + fresh))
        place += fresh
        length = draw(st.sampled_from([1, 7, 8, 15, 16, 17, 63, 256, 257, 500]))
        skip = draw(st.integers(0, min(length - 1, 9)))
        own.extend(range(place, place + skip))
        left = length - skip
        every = draw(st.sampled_from([0, 0, 1, 2, 31]))
        holes = list(range(draw(st.integers(0, left - 1)), left, every))[:40] if every else []
        own.extend(place + skip + hole for hole in holes)
        spans.append(
            ops.Span(
                draw(st.integers(0, FIRST_OWN - length)),
                left,
                place - draw(st.sampled_from([0, 40, 40])),
                place + skip,
                draw(st.sampled_from([0.0, -4.0])),
                change=draw(st.sampled_from([-1, FIRST_CHANGE + number])),
                holes=torch.tensor(holes) if holes else None,
            )
        )
        place += length
    own.extend(range(place, place + draw(st.sampled_from([1, 5, 6, 7, 40]))))
    positions = torch.tensor(own)
    start = draw(st.integers(FIRST_OWN, FIRST_CHANGE - len(own)))
    cut = draw(st.integers(0, len(own) - 1))
    for low, high in ((0, cut), (cut, len(own))):
        if low < high:
            part = positions[low:high]
            spans.append(ops.Span(start + low, high - low, 0, int(part[0]), explicit=part))
    return positions, spans


shapes = st.sampled_from(
    # groups, heads of each, Dk, Dv, dim of the rotary; the last one takes few queries at a time
    [
        (2, 3, 64, 64, 64),
        (1, 4, 32, 40, 32),
        (3, 1, 96, 64, 96),
        (2, 2, 16, 8, 4),
        (1, 20, 128, 16, 64),
    ]
)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(prompts(), min_size=1, max_size=3),
    shapes,
    st.booleans(),
    st.sampled_from(["all", "part", "none"]),
    st.sampled_from([None, None, 5, 300]),
    st.sampled_from([None, None, 2.0, 50.0]),
)
def test_any_batch_equals_the_reference(batch, shape, interleaved, turned, window, softcap):
    groups, repeat, dim, value_dim, rotary_dim = shape
    rotary = make_rotary(rotary_dim, interleaved)
    if turned == "part":
        rotary = make_rotary(dim // 2, interleaved, dim // 4)
    if turned == "none":
        rotary = make_rotary(0)
    kind = ops.LayerKind(rotary, window, softcap)
    keys, values = torch.randn(groups, ROWS, dim), torch.randn(groups, ROWS, value_dim)
    rows = flat(batch)
    queries = torch.randn(rows[-1].high, groups * repeat, dim)
    got = attend(queries, keys, values, rows, kind)
    assert (got - expected(queries, rows, keys, values, kind)).abs().max() < 2e-5
    last = rows[-1]
    alone = attend(queries[last.low :], keys, values, flat(batch[-1:]), kind)
    assert torch.equal(alone, got[last.low :])


def long_prompt(change: int = -1, holes: torch.Tensor | None = None, n: int = 40):
    positions = torch.arange(1100, 1100 + n)
    spans = [
        ops.Span(0, 700, 300, 300, change=change, holes=holes),
        ops.Span(700, 100, -40, 1000),
        ops.Span(FIRST_OWN, n, 0, 1100, explicit=positions),
    ]
    return positions, spans


@pytest.mark.parametrize("change", [-1, FIRST_CHANGE])
def test_threads_and_other_queries_do_not_change_a_bit(change):
    keys, values = torch.randn(3, ROWS, 64), torch.randn(3, ROWS, 64)
    positions, spans = long_prompt(change, n=400)
    queries = torch.randn(400, 9, 64)
    before, results = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(attend(queries, keys, values, flat([(positions, spans)])))
    torch.set_num_threads(before)
    assert torch.equal(*results)
    for some in (slice(0, 1), slice(7, 31), slice(399, 400)):
        part = attend(queries[some], keys, values, flat([(positions[some], spans)]))
        assert torch.equal(part, results[0][some])


@pytest.mark.parametrize("window", [None, 5, 100])
def test_a_whole_prompt_is_seen_up_to_each_token(window):
    kind = ops.LayerKind(make_rotary(64), window)
    keys, values = torch.randn(1, ROWS, 64), torch.randn(1, ROWS, 64)
    positions = torch.arange(1400)
    rows = flat([(positions, [ops.Span(3, 1400, 0, 0, explicit=positions)])])
    queries = torch.randn(1400, 3, 64)
    got = attend(queries, keys, values, rows, kind)
    assert (got - expected(queries, rows, keys, values, kind)).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_pools_are_read_as_they_are(dtype):
    keys, values = torch.randn(2, ROWS, 64).to(dtype), torch.randn(2, ROWS, 32).to(dtype)
    queries = torch.randn(40, 4, 64)
    rows = flat([long_prompt(FIRST_CHANGE)])
    got = attend(queries, keys, values, rows)
    assert (got - expected(queries, rows, keys, values)).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("holes", [None, torch.arange(0, 290, 3)])
@pytest.mark.parametrize("spoilt", [None, "key_scales", "value_scales", "keys", "values"])
def test_every_scale_and_number_of_rows_in_8_bits_is_read(dtype, holes, spoilt):
    keys, values = torch.randn(2, 400, 16).to(dtype), torch.randn(2, 400, 24).to(dtype)
    whole_keys, key_scales = round_rows(torch.randn(2, 900, 16))
    whole_values, value_scales = round_rows(torch.randn(2, 900, 24))
    rounded = ops.Rounded(whole_keys, whole_values, key_scales.float(), value_scales.float())
    plain = (
        torch.cat((keys.double(), widen_rows(whole_keys, key_scales, torch.float64)), 1),
        torch.cat((values.double(), widen_rows(whole_values, value_scales, torch.float64)), 1),
    )
    positions = torch.arange(320, 345)
    spans = [
        ops.Span(400 + 600, 300, 20, 0, change=399, holes=holes),
        ops.Span(10, 20, 300, 300),
        ops.Span(40, 25, 0, 320),
    ]
    kind = ops.LayerKind(make_rotary(16))
    rows, queries = flat([(positions, spans)]), torch.randn(25, 6, 16)
    want = expected(queries, rows, *plain, kind)
    if spoilt:
        getattr(rounded, spoilt)[1, 899] += 100
    got = attend(queries, keys, values, rows, kind, rounded=rounded)
    assert bool((got - want).abs().max() < 1e-5) == (spoilt is None)


@pytest.mark.parametrize("window", [None, 200])
def test_rows_that_nobody_sees_are_never_read(window):
    kind = ops.LayerKind(make_rotary(64), window)
    keys, values = torch.randn(2, ROWS, 64), torch.randn(2, ROWS, 64)
    holes = torch.tensor([0, 3, 4, 5, 64, 255, 256, 300, 699])
    rows = flat([long_prompt(FIRST_CHANGE, holes, n=30)])
    queries = torch.randn(30, 4, 64)
    clean = attend(queries, keys, values, rows, kind)
    seen = torch.zeros(ROWS, dtype=torch.bool)
    seen[:800] = True
    seen[holes] = False
    if window:
        seen[: 1100 - window - 300 + 1] = False
    seen[FIRST_OWN : FIRST_OWN + 30], seen[FIRST_CHANGE] = True, True
    for tensor in (keys, values):
        tensor[:, ~seen] = torch.nan
    assert torch.equal(attend(queries, keys, values, rows, kind), clean)


def test_large_scores_do_not_overflow():
    keys, values = torch.randn(2, ROWS, 64), torch.randn(2, ROWS, 64)
    queries = torch.randn(40, 4, 64) * 300
    rows = flat([long_prompt()])
    got = attend(queries, keys, values, rows)
    assert (got - expected(queries, rows, keys, values)).abs().max() < 1e-3


def test_strided_queries_are_read_where_they_lie():
    keys, values = torch.randn(2, ROWS, 64), torch.randn(2, ROWS, 64)
    queries = torch.randn(4, 40, 64).transpose(0, 1)
    rows = flat([long_prompt()])
    assert torch.equal(
        attend(queries, keys, values, rows), attend(queries.contiguous(), keys, values, rows)
    )


def test_what_does_not_fit_is_an_error():
    keys, values = torch.randn(2, ROWS, 64), torch.randn(2, ROWS, 64)
    table = native.prepare_native(flat([long_prompt()]), KIND)
    for queries in (
        torch.randn(40, 3, 64),
        torch.randn(39, 4, 64),
        torch.randn(40, 4, 64).double(),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            native.attend_many(queries, keys, values, table, 0.2)


def test_few_and_many_share_a_batch_and_each_gets_the_bits_it_gets_alone():
    keys, values = torch.randn(2, ROWS, 64), torch.randn(2, ROWS, 64)
    batch = [long_prompt(n=2), long_prompt(n=9), long_prompt(n=17), long_prompt(n=40)]
    rows = flat(batch)
    queries = torch.randn(rows[-1].high, 4, 64)
    got = ops.segment_attention(queries, keys, values, ops.prepare(rows, KIND, torch.float32), 0.2)
    assert (got - expected(queries, rows, keys, values)).abs().max() < 1e-5
    for row, prompt in zip(rows, batch, strict=True):
        alone = ops.prepare(flat([prompt]), KIND, torch.float32)
        part = ops.segment_attention(queries[row.low : row.high], keys, values, alone, 0.2)
        assert torch.equal(part, got[row.low : row.high])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_between_windows_that_are_far_apart_nothing_is_read(dtype):
    kind = ops.LayerKind(make_rotary(64), 5)
    keys, values = torch.randn(1, ROWS, 64).to(dtype), torch.randn(1, ROWS, 64).to(dtype)
    for start in (21, 0, 6, 261):
        keys[:, start : start + 10] = torch.nan
        values[:, start : start + 10] = torch.nan
    positions = torch.tensor([20, 110, 112, 260, 300, 700])
    rows = flat([(positions, [ops.Span(0, 800, 0, 0)])])
    queries = torch.randn(6, 2, 64)
    got = attend(queries, keys, values, rows, kind)
    clean = (keys.nan_to_num(), values.nan_to_num())
    assert (got - expected(queries, rows, *clean, kind)).abs().max() < 1e-5
