"""The answers that are open: how many there may be, and how each is stopped from outside."""

from __future__ import annotations

import threading
from collections.abc import Callable

from epicrag.errors import BusyError


class Job:
    """One answer being made, in a thread of its own. It may be cancelled from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancels: list[Callable[[], object]] = []
        self._is_cancelled = False

    @property
    def is_cancelled(self) -> bool:
        return self._is_cancelled

    def on_cancel(self, cancel: Callable[[], object]) -> None:
        """Have this called, from another thread, when nobody waits for the answer any more; or now if so already.

        It must be safe to call then: `Generation.close`, `AnswerStream.cancel`.
        """
        with self._lock:
            if not self._is_cancelled:
                self._cancels.append(cancel)
                return
        cancel()

    def cancel(self) -> None:
        """Stop the answer. What it held in the pool is free when this returns; it waits for a step under way."""
        with self._lock:
            self._is_cancelled = True
            cancels, self._cancels = self._cancels, []
        for cancel in cancels:
            cancel()


class Jobs:
    """The open jobs: no more than `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: set[Job] = set()

    def __len__(self) -> int:
        return len(self._open)

    def enter(self) -> Job:
        """Begin a job. BusyError: as many are open as may be."""
        job = Job()
        with self._lock:
            if len(self._open) >= self._most:
                raise BusyError(
                    f"{len(self._open)} answers are open, and no more are taken on",
                    "ask again in a moment",
                )
            self._open.add(job)
        return job

    def leave(self, job: Job) -> None:
        with self._lock:
            self._open.discard(job)

    def cancel_all(self) -> None:
        with self._lock:
            jobs = list(self._open)
        for job in jobs:
            job.cancel()
