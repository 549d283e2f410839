"""Rows turned, moved and appended by Triton: the same numbers as torch's, and nothing written beside them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epicrag.kernels import choice, ops, reference

pytest.importorskip("triton")
from epicrag.kernels import triton_rows

CPU = torch.device("cpu")
RUNS = 15
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 2e-6, torch.float64: 1e-12}


def rotary(dim: int, interleaved: bool = False, start: int = 0) -> ops.Rotary:
    frequencies = 1.0 / (10000 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim))
    return ops.Rotary(frequencies.float(), dim, interleaved, start)


def numbers(shape, seed: int, dtype=torch.float32, device=CPU) -> torch.Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(dtype).to(device)


def strided(shape, seed: int, dtype, device, poison: float | None = None):
    """Memory with more in it than the tensor of a shape, and the tensor: a view with gaps in every dimension."""
    *before, n, dim = shape
    block = numbers((*(size + 1 for size in before), n + 3, dim + 5), seed, dtype, device)
    if poison is not None:
        block.fill_(poison)
    view = block[(*(slice(1, None) for _ in before), slice(2, 2 + n), slice(1, 1 + dim))]
    return block, view


def beside(block: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """The block with zeros where the view is: what must not have changed."""
    out = block.clone()
    torch.as_strided(out, view.shape, view.stride(), view.storage_offset()).zero_()
    return out


@st.composite
def turns(draw: st.DrawFn):
    dim = draw(st.sampled_from([8, 24, 40, 64]))
    turned = draw(st.sampled_from([d for d in (2, 8, 12, 24, 40, 64) if d <= dim]))
    start = draw(st.integers(0, dim - turned))
    spec = (turned, draw(st.booleans()), start)
    before = draw(st.sampled_from([(), (1,), (3,), (2, 3), (9, 1), (2, 1, 2)]))
    lengths = draw(st.lists(st.sampled_from([0, 1, 2, 7, 33]), min_size=1, max_size=4))
    deltas = [draw(st.integers(-40_000, 40_000)) for _ in lengths]
    return (
        dim,
        spec,
        before,
        lengths,
        deltas,
        draw(st.sampled_from(FLOATS)),
        draw(st.integers(0, 999)),
    )


@settings(max_examples=RUNS, deadline=None)
@given(turns(), st.sampled_from(["one", "rows", "segments"]), st.booleans())
def test_keys_are_turned_as_the_reference_turns_them(device, given_, how, in_place):
    dim, spec, before, lengths, deltas, dtype, seed = given_
    n = sum(lengths)
    turn = rotary(*spec)
    delta = {
        "one": deltas[0],
        "rows": torch.arange(n, device=device) * 7 - 3,
        "segments": ops.Shifts(deltas, lengths),
    }[how]
    if len(before) > 2:  # four dimensions at most may have gaps
        block = x = numbers((*before, n, dim), seed, dtype, device)
    else:
        block, x = strided((*before, n, dim), seed, dtype, device)
    old = x.clone()
    if in_place:
        out = x
    elif len(before) > 2:
        block = out = torch.full_like(x, float("nan"))
    else:
        block, out = strided((*before, n, dim), 0, dtype, device, float("nan"))
    around = beside(block, out)
    by = delta.cpu() if isinstance(delta, torch.Tensor) else delta
    want = reference.rotate(old.cpu().double(), by, turn)
    assert triton_rows.rotate(x, delta, turn, out) is out
    tolerance = TOLERANCE[dtype]
    assert torch.allclose(out.cpu().double(), want, atol=tolerance, rtol=tolerance)
    still = [*range(turn.start), *range(turn.start + turn.dim, dim)]
    assert torch.equal(out[..., still], old[..., still])
    assert torch.equal(bits(beside(block, out)), bits(around))
    assert in_place or torch.equal(x, old)


@pytest.mark.parametrize("interleaved", [False, True])
def test_float32_keys_far_away_are_turned_by_angles_of_float64(device, interleaved):
    """In float32 an angle of a hundred thousand positions would be off by a hundredth."""
    spec = rotary(64, interleaved)
    x = numbers((2, 5, 64), 3, device=device)
    want = reference.rotate(x.cpu().double(), 131_071, spec)
    made = triton_rows.rotate(x, 131_071, spec)
    assert torch.allclose(made.cpu().double(), want, atol=2e-6)


def test_segments_of_many_chunks_turn_in_one_launch(device, monkeypatch):
    launches = []
    kernel = triton_rows.rotate_kernel
    monkeypatch.setattr(triton_rows, "rotate_kernel", Counted(kernel, launches))
    lengths = [300, 1, 512, 70]
    x = numbers((2, 1, sum(lengths), 16), 5, device=device)
    made = triton_rows.rotate(x, ops.Shifts([7, -40, 12_000, 0], lengths), rotary(16))
    each = zip(x.split(lengths, 2), (7, -40, 12_000, 0), strict=True)
    want = torch.cat([reference.rotate(part.cpu(), d, rotary(16)) for part, d in each], 2)
    assert torch.allclose(made.cpu(), want, atol=2e-6)
    assert len(launches) == 1


class Counted:
    """A kernel that counts its launches."""

    def __init__(self, kernel, launches):
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid):
        self.launches.append(grid)
        return self.kernel[grid]


def test_what_does_not_turn_is_given_back_or_copied(device):
    x, none = numbers((2, 3, 8), 1, device=device), ops.Rotary(torch.empty(0), 0)
    assert triton_rows.rotate(x, 5, none) is x
    out = torch.full_like(x, float("nan"))
    assert torch.equal(triton_rows.rotate(x, 5, none, out), x)
    empty = x[:, :0]
    assert triton_rows.rotate(empty, 5, rotary(8)).shape == (2, 0, 8)


def test_keys_that_cannot_be_turned_are_refused(device):
    x = numbers((2, 3, 8), 1, device=device)
    with pytest.raises(ValueError, match="no 16 entries"):
        triton_rows.rotate(x, 5, rotary(16))
    with pytest.raises(ValueError, match="neither one nor one for each of 3"):
        triton_rows.rotate(x, torch.arange(2), rotary(8))
    with pytest.raises(ValueError, match="do not fit 3 rows"):
        triton_rows.rotate(x, ops.Shifts([1, 2], [1, 1]), rotary(8))
    with pytest.raises(ValueError, match="does not fit"):
        triton_rows.rotate(x, 5, rotary(8), x[:, :2])
    with pytest.raises(ValueError, match="last stride"):
        triton_rows.rotate(x, 5, rotary(8), x.new_empty(2, 8, 3).transpose(1, 2))
    with pytest.raises(ValueError, match="must be alike"):
        triton_rows.rotate(x, 5, rotary(8), x.double())


@st.composite
def moves(draw: st.DrawFn):
    layers, groups = draw(st.sampled_from([(1, 1), (2, 1), (1, 3), (2, 2)]))
    have, room = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    n = draw(st.one_of(st.just(1), st.integers(0, min(have, room))))
    n = min(n, have, room)
    dims = draw(st.sampled_from([(8, 8), (24, 16), (64, 40), (1, 3), (300, 8)]))
    types = draw(
        st.sampled_from([
            *((d, d) for d in (*FLOATS, torch.int8)),
            (torch.float32, torch.bfloat16), (torch.float32, torch.float16),
            (torch.float16, torch.float32), (torch.bfloat16, torch.float16),
        ])
    )  # fmt: skip
    return layers, groups, have, room, n, dims, types, draw(st.integers(0, 999))


def some_rows(n: int, have: int, how: str, seed: int, device):
    """n of the rows that there are: by numbers, as a run or as two."""
    generator = torch.Generator().manual_seed(seed)
    if how == "numbers" or not n:
        kind = torch.int64 if seed % 2 else torch.int32
        return torch.randperm(have, generator=generator)[:n].to(kind).to(device)
    start = int(torch.randint(have - n + 1, (), generator=generator))
    cut = n // 2
    return [(start + n - cut, cut), (start, n - cut)] if how == "runs" else [(start, n)]


def listed(rows) -> torch.Tensor:
    if isinstance(rows, torch.Tensor):
        return rows.cpu().long()
    return torch.cat([torch.arange(start, start + n) for start, n in rows])


@settings(max_examples=2 * RUNS, deadline=None)
@given(moves(), *[st.sampled_from(["numbers", "run", "runs"])] * 2)
def test_rows_are_moved_bit_by_bit_and_nothing_else_is_written(
    device, given_, source_how, target_how
):
    layers, groups, have, room, n, dims, (kind, kind_out), seed = given_
    source, target, blocks = [], [], []
    for number, dim in enumerate(dims):
        shape = (layers, groups, have, dim)
        block, view = strided(shape, seed + number, torch.float32, device)
        if kind == torch.int8:
            block.mul_(40).round_()
        block = block.to(kind)
        source.append(torch.as_strided(block, view.shape, view.stride(), view.storage_offset()))
        poison = -77 if kind == torch.int8 else float("nan")
        blocks.append(strided((layers, groups, room, dim), 0, kind_out, device, poison))
        target.append(blocks[-1][1])
    source_rows = some_rows(n, have, source_how, seed, device)
    target_rows = some_rows(n, room, target_how, seed + 1, device)
    want = [block.clone() for block, _ in blocks]
    for x, block, (_, view) in zip(source, want, blocks, strict=True):
        own = torch.as_strided(block, view.shape, view.stride(), view.storage_offset())
        own[:, :, listed(target_rows)] = x[:, :, listed(source_rows)].to(kind_out)
    triton_rows.move_rows(source, target, source_rows, target_rows)
    for block, (made, _) in zip(want, blocks, strict=True):
        if kind != kind_out == torch.bfloat16 and device.type == "cpu":
            # Triton's interpreter cuts off where the GPU rounds.
            assert torch.equal(made.isnan(), block.isnan())
            assert torch.allclose(made.float(), block.float(), atol=0, rtol=2**-7, equal_nan=True)
        else:
            assert torch.equal(bits(made), bits(block))


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.itemsize])


def test_one_tensor_scales_and_all_rows(device):
    """Keys and values in 8 bits and then their scales; None is all rows there are."""
    whole = [(numbers((2, 2, 6, d), 7 + d) * 30).to(torch.int8).to(device) for d in (8, 16)]
    scales = [numbers((2, 2, 6), 9 + i, torch.float16, device) for i in range(2)]
    room = [x.new_full((2, 2, 20, x.shape[3]), -77) for x in whole]
    room += [torch.full((2, 2, 20), float("nan"), device=device) for _ in scales]
    triton_rows.move_rows([*whole, *scales], room, None, [(3, 2), (11, 4)])
    rows = torch.tensor([3, 4, 11, 12, 13, 14], device=device)
    for x, y in zip([*whole, *scales], room, strict=True):
        assert torch.equal(y[:, :, rows], x.to(y.dtype))
        others = torch.ones(20, dtype=torch.bool, device=device).index_fill(0, rows, False)
        beside = y[:, :, others]
        assert bool((beside.isnan() if y.is_floating_point() else beside == -77).all())
    back = [torch.zeros_like(scales[0])]
    triton_rows.move_rows(room[2:3], back, rows, None)
    assert torch.equal(back[0], scales[0])


def test_pages_are_copied_within_a_pool(device):
    """Copy-on-write: from rows to other rows of the same memory."""
    pool = numbers((2, 3, 64, 16), 11, torch.bfloat16, device)
    want = pool.clone()
    want[:, :, 40:56] = pool[:, :, 8:24]
    triton_rows.move_rows([pool], [pool], [(8, 16)], [(40, 16)])
    assert torch.equal(pool, want)
    with pytest.raises(ValueError, match="overlap"):
        triton_rows.move_rows([pool], [pool], [(8, 16)], [(20, 16)])


def test_a_chunk_goes_in_one_launch(device, monkeypatch):
    launches = []
    monkeypatch.setattr(
        triton_rows, "move_rows_kernel", Counted(triton_rows.move_rows_kernel, launches)
    )
    keys, values = (
        numbers((3, 2, 20, 8), 1, device=device),
        numbers((3, 2, 20, 16), 2, device=device),
    )
    room = [x.new_empty((3, 2, 40, x.shape[3])) for x in (keys, values)]
    triton_rows.move_rows([keys, values], room, None, [(0, 5), (8, 10), (30, 5)])
    assert len(launches) == 1


def test_rows_that_are_none_are_passed_over(device):
    """They would lie in somebody else's memory."""
    x = numbers((1, 1, 4, 8), 1, device=device)
    room = torch.full((1, 1, 6, 8), 5.0, device=device)
    rows = torch.tensor([2, -1, 6, 1 << 20], dtype=torch.int64, device=device)
    triton_rows.move_rows([x], [room], None, rows)
    assert torch.equal(room[0, 0, 2], x[0, 0, 0])
    assert bool((room[0, 0, [0, 1, 3, 4, 5]] == 5).all())


