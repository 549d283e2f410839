"""uvicorn's HTTP, and a limit on how long a connection may take to say what it wants."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_TIMEOUT = 10.0
MAX_HEADER_BYTES = 32 * 1024


class PatientOnce(H11Protocol):
    """Closes a connection whose request's head is not there within `header_timeout_s` of its beginning.

    uvicorn itself waits for ever for a first request, and for the rest of one that has begun.
    """

    header_timeout_s = HEADER_TIMEOUT

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state is not h11.IDLE:
            self._forget()
        elif self.conn.trailing_data[0] and self._header_timer is None:
            self._watch()

    def _watch(self) -> None:
        self._header_timer = self.loop.call_later(self.header_timeout_s, self._give_up)

    def _forget(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _give_up(self) -> None:
        self._header_timer = None
        if not self.transport.is_closing():
            self.transport.close()
