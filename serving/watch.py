"""A stop watch for the stages of a request."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(slots=True)
class Watch:
    """Milliseconds since it was made, and since the last lap."""

    begun: float = 0.0
    last: float = 0.0

    def __post_init__(self) -> None:
        self.begun = self.last = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        passed, self.last = now - self.last, now
        return passed * 1000

    def total(self) -> float:
        return (time.perf_counter() - self.begun) * 1000
