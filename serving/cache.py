"""Where a chunk's KV comes from: the pool, else host memory, else the store on disk, else a compile now."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from epicrag.errors import DeviceError, EpicragError
from epicrag.serving.compile import Recipe, compile_batch
from epicrag.serving.entry import Entry, rounded
from epicrag.serving.host import HostTier
from epicrag.serving.pool import NoPagesError

if TYPE_CHECKING:
    from epicrag.index.kvstore import KVStore
    from epicrag.kernels.ops import Layers
    from epicrag.serving.model import ServedModel
    from epicrag.serving.pool import Pool, Resident, Run

_log = logging.getLogger("epicrag")

BATCH_TOKENS = 1024
"""Tokens compiled in one forward pass: enough for wide products, little enough to stop quickly."""

PIN_SHARE = 0.5
"""How much of the pool pins may take: the rest is for requests."""

N_KNOWN_KEYS = 4096


@dataclass(frozen=True, slots=True)
class Compiled:
    """What `ensure_stored` did for one recipe: its key, and how many tokens it computed (0: was there)."""

    index: int
    key: str
    n_tokens: int


class ChunkCache:
    """Makes compiled chunks resident in the pool, and stored on disk.

    What the pool evicts goes to host memory, as far as `host_budget` bytes allow. Every chunk goes through the
    store's dtype, also when it was compiled this instant, so that an answer does not depend on whether its chunks
    were warm. Chunks of a namespace are stored in `other_store`, apart from the index. In 8 bits it is the same
    bytes and scales in every tier; what opens a prompt, and what cannot be rounded, stays in `wide_dtype`.
    """

    def __init__(
        self,
        model: ServedModel,
        pool: Pool,
        layers: Layers,
        *,
        profile: str,
        system: tuple[int, ...],
        store: KVStore | None,
        other_store: KVStore | None = None,
        store_dtype: torch.dtype,
        wide_dtype: torch.dtype | None = None,
        wide_profile: str | None = None,
        meta: Mapping[str, str],
        host_budget: int = 0,
    ) -> None:
        self._model = model
        self._pool = pool
        self._layers = layers
        self._system = system
        self._store = store
        self._other_store = other_store
        self._store_dtype = store_dtype
        self._wide_dtype = wide_dtype or store_dtype
        self._wide_profile = wide_profile
        self._meta = dict(meta)
        self.profile = profile
        self.host = HostTier(host_budget, page_locked=pool.keys.is_cuda)
        self.hits: Counter[str] = Counter()
        """How many chunks came from the "pool", the "host", the "disk", or were "compiled"."""
        self.pinned_pages = 0
        self._pins: Counter[str] = Counter()
        self.key: Callable[[Recipe], str] = lru_cache(N_KNOWN_KEYS)(partial(_key, profile))

    @property
    def own_keys(self) -> set[str]:
        """Keys of entries that belong to the engine itself, not to any document."""
        return {self.key(self.opening)}

    @property
    def opening(self) -> Recipe:
        """The neutral system prompt, which most chunks are computed behind."""
        return Recipe(self._system, opens=True)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token of a chunk, as stored."""
        widths = self._pool.keys.shape[-1] + self._pool.values.shape[-1]
        layers, groups = self._pool.keys.shape[:2]
        scales = 2 * torch.float16.itemsize if self._rounds else 0
        return layers * groups * (widths * self._store_dtype.itemsize + scales)

    @property
    def _rounds(self) -> bool:
        return self._store_dtype == torch.int8

    def holds(self, recipe: Recipe) -> bool:
        """Whether some tier has a chunk, so that it need not be computed; nothing is read or checked."""
        key = self.key(recipe)
        in_memory = self._pool.has(key) or key in self.host
        return in_memory or self._is_stored(recipe)

    def _store_of(self, recipe: Recipe) -> KVStore | None:
        """Where a chunk is kept on disk; None: nowhere."""
        return self._other_store if recipe.namespace else self._store

    def keeps(self, namespace: str) -> bool:
        """Whether there is a store for the chunks of a namespace."""
        return (self._other_store if namespace else self._store) is not None

    def is_kept(self, recipe: Recipe) -> bool:
        """Whether a chunk is on disk, or can be rounded from what is there: then it is, now."""
        return self._is_stored(recipe) or self._from_wide(recipe) is not None

    def _is_stored(self, recipe: Recipe) -> bool:
        store = self._store_of(recipe)
        return store is not None and store.contains(self.key(recipe))

    def acquire(self, recipe: Recipe) -> tuple[tuple[Run, ...], int]:
        """Pin a chunk in the pool. Returns its rows, and how many tokens had to be computed for it now."""
        key = self.key(recipe)
        computed = 0
        if self._pool.has(key):
            self.hits["pool"] += 1
        else:
            source, entry = self._find(key, recipe)
            if entry is None:
                entry = self._compile([recipe], must_store=False)[0]
                computed = len(recipe.ids)
            self._pool.fill(key, entry, leave=self._on_leave(key, entry.keys.dtype))
            self.hits[source] += 1
        return self._pool.acquire(key), computed

    def pin(self, recipes: Sequence[Recipe]) -> None:
        """Keep chunks in the pool and on disk. DeviceError, and none pinned, when they take too much of it."""
        done: list[Recipe] = []
        try:
            for recipe in recipes:
                self._pin(recipe)
                done.append(recipe)
                most = int(self._pool.n_pages * PIN_SHARE)
                if self.pinned_pages > most:
                    size = self._pool.page_size
                    raise DeviceError(
                        f"pins may hold {most * size:,} tokens of KV memory, and these would hold "
                        f"{self.pinned_pages * size:,} or more",
                        "unpin others, or raise kv_memory (--kv-memory)",
                    )
        except BaseException:
            self.unpin(done)
            raise

    def unpin(self, recipes: Sequence[Recipe]) -> None:
        """Undo one `pin` of each; those that are not pinned are passed over."""
        for recipe in recipes:
            key = self.key(recipe)
            if key not in self._pins:
                continue
            self._pins[key] -= 1
            self.release(recipe)
            if not self._pins[key]:
                del self._pins[key]
                self.pinned_pages -= self._pool.pages_of(key)
                if (store := self._store_of(recipe)) is not None:
                    store.unpin(key)

    def _pin(self, recipe: Recipe) -> None:
        self.acquire(recipe)
        key = self.key(recipe)
        if key not in self._pins:
            self.pinned_pages += self._pool.pages_of(key)
            if (store := self._store_of(recipe)) is not None:
                store.pin(key)
        self._pins[key] += 1

    def _on_leave(self, key: str, dtype: torch.dtype) -> Callable[[Resident], None] | None:
        """What the pool does with a chunk before its pages go: keep it in host memory, bit for bit."""
        if not self.host.budget_bytes:
            return None
        own = self._pool.keys.dtype
        kept = dtype if dtype.itemsize <= own.itemsize else own

        def leave(resident: Resident) -> None:
            self.host.put(key, self._pool.entry(resident.runs), kept)

        return leave

    def keep(
        self, recipe: Recipe, keys: Tensor, values: Tensor, *, must_store: bool = False
    ) -> None:
        """Take a chunk's KV that was computed elsewhere: on disk, and in the pool if it has room."""
        entry = self._stored(recipe, keys, values)
        self._put(recipe, entry, must_store)
        self.hits["compiled"] += 1
        key = self.key(recipe)
        with suppress(NoPagesError):
            self._pool.fill(key, entry, leave=self._on_leave(key, entry.keys.dtype))

    def _find(self, key: str, recipe: Recipe) -> tuple[str, Entry | None]:
        """Look for an entry in the tiers below the pool: where it was, and the entry, or None."""
        if (entry := self.host.get(key)) is not None:
            return "host", entry
        entry = self._load(key, recipe) or self._from_wide(recipe)
        return ("disk", entry) if entry is not None else ("compiled", None)

    def release(self, recipe: Recipe) -> None:
        """Undo one `acquire`."""
        self._pool.unpin(self.key(recipe))

    def ensure_stored(self, recipes: Sequence[Recipe]) -> Iterator[Compiled]:
        """Compile what the store lacks, in batches, storing each batch before it is reported."""
        batch: list[tuple[int, Recipe]] = []
        size = 0
        known: set[str] = set()
        for index, recipe in enumerate(recipes):
            key = self.key(recipe)
            if key in known or self._is_stored(recipe):
                yield Compiled(index, key, 0)
                continue
            known.add(key)
            if self._from_wide(recipe) is not None:
                yield Compiled(index, key, 0)
                continue
            cost = self._cost(recipe)
            if batch and size + cost > BATCH_TOKENS:
                yield from self._flush(batch)
                batch, size = [], 0
            batch.append((index, recipe))
            size += cost
        yield from self._flush(batch)

    def _flush(self, batch: Sequence[tuple[int, Recipe]]) -> Iterator[Compiled]:
        if batch:
            self._compile([recipe for _, recipe in batch])
        for index, recipe in batch:
            yield Compiled(index, self.key(recipe), len(recipe.ids))

    def _cost(self, recipe: Recipe) -> int:
        """Tokens a compile computes: those of the system unit are shared."""
        behind = len(recipe.behind)
        return len(recipe.ids) + (
            behind - len(self._system) if self.is_behind_system(recipe) else behind
        )

    def is_behind_system(self, recipe: Recipe) -> bool:
        return recipe.behind[: len(self._system)] == self._system

    def _load(self, key: str, recipe: Recipe) -> Entry | None:
        """Read an entry from the store; None when it is absent, damaged, or not of this length."""
        store = self._store_of(recipe)
        if store is None:
            return None
        from epicrag.index.kvstore import Missing

        found = store.get(key)
        if isinstance(found, Missing):
            if found.reason == "damaged":
                _log.warning("damaged KV of a chunk: computing it again (%s)", found.detail)
            return None
        layers, groups, _, dim = self._pool.keys.shape
        shape = (layers, groups, len(recipe.ids))
        widths = (dim, self._pool.values.shape[-1])
        fits = (found.keys.shape, found.values.shape) == tuple((*shape, n) for n in widths)
        if not fits or (found.scales is not None and not self._rounds):
            _log.warning("KV entry %s has a foreign shape: computing it again", key[:12])
            store.delete(key)
            return None
        return Entry(found.keys, found.values, *(found.scales or ()))

    def _from_wide(self, recipe: Recipe) -> Entry | None:
        """Round, and store, an entry that the store has in 16 bits; None where there is none to be rounded."""
        from epicrag.index.kvstore import Missing

        store = self._store_of(recipe)
        if not self._rounds or recipe.opens or store is None or self._wide_profile is None:
            return None
        found = store.look(recipe.key(self._wide_profile))
        if isinstance(found, Missing) or found.scales is not None:
            return None
        if found.keys.shape[2] != len(recipe.ids):
            return None
        entry = self._stored(recipe, found.keys, found.values)
        self._put(recipe, entry, must_store=False)
        return entry

    def _compile(self, recipes: Sequence[Recipe], *, must_store: bool = True) -> list[Entry]:
        """Compile and store; recipes that begin with the system unit share its exact KV."""
        done: dict[int, Entry] = {}
        groups: dict[bool, list[int]] = {}
        for index, recipe in enumerate(recipes):
            groups.setdefault(self.is_behind_system(recipe), []).append(index)
        for opens, indices in groups.items():
            system = self.opening
            shared = None
            if opens:
                shared = (len(self._system), self.acquire(system)[0])
            try:
                chosen = [recipes[i] for i in indices]
                pairs = compile_batch(self._model, self._pool, self._layers, chosen, shared)
            finally:
                if opens:
                    self.release(system)
            for index, pair in zip(indices, pairs, strict=True):
                done[index] = self._stored(recipes[index], *pair)
                self._put(recipes[index], done[index], must_store)
        return [done[index] for index in range(len(recipes))]

    def _stored(self, recipe: Recipe, keys: Tensor, values: Tensor) -> Entry:
        """In the store's dtype; what 8 bits cannot hold goes in 16, and what float16 cannot, as bfloat16."""
        if self._rounds and not recipe.opens:
            try:
                return rounded(keys, values)
            except ValueError as error:
                _log.debug("a chunk stays in 16 bits: %s", error)
        dtype = self._wide_dtype
        entry = Entry(keys.to(dtype), values.to(dtype))
        if dtype == torch.float16 and not all(bool(x.isfinite().all()) for x in entry.tensors()):
            entry = Entry(keys.to(torch.bfloat16), values.to(torch.bfloat16))
        return entry

    def _put(self, recipe: Recipe, entry: Entry, must_store: bool) -> None:
        """Write an entry. An answer does not need it on disk: then a disk that is full is a warning."""
        store = self._store_of(recipe)
        if store is None:
            return
        try:
            store.put(self.key(recipe), entry.keys, entry.values, self._meta, entry.scales)
        except EpicragError as error:
            if must_store:
                raise
            _log.warning("KV is not kept, and computed again next time: %s", error.message)


def _key(profile: str, recipe: Recipe) -> str:
    return recipe.key(profile)
