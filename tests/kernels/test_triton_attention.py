"""Segment attention in Triton against the reference in float64: in the interpreter, or on a GPU where there is one."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epicrag.kernels import ops, reference
from epicrag.kernels.rounding import Rounded, round_rows

pytest.importorskip("triton", reason="Triton is not installed")
from epicrag.kernels import triton_attention
from epicrag.kernels.triton_table import LEAST_ROWS, prepare_table, tile

SCALE = 0.3
ROWS, ROUNDED_ROWS = 900, 300


@dataclass(frozen=True)
class Shape:
    """Heads as a family of models has them."""

    groups: int = 2
    repeat: int = 3
    dim: int = 16
    value_dim: int = 16
    rotary_dim: int = 16
    start: int = 0
    interleaved: bool = False
    latent: bool = False
    """The values are the keys' first entries."""

    def kind(self, window=None, softcap=None) -> ops.LayerKind:
        n = self.rotary_dim
        inv_freq = 1.0 / (10000 ** (torch.arange(0, n, 2) / max(n, 1)))
        return ops.LayerKind(ops.Rotary(inv_freq, n, self.interleaved, self.start), window, softcap)


MANY = "more heads than one program has"
SHAPES = {
    "half-split": Shape(),
    "interleaved": Shape(interleaved=True),
    "partial": Shape(dim=40, value_dim=24, rotary_dim=10, repeat=1),
    "no rotary": Shape(rotary_dim=0, repeat=7),
    "many heads of one group": Shape(groups=1, repeat=20),
    MANY: Shape(groups=1, repeat=71),
    "rotary behind": Shape(groups=3, dim=24, value_dim=16, rotary_dim=8, start=16, repeat=1),
    "latent": Shape(
        1, 16, dim=40, value_dim=32, rotary_dim=8, start=32, interleaved=True, latent=True
    ),
}


class Case:
    """A pool with random rows, its other rows and what else is never to be read poisoned, and requests over it."""

    def __init__(self, shape: Shape, device, dtype=torch.float32, seed=0):
        torch.manual_seed(seed)
        self.shape, self.device, self.dtype = shape, device, dtype
        self.keys = torch.full((shape.groups, ROWS, shape.dim), torch.nan)
        self.values = torch.full((shape.groups, ROWS, shape.value_dim), torch.nan)
        self.rounded_keys = torch.randn(shape.groups, ROUNDED_ROWS, shape.dim)
        self.rounded_values = torch.randn(shape.groups, ROUNDED_ROWS, shape.value_dim)
        self.next = 0
        self.requests: list[tuple[torch.Tensor, list[ops.Span]]] = []

    def rows(self, n: int) -> int:
        """Fill `n` rows, one row behind those filled before; returns the first."""
        at = self.next
        assert at + n < ROWS
        self.keys[:, at : at + n] = torch.randn(self.shape.groups, n, self.shape.dim)
        self.values[:, at : at + n] = torch.randn(self.shape.groups, n, self.shape.value_dim)
        self.next = at + n + 1
        return at

    def own(self, positions: list[int]) -> ops.Span:
        """The request's own tokens."""
        where = torch.tensor(positions)
        return ops.Span(self.rows(len(positions)), len(positions), 0, positions[0], explicit=where)

    def check(self, kind, tolerance, rounded=False, programs=None, least_rows=LEAST_ROWS):
        device, dtype, shape = self.device, self.dtype, self.shape
        keys, values = self.keys.to(device, dtype), self.values.to(device, dtype)
        if shape.latent:
            values = keys[..., : shape.value_dim]
        eight = None
        if rounded:
            parts = [round_rows(x) for x in (self.rounded_keys, self.rounded_values)]
            eight = Rounded(
                *(whole.to(device) for whole, _ in parts),
                *(scales.float().to(device) for _, scales in parts),
            )
        rows, low = [], 0
        for positions, spans in self.requests:
            rows.append(ops.Rows(low, low + len(positions), positions.to(device), spans))
            low += len(positions)
        queries = torch.randn(low, shape.groups * shape.repeat, shape.dim).to(device, dtype)
        table = prepare_table(
            rows,
            kind,
            heads=queries.shape[1],
            groups=shape.groups,
            dim=shape.dim,
            value_dim=shape.value_dim,
            itemsize=dtype.itemsize,
            n_own=ROWS,
            device=device,
            programs=programs,
            least_rows=least_rows,
        )
        out, sums = triton_attention.attend(queries, keys, values, table, kind, SCALE, eight)
        only, again = triton_attention.attend(queries, keys, None, table, kind, SCALE, eight)
        assert only.shape[2] == 0 and (again - sums).abs().nan_to_num(0.0).max() < tolerance
        assert out.dtype == dtype and not out.isnan().any() and not sums.isnan().any()
        wide = (
            None
            if eight is None
            else Rounded(*(x.cpu() if x.dtype == torch.int8 else x.double().cpu() for x in eight))
        )
        for r in rows:
            want, total = reference.segment_attention(
                queries[r.low : r.high].cpu().double(),
                r.positions.cpu(),
                keys.cpu().double(),
                values.cpu().double(),
                r.spans,
                kind,
                SCALE,
                wide,
            )
            assert (out[r.low : r.high].cpu().double() - want).abs().max() < tolerance
            assert (sums[r.low : r.high].cpu().double() - total).abs().max() < tolerance * 3
        return table