def test_rows_that_cannot_be_moved_are_refused(device):
    x, room = numbers((2, 1, 4, 8), 1, device=device), torch.zeros((2, 1, 6, 8), device=device)

    def refused(match, source, target, *rows):
        with pytest.raises(ValueError, match=match):
            triton_rows.move_rows(source, target, *rows)

    refused("4 rows do not go to 6", [x], [room], None, None)
    refused("not all among 6", [x], [room], None, [(3, 4)])
    refused("not all among 4", [x], [room], [(-1, 2)], [(0, 2)])
    refused("row numbers are whole", [x], [room], None, torch.zeros(4, device=device))
    refused("only the number of rows", [x], [room[..., :4]], None, [(0, 4)])
    refused("whole numbers", [x], [room.to(torch.int8)], None, [(0, 4)])
    refused("last stride", [x], [room.new_empty(2, 1, 8, 6).transpose(2, 3)], None, [(0, 4)])
    refused("1 tensors do not go to 0", [x], [], None, None)
    refused("both must be", [x], [room[..., 0]], None, [(0, 4)])
    refused("not as many layers", [x, x[:, :, :2]], [room, room], None, [(0, 4)])
    assert not room.any()


@settings(max_examples=RUNS, deadline=None)
@given(
    st.sampled_from([1, 2, 5, 16, 17, 40]),
    st.sampled_from([1, 3]),
    st.sampled_from([(8, 8), (64, 24), (20, 300)]),
    st.sampled_from(FLOATS),
    st.booleans(),
    st.integers(0, 999),
)
def test_new_keys_and_values_go_to_their_rows(device, n, groups, dims, dtype, neighbours, seed):
    """They come as views into what the layer has computed: token by token, heads side by side."""
    made = numbers((n, groups, sum(dims)), seed, dtype, device)
    keys, values = (x.transpose(0, 1) for x in made.split(dims, 2))  # (G, T, D)
    pools = [strided((groups, 50, d), 0, dtype, device, float("nan")) for d in dims]
    rows = slice(4, 4 + n) if neighbours else some_rows(n, 50, "numbers", seed, device)
    want = [block.clone() for block, _ in pools]
    for block, (_, pool), new in zip(want, pools, (keys, values), strict=True):
        own = torch.as_strided(block, pool.shape, pool.stride(), pool.storage_offset())
        own[:, rows if neighbours else rows.long()] = new
    triton_rows.append(keys, values, pools[0][1], pools[1][1], rows)
    for block, (found, _) in zip(want, pools, strict=True):
        assert torch.equal(bits(found), bits(block))


