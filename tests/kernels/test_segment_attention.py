"""The CPU back end against the reference, which rotates every key and masks in full."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epicrag.kernels import cpu, ops, reference

GROUPS, REPEAT, DIM, ROWS = 2, 3, 16, 400
FIRST_CHANGE = 380  # rows from here on hold changes


def make_rotary(dim: int = DIM, interleaved: bool = False, start: int = 0) -> ops.Rotary:
    inv_freq = 1.0 / (10000 ** (torch.arange(0, dim, 2) / max(dim, 1)))
    return ops.Rotary(inv_freq, dim, interleaved, start)


def pool(dtype: torch.dtype = torch.float64, value_dim: int = DIM) -> tuple[torch.Tensor, ...]:
    return (
        torch.randn(GROUPS, ROWS, DIM, dtype=dtype),
        torch.randn(GROUPS, ROWS, value_dim, dtype=dtype),
    )


def agree(prompts, kind, dtype=torch.float64, tolerance=1e-11, value_dim=DIM):
    """Every request of a flat batch equals the reference alone."""
    keys, values = pool(dtype, value_dim)
    rows, low = [], 0
    for positions, spans in prompts:
        rows.append(ops.Rows(low, low + len(positions), positions, spans))
        low += len(positions)
    queries = torch.randn(low, GROUPS * REPEAT, DIM, dtype=dtype)
    prepared = ops.prepare(rows, kind, torch.promote_types(dtype, torch.float32))
    got = ops.segment_attention(queries, keys, values, prepared, 0.3)
    for r in rows:
        want, sums = reference.segment_attention(
            queries[r.low : r.high].double(),
            r.positions,
            keys.double(),
            values.double(),
            r.spans,
            kind,
            0.3,
        )
        assert (got[r.low : r.high].double() - want).abs().max() < tolerance
        alone = cpu.prepare(r.positions, r.spans, kind, torch.promote_types(dtype, torch.float32))
        _, total = cpu.segment_attention(queries[r.low : r.high], keys, values, alone, 0.3)
        assert (total.double() - sums).abs().max() < tolerance * 10


@st.composite
def prompts(draw: st.DrawFn):
    """Chunks at growing offsets, with the request's own tokens between, inside and behind them."""
    spans, own, place, row = [], [], 0, 0
    for number in range(draw(st.integers(0, 5))):
        fresh = draw(st.integers(0, 3))
        own.extend(range(place, place + fresh))
        place += fresh
        length = draw(st.integers(1, 20))
        first = draw(st.integers(0, length - 1))
        own.extend(range(place, place + first))
        holes = draw(st.sets(st.integers(0, length - first - 1), max_size=4))
        own.extend(place + first + hole for hole in sorted(holes))
        spans.append(
            ops.Span(
                row + first,
                length - first,
                place,
                place + first,
                draw(st.sampled_from([0.0, -4.0])),
                change=draw(st.sampled_from([-1, FIRST_CHANGE + number])),
                holes=torch.tensor(sorted(holes)) if holes else None,
            )
        )
        row += length
        place += length
    own.extend(range(place, place + draw(st.integers(1, 6))))
    positions = torch.tensor(own)
    spans.append(ops.Span(200, len(own), 0, own[0], explicit=positions))
    return positions, spans


kinds = st.builds(
    ops.LayerKind,
    st.builds(
        make_rotary, st.sampled_from([16, 8, 0]), st.booleans(), st.sampled_from([0, 0, 4])
    ).filter(lambda rotary: rotary.start + rotary.dim <= DIM),
    st.sampled_from([None, None, 5, 30]),
    st.sampled_from([None, None, 2.0]),
)


@settings(max_examples=120, deadline=None)
@given(st.lists(prompts(), min_size=1, max_size=3), kinds, st.sampled_from([DIM, 12]))
def test_any_batch_equals_the_reference(batch, kind, value_dim):
    agree(batch, kind, value_dim=value_dim)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
