"""Rows of keys and values in Triton: turned by one delta a segment, moved between pool and entry, appended.

Each operation is one launch, whatever the number of layers, pages or chunks. Rows lie anywhere: all strides are
free but the last, which is 1. Row numbers that no row has are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from epicrag.kernels import reference
from epicrag.kernels.choice import current
from epicrag.kernels.tables import Rotary, RowSet, Shifts
from epicrag.kernels.triton_aot import Specimen

WARPS = 4
_TILE = 2048
"""Pairs, or numbers moved, that one program holds at a time: 16 for each thread."""
_HEADS = 8
"""Heads that one program turns by the same angles."""
_NO_SPECIAL = ("n", "source_start", "target_start", "source_limit", "target_limit")


@dataclass(frozen=True, slots=True)
class RotatePlan:
    """Block sizes of `rotate_kernel`."""

    block_rows: int
    block_half: int
    block_copy: int
    heads: int


@dataclass(frozen=True, slots=True)
class MovePlan:
    """Block sizes of the kernels that move rows."""

    block_rows: int
    first_block: int
    second_block: int


def plan_rotate(dim: int, rotary_dim: int) -> RotatePlan:
    """For heads of `dim` entries, `rotary_dim` of which turn.

    A block must have an element for each thread: where two threads held the same one, the first could write it
    before the second has read it, when keys are turned in place.
    """
    half = _power(rotary_dim // 2)
    rows = max(1, _TILE // half)
    return RotatePlan(rows, half, min(64, _power(dim), max(1, 2 * _TILE // rows)), _HEADS)


def plan_move(n: int, first_dim: int, second_dim: int) -> MovePlan:
    """For n rows of two tensors."""
    first, second = min(256, _power(first_dim)), min(256, _power(second_dim))
    most = min(512, max(16, 2 * _TILE // max(first, second)))
    return MovePlan(16 if n <= 16 else most, first, second)


def _power(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


@triton.jit(do_not_specialize=["n"])
def rotate_kernel(
    x, out, cos, sin, table, n, heads, groups,
    x_layer, x_group, x_row, out_layer, out_group, out_row,
    DIM: tl.constexpr, HALF: tl.constexpr, START: tl.constexpr, INTERLEAVED: tl.constexpr,
    PER_ROW: tl.constexpr, COPY: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_COPY: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """BLOCK_ROWS rows of HEADS heads: the angles are read once for all of them."""
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    here = rows < n
    pairs = tl.arange(0, BLOCK_HALF)
    if PER_ROW:
        turns = rows
    elif table is not None:
        turns = tl.load(table + rows, mask=here, other=0)
    else:
        turns = rows * 0
    angle = turns.to(tl.int64)[:, None] * HALF + pairs[None, :]
    known = here[:, None] & (pairs < HALF)[None, :]
    c = tl.load(cos + angle, mask=known, other=0.0)
    s = tl.load(sin + angle, mask=known, other=0.0)
    wide = c.dtype
    from_rows = rows.to(tl.int64)[:, None] * x_row
    to_rows = rows.to(tl.int64)[:, None] * out_row
    first_head = tl.program_id(1).to(tl.int64) * HEADS
    for step in range(HEADS):
        head = first_head + step
        layer, group = head // groups, head % groups
        source = x + layer * x_layer + group * x_group + from_rows
        target = out + layer * out_layer + group * out_group + to_rows
        alive = here & (head < heads)
        if INTERLEAVED:
            both = tl.arange(0, 2 * BLOCK_HALF)
            inside = alive[:, None] & (both < 2 * HALF)[None, :]
            old = tl.load(source + START + both[None, :], mask=inside, other=0.0).to(wide)
            a, b = tl.split(tl.reshape(old, (BLOCK_ROWS, BLOCK_HALF, 2)))
            new = tl.reshape(tl.join(a * c - b * s, b * c + a * s), (BLOCK_ROWS, 2 * BLOCK_HALF))
            tl.store(target + START + both[None, :], new.to(out.dtype.element_ty), mask=inside)
        else:
            inside = alive[:, None] & (pairs < HALF)[None, :]
            low, high = START + pairs[None, :], START + HALF + pairs[None, :]
            a = tl.load(source + low, mask=inside, other=0.0).to(wide)
            b = tl.load(source + high, mask=inside, other=0.0).to(wide)
            tl.store(target + low, (a * c - b * s).to(out.dtype.element_ty), mask=inside)
            tl.store(target + high, (b * c + a * s).to(out.dtype.element_ty), mask=inside)
        if COPY:
            for first in tl.static_range(0, DIM, BLOCK_COPY):
                columns = first + tl.arange(0, BLOCK_COPY)
                still = (columns < DIM) & ((columns < START) | (columns >= START + 2 * HALF))
                kept = alive[:, None] & still[None, :]
                old = tl.load(source + columns[None, :], mask=kept)
                tl.store(target + columns[None, :], old, mask=kept)


@triton.jit
def _copy(source, target, wanted, DIM: tl.constexpr, BLOCK: tl.constexpr):
    """Rows at `source` (n, 1) to rows at `target`, cast to its type."""
    for first in tl.static_range(0, DIM, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        inside = wanted[:, None] & (columns < DIM)[None, :]
        x = tl.load(source + columns[None, :], mask=inside)
        tl.store(target + columns[None, :], x.to(target.dtype.element_ty), mask=inside)


@triton.jit
def _numbers(table, start, n, limit, BLOCK_ROWS: tl.constexpr):
    """The program's row numbers, and which of them are rows: out of a table, or neighbours from `start` on."""
    index = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    wanted = index < n
    if table is not None:
        rows = tl.load(table + index, mask=wanted, other=0).to(tl.int64)
    else:
        rows = start + index.to(tl.int64)
    return rows, wanted & (rows >= 0) & (rows < limit)


