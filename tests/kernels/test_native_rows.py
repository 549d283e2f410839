"""The gate of a layer, eight numbers at a time, against torch in float64."""

import pytest
import torch
from torch.nn.functional import silu

from epicrag.kernels import native

pytestmark = pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))


def gated(both: torch.Tensor) -> torch.Tensor:
    from epicrag.kernels import native_rows

    out = torch.empty(both.shape[0], both.shape[1] // 2)
    native_rows.silu_gate(both.numpy(), out.numpy())
    return out


@pytest.mark.parametrize("n", [1, 8, 19, 1536])
def test_a_gate_is_that_of_torch_and_the_same_in_any_batch(n):
    both = torch.randn(5, 2 * n) * 8
    want = silu(both[:, :n].double()) * both[:, n:].double()
    got = gated(both)
    assert torch.allclose(got.double(), want, rtol=1e-5, atol=1e-6)
    assert torch.equal(got, torch.cat([gated(both[i : i + 1]) for i in range(5)]))


def test_gates_far_out_are_finite():
    gate = torch.tensor([-1e4, -100.0, -88.0, -1.0, 0.0, 1.0, 88.0, 1e4])
    got = gated(torch.cat((gate, torch.ones(8)))[None])
    assert torch.allclose(got[0].double(), silu(gate.double()))
