"""What the Triton kernels are told their work by: the page table of a flat batch, made once a forward pass.

A piece is a run of neighbouring rows of the pool with one offset: a chunk's pages as far as they lie side by side. An
item is what one program of the grid does: some queries of one request against some pieces. Where there are too few
queries to fill the GPU, the pieces of a request are dealt out to several items, whose results are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from epicrag.kernels.reference import angles
from epicrag.kernels.tables import Extent, LayerKind, Rows

# The columns of a piece. TURN: row of the table of rotations; AT: where its rows' own positions begin, or -1;
# CHANGE: pool row or -1; LOCAL: row of the table of local rotations; BIAS: the bits of a float32.
ROW, LENGTH, TURN, FIRST, AT, CHANGE, LOCAL, BIAS = range(8)
PIECE_COLUMNS = 8

# The columns of an item. SLOT: where its partial result goes, or -1 where it is the whole.
LOW, COUNT, PIECE_LOW, PIECE_HIGH, LEAST, MOST, SLOT = range(7)
ITEM_COLUMNS = 8
BLOCK_COLUMNS = 4  # first query, queries, first slot, slots

NEVER = 2**31 - 1
"""A position that no query reaches: of rows that are not to be seen."""

LEAST_ROWS = 256
"""Rows that one item has at least before a request is dealt out further: below, merging costs more than it gains."""


@dataclass(frozen=True, slots=True)
class Tile:
    """How a kernel cuts its work. A program's rows are pairs of a query and a head of one group."""

    block_m: int
    block_n: int
    heads: int
    """Heads of a group in one program."""
    parts: int
    """Programs that the heads of a group are dealt out to."""
    dim_a: int
    """Entries of a head in the first product, a power of two."""
    dim_b: int
    """In the second; 0: there is none."""
    dim_v: int
    warps: int
    stages: int

    @property
    def queries(self) -> int:
        """Queries of one program."""
        return self.block_m // self.heads


NARROW_ROWS = 16
"""Pairs of a query and a head up to which a request is served in the decode form."""