@triton.jit(do_not_specialize=_NO_SPECIAL)
def move_rows_kernel(
    first, first_out, second, second_out, source_table, target_table,
    n, source_start, target_start, source_limit, target_limit, groups,
    first_layer, first_group, first_row, first_out_layer, first_out_group, first_out_row,
    second_layer, second_group, second_row, second_out_layer, second_out_group, second_out_row,
    FIRST_DIM: tl.constexpr, SECOND_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, FIRST_BLOCK: tl.constexpr, SECOND_BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK_ROWS rows of one head of one layer, of the first tensor or of the second."""
    source_rows, there = _numbers(source_table, source_start, n, source_limit, BLOCK_ROWS)
    target_rows, free = _numbers(target_table, target_start, n, target_limit, BLOCK_ROWS)
    head = tl.program_id(1).to(tl.int64)
    layer, group = head // groups, head % groups
    if tl.program_id(2) == 0:
        source = first + layer * first_layer + group * first_group
        target = first_out + layer * first_out_layer + group * first_out_group
        source, target = (
            source + source_rows[:, None] * first_row,
            target + target_rows[:, None] * first_out_row,
        )
        _copy(source, target, there & free, FIRST_DIM, FIRST_BLOCK)
    else:
        if second is not None:
            source = second + layer * second_layer + group * second_group
            target = second_out + layer * second_out_layer + group * second_out_group
            source, target = (
                source + source_rows[:, None] * second_row,
                target + target_rows[:, None] * second_out_row,
            )
            _copy(source, target, there & free, SECOND_DIM, SECOND_BLOCK)


@triton.jit(do_not_specialize=["n", "start", "limit"])
def append_kernel(
    keys, values, pool_keys, pool_values, table, n, start, limit,
    key_group, key_row, value_group, value_row,
    pool_key_group, pool_key_row, pool_value_group, pool_value_row,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, KEY_BLOCK: tl.constexpr, VALUE_BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK_ROWS new tokens of one head, their keys or their values."""
    index = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    rows, wanted = _numbers(table, start, n, limit, BLOCK_ROWS)
    group = tl.program_id(1).to(tl.int64)
    if tl.program_id(2) == 0:
        source = keys + group * key_group + index[:, None] * key_row
        target = pool_keys + group * pool_key_group + rows[:, None] * pool_key_row
        _copy(source, target, wanted, KEY_DIM, KEY_BLOCK)
    else:
        source = values + group * value_group + index[:, None] * value_row
        target = pool_values + group * pool_value_group + rows[:, None] * pool_value_row
        _copy(source, target, wanted, VALUE_DIM, VALUE_BLOCK)


def rotate(
    x: Tensor, delta: Tensor | int | Shifts, rotary: Rotary, out: Tensor | None = None
) -> Tensor:
    """Turn keys x (..., T, D) by `delta` positions into `out`, which may be x: see `ops.rotate`.

    delta: a number, a number for each row (T,), or one for each segment. The angles are worked out in float64 and
    cast once to float32 (float64 for x in float64), which the products are made in.
    """
    if x.ndim < 1 or x.shape[-1] < rotary.start + rotary.dim:
        raise ValueError(
            f"keys {tuple(x.shape)} have no {rotary.dim} entries from {rotary.start} on"
        )
    if not rotary.dim and out is None:
        return x
    out = torch.empty_like(x) if out is None else out
    _check_pair(x, out)
    if out.dtype != x.dtype:
        raise ValueError(f"keys are {x.dtype} and out is {out.dtype}: they must be alike")
    four, four_out = _four(x), _four(out)
    same = out.data_ptr() == x.data_ptr() and out.stride() == x.stride()
    if not rotary.dim:
        return out if same else out.copy_(x)
    n = four.shape[2]
    cos, sin, table, per_row = _turns(delta, n, rotary, x)
    if not x.numel():
        return out
    plan = plan_rotate(x.shape[-1], rotary.dim)
    layers, groups = four.shape[:2]
    grid = (triton.cdiv(n, plan.block_rows), triton.cdiv(layers * groups, plan.heads))
    with current(x):
        rotate_kernel[grid](
            four, four_out, cos, sin, table, n, layers * groups, groups,
            *four.stride()[:3], *four_out.stride()[:3],
            **_rotate_constants(plan, x.shape[-1], rotary, per_row, not same),
            num_warps=WARPS,
        )  # fmt: skip
    return out


def _rotate_constants(
    plan: RotatePlan, dim: int, rotary: Rotary, per_row: bool, moves: bool
) -> dict[str, Any]:
    return {
        "DIM": dim,
        "HALF": rotary.dim // 2,
        "START": rotary.start,
        "INTERLEAVED": rotary.interleaved,
        "PER_ROW": per_row,
        "COPY": moves and rotary.dim < dim,
        "BLOCK_ROWS": plan.block_rows,
        "BLOCK_HALF": plan.block_half,
        "BLOCK_COPY": plan.block_copy,
        "HEADS": plan.heads,
    }


def _turns(
    delta: Tensor | int | Shifts, n: int, rotary: Rotary, x: Tensor
) -> tuple[Tensor, Tensor, Tensor | None, bool]:
    """Cosines and sines (S, dim / 2), the turn of each row where there is a table of them, and whether S is n."""
    wide = torch.promote_types(x.dtype, torch.float32)
    table = None
    if isinstance(delta, Shifts):
        table = delta.of_rows(n).to(x.device)
        delta = torch.tensor(delta.deltas, dtype=torch.float64)
    many = torch.as_tensor(delta)
    if table is None and many.numel() != 1 and (many.ndim != 1 or len(many) != n):
        raise ValueError(f"deltas {tuple(many.shape)} are neither one nor one for each of {n} rows")
    cos, sin = reference.angles(many.reshape(-1), rotary, wide)
    both = [part.to(x.device).contiguous() for part in (cos, sin)]
    return both[0], both[1], table, table is None and many.numel() != 1


def move_rows(
    source: Sequence[Tensor], target: Sequence[Tensor], source_rows: RowSet, target_rows: RowSet
) -> None:
    """Copy rows of each tensor of `source` to rows of its fellow in `target`: see `ops.move_rows`.

    Two tensors go in one launch; so keys and values do, and then their scales.
    """
    _check_moves(source, target)
    device = target[0].device
    have, room = source[0].shape[2], target[0].shape[2]
    source_table, source_start, n = _table(source_rows, have, device)
    target_table, target_start, n_out = _table(target_rows, room, device)
    if n != n_out:
        raise ValueError(f"{n:,} rows do not go to {n_out:,} rows")
    if not n:
        return
    _check_apart(source, target, (source_table, source_start), (target_table, target_start), n)
    for low in range(0, len(source), 2):
        ours = [_four_wide(x) for x in source[low : low + 2]]
        theirs = [_four_wide(x) for x in target[low : low + 2]]
        single = len(ours) == 1
        if single:
            ours, theirs = ours * 2, theirs * 2
        (first, second), (first_out, second_out) = ours, theirs
        plan = plan_move(n, first.shape[3], second.shape[3])
        layers, groups = first.shape[:2]
        grid = (triton.cdiv(n, plan.block_rows), layers * groups, 1 if single else 2)
        with current(first_out):
            move_rows_kernel[grid](
                first, first_out, None if single else second, None if single else second_out,
                source_table, target_table,
                n, source_start, target_start, have, room, groups,
                *first.stride()[:3], *first_out.stride()[:3],
                *second.stride()[:3], *second_out.stride()[:3],
                FIRST_DIM=first.shape[3], SECOND_DIM=second.shape[3],
                BLOCK_ROWS=plan.block_rows,
                FIRST_BLOCK=plan.first_block, SECOND_BLOCK=plan.second_block,
                num_warps=WARPS,
            )  # fmt: skip


def append(
    keys: Tensor, values: Tensor, pool_keys: Tensor, pool_values: Tensor, rows: Tensor | slice
) -> None:
    """Write new keys (G, T, Dk) and values (G, T, Dv) to rows of one layer of a pool: see `ops.append`."""
    for new, pool in ((keys, pool_keys), (values, pool_values)):
        if new.ndim != 3 or pool.ndim != 3 or new.shape[::2] != pool.shape[::2]:
            raise ValueError(f"{tuple(new.shape)} does not fit a layer {tuple(pool.shape)}")
        if pool.stride(2) != 1:
            raise ValueError("rows of a pool must be contiguous")
    groups, n = keys.shape[:2]
    if isinstance(rows, slice):
        table, start, count = None, rows.start, rows.stop - rows.start
    else:
        table, start, count = _table(rows, pool_keys.shape[1], pool_keys.device)
    if count != n or values.shape[:2] != (groups, n):
        raise ValueError(
            f"keys {tuple(keys.shape)} and values {tuple(values.shape)} do not fit {count} rows"
        )
    if not n or not groups:
        return
    keys, values = _contiguous_rows(keys), _contiguous_rows(values)
    plan = plan_move(n, keys.shape[2], values.shape[2])
    with current(pool_keys):
        append_kernel[(triton.cdiv(n, plan.block_rows), groups, 2)](
            keys, values, pool_keys, pool_values, table, n, start, pool_keys.shape[1],
            *keys.stride()[:2], *values.stride()[:2],
            *pool_keys.stride()[:2], *pool_values.stride()[:2],
            KEY_DIM=keys.shape[2], VALUE_DIM=values.shape[2], BLOCK_ROWS=plan.block_rows,
            KEY_BLOCK=plan.first_block, VALUE_BLOCK=plan.second_block, num_warps=WARPS,
        )  # fmt: skip


def check(device: torch.device) -> bool:
    """Whether a small move of rows comes out as torch's: the first kernel of a process finds out if any run."""
    source = torch.arange(2 * 3 * 5 * 24, dtype=torch.float32, device=device).reshape(2, 3, 5, 24)
    target = torch.full((2, 3, 9, 24), -1.0, device=device)
    rows = torch.tensor([7, 0, 8, 2], dtype=torch.int32, device=device)
    want = target.clone()
    want[:, :, rows.long()] = source[:, :, 1:]
    move_rows([source], [target], [(1, 4)], rows)
    return torch.equal(target, want)


# --- what is given --------------------------------------------------------------------------------


def _four(x: Tensor) -> Tensor:
    """x (..., T, D) as (L, G, T, D), a view. ValueError where dimensions before those four do not lie as one."""
    if x.ndim <= 4:
        return x[(None,) * (4 - x.ndim)]
    try:
        return x.view(x.shape[:-3].numel(), *x.shape[-3:])
    except RuntimeError:
        raise ValueError(
            f"{tuple(x.shape)}, {x.stride()}: at most four dimensions, or one block"
        ) from None


def _four_wide(x: Tensor) -> Tensor:
    """(L, G, N, D) as it is, and (L, G, N), a number a row, as rows of one entry."""
    return x if x.ndim == 4 else x[..., None]


def _contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _check_pair(x: Tensor, out: Tensor) -> None:
    if x.shape != out.shape or x.device != out.device:
        raise ValueError(
            f"{tuple(x.shape)} on {x.device} does not fit {tuple(out.shape)} on {out.device}"
        )
    if x.ndim and x.shape[-1] > 1 and not x.stride(-1) == out.stride(-1) == 1:
        raise ValueError("rows must be contiguous: the last stride is 1")


def _check_moves(source: Sequence[Tensor], target: Sequence[Tensor]) -> None:
    if not source or len(source) != len(target):
        raise ValueError(f"{len(source)} tensors do not go to {len(target)}")
    for x, y in zip(source, target, strict=True):
        where = f"{tuple(x.shape)} {x.dtype} to {tuple(y.shape)} {y.dtype}"
        if x.ndim not in (3, 4) or x.ndim != y.ndim:
            raise ValueError(f"{where}: both must be (L, G, N, D) or (L, G, N)")
        if x.shape[:2] != y.shape[:2] or x.shape[3:] != y.shape[3:]:
            raise ValueError(f"{where}: only the number of rows may differ")
        if x.shape[:3] != source[0].shape[:3] or y.shape[:3] != target[0].shape[:3]:
            raise ValueError(f"{where}: not as many layers, groups and rows as the first tensors")
        if x.dtype != y.dtype and not (x.is_floating_point() and y.is_floating_point()):
            raise ValueError(f"{where}: whole numbers are moved as they are")
        if x.device != y.device:
            raise ValueError(f"{where}: on {x.device} and {y.device}")
        if x.ndim == 4 and x.shape[3] > 1 and not x.stride(3) == y.stride(3) == 1:
            raise ValueError(f"{where}: rows must be contiguous: the last stride is 1")


def _table(rows: RowSet, n_rows: int, device: torch.device) -> tuple[Tensor | None, int, int]:
    """Row numbers as a table, or the first of neighbours; and how many there are."""
    if rows is None:
        return None, 0, n_rows
    if isinstance(rows, Tensor):
        if rows.ndim != 1 or rows.is_floating_point() or rows.device != device:
            raise ValueError(
                f"row numbers are whole, (n,), on {device}: not {rows.dtype} {tuple(rows.shape)}"
            )
        return rows.contiguous(), 0, len(rows)
    runs = [(start, length) for start, length in rows if length]
    for start, length in runs:
        if start < 0 or start + length > n_rows or length < 0:
            raise ValueError(f"rows {start} to {start + length} are not all among {n_rows:,}")
    if len(runs) < 2:
        return (None, *runs[0]) if runs else (None, 0, 0)
    table = torch.cat([torch.arange(s, s + n, dtype=torch.int32) for s, n in runs])
    return table.to(device, non_blocking=True), 0, len(table)


def _check_apart(
    source: Sequence[Tensor],
    target: Sequence[Tensor],
    source_from: tuple[Tensor | None, int],
    target_from: tuple[Tensor | None, int],
    n: int,
) -> None:
    """Refuse neighbours of a tensor moved onto each other. Of tables it is not asked: that would wait for the GPU."""
    if source_from[0] is not None or target_from[0] is not None:
        return
    overlap = abs(source_from[1] - target_from[1]) < n
    for x, y in zip(source, target, strict=True):
        if overlap and x.data_ptr() == y.data_ptr():
            raise ValueError(
                f"{n:,} rows from {source_from[1]:,} overlap those from {target_from[1]:,}"
            )


# --- ahead of time --------------------------------------------------------------------------------

_TYPES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.int8: "i8",
}


