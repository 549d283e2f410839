"""Relocation: the group property of RoPE, on every pairing and width."""

import pytest
import torch

from epicrag.kernels import cpu, ops


def rotary(dim: int, interleaved: bool) -> ops.Rotary:
    return ops.Rotary(1.0 / (10000 ** (torch.arange(0, dim, 2) / dim)), dim, interleaved)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dim", [16, 8])
def test_two_turns_are_one_turn_by_the_sum(dim: int, interleaved: bool):
    x = torch.randn(3, 5, 16, dtype=torch.float64)
    spec = rotary(dim, interleaved)
    twice = ops.rotate(ops.rotate(x, 37, spec), 1200, spec)
    assert torch.allclose(twice, ops.rotate(x, 1237, spec), atol=1e-12)
    assert torch.allclose(ops.rotate(ops.rotate(x, 37, spec), -37, spec), x, atol=1e-12)


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_turned_key_scores_as_a_counter_turned_query(interleaved: bool):
    query, key = torch.randn(2, 16, dtype=torch.float64)
    spec = rotary(16, interleaved)
    turned = query @ ops.rotate(key, 4321, spec)
    assert torch.allclose(ops.rotate(query, -4321, spec) @ key, turned, atol=1e-12)


def test_only_the_rotary_slice_moves():
    x = torch.randn(4, 16)
    moved = ops.rotate(x, 9, rotary(8, False))
    assert torch.equal(moved[:, 8:], x[:, 8:])
    assert not torch.allclose(moved[:, :8], x[:, :8])


def test_half_split_pairs_i_with_i_plus_half():
    x = torch.zeros(4)
    x[0] = 1.0
    moved = ops.rotate(x, 1, ops.Rotary(torch.tensor([torch.pi / 2, 0.0]), 4))
    assert torch.allclose(moved, torch.tensor([0.0, 0.0, 1.0, 0.0]), atol=1e-6)


def test_a_tensor_of_deltas_turns_row_by_row():
    x = torch.randn(3, 16)
    spec = rotary(16, False)
    every = ops.rotate(x, torch.tensor([0, 5, 11]), spec)
    each = torch.stack([ops.rotate(x[i], d, spec) for i, d in enumerate((0, 5, 11))])
    assert torch.allclose(every, each)


def test_half_precision_is_turned_in_float32_and_cast_once():
    x = torch.randn(2, 16, dtype=torch.bfloat16)
    spec = rotary(16, False)
    want = ops.rotate(x.float(), 900, spec).bfloat16()
    assert torch.equal(ops.rotate(x, 900, spec), want)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dim", [16, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_change_is_added_turned_to_each_row(interleaved: bool, dim: int, dtype: torch.dtype):
    spec = rotary(dim, interleaved)
    wide = torch.promote_types(dtype, torch.float32)
    pool = torch.randn(2, 20, 16).to(dtype)
    change = torch.randn(2, 1, 16, dtype=wide)
    rows = torch.arange(3, 8)
    keys, out = pool[:, 2:7], pool[:, 10:15]
    want = keys.to(wide) + ops.rotate(change.expand(2, 5, 16), rows, spec)
    others = torch.cat((pool[:, :10], pool[:, 15:]), 1).clone()
    cpu.add_turned(keys, change, *ops.angles(rows, spec, wide), spec, out=out)
    assert torch.allclose(out.to(wide), want, atol=5e-2 if dtype == torch.bfloat16 else 1e-5)
    assert torch.equal(torch.cat((pool[:, :10], pool[:, 15:]), 1), others)
