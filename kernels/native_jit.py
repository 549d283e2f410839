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
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from epicrag.kernels.native import processor_features

LANES = 8

F32 = ir.FloatType()
I32 = ir.IntType(32)
I64 = ir.IntType(64)
VECTOR = ir.VectorType(F32, LANES)
ZERO = ir.Constant(VECTOR, [0.0] * LANES)


def widest() -> int:
    """Floats of the widest vectors that the processor, as numba is told to see it, computes with at once."""
    seen = processor_features(numba.config.CPU_NAME, numba.config.CPU_FEATURES)
    return 16 if seen["avx512f"] else LANES


def _choose_layer() -> str:
    """Prefer OpenMP, which may be called from several threads and starts in microseconds."""
    try:
        importlib.import_module("numba.np.ufunc.omppool")
    except ImportError:
        return "workqueue"
    return "omp"


_own = threading.local()
LAYER = _choose_layer()
numba.config.THREADING_LAYER = LAYER
MOST_THREADS: int = numba.config.NUMBA_NUM_THREADS
# numba's own pool ends the process when two threads enter it at once.
ENTER: AbstractContextManager[Any] = threading.Lock() if LAYER == "workqueue" else nullcontext()
SMALL = 60_000 if LAYER == "omp" else 4_000_000
"""Multiplications below which a second thread costs more than it brings."""


def compiled(function: Callable[..., Any]) -> Any:
    """numba's compiler, with the result kept on disk where a folder can be written."""
    return _kept(lambda keep: numba.njit(nogil=True, cache=keep)(function))


def _kept(build: Callable[[bool], Any]) -> Any:
    try:
        return build(True)
    except RuntimeError:  # no folder for the cache
        return build(False)
    except Exception:  # noqa: BLE001 - a damaged file in it fails in many ways
        _forget()
        try:
            return build(True)
        except Exception:  # noqa: BLE001 - and if that was not it, the compiler says what is
            return build(False)


def _forget() -> None:
    """Remove what was kept on disk of these kernels: it is compiled again."""
    from numba.core.caching import FunctionCache

    with suppress(OSError, RuntimeError):
        folder = Path(FunctionCache(_forget).cache_path)
        for file in (*folder.glob("native_*.nbi"), *folder.glob("native_*.nbc")):
            file.unlink(missing_ok=True)


# Every kernel has one signature: the address of its numbers, which thread it is, and of how many. It is called by
# its address, so that it is compiled once, and not again inside each function that calls it.
KERNEL = types.void(types.int64, types.int64, types.int64)
N_NUMBERS = 32


def kernel(function: Callable[[int, int, int], None]) -> int:
    """The address of a compiled kernel."""
    made = _kept(lambda keep: numba.cfunc(KERNEL, cache=keep)(function))
    _alive.append(made)
    return int(made.address)


_alive: list[Any] = []


def _pointer_to(kind):
    @intrinsic
    def pointer(context, address):
        result = types.CPointer(kind)

        def generate(context, b, signature, arguments):
            return b.inttoptr(arguments[0], context.get_value_type(result))

        return result(types.int64), generate

    return pointer


floats, wholes, octets = map(_pointer_to, (types.float32, types.int64, types.uint8))


@intrinsic
def float_of(context, bits):
    """A float32 from its bits."""

    def generate(_context, b, _signature, arguments):
        return b.bitcast(b.trunc(arguments[0], I32), F32)

    return types.float32(types.int64), generate


@intrinsic
def _call(context, function, address, thread, threads):
    def generate(context, b, signature, arguments):
        function, *numbers = arguments
        kind = ir.FunctionType(ir.VoidType(), [I64] * 3)
        # numba's C functions catch their own errors, and none of ours raises one
        b.call(b.inttoptr(function, kind.as_pointer()), numbers)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


def _alone(function, after, numbers):
    given = np.empty(N_NUMBERS, np.int64)
    for index in range(N_NUMBERS):
        given[index] = numbers[index]
    _call(function, given.ctypes.data, 0, 1)
    if after:
        _call(after, given.ctypes.data, 0, 1)


def _shared(threads, function, after, numbers):
    given = np.empty(N_NUMBERS, np.int64)
    for index in range(N_NUMBERS):
        given[index] = numbers[index]
    address = given.ctypes.data
    for index in numba.prange(threads):
        _call(function, address, np.int64(index), threads)
    if after:
        _call(after, address, 0, 1)


_NUMBERS = types.UniTuple(types.int64, N_NUMBERS)
# With their signatures: what is wrong with the compiler or its cache shows here, and not in the middle of a pass.
_ALONE = types.void(types.int64, types.int64, _NUMBERS)
_SHARED = types.void(types.int64, types.int64, types.int64, _NUMBERS)
_alone = _kept(lambda keep: numba.njit(_ALONE, nogil=True, cache=keep)(_alone))
_threads = torch.get_num_threads()
_shared = _kept(lambda keep: numba.njit(_SHARED, nogil=True, parallel=True, cache=keep)(_shared))
# numba has just started its threads, and told the OpenMP that it shares with torch how many: all there are.
torch.set_num_threads(_threads)
_PADDING = [(0,) * (N_NUMBERS - n) for n in range(N_NUMBERS + 1)]


