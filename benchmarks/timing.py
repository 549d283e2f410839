"""The clock of the kernel benches: the shortest of many calls, and what the machine itself can do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

COLD = 100_000_000
"""Bytes that are gone through before the same ones are read again: more than the caches hold."""

Call = Callable[[], Any]


def best(call: Call, seconds: float, device: str = "cpu") -> float:
    """The shortest of the calls that fit into a time, in seconds, after one that does not count.

    On a GPU by its own clock, from when the call's first work could begin to when its last has ended: of a call
    that the CPU hands over more slowly than it runs, that is the CPU's time.
    """
    call()
    if device == "cpu":
        shortest, end = float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            call()
            shortest = min(shortest, time.perf_counter() - start)
        return shortest
    call()
    torch.cuda.synchronize()
    begun, times = time.perf_counter(), []
    while time.perf_counter() - begun < seconds or len(times) < 3:
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        call()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / 1000)
    return min(times)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What no kernel can be faster than, measured in the same run."""

    bytes_per_s: float
    """Read and written by a large copy, both counted."""
    operations_per_s: float
    """Of a large product of matrices in the same type, a multiplication and an addition counted as two."""

    def or_better(self, other: Ceilings) -> Ceilings:
        return Ceilings(
            max(self.bytes_per_s, other.bytes_per_s),
            max(self.operations_per_s, other.operations_per_s),
        )


def ceilings(device: str, dtype: torch.dtype, seconds: float, quick: bool = False) -> Ceilings:
    on_gpu = device != "cpu"
    n = (1 << 31 if on_gpu else 1 << 28) >> (2 if quick else 0)
    source = torch.ones(n, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = 2 * n / best(lambda: target.copy_(source), seconds, device)
    size = (8192 if on_gpu else 1024) >> (1 if quick else 0)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    multiplied = 2 * size**3 / best(lambda: torch.mm(left, right, out=out), seconds, device)
    return Ceilings(copied, multiplied)


def show(rows: list[dict[str, Any]]) -> None:
    """Print rows of one shape as a table, then an empty line."""
    names = list(rows[0])
    widths = [max(len(name), *(len(cell(row[name])) for row in rows)) for name in names]
    for row in [{name: name for name in names}, *rows]:
        cells = (cell(row[name]).rjust(w) for name, w in zip(names, widths, strict=True))
        print("  ".join(cells))
    print(flush=True)


def cell(value: object) -> str:
    return "-" if value is None else str(value)
