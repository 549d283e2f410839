"""What the pipeline says while it works, for the request that it works for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Notices:
    """`say` is given to the pipeline; `heard` collects what is said in this thread meanwhile."""

    def __init__(self, otherwise: Callable[[str], object] | None = None) -> None:
        self._here = threading.local()
        self._otherwise = otherwise

    def say(self, text: str) -> None:
        """Tell the request of this thread; where there is none, whoever started the server."""
        heard = getattr(self._here, "heard", None)
        if heard is not None:
            heard.append(text)
        elif self._otherwise is not None:
            self._otherwise(text)

    @contextmanager
    def heard(self) -> Iterator[list[str]]:
        heard: list[str] = []
        self._here.heard = heard
        try:
            yield heard
        finally:
            self._here.heard = None