def fill(case: Case, draw, page: int, rounded: bool, changes: bool) -> None:
    """A request over chunks whose pages lie anywhere, with its own tokens before, inside and behind them."""
    spans, own, place = [], [], draw(st.sampled_from([0, 0, 300]))
    for _ in range(draw(st.integers(0, 2))):
        own += range(place, place + draw(st.integers(0, 2)))
        place = own[-1] + 1 if own else place
        length = draw(st.sampled_from([0, 1, 2, page, page + 1, 2 * page + 5]))
        bias = draw(st.sampled_from([0.0, -3.0]))
        change = case.rows(1) if changes and draw(st.booleans()) else -1
        eight = rounded and draw(st.booleans())
        for begin in range(0, max(length, 1), page):
            n = min(page, length - begin)
            holes = draw(st.sets(st.integers(0, max(n - 2, 0)), max_size=3)) if n > 2 else set()
            own += [place + begin + hole for hole in sorted(holes)]
            start = ROWS + draw(st.integers(0, ROUNDED_ROWS - n)) if eight else case.rows(n)
            spans.append(
                ops.Span(
                    start,
                    n,
                    place,
                    place + begin,
                    bias,
                    change=change,
                    holes=torch.tensor(sorted(holes)) if holes else None,
                )
            )
        place += length
    own += range(place, place + draw(st.integers(1, 9)))
    spans.append(case.own(own))
    case.requests.append((torch.tensor(own), spans))


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_batch_equals_the_reference(device, data):
    draw = data.draw
    shape = SHAPES[draw(st.sampled_from(sorted(set(SHAPES) - {MANY})))]
    rounded = draw(st.booleans()) and not shape.latent
    changes = draw(st.booleans()) and not shape.latent
    case = Case(shape, device, seed=draw(st.integers(0, 2**16)))
    for _ in range(draw(st.integers(1, 2))):
        fill(case, draw, draw(st.sampled_from([16, 32, 64])), rounded, changes)
    kind = shape.kind(draw(st.sampled_from([None, None, 40])), draw(st.sampled_from([None, 2.0])))
    case.check(
        kind,
        2e-5,
        rounded,
        programs=draw(st.sampled_from([1, 40])),
        least_rows=draw(st.sampled_from([16, 256])),
    )


@pytest.mark.parametrize("name", sorted(SHAPES))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
def test_short_numbers_agree_within_their_own_precision(device, name, dtype, tolerance):
    case = Case(SHAPES[name], device, dtype)
    own = list(range(150, 155))
    case.requests.append((torch.tensor(own), [ops.Span(case.rows(70), 70, 80, 80), case.own(own)]))
    case.check(SHAPES[name].kind(), tolerance)


