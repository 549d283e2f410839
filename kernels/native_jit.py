"""What the compiled kernels share: numba set up once, and vectors of eight floats spelled out in LLVM's own terms.

Only `native.py` imports this module and those beside it, and only when a compiled kernel is wanted. The sums
are spelled out rather than left to the compiler's vectoriser, so that the order of additions is the same
whatever the shape of a call: a row alone and the same row in a batch give the same bits.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 8

F32 = ir.FloatType()
I32 = ir.IntType(32)
I64 = ir.IntType(64)
VECTOR = ir.VectorType(F32, LANES)
ZERO = ir.Constant(VECTOR, [0.0] * LANES)
UNDEFINED = ir.Constant(VECTOR, ir.Undefined)


def _choose_layer() -> str:
    """Prefer OpenMP, which may be called from several threads and starts in microseconds."""
    try:
        importlib.import_module("numba.np.ufunc.omppool")
    except ImportError:
        return "workqueue"
    return "omp"


def share(threads: int) -> int:
    """Of so many threads, those that the next parallel call of this thread may have: numba is told the number."""
    threads = min(threads, MOST_THREADS)
    if threads != getattr(_own, "threads", 0):
        # Not from inside a compiled function: one that sets it cannot be kept on disk.
        numba.set_num_threads(threads)
        _own.threads = threads
    return threads


_own = threading.local()
LAYER = _choose_layer()
numba.config.THREADING_LAYER = LAYER
MOST_THREADS: int = numba.config.NUMBA_NUM_THREADS
# numba's own pool ends the process when two threads enter it at once.
ENTER: AbstractContextManager[Any] = threading.Lock() if LAYER == "workqueue" else nullcontext()
SMALL = 60_000 if LAYER == "omp" else 4_000_000
"""Multiplications below which a second thread costs more than it brings."""


def compiled(parallel: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """numba's compiler, with the result kept on disk where a folder can be written."""

    def wrap(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(nogil=True, parallel=parallel, cache=True)(function)
        except RuntimeError:  # no folder for the cache
            return numba.njit(nogil=True, parallel=parallel)(function)

    return wrap


# The builders below write LLVM instructions; `b` is the builder, addresses are 64-bit integers in bytes.


def fma(b, x, y, z):
    """x * y + z, fused where the machine can."""
    kind = ir.FunctionType(z.type, [z.type] * 3)
    name = "llvm.fmuladd.v8f32" if z.type == VECTOR else "llvm.fmuladd.f32"
    return b.call(cgutils.get_or_insert_function(b.module, kind, name), [x, y, z])


def load(b, address, kind=VECTOR, align=4):
    loaded = b.load(b.inttoptr(address, kind.as_pointer()))
    loaded.align = align
    return loaded


def store(b, value, address):
    b.store(value, b.inttoptr(address, value.type.as_pointer())).align = 4


def splat(b, scalar):
    """The same number in every lane."""
    first = b.insert_element(UNDEFINED, scalar, I32(0))
    return b.shuffle_vector(first, UNDEFINED, ir.Constant(ir.VectorType(I32, LANES), [0] * LANES))


def _halves(b, vector, n, join):
    undefined = ir.Constant(vector.type, ir.Undefined)
    low = ir.Constant(ir.VectorType(I32, n), list(range(n)))
    high = ir.Constant(ir.VectorType(I32, n), list(range(n, 2 * n)))
    return join(b.shuffle_vector(vector, undefined, low), b.shuffle_vector(vector, undefined, high))


def total(b, vector):
    """The sum of the lanes, always in the same order."""
    pair = _halves(b, _halves(b, vector, 4, b.fadd), 2, b.fadd)
    return b.fadd(b.extract_element(pair, I32(0)), b.extract_element(pair, I32(1)))


def widen(b, kind: str, address, index):
    """Eight weights from `index` on as floats. kind: float32, float16, bfloat16 or int8."""
    if kind == "float32":
        return load(b, b.add(address, b.shl(index, I64(2))))
    if kind == "int8":
        whole = load(b, b.add(address, index), ir.VectorType(ir.IntType(8), LANES), 1)
        return b.sitofp(b.sext(whole, ir.VectorType(I32, LANES)), VECTOR)
    address = b.add(address, b.shl(index, I64(1)))
    if kind == "float16":
        return b.fpext(load(b, address, ir.VectorType(ir.HalfType(), LANES), 2), VECTOR)
    bits = load(b, address, ir.VectorType(ir.IntType(16), LANES), 2)
    wide = b.zext(bits, ir.VectorType(I32, LANES))
    return b.bitcast(b.shl(wide, ir.Constant(wide.type, [16] * LANES)), VECTOR)


# A number's type tells a compiled function which weights it is called for.
KINDS = {
    numba.float32: "float32",
    numba.uint16: "float16",
    numba.int16: "bfloat16",
    numba.int8: "int8",
}


def loop(b, low, high, step):
    """A counting loop, to be used with `with`; yields the index."""
    return cgutils.for_range_slice(b, low, high, step, I64, inc=True)


@intrinsic
def half_to_float(context, bits):
    """A float16, given as its bits, as a float32."""

    def generate(_context, b, _signature, arguments):
        return b.fpext(b.bitcast(arguments[0], ir.HalfType()), F32)

    return numba.float32(numba.uint16), generate


@compiled()
def check(bits):
    """The least that must compile and run."""
    return half_to_float(bits)
