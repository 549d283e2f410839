"""Attention by column in Triton, against plain torch in float64: over any prompt, with poison around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from epicrag.kernels import ops, select

pytest.importorskip("triton")

from epicrag.kernels import triton_select
from epicrag.kernels.triton_select import BEGIN, COLUMN, HIGH, LOW, PIECE
from epicrag.kernels.triton_table import LENGTH

N_OWN, N_EIGHT = 128, 96
CHANGES = 4
"""The last rows of a layer, which hold changes."""


@contextmanager
def poisoned() -> Iterator[None]:
    """Whatever is allocated empty is full of NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(1).isnan()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@dataclass(frozen=True)
class Case:
    """A request in a flat batch, over a layer of a pool."""

    queries: torch.Tensor
    keys: torch.Tensor
    rounded: ops.Rounded | None
    rows: ops.Rows
    kind: ops.LayerKind
    scale: float = 0.3

    def to(self, device: torch.device) -> Case:
        spans = [
            ops.Span(
                s.start,
                s.length,
                s.delta,
                s.first,
                s.bias,
                None if s.explicit is None else s.explicit.to(device),
                s.change,
                None if s.holes is None else s.holes.to(device),
            )
            for s in self.rows.spans
        ]
        rows = ops.Rows(self.rows.low, self.rows.high, self.rows.positions.to(device), spans)
        rotary = self.kind.rotary
        turned = ops.Rotary(
            rotary.inv_freq.to(device), rotary.dim, rotary.interleaved, rotary.start
        )
        return Case(
            self.queries.to(device),
            self.keys.to(device),
            self.rounded and ops.Rounded(*(x.to(device) for x in self.rounded)),
            rows,
            ops.LayerKind(turned, self.kind.window, self.kind.softcap),
        )

    def prepared(self) -> triton_select.Columns:
        return triton_select.prepare_columns(
            self.rows,
            self.kind,
            heads=self.queries.shape[1],
            groups=self.keys.shape[0],
            dim=self.keys.shape[2],
            itemsize=self.keys.dtype.itemsize,
            n_own=self.keys.shape[1],
            device=self.keys.device,
        )

    def got(self) -> list[torch.Tensor]:
        with poisoned():
            return triton_select.column_sums(
                self.queries, self.keys, self.prepared(), self.scale, self.rounded
            )

    def want(self) -> list[torch.Tensor]:
        """The same in float64, on the CPU."""
        case = self.to(torch.device("cpu"))
        given = case.queries.double(), case.keys.double(), case.rows, case.kind, case.scale
        return select.column_sums(*given, case.rounded)


def kind(
    dim: int,
    *,
    start: int = 0,
    interleaved: bool = False,
    window: int | None = None,
    softcap: float | None = None,
) -> ops.LayerKind:
    inv_freq = 1.0 / (10000 ** (torch.arange(0, dim, 2) / max(dim, 1)))
    return ops.LayerKind(ops.Rotary(inv_freq, dim, interleaved, start), window, softcap)


def layer(
    spans: list[ops.Span], groups: int, dim: int, dtype: torch.dtype, seed: int
) -> tuple[torch.Tensor, ops.Rounded | None]:
    """Keys of a layer, and its rows in 8 bits; NaN wherever no span lies."""
    rng = torch.Generator().manual_seed(seed)
    whole = torch.randn(groups, N_OWN + N_EIGHT, dim, generator=rng)
    read = torch.zeros(N_OWN + N_EIGHT, dtype=torch.bool)
    read[N_OWN - CHANGES : N_OWN] = True
    for span in spans:
        read[span.start : span.start + span.length] = True
    keys = whole[:, :N_OWN].clone()
    keys[:, ~read[:N_OWN]] = float("nan")
    eight, scales = ops.round_rows(whole[:, N_OWN:])
    scales = scales.float()
    scales[:, ~read[N_OWN:]] = float("nan")
    return keys.to(dtype), ops.Rounded(eight, eight.clone(), scales, scales.clone())