def test_keys_that_do_not_fit_a_pool_are_refused(device):
    keys, values = numbers((2, 3, 8), 1, device=device), numbers((2, 3, 16), 2, device=device)
    pool_keys, pool_values = keys.new_zeros(2, 9, 8), keys.new_zeros(2, 9, 16)
    with pytest.raises(ValueError, match="do not fit 2 rows"):
        triton_rows.append(keys, values, pool_keys, pool_values, slice(0, 2))
    with pytest.raises(ValueError, match="does not fit a layer"):
        triton_rows.append(keys, values, pool_keys, pool_values[..., :8], slice(0, 3))
    with pytest.raises(ValueError, match="do not fit"):
        triton_rows.append(keys, values[:, :2], pool_keys, pool_values, slice(0, 3))
    assert not pool_keys.any() and not pool_values.any()


def test_the_first_kernel_of_a_process_tells_right_from_wrong(device, monkeypatch):
    assert triton_rows.check(device)
    right = triton_rows.move_rows
    monkeypatch.setattr(triton_rows, "move_rows", lambda s, t, a, b: right(s, t, a, b.flip(0)))
    assert not triton_rows.check(device)


# --- the face -------------------------------------------------------------------------------------


@pytest.fixture(params=["triton", "reference"])
def chosen(request, monkeypatch, device) -> str:
    """Both back ends by turns, as the environment asks for them."""
    monkeypatch.setenv(choice.WISH, request.param)
    assert ops.back_end(device) == request.param
    return request.param


