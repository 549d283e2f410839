"""The small compiled steps against plain torch in float64, and row by row."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import gelu, silu

from epicrag.kernels import native, ops, reference

pytestmark = pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))

sizes = st.tuples(st.integers(1, 5), st.integers(1, 80))


@settings(max_examples=30, deadline=None)
@given(sizes, st.booleans(), st.sampled_from([0.0, 1.0]))
def test_norm(size, residual, offset):
    x, weight = torch.randn(size), torch.randn(size[1])
    add = torch.randn(size) if residual else None
    wide = x.double() if add is None else (x + add).double()
    want = wide * (wide.square().mean(1, keepdim=True) + 1e-5).rsqrt() * (weight.double() + offset)
    rows = [
        native.rms_norm(
            x[i : i + 1].clone(),
            weight,
            1e-5,
            add=None if add is None else add[i : i + 1],
            offset=offset,
        )
        for i in range(size[0])
    ]
    got = native.rms_norm(x, weight, 1e-5, add=add, offset=offset)
    assert (got - want).abs().max() < 1e-5
    assert torch.equal(x.double(), wide)
    assert torch.equal(got, torch.cat(rows))


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([(16, 0), (8, 0), (8, 4), (0, 0)]), st.booleans(), st.integers(1, 4))
def test_rope(part, interleaved, n):
    dim, start = part
    rotary = ops.Rotary(
        1.0 / (100 ** (torch.arange(0, dim, 2) / max(dim, 1))), dim, interleaved, start
    )
    x = torch.randn(n, 3, 40)[:, :, :16]
    cos, sin = ops.angles(torch.arange(n) * 7, rotary, torch.float32)
    want = reference.turn(x, cos[:, None], sin[:, None], rotary)
    native.rope(x, cos, sin, rotary)
    assert (x - want).abs().max() < 1e-6


@settings(max_examples=30, deadline=None)
@given(sizes, st.sampled_from(["silu", "gelu_tanh"]))
def test_gates(size, activation):
    gate, up = torch.randn(size) * 10, torch.randn(size)
    act = silu(gate.double()) if activation == "silu" else gelu(gate.double(), approximate="tanh")
    got = native.gated(gate, up, activation=activation)
    assert (got - act * up).abs().max() < 1e-4
    assert torch.equal(native.gated(gate[-1:], up[-1:], activation=activation), got[-1:])


def test_gates_far_out_are_finite():
    gate = torch.tensor([[-1e4, -100.0, -88.0, 0.0, 88.0, 1e4]])
    want = silu(gate.double())
    assert torch.allclose(native.gated(gate, torch.ones_like(gate)).double(), want)


def test_wide_gates_are_shared_among_threads():
    gate, up = torch.randn(7, 10_001), torch.randn(7, 10_001)
    before, results = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(native.gated(gate, up))
    torch.set_num_threads(before)
    assert torch.equal(*results)


def test_new_keys_go_to_their_rows():
    keys, values = torch.zeros(2, 50, 16), torch.zeros(2, 50, 8)
    new_keys, new_values = torch.randn(2, 3, 16), torch.randn(3, 2, 8)
    rows = torch.tensor([7, 8, 40])
    native.append(keys, values, new_keys.transpose(0, 1), new_values, rows)
    assert torch.equal(keys[:, rows], new_keys)
    assert torch.equal(values[:, rows], new_values.transpose(0, 1))
    assert keys.count_nonzero() == new_keys.numel()


def test_what_does_not_fit_is_an_error():
    x = torch.randn(2, 8)
    with pytest.raises(ValueError, match="not float32"):
        native.rms_norm(x.double(), torch.ones(8), 1e-5)
    with pytest.raises(ValueError, match="do not fit"):
        native.gated(x, torch.randn(2, 9))
    with pytest.raises(ValueError, match="does not fit a pool"):
        native.append(
            torch.zeros(2, 5, 8), torch.zeros(2, 5, 8), x[:, None], x[:, None], torch.tensor([1, 2])
        )
    rotary = ops.Rotary(torch.ones(4), 8)
    with pytest.raises(ValueError, match="do not fit"):
        native.rope(x[:, None], torch.ones(1, 4), torch.ones(1, 4), rotary)