@st.composite
def prompts(draw: st.DrawFn) -> tuple[int, int, list[ops.Span], torch.Tensor]:
    """Chunks with holes, changes, in 8 bits or not; the request's own tokens, some of which ask; maybe more behind."""
    spans: list[ops.Span] = []
    own: list[int] = []
    place, row, eight = 0, 0, N_OWN
    for _ in range(draw(st.integers(0, 3))):
        length = draw(st.sampled_from([0, 1, 3, 20, 25]))
        holes = sorted(draw(st.sets(st.integers(0, length - 1), max_size=3))) if length else []
        own.extend(place + hole for hole in holes)
        narrow = draw(st.booleans())
        spans.append(
            ops.Span(
                eight if narrow else row,
                length,
                place - draw(st.integers(0, place)),
                place,
                draw(st.sampled_from([0.0, -2.0, 1.5])),
                change=draw(st.sampled_from([-1, -1, N_OWN - 1, N_OWN - CHANGES])),
                holes=torch.tensor(holes) if holes else None,
            )
        )
        if narrow:
            eight += length
        else:
            row += length
        place += length + draw(st.integers(0, 2))
    own.extend(range(place, place + draw(st.integers(1, 12))))
    positions = torch.tensor(own)
    spans.append(ops.Span(row, len(own), 0, own[0], explicit=positions))
    if draw(st.booleans()):
        spans.append(ops.Span(row + len(own), 5, 3, own[-1] + 1))
    low = draw(st.integers(0, len(own) - 1))
    high = draw(st.integers(low + 1, len(own)))
    return low, high, spans, positions[low:high]


STYLES = [
    kind(16),
    kind(16, window=6),
    kind(8, start=4, softcap=3.0),
    kind(16, interleaved=True),
    kind(4, interleaved=True, window=1, softcap=2.0),
    kind(0),
]


@settings(max_examples=20, phases=[Phase.explicit, Phase.generate])
@given(
    prompts(),
    st.sampled_from(STYLES),
    st.sampled_from([(2, 3), (1, 4), (2, 1), (1, 20)]),
    st.sampled_from([torch.float32, torch.float32, torch.float16, torch.bfloat16]),
    st.integers(0, 2**31),
)
def test_any_prompt_equals_plain_torch(device, prompt, style, heads, dtype, seed):
    low, high, spans, positions = prompt
    groups, repeat = heads
    keys, rounded = layer(spans, groups, 16, dtype, seed)
    rng = torch.Generator().manual_seed(seed + 1)
    queries = torch.full((high + 2, groups * repeat, 16), float("nan"))
    queries[low:high] = torch.randn(high - low, groups * repeat, 16, generator=rng)
    rows = ops.Rows(low, high, positions, spans)
    case = Case(queries.to(dtype), keys, rounded, rows, style).to(device)
    got, want = case.got(), case.want()
    assert [part.shape for part in got] == [(groups * repeat, span.length) for span in spans]
    assert all(part.dtype == torch.float32 for part in got)
    near = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}[dtype]
    off = torch.cat(got, 1).cpu() - torch.cat(want, 1)
    assert off.abs().max() < near * (high - low)
    for part, span in zip(got, spans, strict=True):
        if span.length and span.first > int(positions[-1]):
            assert not part.any()
        if span.holes is not None:
            assert not part[:, span.holes.to(device)].any()


@given(prompts(), st.sampled_from([None, 1, 6]))
def test_every_query_that_sees_a_key_is_asked(prompt, window):
    low, high, spans, positions = prompt
    rows = ops.Rows(low, high, positions, spans)
    case = Case(
        torch.zeros(high, 2, 16), torch.zeros(1, N_OWN, 16), None, rows, kind(16, window=window)
    )
    work = case.prepared()
    places = []
    for span in spans:
        place = span.positions(positions.device).clone()
        if span.holes is not None:
            place[span.holes] = 10**9
        places.append(place)
    seen = positions[:, None] >= torch.cat(places)
    if window is not None:
        seen &= positions[:, None] - window < torch.cat(places)
    covered = torch.zeros(seen.shape[1], dtype=torch.int64)
    pieces = work.table.numbers.pieces
    for task in work.tasks.tolist():
        length = min(int(pieces[task[PIECE]][LENGTH]) - task[BEGIN], work.tile.block_n)
        columns = slice(task[COLUMN], task[COLUMN] + length)
        covered[columns] += 1
        asked = seen[:, columns].any(1).nonzero().flatten().tolist()
        assert all(task[LOW] <= query < task[HIGH] for query in asked)
        if (torch.cat(places)[columns] > positions[-1]).all():
            assert task[LOW] == task[HIGH]  # nothing is read
    assert (covered == 1).all()


def own_tokens(n: int, n_cached: int, **style) -> tuple[ops.Rows, ops.LayerKind]:
    spans = [
        ops.Span(0, n_cached, 30, 30),
        ops.Span(n_cached, n, 0, 30 + n_cached),
    ]
    positions = torch.arange(30 + n_cached, 30 + n_cached + n)
    return ops.Rows(0, n, positions, spans), kind(16, **style)