def specimens() -> Iterator[Specimen]:
    """What is launched for real models: heads of 64 to 256, partial and interleaved turns, latent attention."""
    yield from _rotate_specimens()
    yield from _move_specimens()
    yield from _append_specimens()


def _rotate_specimens() -> Iterator[Specimen]:
    half, brain, single = torch.float16, torch.bfloat16, torch.float32
    for name, dtype, dim, turned, start, interleaved in (
        ("64", half, 64, 64, 0, False),
        ("96", half, 96, 96, 0, False),
        ("128", brain, 128, 128, 0, False),
        ("128", single, 128, 128, 0, False),
        ("256", brain, 256, 256, 0, False),
        ("80-32", half, 80, 32, 0, False),
        ("128-interleaved", brain, 128, 128, 0, True),
        ("256-64-interleaved", single, 256, 64, 0, True),
        ("latent-576-64", brain, 576, 64, 512, True),
    ):
        rotary = Rotary(torch.empty(turned // 2), turned, interleaved, start)
        plan = plan_rotate(dim, turned)
        for by, per_row, table in (("segment", False, True), ("row", True, False)):
            if by == "row" and name != "128":
                continue
            constants = _rotate_constants(plan, dim, rotary, per_row, True)
            pointer = "*" + _TYPES[dtype]
            kinds = {"x": pointer, "out": pointer, "cos": "*fp32", "sin": "*fp32", "table": "*i32"}
            if not table:
                constants["table"] = None
            yield _specimen(
                f"rotate-{name}-{_TYPES[dtype]}-by-{by}",
                rotate_kernel,
                kinds,
                constants,
                {"n", "heads", "groups"},
            )


def _move_specimens() -> Iterator[Specimen]:
    half, brain, single, eight = torch.float16, torch.bfloat16, torch.float32, torch.int8
    for name, source, target, dims in (
        ("64", half, half, (64, 64)),
        ("96", half, half, (96, 96)),
        ("128", brain, brain, (128, 128)),
        ("128", single, brain, (128, 128)),
        ("128", eight, eight, (128, 128)),
        ("256", single, single, (256, 256)),
        ("latent", brain, brain, (576, 512)),
        ("scales", half, single, (1, 1)),
    ):
        plan = plan_move(512, *dims)
        for way in ("scatter", "gather", "run"):
            if way != "scatter" and (name != "128" or source == single):
                continue
            kinds = {
                "first": "*" + _TYPES[source],
                "first_out": "*" + _TYPES[target],
                "second": "*" + _TYPES[source],
                "second_out": "*" + _TYPES[target],
                "source_table": "*i32",
                "target_table": "*i32",
            }
            constants: dict[str, Any] = {
                "FIRST_DIM": dims[0],
                "SECOND_DIM": dims[1],
                "BLOCK_ROWS": plan.block_rows,
                "FIRST_BLOCK": plan.first_block,
                "SECOND_BLOCK": plan.second_block,
            }
            if way != "gather":
                constants["source_table"] = None
            if way != "scatter":
                constants["target_table"] = None
            if name == "scales":
                ones = ("first_row", "first_out_row", "second_row", "second_out_row")
                constants |= dict.fromkeys(ones, 1)
            yield _specimen(
                f"move-{way}-{name}-{_TYPES[source]}-{_TYPES[target]}",
                move_rows_kernel,
                kinds,
                constants,
                {*_NO_SPECIAL, "groups"},
            )


def _append_specimens() -> Iterator[Specimen]:
    half, brain, single = torch.float16, torch.bfloat16, torch.float32
    for n, dtype, dims in (
        (1, half, (64, 64)),
        (1, brain, (128, 128)),
        (512, brain, (128, 128)),
        (512, single, (96, 96)),
        (512, brain, (256, 256)),
        (512, brain, (576, 512)),
    ):
        plan = plan_move(n, *dims)
        names = ("keys", "values", "pool_keys", "pool_values")
        kinds = dict.fromkeys(names, "*" + _TYPES[dtype]) | {"table": "*i64"}
        constants = {
            "KEY_DIM": dims[0],
            "VALUE_DIM": dims[1],
            "BLOCK_ROWS": plan.block_rows,
            "KEY_BLOCK": plan.first_block,
            "VALUE_BLOCK": plan.second_block,
        }
        yield _specimen(
            f"append-{n}-{dims[0]}-{_TYPES[dtype]}",
            append_kernel,
            kinds,
            constants,
            {"n", "start", "limit"},
        )


def _specimen(
    name: str, kernel: Any, kinds: dict[str, str], constants: dict[str, Any], odd: set[str]
) -> Specimen:
    """All parameters that are not pointers or constants are numbers, multiples of 16 but for `odd`."""
    signature = {
        p: "constexpr" if p in constants else kinds.get(p, "i32") for p in kernel.arg_names
    }
    wide = frozenset(p for p, kind in signature.items() if kind != "constexpr" and p not in odd)
    return Specimen(name, kernel, signature, constants, WARPS, 3, wide)