def test_face_turns_alike_whatever_turns(chosen, device):
    spec = rotary(8, start=4)
    x = numbers((2, 3, 6, 16), 21, torch.bfloat16, device)
    for delta in (
        900,
        torch.tensor(900),
        torch.arange(6, device=device),
        torch.arange(3, device=device)[:, None],
        ops.Shifts([5, -900], [2, 4]),
    ):
        cpu_delta = delta.cpu() if isinstance(delta, torch.Tensor) else delta
        want = reference.rotate(x.cpu().float(), cpu_delta, spec)
        made = ops.rotate(x, delta, spec)
        assert made.dtype == x.dtype
        assert torch.allclose(made.cpu().float(), want, atol=4e-2)
        own = x.clone()
        assert ops.rotate(own, delta, spec, own) is own
        assert torch.equal(own, made)
    crossed = x.transpose(2, 3).contiguous().transpose(2, 3)
    assert torch.equal(ops.rotate(crossed, 7, spec), ops.rotate(x, 7, spec))


def test_face_moves_alike_whatever_moves(chosen, device):
    source = [numbers((2, 2, 9, d), 30 + d, device=device) for d in (8, 16)]
    rows = torch.tensor([8, 0, 3], device=device)
    for from_rows, to_rows in (
        (rows, [(4, 3)]),
        ([(1, 2), (6, 1)], [(0, 1), (10, 2)]),
        ([(1, 5)], torch.tensor([9, 1, 7, 3, 0], dtype=torch.int32, device=device)),
        (None, [(2, 4), (8, 5)]),
        ([(3, 0)], [(1, 0)]),
    ):
        target = [
            x.new_full((2, 2, 13, x.shape[3]), float("nan"), dtype=torch.float16) for x in source
        ]
        want = [x.clone() for x in target]
        ops.move_rows(source, target, from_rows, to_rows)
        own = listed(from_rows if from_rows is not None else [(0, 9)])
        for x, y, made in zip(source, want, target, strict=True):
            y[:, :, listed(to_rows)] = x[:, :, own].half()
            assert torch.equal(bits(made), bits(y))
    with pytest.raises(ValueError, match="do not go to"):
        ops.move_rows(source, target, None, [(0, 3)])


