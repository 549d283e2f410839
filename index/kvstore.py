"""The disk tier of chunk KV: content-addressed files under a byte budget, safe between processes."""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
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
_TEMPORARY_SECONDS = 600.0  # a writer needs a second: an older temporary file was left by a kill
_log = logging.getLogger("epicrag")


@dataclass(frozen=True, slots=True)
class Missing:
    """Why there is no KV: never stored ("absent"), or stored and no longer whole ("damaged")."""

    reason: Literal["absent", "damaged"]
    detail: str = ""


class _File(NamedTuple):
    key: str
    path: Path
    used_ns: int
    size: int


class KVStore:
    """Keys and values of chunks on disk, by key (64 hex characters).

    Every `get` checks all bytes: KV that is not exactly what was put is `Missing`. Files appear and
    go whole (rename, unlink), so any number of processes may read and write at once; KV that one of
    them evicts stays valid for whoever holds it. Least recently used files go first when
    `budget_bytes` is exceeded; pinned ones and the one just put never, so those may exceed it.
    """

    def __init__(self, root: Path, *, budget_bytes: int | None = None) -> None:
        self.root = root
        self.budget_bytes = budget_bytes
        self._pins: Counter[str] = Counter()
        self._estimate: int | None = None  # bytes held, without a scan: others' files come in late
        self._mutex = threading.Lock()

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
        size = len(head) + sum(tensor.nbytes for tensor in tensors)
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
        return {file.key for file in self._files()}

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
        """Remove what is neither in `keep` nor pinned, and what killed writers left: (files, bytes)."""
        doomed = [
            (file.path, file.size)
            for file in self._files()
            if file.key not in keep and file.key not in self._pins
        ]
        removed = [size for path, size in [*doomed, *self._leftovers()] if self._remove(path)]
        return len(removed), sum(removed)

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

    def _remove(self, path: Path) -> bool:
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            _log.warning("cannot remove %s: %s", path, error.strerror or error)
            return False
        with self._mutex:
            if self._estimate is not None:
                self._estimate = max(self._estimate - size, 0)
        return True

    def _damaged(self, path: Path, detail: str) -> Missing:
        _log.warning("KV file %s is unusable and will be computed again: %s", path, detail)
        return Missing("damaged", detail)

    def _keep_budget(self, added: int, newest: str) -> None:
        """Evict the least recently used files when the budget is exceeded."""
        if self.budget_bytes is None:
            return
        with self._mutex:
            if self._estimate is not None:
                self._estimate += added
                if self._estimate <= self.budget_bytes:
                    return
        files = sorted(self._files(), key=lambda file: file.used_ns)
        held = sum(file.size for file in files)
        with self._mutex:
            self._estimate = held
            spared = {newest, *self._pins}
        for file in files:
            if held <= self.budget_bytes:
                break
            if file.key not in spared and self._remove(file.path):
                held -= file.size

    def _files(self) -> Iterator[_File]:
        for entry in self._entries():
            key = entry.name.removesuffix(_SUFFIX)
            if key + _SUFFIX != entry.name or not _KEY.fullmatch(key):
                continue
            try:
                stat = entry.stat()
            except OSError:  # another process removed it
                continue
            yield _File(key, Path(entry.path), stat.st_mtime_ns, stat.st_size)

    def _leftovers(self) -> Iterator[tuple[Path, int]]:
        """Yield the temporary files that no living writer can still be writing."""
        oldest = time.time() - _TEMPORARY_SECONDS
        for entry in self._entries():
            if entry.name.endswith(_TEMPORARY) and entry.stat().st_mtime < oldest:
                yield Path(entry.path), entry.stat().st_size

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
