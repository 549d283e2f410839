"""What the kernel bench measures: each operation on a shape of real models, with its bytes and operations counted.

A case does the same work twice: through the face of the kernels, on rows of a pool as they lie there, and in torch, on
keys that stand side by side and are turned already; for attention also with what it takes to get them so.
Counted is what the operation cannot do without: every byte that must be read or written, once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

import torch
from timing import COLD, Call
from torch import Tensor

from epicrag.kernels import ops

LINK = 16
"""Tokens of each chunk that are computed again, by `legolink(16)`."""
QUESTION = 32
"""Tokens of a question."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Of one layer of a model; of all of them where rows are moved."""

    name: str
    heads: int
    groups: int
    dim: int
    layers: int

    @property
    def repeat(self) -> int:
        return self.heads // self.groups

    @property
    def kind(self) -> ops.LayerKind:
        frequencies = 500_000.0 ** -(torch.arange(0, self.dim, 2) / self.dim)
        return ops.LayerKind(ops.Rotary(frequencies, self.dim))

    @property
    def scale(self) -> float:
        return self.dim**-0.5


GEOMETRIES = {"1B": Geometry("1B", 32, 8, 64, 16), "8B": Geometry("8B", 32, 8, 128, 32)}
"""As Llama 3.2 and Llama 3.1 have it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where it is measured, and how the prompts are cut."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    chunk: int = 512
    cold: int = COLD
    seed: int = 0

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=torch.float32).to(self.dtype)

    def copies(self, n_bytes: int) -> int:
        """How many layers of so many bytes are taken in turn, so that each comes from memory."""
        return self.cold // n_bytes + 1


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    op: str
    what: str
    geometry: str
    n_bytes: int
    n_operations: int
    ours: Call
    torchs: Call
    """The same by torch alone, on contiguous keys that are turned already."""
    torchs_whole: Call | None = None
    """The same from the pool on: gathered, turned, then as above."""
    first: Call | None = None
    """Ours with the tables made anew, as in the first layer of a forward pass."""


# --- prompts in a pool ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Laid:
    """Requests whose cached chunks lie about in a pool, in another order than they are read in.

    Own tokens stand in the rows from 0 on, request by request; cached rows behind them, or, in 8 bits, where the
    pool's own end.
    """

    place: Place
    geometry: Geometry
    n_cached: int
    """Of each request."""
    positions: tuple[int, ...]
    """Of each request's own tokens."""
    starts: tuple[tuple[int, ...], ...]
    """First cached row of each chunk of each request, from 0 on."""

    @classmethod
    def random(
        cls,
        place: Place,
        geometry: Geometry,
        n_cached: int,
        positions: Sequence[int],
        n_requests: int,
    ) -> Laid:
        n_chunks = n_cached // place.chunk
        rows = [place.chunk * n for n in range(n_requests * n_chunks)]
        random.Random(place.seed).shuffle(rows)
        starts = [tuple(rows[r * n_chunks : (r + 1) * n_chunks]) for r in range(n_requests)]
        return cls(place, geometry, n_cached, tuple(positions), tuple(starts))

    @property
    def n_own(self) -> int:
        return len(self.positions) * len(self.starts)

    @property
    def n_read(self) -> int:
        """Positions of a request: keys that its last token sees."""
        return self.positions[-1] + 1

    @property
    def n_pairs(self) -> int:
        """Of a query and a key that it sees, over all requests."""
        return len(self.starts) * sum(position + 1 for position in self.positions)

    def rows(self) -> list[ops.Rows]:
        """The requests as the kernels are told of them."""
        n, chunk, device = len(self.positions), self.place.chunk, self.place.device
        places = torch.tensor(self.positions, device=device)
        again = set(self.positions)
        out = []
        for index, starts in enumerate(self.starts):
            spans = []
            for number, start in enumerate(starts):
                first = number * chunk
                holes = [p - first for p in range(first, first + chunk) if p in again]
                inside = torch.tensor(holes) if holes else None
                row = self.n_own + start
                spans.append(ops.Span(row, chunk, first, first, holes=inside))
            explicit = places if n > 1 else None
            spans.append(ops.Span(index * n, n, 0, self.positions[0], explicit=explicit))
            out.append(ops.Rows(index * n, (index + 1) * n, places, spans))
        return out

    def row_numbers(self) -> Tensor:
        """The pool row of each position of each request, (requests, n_read)."""
        n, chunk = len(self.positions), self.place.chunk
        out = torch.empty(len(self.starts), self.n_read, dtype=torch.int64)
        for index, starts in enumerate(self.starts):
            for number, start in enumerate(starts):
                first = number * chunk
                out[index, first : first + chunk] = self.n_own + start + torch.arange(chunk)
            out[index, list(self.positions)] = index * n + torch.arange(n)
        return out.to(self.place.device)

    def turns(self) -> Tensor:
        """By how much the key of each position is turned, (n_read,)."""
        out = torch.arange(self.n_read) // self.place.chunk * self.place.chunk
        out[list(self.positions)] = 0
        return out.to(self.place.device)

    def mask(self) -> Tensor | None:
        """What folded queries see, (repeat * T, n_read); None for all."""
        if len(self.positions) == 1:
            return None
        device = self.place.device
        seen = (
            torch.tensor(self.positions, device=device)[:, None]
            >= torch.arange(self.n_read, device=device)[None]
        )
        return seen.repeat(self.geometry.repeat, 1)

    def fold(self, queries: Tensor) -> Tensor:
        """(R * T, H, D) to (R, G, repeat * T, D): the heads of a group as queries of one head, each key read once."""
        g = self.geometry
        folded = queries.view(len(self.starts), -1, g.groups, g.repeat, g.dim)
        return folded.permute(0, 2, 3, 1, 4).flatten(2, 3).contiguous()

    def unfold(self, out: Tensor) -> Tensor:
        g = self.geometry
        wide = out.view(len(self.starts), g.groups, g.repeat, -1, g.dim)
        return wide.permute(0, 3, 1, 2, 4).reshape(-1, g.heads, g.dim)


