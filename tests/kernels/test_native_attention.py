"""The compiled attention against the reference in float64, alone and in a batch."""

import threading
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epicrag.kernels import native, ops, reference

pytestmark = pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))

ROWS = 1500
FIRST_OWN, FIRST_CHANGE = 1200, 1480


def make_rotary(dim: int, interleaved: bool = False, start: int = 0) -> ops.Rotary:
    inv_freq = 1.0 / (10000 ** (torch.arange(0, dim, 2) / max(dim, 1)))
    return ops.Rotary(inv_freq, dim, interleaved, start)


def make_pool(groups: int, dim: int, value_dim: int, dtype=torch.float32):
    return (
        torch.randn(groups, ROWS, dim).to(dtype),
        torch.randn(groups, ROWS, value_dim).to(dtype),
    )


def flat(prompts) -> list[ops.Rows]:
    lows = [0]
    for positions, _ in prompts:
        lows.append(lows[-1] + len(positions))
    return [
        ops.Rows(low, high, *prompt)
        for (low, high), prompt in zip(pairwise(lows), prompts, strict=True)
    ]


def expected(queries, rows, keys, values, kind):
    parts = [
        reference.segment_attention(
            queries[r.low : r.high].double(),
            r.positions,
            keys.double(),
            values.double(),
            r.spans,
            kind,
            0.2,
        )[0]
        for r in rows
    ]
    return torch.cat(parts)


@st.composite
def prompts(draw: st.DrawFn):
    """Chunks at growing offsets, with the request's own tokens between, inside and behind them."""
    spans, own, place = [], [], draw(st.sampled_from([0, 0, 700]))
    for number in range(draw(st.integers(0, 5))):
        fresh = draw(st.integers(0, 3))
        own.extend(range(place, place + fresh))
        place += fresh
        length = draw(st.sampled_from([0, 1, 2, 7, 8, 9, 20, 63, 130, 256, 257, 600]))
        skip = draw(st.integers(0, min(length, 3)))
        own.extend(range(place, place + skip))
        left = length - skip
        holes = draw(st.sets(st.integers(0, left - 1), max_size=6)) if left else set()
        own.extend(place + skip + hole for hole in sorted(holes))
        spans.append(
            ops.Span(
                draw(st.integers(0, FIRST_OWN - length)),
                left,
                place - draw(st.sampled_from([0, 40, 40])),
                place + skip,
                draw(st.sampled_from([0.0, -4.0])),
                change=draw(st.sampled_from([-1, FIRST_CHANGE + number])),
                holes=torch.tensor(sorted(holes)) if holes else None,
            )
        )
        place += length
    own.extend(range(place, place + draw(st.integers(1, 6))))
    positions = torch.tensor(own)
    start = draw(st.integers(FIRST_OWN, FIRST_CHANGE - len(own)))
    cut = draw(st.integers(0, len(own) - 1))  # rows of its own in two runs
    for low, high in ((0, cut), (cut, len(own))):
        if low < high:
            part = positions[low:high]
            spans.append(ops.Span(start + low, high - low, 0, int(part[0]), explicit=part))
    return positions, spans


shapes = st.sampled_from(
    # groups, heads of each, Dk, Dv, dim of the rotary
    [
        (2, 3, 64, 64, 64),
        (1, 4, 32, 32, 32),
        (3, 1, 96, 64, 96),
        (1, 2, 128, 128, 64),
        (2, 2, 16, 8, 4),
    ]
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(prompts(), min_size=1, max_size=4),
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
    keys, values = make_pool(groups, dim, value_dim)
    rows = flat(batch)
    queries = torch.randn(rows[-1].high, groups * repeat, dim)
    want = expected(queries, rows, keys, values, kind)
    got = native.attend(queries, keys, values, native.prepare_native(rows, kind), 0.2)
    assert (got.double() - want).abs().max() < 2e-5
    for r, prompt in zip(rows, batch, strict=True):
        alone = native.prepare_native(flat([prompt]), kind)
        part = native.attend(queries[r.low : r.high], keys, values, alone, 0.2)
        assert torch.equal(part, got[r.low : r.high])


def long_prompt(change: int = -1, holes: torch.Tensor | None = None, n: int = 3):
    positions = torch.arange(1100, 1100 + n)
    spans = [
        ops.Span(0, 700, 300, 300, change=change, holes=holes),
        ops.Span(700, 100, -40, 1000),
        ops.Span(FIRST_OWN, n, 0, 1100, explicit=positions),
    ]
    return positions, spans


KIND = ops.LayerKind(make_rotary(64))


@pytest.mark.parametrize("n", [1, 8, 21])
def test_each_query_of_a_request_is_the_same_alone(n):
    keys, values = make_pool(3, 64, 64)
    positions, spans = long_prompt(FIRST_CHANGE, n=n)
    queries = torch.randn(n, 9, 64)
    together = native.attend(
        queries, keys, values, native.prepare_native(flat([(positions, spans)]), KIND), 0.1
    )
    for i in range(n):
        one = native.prepare_native(flat([(positions[i : i + 1], spans)]), KIND)
        assert torch.equal(
            native.attend(queries[i : i + 1], keys, values, one, 0.1), together[i : i + 1]
        )


def test_threads_do_not_change_a_bit():
    keys, values = make_pool(3, 64, 64)
    queries = torch.randn(9, 9, 64)
    table = native.prepare_native(flat([long_prompt(n=9)]), KIND)
    before, results = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(native.attend(queries, keys, values, table, 0.1))
    torch.set_num_threads(before)
    assert torch.equal(*results)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 1e-5), (torch.bfloat16, 1e-5)])
