"""How many threads the arithmetic gets: no more than the machine gives this process whole cores."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SYSTEM = Path("/sys")
_OWN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Threads:
    n: int
    why: str


def choose(
    given: int,
    *,
    environ: Mapping[str, str] | None = None,
    allowed: set[int] | None = None,
    system: Path = SYSTEM,
    groups: str | None = None,
) -> Threads:
    """How many threads to use where torch would take `given`, and why.

    A second thread on a core adds little to products and waits at each barrier; a thread beyond the quota of
    a container is put to sleep in the middle of one. What the user has set in the environment stays.
    """
    environ = os.environ if environ is None else environ
    for name in _OWN:
        if environ.get(name):
            return Threads(given, f"{name} is set")
    allowed = _affinity() if allowed is None else allowed
    limits = [(given, "torch's own choice")]
    if allowed:
        limits.append((_cores(allowed, system), "the cores this process may run on"))
    if (quota := _quota(system, _own_groups() if groups is None else groups)) is not None:
        limits.append((max(1, math.floor(quota + 0.5)), "the quota of its control group"))
    return Threads(*min(limits, key=lambda limit: limit[0]))


def settle() -> Threads:
    """Choose, and tell torch. It is only ever told fewer than it would have taken."""
    import torch

    chosen = choose(torch.get_num_threads())
    if chosen.n < torch.get_num_threads():
        torch.set_num_threads(chosen.n)
    return chosen


def _affinity() -> set[int]:
    """The processors this process may run on; none where the system does not say."""
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set()


def _cores(allowed: set[int], system: Path) -> int:
    """Cores among processors: those that share one count once."""
    cores = set()
    for processor in allowed:
        path = system / f"devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
        cores.add(_read(path) or str(processor))
    return len(cores)


def _own_groups() -> str:
    return _read(Path("/proc/self/cgroup"))


def _quota(system: Path, groups: str) -> float | None:
    """Processors' worth of time this process gets, by the tightest of its control groups; None: no limit."""
    found = []
    root = system / "fs/cgroup"
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        here = root / path.lstrip("/") if not controllers else root / "cpu" / path.lstrip("/")
        for folder in (here, *here.parents):
            if not folder.is_relative_to(root):
                break
            found.append(_limit(folder))
    limits = [limit for limit in (*found, _limit(root)) if limit is not None]
    return min(limits, default=None)


def _limit(folder: Path) -> float | None:
    """The limit of one group: `cpu.max` of version 2, or the pair of files of version 1."""
    words = _read(folder / "cpu.max").split()
    if not words:
        words = [_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
        return int(words[0]) / int(words[1])
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