@pytest.mark.parametrize("page", [16, 32, 64, 128])
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
def test_pages_and_heads_of_every_size(device, dim, page):
    shape = Shape(groups=1, repeat=2, dim=dim, value_dim=dim, rotary_dim=dim)
    case = Case(shape, device)
    lengths = [page, page - 3]
    spans = [ops.Span(case.rows(n), n, 500, 500 + page * i) for i, n in enumerate(lengths)]
    own = [900, 902]
    case.requests.append((torch.tensor(own), [*spans, case.own(own)]))
    case.check(shape.kind(), 3e-5)


@pytest.mark.parametrize("programs", [1, 64])
def test_requests_of_very_different_lengths(device, programs):
    """One of a single row, one of many; decoding and linking side by side."""
    shape = SHAPES["half-split"]
    case = Case(shape, device)
    case.requests.append((torch.tensor([0]), [case.own([0])]))
    many = list(range(400, 437))
    case.requests.append(
        (torch.tensor(many), [ops.Span(case.rows(400), 400, 0, 0), case.own(many)])
    )
    case.requests.append((torch.tensor([77]), [ops.Span(case.rows(77), 77, 0, 0), case.own([77])]))
    table = case.check(shape.kind(), 2e-5, programs=programs, least_rows=32)
    assert len(table.launches) == 2
    assert (sum(launch.n_slots for launch in table.launches) > 0) == (programs > 1)


def test_prefill_of_many_queries_sees_no_later_row(device):
    shape = SHAPES["interleaved"]
    case = Case(shape, device)
    case.requests.append((torch.arange(140), [case.own(list(range(140)))]))
    case.check(shape.kind(), 2e-5)
    case.check(shape.kind(window=33), 2e-5, programs=64, least_rows=16)


def test_partial_results_merge_by_their_sums(device):
    """What is attended to in two calls is joined exactly."""
    shape = SHAPES["half-split"]
    case = Case(shape, device)
    spans = [ops.Span(case.rows(90), 90, 5, 5), case.own([95, 96])]
    position = torch.tensor([95, 96], device=device)
    queries = torch.randn(2, 6, 16, device=device)
    keys, values = case.keys.to(device), case.values.to(device)

    def run(own):
        rows = [ops.Rows(0, 2, position, own)]
        sizes = {"heads": 6, "groups": 2, "dim": 16, "value_dim": 16, "itemsize": 4, "n_own": ROWS}
        table = prepare_table(rows, shape.kind(), **sizes, device=device)
        return triton_attention.attend(queries, keys, values, table, shape.kind(), SCALE)

    whole, parts = run(spans), [run([span]) for span in spans]
    weights = torch.stack([sums for _, sums in parts]).softmax(0)[..., None]
    joined = (torch.stack([out for out, _ in parts]) * weights).sum(0)
    assert (joined - whole[0]).abs().max() < 1e-5
    sums = torch.stack([sums for _, sums in parts]).logsumexp(0)
    assert (sums - whole[1]).abs().max() < 1e-5


@pytest.mark.parametrize("programs", [1, 64])
def test_a_query_that_sees_nothing_gets_nothing(device, programs):
    shape = SHAPES["half-split"]
    case = Case(shape, device)
    spans = [ops.Span(case.rows(60), 60, 10, 10), ops.Span(case.rows(60), 60, 70, 70)]
    positions = torch.tensor([3, 20, 100], device=device)
    for n in (0, 2):
        rows = [ops.Rows(0, 3, positions, spans[:n])]
        sizes = {"heads": 6, "groups": 2, "dim": 16, "value_dim": 16, "itemsize": 4, "n_own": ROWS}
        table = prepare_table(
            rows, shape.kind(), **sizes, device=device, programs=programs, least_rows=16
        )
        given = torch.randn(3, 6, 16, device=device), case.keys.to(device), case.values.to(device)
        out, sums = triton_attention.attend(*given, table, shape.kind(), SCALE)
        assert out[0].eq(0).all() and sums[0].isneginf().all()
        assert sums[1:].isfinite().all() == (n > 0) and not out.isnan().any()


