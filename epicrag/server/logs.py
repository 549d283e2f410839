"""One line of log for each request: who, what, how long, and what it cost; never a word of any text."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import Request

    from epicrag.types import Receipt, Usage


@dataclass(slots=True)
class Record:
    """What is known of a request so far."""

    id: str = ""
    began: float = field(default_factory=time.perf_counter)
    ttft_s: float | None = None
    receipt: Receipt | None = None
    usage: Usage | None = None


def record_of(request: Request) -> Record:
    """The record of a request; one that nobody reads where no log is kept."""
    record: Record = request.scope.setdefault("state", {}).setdefault("record", Record())
    return record
