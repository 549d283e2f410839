"""Exact prefixes of earlier prompts, kept in the pool: what the `prefix` policy reuses.

A tree of prompts: each node owns the rows that its prompt computed, and reads its parent's for the rest. A
node pins its parent, so the pool can only evict leaves.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epicrag.serving.pool import Pool, Run


@dataclass(frozen=True, slots=True)
class Match:
    """The longest exact prefix found: `length` tokens, in pool rows, and the node that must stay pinned."""

    length: int = 0
    runs: tuple[Run, ...] = ()
    key: str | None = None


@dataclass(frozen=True, slots=True)
class _Node:
    ids: tuple[int, ...]
    parent: Match


class PrefixTree:
    """Finds and keeps exact prefixes."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._nodes: dict[str, _Node] = {}

    def match(self, ids: tuple[int, ...]) -> Match:
        """Find the longest kept prefix of `ids`, leaving at least one token to compute; pins what it returns."""
        self._forget_evicted()
        best, best_length = None, 0
        for key, node in self._nodes.items():
            length = _common(node.ids, ids[:-1])
            if length > best_length:
                best, best_length = key, length
        if best is None:
            return Match()
        runs = self._pool.acquire(best)
        parent = self._nodes[best].parent
        return Match(best_length, _cut((*parent.runs, *runs), best_length), best)

    def keep(self, ids: tuple[int, ...], parent: Match, runs: tuple[Run, ...]) -> None:
        """Take over the private runs that hold `ids[parent.length:]`. The parent's pin passes to the node."""
        key = "prefix:" + hashlib.sha256(repr(ids).encode()).hexdigest()
        if key in self._nodes:
            self._pool.release(runs)
            self.release(parent)
            return
        self._pool.adopt(key, runs, len(ids) - parent.length)
        self._nodes[key] = _Node(ids, parent)

    def release(self, match: Match) -> None:
        """Undo the pin of `match`."""
        if match.key is not None:
            self._pool.unpin(match.key)

    def _forget_evicted(self) -> None:
        for key in [key for key in self._nodes if not self._pool.has(key)]:
            self.release(self._nodes.pop(key).parent)


def _common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Number of leading ids that agree."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


def _cut(runs: tuple[Run, ...], length: int) -> tuple[Run, ...]:
    """The first `length` rows of some runs."""
    out = []
    for run in runs:
        take = min(run.length, length)
        if take:
            out.append(run._replace(length=take))
        length -= take
    return tuple(out)