class Store:
    """The keys and values of some layers, taken in turn."""

    def __init__(self, laid: Laid, rounded: bool) -> None:
        place, g = laid.place, laid.geometry
        n_cached = laid.n_cached * len(laid.starts)
        entry = 1 if rounded else place.dtype.itemsize
        layers = place.copies(n_cached * g.groups * g.dim * 2 * entry)
        n_wide = laid.n_own + (0 if rounded else n_cached)
        self.laid = laid
        self.kind = ops.LayerKind(
            ops.Rotary(g.kind.rotary.inv_freq.to(place.device), g.kind.rotary.dim)
        )
        self.keys, self.values = (place.random(layers, g.groups, n_wide, g.dim) for _ in range(2))
        self.rounded: list[ops.Rounded | None] = [None] * layers
        if rounded:
            eight = (layers, g.groups, n_cached)
            whole = [
                torch.randint(-127, 128, (*eight, g.dim), device=place.device, dtype=torch.int8)
                for _ in range(2)
            ]
            scales = [torch.rand(eight, device=place.device) / 64 + 1 / 128 for _ in range(2)]
            self.rounded = [
                ops.Rounded(whole[0][i], whole[1][i], scales[0][i], scales[1][i])
                for i in range(layers)
            ]
        self.turn = cycle(range(layers))
        self._rows, turns = laid.row_numbers(), laid.turns()
        self._angles = ops.angles(turns, self.kind.rotary, torch.float32)

    def __len__(self) -> int:
        return len(self.rounded)

    def side_by_side(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys, turned to their places, and values of all requests, (R, G, n_read, D) each."""
        keys = ops.turn(self._gathered(layer, 0), *self._angles, self.kind.rotary)
        return keys.transpose(0, 1), self._gathered(layer, 1).transpose(0, 1)

    def _gathered(self, layer: int, which: int) -> Tensor:
        """Keys (0) or values (1) of the requests' positions, (G, R, n_read, D)."""
        own, eight = (self.keys, self.values)[which][layer], self.rounded[layer]
        flat = self._rows.flatten()
        if eight is None:
            return own.index_select(1, flat).unflatten(1, self._rows.shape)
        cached = (flat - own.shape[1]).clamp_min(0)
        whole, scales = (eight[which + part].index_select(1, cached) for part in (0, 2))
        out = ops.widen_rows(whole, scales, own.dtype)
        here = flat < own.shape[1]
        out[:, here] = own[:, flat[here]]
        return out.unflatten(1, self._rows.shape)


# --- attention -----------------------------------------------------------------------------------


def decode(
    place: Place, geometry: Geometry, n_cached: int, n_requests: int, rounded: bool = False
) -> Case:
    """A token of each of some requests, behind its cached chunks."""
    laid = Laid.random(place, geometry, n_cached, [n_cached], n_requests)
    return _attention(f"decode x{n_requests}, {n_cached:,}", laid, rounded)


def block(place: Place, geometry: Geometry, n_cached: int, rounded: bool = False) -> Case:
    """The link pass of one request: the first tokens of each chunk, and the question."""
    laid = Laid.random(place, geometry, n_cached, link_positions(n_cached, place.chunk), 1)
    return _attention(f"link of {len(laid.positions)}, {n_cached:,}", laid, rounded)


def link_positions(n_cached: int, chunk: int) -> list[int]:
    firsts = range(0, n_cached, chunk)
    link = [first + n for first in firsts for n in range(min(LINK, chunk))]
    return [*link, *range(n_cached, n_cached + QUESTION)]


def _attention(what: str, laid: Laid, rounded: bool) -> Case:
    place, g, store = laid.place, laid.geometry, Store(laid, rounded)
    queries = place.random(laid.n_own, g.heads, g.dim)
    rows = laid.rows()
    wide = torch.promote_types(place.dtype, torch.float32)
    prepared = ops.prepare(rows, store.kind, wide, place.dtype)

    def attend(prepared: ops.Prepared) -> Tensor:
        i = next(store.turn)
        given = queries, store.keys[i], store.values[i], prepared, g.scale
        return ops.segment_attention(*given, store.rounded[i])

    folded, mask = laid.fold(queries), None
    if (
        seen := laid.mask()
    ) is not None:  # added to the scores: of a mask of bools torch makes one in each call
        mask = torch.zeros(seen.shape, dtype=place.dtype, device=place.device)
        mask.masked_fill_(~seen, float("-inf"))
    ready = [tuple(x.contiguous() for x in store.side_by_side(i)) for i in range(len(store))]

    def torchs(keys: Tensor, values: Tensor) -> Tensor:
        sdpa = torch.nn.functional.scaled_dot_product_attention
        return laid.unfold(sdpa(folded, keys, values, attn_mask=mask, scale=g.scale))

    n_cached, entry = laid.n_cached * len(laid.starts), place.dtype.itemsize
    holes = sum(position < laid.n_cached for position in laid.positions) * len(laid.starts)
    a_row = 2 * g.groups * ((g.dim + 4) if rounded else g.dim * entry)
    n_bytes = (n_cached - holes) * a_row + 2 * laid.n_own * g.groups * g.dim * entry
    return Case(
        "attention, 8 bits" if rounded else "attention",
        what,
        g.name,
        n_bytes + 2 * laid.n_own * g.heads * g.dim * entry,
        4 * g.heads * g.dim * laid.n_pairs,
        lambda: attend(prepared),
        lambda: torchs(*ready[next(store.turn)]),
        lambda: torchs(*store.side_by_side(next(store.turn))),
        lambda: attend(ops.prepare(rows, store.kind, wide, place.dtype)),
    )


def column_sums(place: Place, geometry: Geometry, n_cached: int) -> Case:
    """How much attention a question pays to each key."""
    g = geometry
    asking = range(n_cached, n_cached + QUESTION)
    laid = Laid.random(place, g, n_cached, asking, 1)
    store, rows = Store(laid, False), laid.rows()[0]
    queries = place.random(laid.n_own, g.heads, g.dim)
    folded, mask = laid.fold(queries)[0], laid.mask()
    assert mask is not None
    ready = [store.side_by_side(i)[0].contiguous() for i in range(len(store))]

    columns = ops.prepare_columns(rows, store.kind)

    def ours(columns: ops.Columns) -> Tensor:
        sums = ops.column_sums(queries, store.keys[next(store.turn)], columns, g.scale)
        return torch.cat(sums, 1)

    def torchs(keys: Tensor) -> Tensor:
        scores = (folded @ keys[0].mT).float() * g.scale  # (G, repeat * S, N)
        shares = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return shares.view(g.heads, QUESTION, -1).sum(1)

    n_bytes = laid.n_read * g.groups * g.dim * place.dtype.itemsize + laid.n_read * g.heads * 4
    return Case(
        "column_sums",
        f"question of {QUESTION}, {n_cached:,}",
        g.name,
        n_bytes,
        2 * g.heads * g.dim * laid.n_pairs,
        lambda: ours(columns),
        lambda: torchs(ready[next(store.turn)]),
        lambda: torchs(store.side_by_side(next(store.turn))[0]),
        lambda: ours(ops.prepare_columns(rows, store.kind)),
    )


# --- rows ----------------------------------------------------------------------------------------


def rotate(place: Place, geometry: Geometry, n_cached: int, in_place: bool) -> Case:
    """The keys of a prompt's chunks to their places, in one layer."""
    g, n_chunks = geometry, n_cached // place.chunk
    shape = (g.groups, n_cached, g.dim)
    n_bytes = 2 * g.groups * n_cached * g.dim * place.dtype.itemsize
    stack = place.random(place.copies(n_bytes), *shape)
    out = torch.empty_like(stack)
    rotary = ops.Rotary(g.kind.rotary.inv_freq.to(place.device), g.dim)
    shifts = ops.Shifts(tuple(n * place.chunk for n in range(n_chunks)), (place.chunk,) * n_chunks)
    by_row = torch.tensor(shifts.deltas, device=place.device).repeat_interleave(place.chunk)
    cos, sin = ops.angles(by_row, rotary, torch.float32)
    layer = cycle(range(len(stack)))

    def ours() -> Tensor:
        i = next(layer)
        return ops.rotate(stack[i], shifts, rotary, out=stack[i] if in_place else out[i])

    def torchs() -> Tensor:
        i = next(layer)
        turned = ops.turn(stack[i], cos, sin, rotary)
        return stack[i].copy_(turned) if in_place else turned

    what = f"{n_cached:,} rows{', in place' if in_place else ''}"
    return Case(
        "rotate", what, g.name, n_bytes, n_bytes // place.dtype.itemsize * 3 // 2, ours, torchs
    )


def move(place: Place, geometry: Geometry, way: str) -> Case:
    """A chunk's keys and values in all layers: out of the pool (`gather`), into it (`scatter`), or the first rows of
    several chunks from page to page (`copy on write`)."""
    g, page, n = geometry, LINK, place.chunk
    n_bytes = 4 * g.layers * g.groups * n * g.dim * place.dtype.itemsize
    stacks = [
        tuple(
            [place.random(g.layers, g.groups, rows, g.dim) for _ in range(2)] for rows in (4 * n, n)
        )
        for _ in range(place.copies(n_bytes))
    ]
    pages = list(range(0, 2 * n, page))
    random.Random(place.seed).shuffle(pages)
    some = [(start, page) for start in pages[: n // page]]
    elsewhere = [(start + 2 * n, page) for start, _ in some]  # in the other half
    runs, theirs, of, to = {
        "gather": (some, None, 0, 1),
        "scatter": (None, some, 1, 0),
        "copy on write": (some, elsewhere, 0, 0),
    }[way]

    def numbers(runs: Sequence[tuple[int, int]] | None) -> Tensor | slice:
        if runs is None:
            return slice(None)
        every = [row for start, length in runs for row in range(start, start + length)]
        return torch.tensor(every, device=place.device)

    out_of, into, stack = numbers(runs), numbers(theirs), cycle(stacks)

    def torchs() -> list[Tensor]:
        one = next(stack)
        for source, target in zip(one[of], one[to], strict=True):
            target[:, :, into] = source[:, :, out_of]
        return one[to]

    def ours() -> list[Tensor]:
        one = next(stack)
        ops.move_rows(one[of], one[to], runs, theirs)
        return one[to]

    return Case("move_rows", f"{way}, {n} rows", g.name, n_bytes, 0, ours, torchs)


def append(place: Place, geometry: Geometry, n_tokens: int) -> Case:
    """The new keys and values of a flat batch into one layer, to rows that lie about."""
    g = geometry
    n_rows = 16 * n_tokens
    layers = place.copies(2 * g.groups * n_rows * g.dim * place.dtype.itemsize)
    pool = [place.random(layers, g.groups, n_rows, g.dim) for _ in range(2)]
    # As a model gives them: token by token, seen group by group.
    new = [place.random(n_tokens, g.groups, g.dim).transpose(0, 1) for _ in range(2)]
    rows = torch.tensor(random.Random(place.seed).sample(range(n_rows), n_tokens)).to(place.device)
    layer = cycle(range(layers))

    def ours() -> Tensor:
        i = next(layer)
        ops.append(new[0], new[1], pool[0][i], pool[1][i], rows)
        return pool[0][i]

    def torchs() -> Tensor:
        i = next(layer)
        for fresh, every in zip(new, pool, strict=True):
            every[i][:, rows] = fresh
        return pool[0][i]

    n_bytes = 4 * g.groups * n_tokens * g.dim * place.dtype.itemsize
    return Case("append", f"{n_tokens:,} tokens", g.name, n_bytes, 0, ours, torchs)


def cases(
    place: Place, geometries: Sequence[Geometry], tokens: Sequence[int], only: Sequence[str]
) -> Iterator[Case]:
    """Every case, each made when it is wanted: its tensors may take much of the memory."""
    for g in geometries:
        for n in tokens:
            if "attention" in only:
                yield decode(place, g, n, 1)
                yield decode(place, g, n, 16)
                yield block(place, g, n)
                yield decode(place, g, n, 1, rounded=True)
                yield block(place, g, n, rounded=True)
            if "column_sums" in only:
                yield column_sums(place, g, n)
            if "rotate" in only:
                yield rotate(place, g, n, in_place=False)
                yield rotate(place, g, n, in_place=True)
        if "move_rows" in only:
            for way in ("gather", "scatter", "copy on write"):
                yield move(place, g, way)
        if "append" in only:
            for n in (1, 16, len(link_positions(tokens[-1], place.chunk))):
                yield append(place, g, n)


OPERATIONS = ("attention", "column_sums", "rotate", "move_rows", "append")