def test_face_appends_alike_whatever_appends(chosen, device):
    keys, values = numbers((2, 3, 8), 1, device=device), numbers((2, 3, 16), 2, device=device)
    for rows in (slice(2, 5), torch.tensor([8, 0, 3], device=device)):
        for back_end in (None, ops.back_end(device)):
            pools = [x.new_full((2, 9, x.shape[2]), float("nan")) for x in (keys, values)]
            ops.append(keys, values, *pools, rows, back_end)
            for pool, new in zip(pools, (keys, values), strict=True):
                assert torch.equal(pool[:, rows], new)
                assert int(pool.isnan().sum()) == 2 * 6 * pool.shape[2]


@pytest.mark.parametrize("rounded", [False, True])
def test_chunks_go_into_a_pool_and_come_out_alike(chosen, device, rounded):
    """In two runs, as the pages that are free lie apart; the scales of 8 bits among them."""
    from epicrag.serving import entry as entries
    from epicrag.serving.pool import Pool

    sizes = {"layers": 2, "groups": 2, "head_dim": 8, "value_dim": 16}
    pool = Pool(
        **sizes,
        budget_bytes=40_000,
        dtype=torch.float32,
        device=device,
        page_size=4,
        rounded=rounded,
    )
    pool.keys.fill_(float("nan"))
    first, second = pool.allocate(4), pool.allocate(4)
    rest = pool.allocate(pool.free_pages * pool.page_size - 12)
    pool.release(first)
    keys, values = (numbers((2, 2, 15, d), 50 + d) for d in (8, 16))
    entry = entries.rounded(keys, values) if rounded else entries.Entry(keys, values)
    pool.fill("a", entry)
    runs = pool.acquire("a")
    assert len(runs) == (1 if rounded else 2)
    out = pool.entry(runs).narrowed()
    for x, y in zip(entry.tensors(), out.tensors(), strict=True):
        assert torch.equal(x, y.cpu())
    pool.unpin("a")
    pool.release(second)
    pool.release(rest)
    pool.check()


