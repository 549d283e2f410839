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


@dataclass(frozen=True, slots=True)
class Clock:
    """Takes the shortest of the calls that fit into some seconds, after one that does not count.

    On a GPU by the GPU's clock, from when the call's first work could begin to when its last has ended: of a call
    that the CPU hands over more slowly than it runs, that is the CPU's time.
    """

    seconds: float
    device: str = "cpu"
    by_processor: bool = False
    """Count the processor's time and not the wall's: for one thread on a CPU that has others to serve."""

    def best(self, call: Call) -> float:
        """In seconds."""
        call()
        return self._on_gpu(call) if self.device != "cpu" else self._on_cpu(call)

    def _on_cpu(self, call: Call) -> float:
        now = time.process_time if self.by_processor else time.perf_counter
        shortest, end = float("inf"), time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            start = now()
            call()
            shortest = min(shortest, now() - start)
        return shortest

    def _on_gpu(self, call: Call) -> float:
        call()
        torch.cuda.synchronize()
        end, times = time.perf_counter() + self.seconds, []
        while time.perf_counter() < end or len(times) < 3:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
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


def ceilings(clock: Clock, dtype: torch.dtype) -> Ceilings:
    """Sizes that are far beyond the caches, and that a shared CPU is done with before it turns to others."""
    on_gpu = clock.device != "cpu"
    n = 1 << (31 if on_gpu else 26)
    source = torch.ones(n, dtype=torch.uint8, device=clock.device)
    target = torch.empty_like(source)
    copied = 2 * n / clock.best(lambda: target.copy_(source))
    size = 8192 if on_gpu else 512
    left, right = (torch.randn(size, size, device=clock.device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    return Ceilings(copied, 2 * size**3 / clock.best(lambda: torch.mm(left, right, out=out)))


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
