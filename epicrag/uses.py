"""How often passages are retrieved: counted at each search, and what their KV on disk is worth by that."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from epicrag.errors import EpicragError

if TYPE_CHECKING:
    from epicrag.index.catalog import Catalog
    from epicrag.index.kvstore import KVStore
    from epicrag.types import Hit

FRESH_SECONDS = 2.0
"""How long what was read of the counts serves: making room for one chunk asks about many files."""

MOST_WAITING = 1000
"""Passages whose counts are kept for later while another process writes."""

NOBODYS = -1.0
"""The worth of KV that belongs to no chunk as it is now: it goes first."""


class Uses:
    """Counts retrievals in the catalog, as far as that disturbs nobody, and says what KV is worth.

    Counting is one short transaction that waits for no one: what cannot be written now is written with the
    next search, and in an index that can only be read not at all.
    """

    def __init__(
        self, catalog: Callable[[], Catalog], own_keys: Callable[[], frozenset[str]]
    ) -> None:
        self._catalog = catalog
        self._own_keys = own_keys
        self._waiting: Counter[tuple[str, bool]] = Counter()
        self._expected: dict[str, float] = {}
        self._worth: dict[str, float] = {}
        self._read_at = -math.inf

    def note(self, hits: Sequence[Hit], store: KVStore) -> None:
        """Count one retrieval of each of these passages, and whether it found their KV. Never fails."""
        with suppress(EpicragError):
            catalog = self._catalog()
            for hit in hits:
                if hit.row >= 0:
                    key = catalog.kv_key(hit.row)
                    self._waiting[hit.chunk.id, key is not None and store.contains(key)] += 1
            now = datetime.now(UTC).isoformat(timespec="seconds")
            catalog.note_uses(dict(self._waiting), now)
            self._waiting.clear()
            self._read_at = -math.inf
        if len(self._waiting) > MOST_WAITING:
            self._waiting.clear()

    def expect(self, worth: Mapping[str, float]) -> None:
        """Say what KV is worth that is about to be stored, and that the catalog does not know yet."""
        self._expected = dict(worth)
        self._read_at = -math.inf

    def worth(self, key: str) -> float:
        """What KV on disk is worth: how often its passage was retrieved. Never fails."""
        if time.monotonic() - self._read_at > FRESH_SECONDS:
            self._read_at = time.monotonic()
            with suppress(EpicragError):
                catalog = self._catalog()
                self._worth = {k: float(n) for k, n in catalog.kv_worth().items()}
                self._worth.update(dict.fromkeys(self._own_keys(), math.inf))
        return max(self._worth.get(key, NOBODYS), self._expected.get(key, NOBODYS))