def test_the_back_end_is_found_out_once_for_all_layers(chosen, device, monkeypatch):
    """Looking it up costs more than a layer's new rows of one token."""
    from epicrag.serving.attention import FlatBatch, Request
    from epicrag.serving.pool import Pool

    pool = Pool(
        layers=3, groups=1, head_dim=8, budget_bytes=9000, dtype=torch.float32, device=device
    )
    rows = torch.tensor([5, 9, 7], device=device)
    place = torch.arange(3, device=device)
    layers = ops.Layers((ops.LayerKind(rotary(8)),), (0, 0, 0))
    asked, shown = [], []
    right = ops.back_end
    monkeypatch.setattr(ops, "back_end", lambda where: asked.append(where) or right(where))
    monkeypatch.setattr(ops, "prepare", lambda *given: None)
    monkeypatch.setattr(ops, "segment_attention", lambda q, k, v, *more: shown.append(v) or q)
    batch = FlatBatch(pool, layers, [Request(0, 3, rows, place, [])])
    for layer in range(3):
        keys, values = (numbers((1, 3, 8), 60 + 2 * layer + i, device=device) for i in range(2))
        batch.attend(layer, keys, keys, values, 1.0)
        assert torch.equal(pool.keys[layer][:, rows], keys)
        assert torch.equal(pool.values[layer][:, rows], values)
    assert len(asked) == 1 and len(shown) == 3


def test_append_reads_row_numbers_with_gaps_between_them():
    keys = torch.randn(1, 3, 8)
    pool_keys, pool_values = torch.zeros(1, 10, 8), torch.zeros(1, 10, 8)
    rows = torch.tensor([5, 0, 6, 1, 7, 2])[::2]
    triton_rows.append(keys, keys, pool_keys, pool_values, rows)
    assert torch.equal(pool_keys[:, 5:8], keys) and torch.equal(pool_values, pool_keys)
    assert not pool_keys[:, :5].any()
