"""The old container of Office (OLE): which file it is, whether it is locked, and what it says of itself."""

from __future__ import annotations

import datetime
import io
from typing import Any

from epicrag.connectors.base import RefusedError
from epicrag.connectors.properties import metadata
from epicrag.types import MetaValue, Unread

MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_KINDS = (
    ("WordDocument", "a Word 97 file (doc)"),
    ("Workbook", "an Excel 97 file (xls)"),
    ("Book", "an Excel 97 file (xls)"),
    ("PowerPoint Document", "a PowerPoint 97 file (ppt)"),
    ("__properties_version1.0", "an Outlook e-mail (msg)"),
)


def open_ole(data: bytes, kind: str, streams: tuple[str, ...]) -> Any:
    """Open a container that has one of these streams; raises RefusedError saying what is wrong.

    Args:
        kind: what the file should be, for messages.
        streams: the names of the stream that makes it that.
    """
    import olefile

    if not data.startswith(MAGIC):
        raise RefusedError(Unread("failed", _no_container(data, kind)))
    try:
        ole = olefile.OleFileIO(io.BytesIO(data))
    except (OSError, ValueError, IndexError, TypeError, MemoryError, AttributeError) as error:
        reason = f"damaged {kind} file: {error}; copy or download it again"
        raise RefusedError(Unread("failed", reason[:300])) from error
    if is_locked(ole):
        reason = f"encrypted {kind} file: it opens with a password only; save an open copy"
        raise RefusedError(Unread("failed", reason))
    if not any(ole.exists(name) for name in streams):
        found = next((name for stream, name in _KINDS if ole.exists(stream)), "something else")
        reason = f"named as a {kind} file, but it holds {found}: name it as what it is"
        raise RefusedError(Unread("failed", reason))
    return ole


def is_locked(ole: Any) -> bool:
    """Is it a new Office file, encrypted as a whole?"""
    return bool(ole.exists("EncryptedPackage") or ole.exists("EncryptedSummary"))


def is_encrypted_package(data: bytes) -> bool:
    """Is it the container that an encrypted docx, pptx or xlsx is stored in?"""
    import olefile

    try:
        return is_locked(olefile.OleFileIO(io.BytesIO(data)))
    except (OSError, ValueError, IndexError, TypeError, MemoryError, AttributeError):
        return False


def stream(ole: Any, name: str | list[str], limit: int = 1 << 30) -> bytes:
    """The bytes of a stream, b"" where there is none; damage raises RefusedError."""
    if not ole.exists(name):
        return b""
    try:
        return bytes(ole.openstream(name).read(limit))
    except (OSError, ValueError, IndexError, TypeError) as error:
        reason = f"damaged: its stream {name} cannot be read: {error}; copy or download it again"
        raise RefusedError(Unread("failed", reason[:300])) from error


def summary(ole: Any) -> dict[str, MetaValue]:
    """The properties of the file."""
    try:
        found = ole.get_metadata()
    except Exception:  # noqa: BLE001 - olefile raises whatever a broken property set makes it
        return {}
    page = _code_page(found.codepage)
    saved = found.last_saved_time or found.create_time
    return metadata(
        {
            "title": _text(found.title, page),
            "author": _text(found.author, page),
            "subject": _text(found.subject, page),
            "keywords": _text(found.keywords, page),
            "date": saved.date().isoformat() if isinstance(saved, datetime.datetime) else None,
        }
    )


def _code_page(number: int | None) -> str:
    if number in (None, 0):
        return "cp1252"
    if number in (65001, -535):
        return "utf-8"
    return f"cp{number % 65536 if number is not None else 1252}"


def _text(value: Any, page: str) -> str | None:
    if not isinstance(value, bytes):
        return value if isinstance(value, str) else None
    try:
        return value.decode(page, "replace").rstrip("\0")
    except LookupError:
        return value.decode("cp1252", "replace").rstrip("\0")


def _no_container(data: bytes, kind: str) -> str:
    if not data:
        return f"0 bytes: an empty file, not a {kind} file"
    if data.startswith(b"PK\x03\x04"):
        return (
            f"not a {kind} file: it holds a new Office file; name it with an x (docx, xlsx, pptx)"
        )
    if data.startswith(b"{\\rtf"):
        return f"not a {kind} file: it holds Rich Text; name it .rtf"
    if data.lstrip()[:1] == b"<":
        return f"not a {kind} file: it holds HTML or XML; name it as what it is"
    return f"not a {kind} file: its first bytes are not those of one; copy or download it again"
