"""The face of the compiled CPU kernels: whether they run on this machine, and if not, why not.

They are for narrow batches, where a forward pass waits for memory and for the calls themselves. numba is imported
when the first of them is wanted, and compiles each function once a machine.
"""

from __future__ import annotations

import platform
from collections import defaultdict
from functools import cache

from epicrag.kernels.native_steps import append, gated, rms_norm, rope
from epicrag.kernels.native_table import Table, attend, attend_many, prepare_native
from epicrag.kernels.native_weights import KINDS, NARROW, Packed, linear, pack, unpack

__all__ = [
    "KINDS",
    "NARROW",
    "Packed",
    "Table",
    "append",
    "attend",
    "attend_many",
    "gated",
    "has_matrix_units",
    "linear",
    "pack",
    "prepare_native",
    "rms_norm",
    "rope",
    "unpack",
    "why_not",
]


@cache
def why_not() -> str | None:
    """None where the compiled kernels run, else the reason that they do not. The first call imports numba."""
    try:
        import numba
    except Exception as error:  # noqa: BLE001 - whatever it is, torch does the work
        return f"numba cannot be imported: {_first_line(error)}"
    if numba.config.DISABLE_JIT:
        return "numba's compiler is switched off (NUMBA_DISABLE_JIT)"
    lacking = _lacking(numba.config.CPU_NAME, numba.config.CPU_FEATURES)
    if lacking:
        return lacking
    try:
        import numpy as np

        from epicrag.kernels import native_jit

        works = native_jit.check(np.uint16(0x3C00)) == 1.0
    except Exception as error:  # noqa: BLE001 - as above
        return f"numba cannot compile here: {_first_line(error)}"
    return None if works else "numba compiles half precision wrongly here"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@cache
def has_matrix_units() -> bool:
    """Whether the processor multiplies matrices in bfloat16, and torch has it do so."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    try:
        return processor_features()["amx-bf16"]
    except ImportError:
        return False


def _lacking(cpu: str | None, features: str | None) -> str | None:
    """Say what the processor lacks: without it, narrow weights are widened by calls that may not even exist."""
    machine = platform.machine().lower()
    if machine in ("arm64", "aarch64"):
        return None
    if machine not in ("x86_64", "amd64"):
        return f"the compiled kernels know x86-64 and ARM-64, not {machine}"
    known = processor_features(cpu, features)
    missing = [name for name in ("avx2", "fma", "f16c") if not known[name]]
    return f"the processor lacks {', '.join(missing)}" if missing else None


def processor_features(
    cpu: str | None = None, features: str | None = None
) -> defaultdict[str, bool]:
    """What the processor can do, or one that numba was told to compile for."""
    import llvmlite.binding as llvm

    known = defaultdict(bool, llvm.get_host_cpu_features())
    if cpu and cpu != "host":
        known.clear()
    for feature in (features or "").split(","):
        known[feature.strip("+-")] = feature.startswith("+")
    return known