@pytest.mark.parametrize("cached", [70, 0])
def test_more_keys_and_queries_than_one_program_has(device, cached):
    """Several tasks a piece, several blocks of queries a task; and requests without a cache."""
    rows, style = own_tokens(40, cached)
    queries, keys = torch.randn(40, 4, 16), torch.randn(2, N_OWN, 16)
    case = Case(queries, keys, None, rows, style).to(device)
    got, want = torch.cat(case.got(), 1).cpu(), torch.cat(case.want(), 1)
    assert (got - want).abs().max() < 1e-4
    assert got.sum(1).allclose(torch.tensor(40.0))


def test_a_query_that_sees_nothing_adds_nothing(device):
    spans = [ops.Span(0, 5, 0, 0), ops.Span(5, 1, 0, 40), ops.Span(6, 4, 0, 43)]
    rows = ops.Rows(0, 3, torch.tensor([20, 40, 43]), spans)
    queries, keys = torch.randn(3, 4, 16), torch.randn(2, N_OWN, 16)
    before, once, behind = Case(queries, keys, None, rows, kind(16, window=2)).to(device).got()
    assert not before.any()
    assert once.cpu().allclose(torch.ones(4, 1))
    assert behind.sum(1).cpu().allclose(torch.ones(4))


def test_a_query_in_a_gap_between_the_keys_of_one_program_adds_nothing(device):
    spans = [ops.Span(0, 2, 0, 10, explicit=torch.tensor([10, 50]))]
    rows = ops.Rows(0, 3, torch.tensor([10, 30, 50]), spans)
    queries, keys = torch.randn(3, 4, 16), torch.randn(2, N_OWN, 16)
    (sums,) = Case(queries, keys, None, rows, kind(16, window=2)).to(device).got()
    assert sums.cpu().allclose(torch.ones(4, 2))


def test_queries_and_keys_need_not_lie_densely(device):
    rows, style = own_tokens(3, 20)
    queries, keys = torch.randn(4, 3, 16).transpose(0, 1), torch.randn(2, 16, N_OWN).mT
    case = Case(queries, keys, None, rows, style).to(device)
    assert (torch.cat(case.got(), 1).cpu() - torch.cat(case.want(), 1)).abs().max() < 1e-5


def test_nothing_to_read_and_nothing_to_ask(device):
    queries, keys = torch.randn(3, 4, 16), torch.randn(2, N_OWN, 16)
    nothing = ops.Rows(1, 2, torch.tensor([9]), [ops.Span(0, 0, 0, 0)])
    assert [x.shape for x in Case(queries, keys, None, nothing, kind(16)).to(device).got()] == [
        (4, 0)
    ]
    nobody = ops.Rows(1, 1, torch.tensor([], dtype=torch.int64), [ops.Span(0, 3, 0, 0)])
    (sums,) = Case(queries, keys, None, nobody, kind(16)).to(device).got()
    assert sums.shape == (4, 3)
    assert not sums.any()


def test_what_does_not_fit_is_refused(device):
    rows, style = own_tokens(3, 20)
    queries, keys = torch.randn(3, 4, 16), torch.randn(2, N_OWN, 16)
    work = Case(queries, keys, None, rows, style).to(device).prepared()
    for wrong in ((queries[:2], keys), (queries, keys[:, :10]), (queries, keys[..., :8])):
        with pytest.raises(ValueError):
            triton_select.column_sums(wrong[0].to(device), wrong[1].to(device), work, 0.3)


@pytest.mark.parametrize("back_end", ["triton", "reference"])
def test_the_face_takes_the_back_end_that_is_wished_for(device, monkeypatch, back_end):
    monkeypatch.setenv("EPICRAG_KERNELS", back_end)
    rows, style = own_tokens(3, 20)
    case = Case(torch.randn(3, 4, 16), torch.randn(2, N_OWN, 16), None, rows, style).to(device)
    columns = ops.prepare_columns(case.rows, case.kind)
    assert columns.back_end == back_end
    monkeypatch.setenv("EPICRAG_KERNELS", "auto")  # it was decided
    for _ in range(2):
        got = ops.column_sums(case.queries, case.keys, columns, case.scale)
        assert (torch.cat(got, 1).cpu() - torch.cat(case.want(), 1)).abs().max() < 1e-5
    with pytest.raises(ValueError, match="do not fit"):
        ops.column_sums(case.queries[:, :3], case.keys, columns, case.scale)
