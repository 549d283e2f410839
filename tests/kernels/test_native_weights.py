"""Packed weights: what they are rounded to, and that the products are those of float64, row by row."""

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epicrag.kernels import native

pytestmark = pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(native.KINDS),
    st.integers(1, 9),
    st.integers(1, 70),
    st.integers(1, 300),
    st.sampled_from([8, 64, 128, 100_000]),
    st.booleans(),
)
def test_products_are_those_of_the_unpacked_weight(kind, m, n, k, group, with_bias):
    packed = native.pack(torch.randn(n, k), kind, group)
    x = torch.randn(m, k)
    bias = torch.randn(n) if with_bias else None
    want = x.double() @ native.unpack(packed).double().T
    want = want if bias is None else want + bias.double()
    got = native.linear(x, packed, bias=bias)
    assert (got.double() - want).abs().max() < 1e-4


@pytest.mark.parametrize("kind", native.KINDS)
def test_a_row_is_the_same_in_any_batch(kind, threads: int):
    packed = native.pack(torch.randn(4000, 72), kind)
    x = torch.randn(13, 72)
    alone = torch.cat([native.linear(x[i : i + 1], packed) for i in range(13)])
    for m in range(1, 14):
        assert torch.equal(native.linear(x[:m], packed), alone[:m])


@pytest.mark.parametrize(
    ("kind", "error"), [("float32", 0), ("float16", 2**-11), ("bfloat16", 2**-8)]
)
def test_floats_are_rounded_to_the_nearest(kind, error):
    weight = torch.randn(9, 40)
    smallest = 2.0**-25  # half a step of the smallest numbers that float16 has
    off = (native.unpack(native.pack(weight, kind)) - weight).abs()
    assert (off <= error * weight.abs() + smallest).all()


def test_whole_numbers_are_off_by_half_a_step_at_most():
    weight = torch.randn(9, 300)
    weight[2, 128:256] = 0
    packed = native.pack(weight, "int8")
    assert packed.scale is not None and packed.scale.shape == (9, 3)
    step = packed.scale.repeat_interleave(128, 1)[:, :300]
    assert ((native.unpack(packed) - weight).abs() <= step * 0.5001).all()


def test_out_may_be_a_part_of_something_larger():
    packed = native.pack(torch.randn(30, 64), "float16")
    x = torch.randn(5, 100)[:, :64]
    whole = torch.full((5, 50), 7.0)
    native.linear(x, packed, out=whole[:, 10:40])
    assert torch.equal(whole[:, 10:40], native.linear(x.contiguous(), packed))
    assert (whole[:, :10] == 7).all() and (whole[:, 40:] == 7).all()


def test_no_rows_are_no_work():
    assert native.linear(torch.empty(0, 8), native.pack(torch.randn(3, 8), "int8")).shape == (0, 3)


def test_what_does_not_fit_is_an_error():
    packed = native.pack(torch.randn(3, 8), "float16")
    with pytest.raises(ValueError, match="do not fit"):
        native.linear(torch.randn(2, 9), packed)
    with pytest.raises(ValueError, match="do not fit"):
        native.linear(torch.randn(2, 8).double(), packed)
    with pytest.raises(ValueError, match="bias"):
        native.linear(torch.randn(2, 8), packed, bias=torch.randn(4))
    with pytest.raises(ValueError, match="unknown kind"):
        native.pack(torch.randn(3, 8), "int3")
    with pytest.raises(ValueError, match="too large"):
        native.pack(torch.full((3, 8), 1e6), "float16")


def test_two_threads_may_multiply_at_once(threads: int):
    packed = native.pack(torch.randn(3000, 128), "float16")
    inputs = [torch.randn(3, 128) for _ in range(4)]
    want = [native.linear(x, packed) for x in inputs]
    wrong = []

    def work(index: int) -> None:
        for _ in range(100):
            if not torch.equal(native.linear(inputs[index], packed), want[index]):
                wrong.append(index)

    workers = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