def test_narrow_pools_are_read_as_they_are(dtype, tolerance):
    keys, values = make_pool(2, 64, 32, dtype)
    queries = torch.randn(3, 4, 64)
    rows = flat([long_prompt(FIRST_CHANGE)])
    got = native.attend(queries, keys, values, native.prepare_native(rows, KIND), 0.2)
    assert (got - expected(queries, rows, keys, values, KIND)).abs().max() < tolerance


@pytest.mark.parametrize("window", [None, 200])
def test_rows_that_are_not_visible_are_never_read(window):
    kind = ops.LayerKind(make_rotary(64), window)
    keys, values = make_pool(2, 64, 64)
    holes = torch.tensor([0, 3, 4, 5, 64, 300, 699])
    rows = flat([long_prompt(FIRST_CHANGE, holes, n=5)])
    queries = torch.randn(5, 4, 64)
    table = native.prepare_native(rows, kind)
    clean = native.attend(queries, keys, values, table, 0.2)
    seen = torch.zeros(ROWS, dtype=torch.bool)
    seen[:800] = True
    seen[holes] = False
    if window:
        seen[: 1100 - window - 300 + 1] = (
            False  # the first span stands at 300, the first query at 1100
        )
    seen[FIRST_OWN : FIRST_OWN + 5], seen[FIRST_CHANGE] = True, True
    for tensor in (keys, values):
        tensor[:, ~seen] = torch.nan
    assert torch.equal(native.attend(queries, keys, values, table, 0.2), clean)


def test_large_scores_do_not_overflow():
    keys, values = make_pool(2, 64, 64)
    queries = torch.randn(3, 4, 64) * 300
    rows = flat([long_prompt()])
    got = native.attend(queries, keys, values, native.prepare_native(rows, KIND), 0.2)
    assert (got - expected(queries, rows, keys, values, KIND)).abs().max() < 1e-3


def test_strided_queries_and_a_given_output():
    keys, values = make_pool(2, 64, 64)
    queries = torch.randn(4, 3, 64).transpose(0, 1)
    table = native.prepare_native(flat([long_prompt()]), KIND)
    out = torch.empty(3, 4, 64)
    assert native.attend(queries, keys, values, table, 0.2, out) is out
    assert torch.equal(out, native.attend(queries.contiguous(), keys, values, table, 0.2))


def test_a_query_that_sees_nothing_is_an_error():
    hidden = torch.arange(5)
    for spans in ([ops.Span(0, 5, 10, 10)], [ops.Span(0, 5, 0, 0, holes=hidden)], []):
        with pytest.raises(ValueError, match="query 0 sees no key"):
            native.prepare_native(flat([(torch.tensor([7, 20]), spans)]), KIND)


def test_what_does_not_fit_is_an_error():
    keys, values = make_pool(2, 64, 64)
    table = native.prepare_native(flat([long_prompt()]), KIND)
    for queries in (torch.randn(3, 3, 64), torch.randn(2, 4, 64), torch.randn(3, 4, 64).double()):
        with pytest.raises(ValueError, match="do not fit"):
            native.attend(queries, keys, values, table, 0.2)
    with pytest.raises(ValueError, match="over 1203 rows"):
        native.attend(torch.randn(3, 4, 64), keys[:, :1202], values[:, :1202], table, 0.2)
    rows = [ops.Rows(1, 2, torch.tensor([3]), [ops.Span(0, 2, 0, 0)])]
    with pytest.raises(ValueError, match="begins at row 1"):
        native.prepare_native(rows, KIND)


def test_two_threads_may_attend_at_once():
    keys, values = make_pool(3, 64, 64)
    queries = [torch.randn(3, 9, 64) for _ in range(4)]
    table = native.prepare_native(flat([long_prompt()]), KIND)
    want = [native.attend(q, keys, values, table, 0.2) for q in queries]
    wrong = []

    def work(index: int) -> None:
        for _ in range(50):
            if not torch.equal(
                native.attend(queries[index], keys, values, table, 0.2), want[index]
            ):
                wrong.append(index)

    workers = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