@pytest.mark.parametrize("change", [-1, FIRST_CHANGE])
def test_other_precisions_agree_within_their_own(dtype, tolerance, change):
    positions = torch.tensor([30, 31, 32])
    spans = [
        ops.Span(0, 20, 10, 10, change=change),
        ops.Span(50, 3, 0, 30, explicit=positions),
    ]
    agree([(positions, spans)], ops.LayerKind(make_rotary()), dtype, tolerance)


def test_scattered_queries_inside_a_span_see_only_what_stands_before_them():
    positions = torch.tensor([3, 7, 19, 40])
    spans = [ops.Span(0, 30, 0, 0), ops.Span(60, 4, 0, 3, explicit=positions)]
    agree([(positions, spans)], ops.LayerKind(make_rotary()))


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_many_queries_are_masked_in_blocks(window, softcap):
    positions = torch.arange(330)
    spans = [ops.Span(10, 330, 0, 0, explicit=positions)]
    agree([(positions, spans)], ops.LayerKind(make_rotary(), window, softcap))


def test_rows_outside_the_spans_are_never_read():
    keys, values = pool(torch.float32)
    positions = torch.tensor([8, 9])
    spans = [ops.Span(4, 8, 0, 0), ops.Span(100, 2, 0, 8, explicit=positions)]
    queries = torch.randn(2, GROUPS * REPEAT, DIM)
    rows = [ops.Rows(0, 2, positions, spans)]
    prepared = ops.prepare(rows, ops.LayerKind(make_rotary()), torch.float32)
    clean = ops.segment_attention(queries, keys, values, prepared, 0.3)
    for tensor in (keys, values):
        tensor[:, :4], tensor[:, 12:100], tensor[:, 102:] = torch.nan, torch.nan, torch.nan
    assert torch.equal(ops.segment_attention(queries, keys, values, prepared, 0.3), clean)


def test_a_change_is_not_written_into_the_pool():
    keys, values = pool(torch.float32)
    before = keys.clone(), values.clone()
    positions = torch.tensor([30])
    spans = [ops.Span(0, 20, 10, 10, change=FIRST_CHANGE), ops.Span(50, 1, 0, 30)]
    prepared = ops.prepare(
        [ops.Rows(0, 1, positions, spans)], ops.LayerKind(make_rotary()), torch.float32
    )
    ops.segment_attention(torch.randn(1, GROUPS * REPEAT, DIM), keys, values, prepared, 0.3)
    assert torch.equal(keys, before[0]) and torch.equal(values, before[1])


def one(spans, position: list[int]):
    rows = [ops.Rows(0, len(position), torch.tensor(position), spans)]
    return ops.prepare(rows, ops.LayerKind(make_rotary()), torch.float64)


def test_a_query_that_sees_nothing_is_an_error():
    keys, values = pool()
    prepared = one([ops.Span(0, 5, 10, 10)], [3, 20])
    with pytest.raises(ValueError, match="see no key"):
        ops.segment_attention(torch.randn(2, 6, DIM).double(), keys, values, prepared, 0.3)


def test_shapes_that_do_not_fit_are_an_error():
    keys, values = pool()
    prepared = one([ops.Span(0, 5, 0, 0)], [9])
    with pytest.raises(ValueError, match="do not fit"):
        ops.segment_attention(torch.randn(1, 5, DIM).double(), keys, values, prepared, 0.3)


def test_the_face_says_which_back_end_and_why():
    chosen = ops.choices(torch.device("cpu"))["segment_attention"]
    assert chosen.name in ("compiled", "torch")
    assert "no key copied" in chosen.why


