"""One writer at a time: a lock that the system frees with its owner, however that ends."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from epicrag.errors import LockedError
from epicrag.index.database import translated

FILE_NAME = "writer.lock"
_POLL_SECONDS = 0.1


class WriterLock:
    """Context manager that only one process at a time is inside of, for an index folder.

    The file stays and names its last owner; whether it is locked only the system knows, so an owner
    that was killed holds nothing. LockedError names the owner when `wait_seconds` did not suffice.
    """

    def __init__(
        self, folder: Path, wait_seconds: float = 0, say: Callable[[str], None] | None = None
    ) -> None:
        """`say` is told, once, who is being waited for."""
        self._file = folder / FILE_NAME
        self._say = say
        self._wait_seconds = wait_seconds
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        while self._descriptor is None:
            with translated(self._file):
                self._file.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                self._lock(descriptor)
                with translated(self._file):
                    if _is_still(self._file, descriptor):
                        _sign(descriptor)
                        self._descriptor = descriptor
            finally:
                if self._descriptor is None:
                    os.close(descriptor)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._descriptor is not None
        os.close(self._descriptor)  # which unlocks; unlinking would let two files be locked
        self._descriptor = None

    def _lock(self, descriptor: int) -> None:
        deadline = time.monotonic() + self._wait_seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                refusal = _locked(descriptor, self._file)
                if time.monotonic() >= deadline:
                    raise refusal from error
                if self._say:
                    self._say(f"{refusal.message}: waiting up to {self._wait_seconds:g} s")
                    self._say = None
            time.sleep(_POLL_SECONDS)


def owner(folder: Path) -> str | None:
    """Return " (pid …)" of who is writing to an index now, None when nobody is."""
    try:
        descriptor = os.open(folder / FILE_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _owner(descriptor) or " (that has not signed yet)"
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(descriptor)
    return None


def _is_still(file: Path, descriptor: int) -> bool:
    """Return whether the file that is locked is the one of that name: else another may be locked as well."""
    try:
        return os.path.samestat(os.stat(file), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _sign(descriptor: int) -> None:
    """Write who holds the lock, for the message of whoever waits."""
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(owner).encode(), 0)


def _locked(descriptor: int, file: Path) -> LockedError:
    return LockedError(
        f"another epicrag{_owner(descriptor)} is writing to the index at {file.parent}",
        "wait until it is done, or stop it, and run this again",
    )


def _owner(descriptor: int) -> str:
    """Return " (pid …)", or "" in the instant before the owner has signed."""
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        seconds = max(time.time() - float(owner["since"]), 0)
        return f" (pid {int(owner['pid'])} on {owner['host']}, for {seconds:.0f} s)"
    except (ValueError, KeyError, TypeError):
        return ""