def tile(
    form: str,
    repeat: int,
    dim: int,
    value_dim: int,
    itemsize: int,
    rounded: bool = False,
    changed: bool = False,
) -> Tile:
    """Choose how to cut attention. `form`: "decode" or "block"; repeat: query heads of a group; itemsize: bytes of a key's entry.

    The numbers are those that the assembler made kernels of without spilling, for the head sizes of `specimens`.
    """
    dim_a = 1 << (max(dim, 16).bit_length() - 1)
    dim_b = 0 if dim <= dim_a else max(16, _power(dim - dim_a))
    dim_v = max(16, _power(value_dim))
    wide = dim_a + dim_b + dim_v
    most = 64
    if wide > 384 or changed or (dim_b and wide <= 256):
        most = 32
    if wide > 640 or itemsize > 2 or (changed and (rounded or wide > 384)):
        most = 16
    block_m = min(most, max(NARROW_ROWS, _power(repeat)) if form == "decode" else most)
    block_n = 64 if wide <= 256 and itemsize <= 2 and not changed and not dim_b else 32
    if wide > 640 or (wide > 384 and itemsize > 2):
        block_n = 16
    many = wide > 512 or (wide > 192 and (form == "block" or changed))
    warps = 8 if many or (form == "decode" and rounded) else 4
    stages = 3 if 3 * block_n * wide * itemsize <= 80 * 1024 else 2
    heads = min(repeat, block_m)
    return Tile(block_m, block_n, heads, -(-repeat // heads), dim_a, dim_b, dim_v, warps, stages)


def _power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


class Launch(NamedTuple):
    """One launch of the attention kernel, and of the merge behind it where a block has more than one item."""

    tile: Tile
    items: Tensor  # (n_items, ITEM_COLUMNS) int32
    blocks: Tensor  # (n_blocks, BLOCK_COLUMNS) int32: those that are merged
    n_slots: int


class Numbers(NamedTuple):
    """Some of a table's numbers once more, where the CPU can read them."""

    pieces: np.ndarray
    positions: np.ndarray
    explicit: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The work of one flat batch in the layers of one kind. All numbers are int32 on the device."""

    n_queries: int
    extent: Extent
    launches: tuple[Launch, ...]
    pieces: Tensor  # (n_pieces, PIECE_COLUMNS)
    positions: Tensor  # (T,)
    explicit: Tensor  # (n,) positions of the rows that are not at consecutive ones
    cos: Tensor  # (n_turns, dim / 2) float32: rotations by minus each offset; the first is by nothing
    sin: Tensor
    local_cos: (
        Tensor  # (n, dim / 2) float32: rotations to the local positions of rows with a change
    )
    local_sin: Tensor
    changed: bool
    rounded: bool
    numbers: Numbers


def prepare_table(
    rows: Sequence[Rows],
    kind: LayerKind,
    *,
    heads: int,
    groups: int,
    dim: int,
    value_dim: int,
    itemsize: int,
    n_own: int,
    device: torch.device,
    programs: int | None = None,
    least_rows: int = LEAST_ROWS,
) -> Table:
    """Work out once per forward pass what every layer of a kind does.

    `n_own`: rows of a layer before those in 8 bits; `programs`: how many the device should be given, where there
    is so much work. Raises ValueError where the requests do not tile the batch, or on a change of rows that are not at
    consecutive positions.
    """
    host = _Host(rows)
    repeat = heads // groups
    programs = programs or _programs(device)
    forms: dict[str, list[int]] = {"decode": [], "block": []}
    for index, request in enumerate(rows):
        many = (
            request.high - request.low
        ) * repeat > NARROW_ROWS and request.high - request.low > 1
        forms["block" if many else "decode"].append(index)
    spans = [span for request in rows for span in request.spans if span.length]
    rounded = any(span.start >= n_own for span in spans)
    changed = any(span.change >= 0 for span in spans)
    tiles = {form: tile(form, repeat, dim, value_dim, itemsize, rounded, changed) for form in forms}
    # What a request's rows are read: once by each block of its queries.
    work = sum(
        -(-(rows[i].high - rows[i].low) // tiles[form].queries)
        * sum(span.length for span in rows[i].spans)
        * tiles[form].parts
        for form, own in forms.items()
        for i in own
    )
    share = max(least_rows, -(-work * groups // programs))
    turns: dict[int, int] = {0: 0}
    pieces: list[_Piece] = []
    made: list[tuple[Tile, list[list[int]], list[list[int]], int]] = []
    for form, own in forms.items():
        items: list[list[int]] = []
        blocks: list[list[int]] = []
        n_slots = 0
        for i in own:
            size = -(-share // tiles[form].block_n) * tiles[form].block_n
            parts = _deal(host, i, turns, size)
            n_slots = _items(host, i, parts, len(pieces), kind, tiles[form], items, blocks, n_slots)
            for part in parts:
                pieces.extend(part.pieces)
        if items:
            made.append((tiles[form], items, blocks, n_slots))
    return _table(host, kind, turns, pieces, made, n_own, device)


def _programs(device: torch.device) -> int:
    if device.type != "cuda":
        return 8
    return 2 * torch.cuda.get_device_properties(device).multi_processor_count


_Piece = tuple[int, int, int, int, int, int, int, float]
"""A part of a span, in the order of the columns; `AT` counts in the positions given explicitly, LOCAL from 0."""


class _Part(NamedTuple):
    """Pieces of one request that one item goes through."""

    pieces: list[_Piece]
    first: int
    """No row stands before it."""
    last: int
    """No visible row stands behind it."""


class _Host:
    """The batch's positions, copied from the device at once."""

    def __init__(self, rows: Sequence[Rows]) -> None:
        self.rows = rows
        self.extent = Extent(rows)
        end = 0
        parts: list[Tensor] = []
        for request in rows:
            n = request.high - request.low
            if request.low != end or len(request.positions) != n:
                raise ValueError(
                    f"a request of {len(request.positions)} positions begins at row {request.low} and ends before "
                    f"{request.high}, where row {end} is next"
                )
            end = request.high
            parts.append(request.positions)
        self.n_queries = end
        explicit = [
            span.explicit
            for r in rows
            for span in r.spans
            if span.explicit is not None and span.length
        ]
        lengths = [end, *(len(x) for x in explicit)]
        both = torch.cat([*parts, *explicit]).to(torch.int64) if parts or explicit else None
        numbers = np.empty(0, np.int32) if both is None else both.cpu().numpy().astype(np.int32)
        self.positions = numbers[:end]
        cuts = list(accumulate(lengths))
        given = iter(numbers[low:high] for low, high in pairwise(cuts))
        self._given = [
            [next(given) if s.explicit is not None and s.length else None for s in r.spans]
            for r in rows
        ]
        self.explicit: list[np.ndarray] = []
        self.n_explicit = 0

    def places(self, request: int, index: int) -> np.ndarray | None:
        """The positions of a span's rows, NEVER at its holes; None where they are consecutive and all visible."""
        span, own = self.rows[request].spans[index], self._given[request][index]
        if own is not None and int(own[-1]) - int(own[0]) + 1 == span.length:
            own = None
        if span.holes is None or not len(span.holes):
            return own
        if own is None:
            own = np.arange(span.first, span.first + span.length, dtype=np.int32)
        own = own.copy()
        own[span.holes.cpu().numpy()] = NEVER
        return own

    def keep(self, places: np.ndarray) -> int:
        """Put positions behind those that are kept; returns where they begin."""
        at = self.n_explicit
        self.explicit.append(places)
        self.n_explicit += len(places)
        return at


def _deal(host: _Host, index: int, turns: dict[int, int], size: int) -> list[_Part]:
    """The pieces of a request, in parts of at most `size` rows."""
    parts: list[_Part] = []
    pieces: list[_Piece] = []
    earliest, latest, room = NEVER, -1, size
    for number, span in enumerate(host.rows[index].spans):
        start, length, delta, first = span.start, span.length, span.delta, span.first
        if not length:
            continue
        places = None
        if span.explicit is not None or span.holes is not None:
            places = host.places(index, number)
            if span.change >= 0 and span.explicit is not None:
                raise ValueError("a change of rows that are not at consecutive positions")
        at, last = -1, first + length - 1
        if places is not None:
            at, last = host.keep(places), span.last
        turn, local = turns.setdefault(delta, len(turns)), first - delta
        while length:
            if not room:
                parts.append(_Part(pieces, earliest, latest))
                pieces, earliest, latest, room = [], NEVER, -1, size
            n = min(room, length)
            # Where positions are given, the first and the last of all are bounds, and will do.
            pieces.append((start, n, turn, first, at, span.change, local, span.bias))
            earliest = min(earliest, first)
            latest = max(latest, last)
            room -= n
            length -= n
            start += n
            local += n
            if at >= 0:
                at += n
            else:
                first += n
    parts.append(_Part(pieces, earliest, latest))
    return parts


def _items(
    host: _Host,
    index: int,
    parts: list[_Part],
    n_pieces: int,
    kind: LayerKind,
    cut: Tile,
    items: list[list[int]],
    blocks: list[list[int]],
    n_slots: int,
) -> int:
    """Add the items of a request, and its blocks that are merged; returns the slots taken so far."""
    request = host.rows[index]
    ends = list(accumulate((len(part.pieces) for part in parts), initial=n_pieces))
    for low in range(request.low, request.high, cut.queries):
        high = min(low + cut.queries, request.high)
        own = host.positions[low:high]
        least, most = int(own.min()), int(own.max())
        oldest = -1 if kind.window is None else least - kind.window  # up to here is out of sight
        seen = [i for i, part in enumerate(parts) if part.first <= most and part.last > oldest]
        merged = len(seen) > 1
        if merged:
            blocks.append([low, high - low, n_slots, len(seen)])
        for number in seen or [0]:
            slot = n_slots if merged else -1
            n_slots += merged
            items.append([low, high - low, ends[number], ends[number + 1], least, most, slot, 0])
    return n_slots


def _table(
    host: _Host,
    kind: LayerKind,
    turns: dict[int, int],
    pieces: list[_Piece],
    made: list[tuple[Tile, list[list[int]], list[list[int]], int]],
    n_own: int,
    device: torch.device,
) -> Table:
    """Bring everything to the device, the whole numbers in one copy."""
    table = np.array(pieces, np.float64).reshape(-1, PIECE_COLUMNS)
    columns = table.astype(np.int32)
    columns[:, BIAS] = table[:, BIAS].astype(np.float32).view(np.int32)
    changed = columns[:, CHANGE] >= 0
    local, ends = columns[changed, LOCAL], columns[changed, LOCAL] + columns[changed, LENGTH]
    low, high = (int(local.min()), int(ends.max())) if changed.any() else (0, 1)
    columns[:, LOCAL] -= low
    explicit = np.concatenate(host.explicit) if host.explicit else np.empty(0, np.int32)
    numbers = Numbers(columns, host.positions, explicit)
    arrays: list[np.ndarray] = [*numbers]
    for _, items, blocks, _ in made:
        arrays.append(np.array(items, np.int32).reshape(-1, ITEM_COLUMNS))
        arrays.append(np.array(blocks, np.int32).reshape(-1, BLOCK_COLUMNS))
    # An empty tensor has no address that a kernel may be given.
    flat = np.concatenate([*(array.ravel() for array in arrays), np.zeros(1, np.int32)])
    whole = torch.from_numpy(flat).to(device, non_blocking=True)
    cuts = list(accumulate((array.size for array in arrays), initial=0))
    parts = [
        whole[begin:end].view(array.shape) if array.size else whole[-1:]
        for array, (begin, end) in zip(arrays, pairwise(cuts), strict=True)
    ]
    launches = tuple(
        Launch(cut, parts[3 + 2 * i], parts[4 + 2 * i] if blocks else whole[:0], n_slots)
        for i, (cut, _, blocks, n_slots) in enumerate(made)
    )
    rotary = replace(kind.rotary, inv_freq=kind.rotary.inv_freq.to(device))
    cos, sin = angles(
        -torch.tensor(list(turns), dtype=torch.float64, device=device), rotary, torch.float32
    )
    local_cos, local_sin = angles(torch.arange(low, high, device=device), rotary, torch.float32)
    return Table(
        host.n_queries,
        host.extent,
        launches,
        parts[0],
        parts[1],
        parts[2],
        cos.contiguous(),
        sin.contiguous(),
        local_cos.contiguous(),
        local_sin.contiguous(),
        bool(changed.any()),
        bool((columns[:, ROW] >= n_own).any()),
        numbers,
    )
