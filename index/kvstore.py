"""The disk tier of chunk KV: content-addressed files under a byte budget, safe between processes."""

from __future__ import annotations

import errno
import heapq
import logging
import os
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from epicrag.errors import DeviceError, EpicragError
from epicrag.index import kvfile
from epicrag.index.kvfile import DamagedFile, StoredKV

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["KVStore", "Missing", "StoredKV"]

_KEY = re.compile(r"[0-9a-f]{64}")
_SUFFIX = ".safetensors"
_TEMPORARY = ".tmp"
_SCAN_SECONDS = 60.0  # between two scans, while a budget makes files go
_TEMPORARY_SECONDS = 600.0  # a writer needs a second: an older temporary file was left by a kill
_log = logging.getLogger("epicrag")


@dataclass(frozen=True, slots=True)
class Missing:
    """Why there is no KV: never stored ("absent"), or stored and no longer whole ("damaged")."""

    reason: Literal["absent", "damaged"]
    detail: str = ""


class _File(NamedTuple):
    key: str
    path: str
    used_ns: int
    size: int


class _Candidate(NamedTuple):
    """A file that may go, in the order in which they go."""

    value: float
    used_ns: int
    key: str


class KVStore:
    """Keys and values of chunks on disk, by key (64 hex characters).

    Every `get` checks all bytes: KV that is not exactly what was put is `Missing`. Files appear and
    go whole (rename, unlink), so any number of processes may read and write at once; KV that one of
    them evicts stays valid for whoever holds it. When `budget_bytes` is exceeded, the files of least
    value go first, and of equal value the least recently used. Pinned ones never go, so those may exceed
    it; nor does the one just put, unless all others are worth more. `value_of` says what a key is worth; without
    it all are worth the same.
    """

    def __init__(
        self,
        root: Path,
        *,
        budget_bytes: int | None = None,
        value_of: Callable[[str], float] | None = None,
    ) -> None:
        self.root = root
        self.budget_bytes = budget_bytes
        self.value_of = value_of
        self._pins: Counter[str] = Counter()
        self._mutex = threading.RLock()
        # The files as the last scan found them and as they changed through this object since. Others'
        # files come in with the next scan: one serves many evictions.
        self._sizes: dict[str, int] | None = None  # None before the first scan
        self._held = 0  # the sum of the sizes
        self._queue: list[_Candidate] = []  # a heap; checked against the files when they come up
        self._scanned = 0.0

    def contains(self, key: str) -> bool:
        """Return whether a file for `key` exists, without checking it."""
        return self._path(key).exists()

    def get(self, key: str) -> StoredKV | Missing:
        """Return the KV, memory-mapped and checked; a damaged file is removed, so a put repairs it."""
        path = self._path(key)
        try:
            stored = kvfile.read(path, key)
        except (FileNotFoundError, NotADirectoryError):
            return Missing("absent")
        except OSError as error:  # not the file's fault, perhaps: leave it
            return self._damaged(path, error.strerror or str(error))
        except DamagedFile as error:
            self._remove(path)
            return self._damaged(path, str(error))
        _touch(path)
        return stored

    def look(self, key: str) -> StoredKV | Missing:
        """As `get`, but nothing is removed, marked as used or logged: for whoever only wants to know."""
        try:
            return kvfile.read(self._path(key), key)
        except (FileNotFoundError, NotADirectoryError):
            return Missing("absent")
        except (OSError, DamagedFile) as error:
            return Missing("damaged", str(error))

    def file(self, key: str) -> Path:
        """Where the KV of `key` lies, or would."""
        return self._path(key)

    def put(
        self,
        key: str,
        keys: Tensor,
        values: Tensor,
        meta: Mapping[str, str],
        scales: tuple[Tensor, Tensor] | None = None,
    ) -> int:
        """Store a pair, (L, G, T, Dk) and (L, G, T, Dv), and return the bytes it takes on disk.

        A pair in 8 bits comes with the scales of its rows, (L, G, T) float16 each. Putting the same again writes
        nothing. A failure leaves what was there; a full disk raises DeviceError, any other refusal of the system
        EpicragError.
        """
        kvfile.check(keys, values, meta, scales)
        path = self._path(key)
        given = (keys, values, *(scales or ()))
        tensors = [tensor.detach().cpu().contiguous() for tensor in given]
        head = kvfile.header(key, tensors, meta)
        size: int = len(head) + sum(tensor.nbytes for tensor in tensors)
        if kvfile.begins_with(path, head, size):
            _touch(path)
            return size
        try:
            self._write(path, head, tensors)
        except OSError as error:
            raise _refused(error, path) from error
        self._keep_budget(size, key)
        return size

    def delete(self, key: str) -> None:
        """Remove the KV of `key`, pinned or not; nothing happens when there is none."""
        self._remove(self._path(key))

    def keys(self) -> set[str]:
        return {key for entry in self._entries() if (key := _key_of(entry.name))}

    def sizes(self) -> dict[str, int]:
        """Return the bytes of every entry, by key."""
        return {file.key: file.size for file in self._files()}

    def nbytes(self) -> int:
        """Return the bytes on disk, by a scan."""
        return sum(file.size for file in self._files())

    def pin(self, key: str) -> None:
        """Keep `key` from eviction and `gc` in this process until `unpin` is called as often."""
        with self._mutex:
            self._pins[key] += 1

    def unpin(self, key: str) -> None:
        with self._mutex:
            self._pins[key] -= 1
            if self._pins[key] <= 0:
                del self._pins[key]

    def gc(self, keep: AbstractSet[str]) -> tuple[int, int]:
        """Remove what is neither in `keep` nor pinned, what killed writers left, and what is beyond the
        budget: (files, bytes)."""
        doomed = [
            (file.path, file.size)
            for file in self._files()
            if file.key not in keep and file.key not in self._pins
        ]
        removed = [size for path, size in [*doomed, *self._leftovers()] if self._remove(path)]
        files, freed = self.shrink()
        return len(removed) + files, sum(removed) + freed

    def shrink(self) -> tuple[int, int]:
        """Evict what is beyond the budget, which may have been lowered: (files, bytes)."""
        if self.budget_bytes is None:
            return 0, 0
        with self._mutex:
            self._scan()
            assert self._sizes is not None
            files, held = len(self._sizes), self._held
            self._evict("")
            return files - len(self._sizes), held - self._held

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"a KV key is 64 lower-case hex characters, not {key!r}")
        return self.root / key[:2] / (key + _SUFFIX)

    def _write(self, path: Path, head: bytes, tensors: Sequence[Tensor]) -> None:
        """Write under a temporary name and rename."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.stem}.{secrets.token_hex(8)}{_TEMPORARY}")
        try:
            kvfile.write(temporary, head, tensors)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def _remove(self, path: str | Path) -> bool:
        """Remove a file; False when it was gone, or stays in spite of it."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            self._forget(path)
            return False
        except OSError as error:
            _log.warning("cannot remove %s: %s", path, error.strerror or error)
            return False
        self._forget(path)
        return True

    def _forget(self, path: str | Path) -> None:
        with self._mutex:
            if self._sizes is not None:
                self._held -= self._sizes.pop(_key_of(os.path.basename(path)) or "", 0)

    def _damaged(self, path: Path, detail: str) -> Missing:
        _log.warning("KV file %s is unusable and will be computed again: %s", path, detail)
        return Missing("damaged", detail)

    def _keep_budget(self, added: int, newest: str) -> None:
        """Evict the files of least value when the budget is exceeded."""
        if self.budget_bytes is None:
            return
        with self._mutex:
            if self._sizes is None:
                self._scan()
            else:
                self._held += added - self._sizes.get(newest, 0)
                self._sizes[newest] = added
                heapq.heappush(self._queue, self._candidate(newest, time.time_ns()))
            if self._held <= self.budget_bytes:
                return
            if time.monotonic() - self._scanned > _SCAN_SECONDS:
                self._scan()
            if not self._evict(newest):
                self._scan()  # what others have put may go as well
                self._evict(newest)

    def _scan(self) -> None:
        """Look at all files."""
        files = list(self._files())
        self._sizes = {file.key: file.size for file in files}
        self._held = sum(self._sizes.values())
        self._queue = [self._candidate(file.key, file.used_ns) for file in files]
        heapq.heapify(self._queue)
        self._scanned = time.monotonic()

    def _evict(self, newest: str) -> bool:
        """Remove files until the budget holds; False when there were too few that may go."""
        assert self._sizes is not None and self.budget_bytes is not None
        spared, seen = [], set()
        while self._held > self.budget_bytes and self._queue:
            candidate = heapq.heappop(self._queue)
            key = candidate.key
            if key not in self._sizes:
                continue  # removed meanwhile, or twice in the queue
            is_spared = key == newest and self.value_of is None
            if is_spared or key in self._pins:
                spared.append(candidate)
                continue
            current = self._current(candidate)
            if current == candidate or key in seen:
                if not self._remove(self._path(key)) and key in self._sizes:
                    spared.append(candidate)  # it cannot be removed
            elif current:  # used since: its turn comes later
                seen.add(key)
                heapq.heappush(self._queue, current)
        for candidate in spared:
            heapq.heappush(self._queue, candidate)
        return self._held <= self.budget_bytes

    def _current(self, candidate: _Candidate) -> _Candidate | None:
        """Return a candidate as it is now; None when its file is gone."""
        path = self._path(candidate.key)
        try:
            return self._candidate(candidate.key, path.stat().st_mtime_ns)
        except OSError:
            self._forget(path)
            return None

    def _candidate(self, key: str, used_ns: int) -> _Candidate:
        return _Candidate(self.value_of(key) if self.value_of else 0.0, used_ns, key)

    def _files(self) -> Iterator[_File]:
        for entry in self._entries():
            if key := _key_of(entry.name):
                with suppress(OSError):  # another process removed it
                    stat = entry.stat()
                    yield _File(key, entry.path, stat.st_mtime_ns, stat.st_size)

    def _leftovers(self) -> Iterator[tuple[str, int]]:
        """Yield the temporary files that no living writer can still be writing."""
        oldest = time.time() - _TEMPORARY_SECONDS
        for entry in self._entries():
            if entry.name.endswith(_TEMPORARY):
                with suppress(OSError):
                    stat = entry.stat()
                    if stat.st_mtime < oldest:
                        yield entry.path, stat.st_size

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        """Yield everything in the two-letter folders."""
        try:
            folders = [entry.path for entry in os.scandir(self.root) if len(entry.name) == 2]
        except FileNotFoundError:
            return
        for folder in folders:
            try:
                with os.scandir(folder) as entries:
                    yield from entries
            except (FileNotFoundError, NotADirectoryError):
                continue


def _key_of(name: str) -> str | None:
    """Return the key whose file is of this name; None: it is none of ours."""
    key = name.removesuffix(_SUFFIX)
    return key if key != name and _KEY.fullmatch(key) else None


def _touch(path: Path) -> None:
    """Mark as used now. Set by hand, since most systems are mounted without access times."""
    now = time.time_ns()
    try:
        os.utime(path, ns=(now, now))
    except OSError:  # a read-only store still answers
        return


def _refused(error: OSError, path: Path) -> EpicragError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DeviceError(
            f"the disk is full: KV cannot be written to {path.parent}",
            "free some space, or set a smaller KV budget on disk; what is stored stays usable",
        )
    return EpicragError(
        f"KV cannot be written to {path.parent}: {error.strerror or error}",
        "check the folder's permissions, or choose another index folder",
    )
