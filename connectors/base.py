"""What the readers of all formats share: their limits, and the shape of what they return."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING

from epicrag.types import Unread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epicrag.types import Anchor, Block, MetaValue, Table

MEBIBYTE = 1 << 20
MAX_FILE_BYTES = 100 * MEBIBYTE


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one file may ask of the machine. A file over a limit is reported, not cut."""

    max_file_bytes: int = MAX_FILE_BYTES
    max_chars: int = 20_000_000
    max_pages: int = 5_000
    max_pdf_seconds: float = 120.0
    ocr: str = "auto"
    """Pages without text are read by OCR: "auto", where it is installed; "all", pictures too; "never"."""
    max_ocr_seconds: float = 900.0
    max_archive_members: int = 10_000
    max_inflated_bytes: int = 500 * MEBIBYTE
    max_inflation_ratio: int = 300
    max_file_seconds: float = 60.0
    max_archive_depth: int = 1


@dataclass(frozen=True, slots=True)
class Parsed:
    """A file's content as a format's reader gives it: a `Document` but for path and digest."""

    text: str
    media: str
    title: str | None = None
    encoding: str | None = None
    anchors: tuple[Anchor, ...] = ()
    blocks: tuple[Block, ...] = ()
    tables: tuple[Table, ...] = ()
    meta: Mapping[str, MetaValue] = field(default_factory=dict)


def file_too_big(size: int, limit: int) -> str:
    """Say that a file is over `max_file_bytes`, and which flag raises the limit."""
    return (
        f"the file has {size / MEBIBYTE:,.1f} MB, over the limit of {limit / MEBIBYTE:,g} MB; "
        "raise it with --max-file-mb"
    )


def too_long(n_chars: int, limit: int) -> Unread:
    """The answer for a text over `max_chars`."""
    reason = f"the text has {n_chars:,} characters, over the limit of {limit:,}"
    return Unread("skipped", f"{reason}; raise it with --max-chars")


def too_many_pages(n_pages: int, limit: int) -> Unread:
    """The answer for a PDF over `max_pages`."""
    reason = f"the PDF has {n_pages:,} pages, over the limit of {limit:,}"
    return Unread("skipped", f"{reason}; raise it with --max-pages")


def too_many_parts(count: int, limit: int, name: str) -> Unread:
    """The answer for a file of more slides or sheets than `max_pages`."""
    reason = f"the file has {count:,} {name}, over the limit of {limit:,}"
    return Unread("skipped", f"{reason}; raise it with --max-pages")


def too_slow(page: int, n_pages: int, limit: float) -> Unread:
    """The answer for a PDF over `max_pdf_seconds`."""
    reason = (
        f"reading stopped after page {page:,} of {n_pages:,}, at the limit of {limit:g} seconds"
    )
    return Unread("skipped", f"{reason} per PDF; raise it with --max-pdf-seconds")


def too_many_members(n_members: int, limit: int) -> Unread:
    """The answer for an archive over `max_archive_members`."""
    reason = f"it is an archive of {n_members:,} members, over the limit of {limit:,}"
    return Unread("skipped", f"{reason}; raise it with --max-archive-members")


def too_inflated(size: int, limit: int) -> Unread:
    """The answer for an archive over `max_inflated_bytes`."""
    reason = f"it unpacks to {size / MEBIBYTE:,.1f} MB or more, over the limit of "
    return Unread("skipped", f"{reason}{limit / MEBIBYTE:,g} MB; raise it with --max-inflated-mb")


def too_dense(name: str, ratio: float, limit: int) -> Unread:
    """The answer for an archive with a member over `max_inflation_ratio`."""
    reason = (
        f"its member {name!r} unpacks to {ratio:,.0f} times its size, over the limit of {limit}"
    )
    return Unread("skipped", f"{reason}; if you trust it, raise it with --max-inflation-ratio")


def took_too_long(limit: float) -> Unread:
    """The answer for a file over `max_file_seconds`."""
    reason = f"reading was stopped at the limit of {limit:g} seconds of work per file"
    return Unread("skipped", f"{reason}; raise it with --max-file-seconds")


class RefusedError(Exception):
    """Raised deep within a reader, where there is no returning: carries what it answers."""

    def __init__(self, unread: Unread) -> None:
        super().__init__(unread.reason)
        self.unread = unread


def refusing(
    parse: Callable[[bytes, Limits], Parsed | Unread],
) -> Callable[[bytes, Limits], Parsed | Unread]:
    """Let a reader of bytes raise `RefusedError` where it would have to return an `Unread`."""

    @wraps(parse)
    def parse_or_refuse(data: bytes, limits: Limits) -> Parsed | Unread:
        try:
            with timed(limits):
                return parse(data, limits)
        except RefusedError as refused:
            return refused.unread

    return parse_or_refuse


class Watch:
    """Watches over one file's limits while it is read: seconds from now on, and characters.

    Seconds of work, not of waiting: a busy machine must not decide which files are in the index.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.deadline = time.thread_time() + limits.max_file_seconds
        self._ticks = 0

    def tick(self) -> None:
        """`check` now and then: for loops that are run through too often to look at the clock each time."""
        self._ticks += 1
        if self._ticks % _EVERY == 0:
            self.check()

    def check(self, n_chars: int = 0) -> None:
        """Raise RefusedError when time is up, or when so many characters are too many."""
        if n_chars > self._limits.max_chars:
            raise RefusedError(too_long(n_chars, self._limits.max_chars))
        if time.thread_time() > self.deadline:
            raise RefusedError(took_too_long(self._limits.max_file_seconds))


_EVERY = 16
_here = threading.local()


@contextmanager
def timed(limits: Limits) -> Iterator[None]:
    """Let `pace` raise once `max_file_seconds` of work are done in here, in this thread. A file within
    a file has no more time than the file around it."""
    outer: Watch | None = getattr(_here, "watch", None)
    own = Watch(limits)
    _here.watch = outer if outer is not None and outer.deadline < own.deadline else own
    try:
        yield
    finally:
        _here.watch = outer


def pace() -> None:
    """Raise RefusedError when the time of the file being read is up: for the loops that all readers go
    through, which know no limits. Nothing happens where no file is `timed`; looks at the clock now and then.
    """
    here: Watch | None = getattr(_here, "watch", None)
    if here is not None:
        here.tick()


def ocr_too_slow(done: int, n_pages: int, limit: float) -> Unread:
    """The answer for a scan over `max_ocr_seconds`."""
    reason = f"OCR stopped after {done:,} of {n_pages:,} pages, at the limit of {limit:g} seconds"
    return Unread("skipped", f"{reason} per file; raise it with --max-ocr-seconds")
