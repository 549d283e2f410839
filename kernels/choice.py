"""Which back end runs the operations on a device, and why: the one place where that is decided."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from epicrag.kernels import native

BackEnd = Literal["triton", "cpu", "reference"]

WISH = "EPICRAG_KERNELS"
"""Environment variable that names a back end, to find out whether a kernel is at fault; see `wish`."""

LEAST_CAPABILITY = (8, 0)
"""The oldest GPUs that the Triton kernels are compiled for in the tests: Ampere."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which back end runs an operation, and why."""

    name: str
    why: str


def wish() -> str:
    """`auto`, or what the environment asks for: `reference`, or `triton`, on the CPU in Triton's interpreter.

    Raises ValueError on another word.
    """
    word = os.environ.get(WISH, "").strip().lower() or "auto"
    if word not in ("auto", "reference", "triton"):
        raise ValueError(f"{WISH} is {word!r}: use auto, reference or triton")
    return word


def back_end(device: torch.device) -> BackEnd:
    """The back end of a device's tensors."""
    wanted = wish()
    if wanted == "reference":
        return "reference"
    if device.type == "cuda" or wanted == "triton":
        return "reference" if triton_lacks(device) else "triton"
    return "cpu" if device.type == "cpu" else "reference"


def triton_lacks(device: torch.device) -> str | None:
    """None where the Triton kernels run on a device's tensors, else the reason that they do not."""
    return _triton_lacks(device.type, device.index)


@cache
def _triton_lacks(kind: str, index: int | None) -> str | None:
    try:
        import triton
    except Exception as error:  # noqa: BLE001 - whatever it is, torch does the work
        return f"Triton cannot be imported: {_first_line(error)}"
    if triton.knobs.runtime.interpret:
        return None
    if kind != "cuda":
        return f"Triton has no kernels for {kind} outside its interpreter (TRITON_INTERPRET=1)"
    if torch.version.hip:
        return "the Triton kernels were never tried on an AMD GPU"
    have = torch.cuda.get_device_capability(index)
    if have < LEAST_CAPABILITY:
        return "the GPU's compute capability is {}.{}, and 8.0 is the least".format(*have)
    try:
        from epicrag.kernels import triton_rows

        works = triton_rows.check(torch.device(kind, index or 0))
    except Exception as error:  # noqa: BLE001 - as above; a missing C compiler, as a rule
        return f"Triton cannot compile here: {_first_line(error)}"
    return None if works else "Triton's first kernel copied rows wrongly"


def choices(device: torch.device) -> dict[str, Choice]:
    """The back end of each operation on a device's tensors, and why."""
    chosen = back_end(device)
    names = ("segment_attention", "column_sums", "rotate", "move_rows", "append")
    asked = f", asked for by {WISH}" if wish() != "auto" else ""
    if chosen == "triton":
        why = "Triton's interpreter" if device.type == "cpu" else "compiled by Triton for this GPU"
        return {name: Choice("triton", why + asked) for name in names}
    if chosen == "reference":
        why = asked.removeprefix(", ") if wish() == "reference" else triton_lacks(device) or ""
        return {
            name: Choice("torch", why or f"no kernel of our own for {device.type}")
            for name in names
        }
    blocked = "torch's blocked attention per span, merged by log-sum-exp, no key copied"
    lacking = native.why_not()
    why = "few queries one by one, many in tiles, no key copied"
    if not lacking and native.has_matrix_units():
        why += "; many in bfloat16 by torch, on the processor's matrix units"
    attention = Choice("compiled", why)
    if lacking:
        attention = Choice("torch", f"{blocked}: {lacking}")
    same = Choice("torch", "one pass over memory already, with nothing to fuse on a CPU")
    sums = Choice("torch", "its products span by span, without the whole matrix")
    own = {"segment_attention": attention, "column_sums": sums}
    return {name: own.get(name, same) for name in names}


def current(x: Tensor) -> AbstractContextManager[Any]:
    """Make x's GPU the current one, which is where Triton launches."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
