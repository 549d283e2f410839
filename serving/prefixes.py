"""Exact prefixes of earlier prompts, kept in the pool and found again by their token ids.

A tree of prompts: each node owns the rows that its prompt computed, and reads its parent's for what comes
before; the pool lets leaves go first. Every block of `BLOCK` tokens has an entry under the digest of all ids up
to its end, so that a search looks at each token of the prompt once, however much is kept.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epicrag.serving.pool import Pool, Resident, Run

BLOCK = 16

N_LATEST = 4
"""Of the prompts that agree up to the same block, so many are looked at for how far they agree within the next."""


@dataclass(frozen=True, slots=True)
class Match:
    """The longest exact prefix found: `length` tokens, in pool rows, and the resident that is pinned for it."""

    length: int = 0
    runs: tuple[Run, ...] = ()
    key: str | None = None


@dataclass(frozen=True, slots=True)
class _Node:
    ids: tuple[int, ...]
    runs: tuple[Run, ...]
    """Rows of all its ids, those of its parents included."""
    blocks: tuple[bytes, ...]
    """The entries that lead to it."""


class PrefixTree:
    """Finds and keeps exact prefixes.

    `root` keeps apart what was computed on different ground: over rows that passed through the store's
    sixteen bits, or not.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._nodes: dict[str, _Node] = {}
        self._found_at: dict[bytes, dict[str, None]] = {}  # nodes, the latest last

    def __len__(self) -> int:
        return len(self._nodes)

    def match(self, ids: Sequence[int], root: str = "") -> Match:
        """Find the longest kept prefix of `ids`, leaving at least one token to compute; pins what it returns."""
        nodes: dict[str, None] = {}
        length = 0
        for digest in _blocks(ids[:-1], root):
            here = self._found_at.get(digest)
            if here is None:
                break
            nodes, length = here, length + BLOCK
        if not nodes:
            return Match()
        rest = ids[length:-1]
        latest = list(islice(reversed(nodes), N_LATEST))
        more = {key: _common(self._nodes[key].ids[length : length + BLOCK], rest) for key in latest}
        best = max(latest, key=lambda key: more[key])
        length += more[best]
        self._pool.acquire(best)
        return Match(length, cut(self._nodes[best].runs, length), best)

    def keep(
        self, ids: Sequence[int], parent: Match, runs: tuple[Run, ...], root: str = ""
    ) -> None:
        """Take over the private runs that hold `ids[parent.length:]`, and the parent's pin."""
        # What a node stands behind may not be a node itself: then it is found from the first block on.
        skip = parent.length // BLOCK if parent.key in self._nodes else 0
        blocks = tuple(_blocks(ids, root))[skip:]
        if len(ids) // BLOCK == parent.length // BLOCK or blocks[-1] in self._found_at:
            self._pool.release(runs)
        else:
            self._add(tuple(ids), parent, runs, blocks, root)
        self.release(parent)

    def release(self, match: Match) -> None:
        """Undo the pin of `match`."""
        if match.key is not None:
            self._pool.unpin(match.key)

    def _add(
        self,
        ids: tuple[int, ...],
        parent: Match,
        runs: tuple[Run, ...],
        blocks: tuple[bytes, ...],
        root: str,
    ) -> None:
        n_new = len(ids) - parent.length
        key = f"prefix:{root}:{len(ids)}:{blocks[-1].hex()}"
        self._pool.adopt(key, runs, n_new, parent=parent.key, leave=partial(self._forget, key))
        own = self._pool.rows_of(key)
        self._nodes[key] = _Node(ids, (*parent.runs, *own), blocks)
        for digest in blocks:
            self._found_at.setdefault(digest, {})[key] = None

    def _forget(self, key: str, _: Resident) -> None:
        for digest in self._nodes.pop(key).blocks:
            del self._found_at[digest][key]
            if not self._found_at[digest]:
                del self._found_at[digest]


def cut(runs: Sequence[Run], length: int) -> tuple[Run, ...]:
    """The first `length` rows of some runs."""
    out = []
    for run in runs:
        take = min(run.length, length)
        if take:
            out.append(run._replace(length=take))
        length -= take
    return tuple(out)


def _blocks(ids: Sequence[int], root: str) -> Iterator[bytes]:
    """A digest for each whole block: of the root, and of all ids up to the block's end."""
    digest = hashlib.blake2b(root.encode(), digest_size=16)
    for start in range(0, len(ids) - BLOCK + 1, BLOCK):
        tokens = array("I", ids[start : start + BLOCK])
        if sys.byteorder == "big":
            tokens.byteswap()
        digest.update(tokens.tobytes())
        yield digest.digest()


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Number of leading ids that agree."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
