"""What the readers of all formats share: their limits, and the shape of what they return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from epicrag.types import Unread

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def too_slow(page: int, n_pages: int, limit: float) -> Unread:
    """The answer for a PDF over `max_pdf_seconds`."""
    reason = (
        f"reading stopped after page {page:,} of {n_pages:,}, at the limit of {limit:g} seconds"
    )
    return Unread("skipped", f"{reason} per PDF; raise it with --max-pdf-seconds")