@pytest.mark.parametrize("units", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_bfloat16_is_left_to_the_processors_matrix_units(monkeypatch, units, dtype):
    """Where it has any; and whoever does the work, the result is that of the reference."""
    if ops.native.why_not() is not None:
        pytest.skip(str(ops.native.why_not()))
    monkeypatch.setattr(ops.native, "has_matrix_units", lambda: units)
    asked = []
    tiles = ops.native.attend_many
    monkeypatch.setattr(
        ops.native, "attend_many", lambda *a, **k: asked.append(len(a[0])) or tiles(*a, **k)
    )
    positions = torch.arange(100, 140)
    rows = [ops.Rows(0, 40, positions, [ops.Span(0, 90, 5, 5), ops.Span(90, 40, 0, 100)])]
    kind = ops.LayerKind(make_rotary())
    dim = make_rotary().dim
    queries, keys, values = (
        torch.randn(n, m, dim).to(dtype) for n, m in ((40, 4), (2, 200), (2, 200))
    )
    prepared = ops.prepare(rows, kind, torch.float32, dtype)
    got = ops.segment_attention(queries, keys, values, prepared, 0.3)
    want = reference.segment_attention(
        queries.double(), positions, keys.double(), values.double(), rows[0].spans, kind, 0.3
    )[0]
    assert asked == ([] if units and dtype == torch.bfloat16 else [40])
    assert (got.double() - want).abs().max() < (1e-5 if dtype == torch.float32 else 3e-2)


@pytest.fixture(params=["auto", "triton"])
def back_end(request, monkeypatch):
    """The kernels of the CPU, and Triton's in its interpreter."""
    if request.param == "triton":
        pytest.importorskip("triton")
        if torch.cuda.is_available():
            pytest.skip("Triton's interpreter is for where there is no GPU")
    monkeypatch.setenv("EPICRAG_KERNELS", request.param)


@pytest.mark.usefixtures("back_end")
@pytest.mark.parametrize("n", [2, 6])
def test_a_change_is_turned_to_negative_local_positions_too(n):
    """A chunk that moves to the front of what it was compiled behind."""
    positions = torch.arange(100, 100 + n)
    rows = [ops.Rows(0, n, positions, [ops.Span(0, 50, 200, 20, change=299)])]
    kind = ops.LayerKind(make_rotary())
    dim = make_rotary().dim
    queries, keys, values = (
        torch.randn(n, 2, dim),
        torch.randn(1, 300, dim),
        torch.randn(1, 300, dim),
    )
    got = ops.segment_attention(queries, keys, values, ops.prepare(rows, kind, torch.float32), 0.3)
    want = reference.segment_attention(
        queries.double(), positions, keys.double(), values.double(), rows[0].spans, kind, 0.3
    )[0]
    assert (got - want).abs().max() < 1e-5


@pytest.mark.usefixtures("back_end")
@pytest.mark.parametrize("n", [2, 6])
@pytest.mark.parametrize(
    "span",
    [
        pytest.param(ops.Span(60, 10, 0, 0), id="half of it in 8 bits"),
        pytest.param(ops.Span(70, 10, 0, 0, change=64), id="a change in 8 bits"),
        pytest.param(ops.Span(90, 10, 0, 0), id="behind the pool"),
        pytest.param(ops.Span(-3, 10, 0, 0), id="before the pool"),
        pytest.param(ops.Span(3, 10, 0, 0, explicit=torch.arange(3)), id="few positions"),
    ],
)
def test_no_row_is_read_that_is_not_there(span, n):
    keys, values = torch.randn(1, 64, 16), torch.randn(1, 64, 16)
    rounded = ops.Rounded(
        torch.zeros(1, 32, 16, dtype=torch.int8),
        torch.zeros(1, 32, 16, dtype=torch.int8),
        torch.ones(1, 32),
        torch.ones(1, 32),
    )
    rows = [ops.Rows(0, n, torch.arange(50, 50 + n), [span])]
    kind = ops.LayerKind(ops.Rotary(torch.ones(8), 16))
    with pytest.raises(ValueError, match="rows"):
        ops.segment_attention(
            torch.randn(n, 2, 16),
            keys,
            values,
            ops.prepare(rows, kind, torch.float32),
            0.3,
            rounded,
        )


def test_a_window_has_room_for_the_token_itself():
    with pytest.raises(ValueError, match="window of 0"):
        ops.LayerKind(make_rotary(), window=0)