def run(
    kernel: int, numbers: tuple[int, ...], work: int = 0, after: int = 0, after_work: int = 0
) -> None:
    """Call a kernel, then perhaps another, in as many threads as torch may use if it is worth it.

    work: multiplications in each. Safe to call from several threads.
    """
    numbers += _PADDING[len(numbers)]
    if work < SMALL or (threads := min(torch.get_num_threads(), MOST_THREADS)) == 1:
        _alone(kernel, after, numbers)
        return
    if threads != getattr(_own, "threads", 0):
        numba.set_num_threads(threads)
        _own.threads = threads
    with ENTER:
        _shared(threads, kernel, 0 if after_work >= SMALL else after, numbers)
        if after_work >= SMALL:
            _shared(threads, after, 0, numbers)


# The builders below write LLVM instructions; `b` is the builder, addresses are 64-bit integers in bytes.


def fma(b, x, y, z):
    """x * y + z, fused where the machine can."""
    kind = ir.FunctionType(z.type, [z.type] * 3)
    name = f"llvm.fmuladd.{_suffix(z.type)}"
    return b.call(cgutils.get_or_insert_function(b.module, kind, name), [x, y, z])


def vector_of(lanes: int):
    """The type of so many floats."""
    return ir.VectorType(F32, lanes)


def _suffix(kind) -> str:
    return "f32" if kind == F32 else f"v{kind.count}f32"


def load(b, address, kind=VECTOR, align=4):
    loaded = b.load(b.inttoptr(address, kind.as_pointer()))
    loaded.align = align
    return loaded


def store(b, value, address):
    b.store(value, b.inttoptr(address, value.type.as_pointer())).align = 4


def splat(b, scalar, lanes=LANES):
    """The same number in every lane."""
    undefined = ir.Constant(vector_of(lanes), ir.Undefined)
    first = b.insert_element(undefined, scalar, I32(0))
    return b.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))


def _folded(b, vector, join):
    """One number of all lanes: half of them with the other half, and again, always in the same order."""
    while vector.type.count > 2:
        vector = _halves(b, vector, vector.type.count // 2, join)
    return join(b.extract_element(vector, I32(0)), b.extract_element(vector, I32(1)))


def _halves(b, vector, n, join):
    undefined = ir.Constant(vector.type, ir.Undefined)
    low = ir.Constant(ir.VectorType(I32, n), list(range(n)))
    high = ir.Constant(ir.VectorType(I32, n), list(range(n, 2 * n)))
    return join(b.shuffle_vector(vector, undefined, low), b.shuffle_vector(vector, undefined, high))


def total(b, vector):
    """The sum of the lanes, always in the same order."""
    return _folded(b, vector, b.fadd)


def largest(b, vector):
    """The largest of the lanes."""

    def join(x, y):
        return b.select(b.fcmp_ordered(">", x, y), x, y)

    return _folded(b, vector, join)


def eight_totals(b, vectors):
    """The sums of the lanes of eight vectors, as one vector: by turns of interleaving and adding."""

    def shuffle(x, y, order):
        return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, LANES), order))

    def added(x, y, order, other):
        return b.fadd(shuffle(x, y, order), shuffle(x, y, other))

    pairs = [
        added(x, y, [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15])
        for x, y in zip(vectors[0::2], vectors[1::2], strict=True)
    ]
    fours = [
        added(x, y, [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15])
        for x, y in zip(pairs[0::2], pairs[1::2], strict=True)
    ]
    low, high = fours
    return added(low, high, [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])


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


# A number's type tells a compiled function which weights it is compiled for.
KINDS = {
    numba.float32: "float32",
    numba.uint16: "float16",
    numba.int16: "bfloat16",
    numba.int8: "int8",
}
TAGS = {
    "float32": np.float32(0),
    "float16": np.uint16(0),
    "bfloat16": np.int16(0),
    "int8": np.int8(0),
}


def loop(b, low, high, step):
    """A counting loop, to be used with `with`; yields the index."""
    return cgutils.for_range_slice(b, low, high, step, I64, inc=True)


def number(value: float, lanes: int = LANES):
    """A constant in every lane."""
    return ir.Constant(vector_of(lanes), [value] * lanes)


def exponential(b, x):
    """e to the x, for x of at most 0 or so: to the last bit or two of a float."""
    lanes = x.type.count

    def every(value):
        return number(value, lanes)

    least = every(-87.3)
    tiny = b.fcmp_ordered("<", x, least)
    x = b.select(tiny, least, x)
    kind = ir.FunctionType(x.type, [x.type])
    floor = cgutils.get_or_insert_function(b.module, kind, f"llvm.floor.{_suffix(x.type)}")
    n = b.call(floor, [fma(b, x, every(1.44269504088896341), every(0.5))])
    x = fma(b, n, every(-0.693359375), x)
    x = fma(b, n, every(2.12194440e-4), x)
    y = every(1.9875691500e-4)
    for factor in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5):
        y = fma(b, y, x, every(factor))
    y = b.fadd(fma(b, y, b.fmul(x, x), x), every(1.0))
    whole = ir.VectorType(I32, lanes)
    power = b.add(b.fptosi(n, whole), ir.Constant(whole, [127] * lanes))
    power = b.bitcast(b.shl(power, ir.Constant(whole, [23] * lanes)), x.type)
    return b.select(tiny, every(0.0), b.fmul(y, power))


@intrinsic
def half_to_float(context, bits):
    """A float16, given as its bits, as a float32."""

    def generate(_context, b, _signature, arguments):
        return b.fpext(b.bitcast(arguments[0], ir.HalfType()), F32)

    return numba.float32(numba.uint16), generate


@compiled
def check(bits):
    """The least that must compile and run."""
    return half_to_float(bits)