def test_the_pool_is_not_written_and_views_are_read_where_they_lie(device):
    shape = SHAPES["half-split"]
    case = Case(shape, device)
    rows = [ops.Rows(0, 1, torch.tensor([50], device=device), [ops.Span(case.rows(50), 50, 0, 0)])]
    prepared = ops.prepare(rows, shape.kind(), torch.float32)
    prepared.back_end = "triton"
    pool = torch.full((2, ROWS, 48), torch.nan, device=device)
    keys, values = pool[..., :16], pool[..., 20:36]
    keys.copy_(case.keys)
    values.copy_(case.values)
    before = pool.clone()
    queries = torch.randn(6, 1, 16, device=device).transpose(0, 1)
    out = ops.segment_attention(queries, keys, values, prepared, SCALE)
    dense = [x.contiguous() for x in (queries, keys, values)]
    assert torch.equal(out, ops.segment_attention(*dense, prepared, SCALE))
    assert torch.equal(pool.nan_to_num(7.0), before.nan_to_num(7.0))


def test_what_does_not_fit_is_an_error(device):
    shape = SHAPES["half-split"]
    rows = [ops.Rows(0, 1, torch.tensor([5]), [ops.Span(0, 5, 0, 0)])]
    sizes = {"heads": 6, "groups": 2, "dim": 16, "value_dim": 16, "itemsize": 4, "device": device}
    table = prepare_table(rows, shape.kind(), **sizes, n_own=20)
    keys = torch.randn(2, 20, 16, device=device)
    for queries, pool in (
        (torch.randn(2, 6, 16), keys),
        (torch.randn(1, 5, 16), keys),
        (torch.randn(1, 6, 8), keys),
        (torch.randn(1, 6, 16), keys[:, :3]),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            triton_attention.attend(queries.to(device), pool, pool, table, shape.kind(), SCALE)
    short = replace(rows[0].spans[0], start=18, length=5)
    with_rounded = prepare_table([replace(rows[0], spans=[short])], shape.kind(), **sizes, n_own=18)
    with pytest.raises(ValueError, match="do not fit"):
        triton_attention.attend(
            torch.randn(1, 6, 16).to(device), keys, keys, with_rounded, shape.kind(), SCALE
        )
    with pytest.raises(ValueError, match="begins at row 3"):
        prepare_table([replace(rows[0], low=3, high=4)], shape.kind(), **sizes, n_own=20)


def test_tiles_hold_every_head():
    for form in ("decode", "block"):
        for repeat in (1, 3, 8, 16, 20, 71, 128):
            for dim, value_dim in (
                (64, 64),
                (96, 96),
                (128, 128),
                (192, 128),
                (256, 256),
                (576, 512),
            ):
                for itemsize in (2, 4):
                    cut = tile(form, repeat, dim, value_dim, itemsize)
                    assert cut.heads * cut.parts >= repeat and cut.queries >= 1
                    assert cut.dim_a + cut.dim_b >= dim and cut.dim_v >= value_dim


def test_lengths_of_parts_are_whole_tiles_and_cover_each_row_once(device):
    shape = SHAPES["half-split"]
    positions = torch.tensor([600])
    spans = [ops.Span(10, 130, 0, 0), ops.Span(200, 300, 130, 130), ops.Span(500, 1, 600, 600)]
    table = prepare_table(
        [ops.Rows(0, 1, positions, spans)],
        shape.kind(),
        heads=6,
        groups=2,
        dim=16,
        value_dim=16,
        itemsize=4,
        n_own=ROWS,
        device=device,
        programs=100,
        least_rows=64,
    )
    covered = [row for p in table.pieces.tolist() for row in range(p[0], p[0] + p[1])]
    assert covered == [*range(10, 140), *range(200, 500), 500]
    (launch,) = table.launches
    assert launch.n_slots == len(launch.items) == -(-431 // 64)
