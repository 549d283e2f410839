"""Ctrl-C held back where it would break what the conversation needs to go on."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

INTERRUPTED = 130


@contextmanager
def hold(say: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold an interrupt back until the end, and raise it there; `say` is told that it has been seen.

    A library whose import was broken off cannot be imported again: torch brings the process down. So a second
    interrupt ends the process at once, instead of going on with half of one. Only the main thread is ever interrupted.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    held: list[tuple[int, FrameType | None]] = []

    def keep(number: int, frame: FrameType | None) -> None:
        if held:
            leave()
        held.append((number, frame))
        if say:
            say("stopping as soon as this is loaded; Ctrl-C again ends at once")

    signal.signal(signal.SIGINT, keep)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            before(*held[0])


def leave() -> None:
    """End as an interrupted command does, without a word to libraries that may be half there."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(INTERRUPTED)
