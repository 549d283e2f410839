"""The answers and registrations that are open: how many there may be, and how each is stopped from outside."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Literal, TypeAlias

from epicrag.errors import BusyError, EpicragError

Kind: TypeAlias = Literal["answer", "registration"]


class StoppedError(EpicragError):
    """The work was ended half-way: nobody waits for it any more."""

    code = "stopped"


class Job:
    """One answer being made, in a thread of its own. It may be cancelled from any thread."""

    def __init__(self, kind: Kind = "answer") -> None:
        self.kind = kind
        self._lock = threading.Lock()
        self._cancels: list[Callable[[], object]] = []
        self._is_cancelled = False

    @property
    def is_cancelled(self) -> bool:
        return self._is_cancelled

    def refuse_cancelled(self) -> None:
        """StoppedError once it is cancelled: for work that has no other end, between its parts."""
        if self._is_cancelled:
            raise StoppedError("nobody waits for this any more")

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
    """The open jobs: no more than `most` answers, and `most_registrations`."""

    def __init__(self, most: int, most_registrations: int = 16) -> None:
        self._most: dict[Kind, int] = {"answer": most, "registration": most_registrations}
        self._counts: Counter[Kind] = Counter()
        self._lock = threading.Condition()
        self._open: set[Job] = set()

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, kind: Kind = "answer") -> Job:
        """Begin a job. BusyError: as many of its kind are open as may be."""
        job = Job(kind)
        with self._lock:
            if self._counts[kind] >= self._most[kind]:
                raise BusyError(
                    f"{self._counts[kind]} {kind}s are open, and no more are taken on",
                    "ask again in a moment",
                )
            self._open.add(job)
            self._counts[kind] += 1
        return job

    def leave(self, job: Job) -> None:
        with self._lock:
            if job in self._open:
                self._open.remove(job)
                self._counts[job.kind] -= 1
                self._lock.notify_all()

    def drain(self, seconds: float) -> bool:
        """Wait so long for the last one to end; whether it did."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._open, seconds)

    def cancel_all(self) -> None:
        with self._lock:
            jobs = list(self._open)
        for job in jobs:
            job.cancel()
