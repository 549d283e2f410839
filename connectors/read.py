"""One file to a `Document`: by its extension and by what its bytes really are."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from epicrag.connectors.base import Limits, Parsed, RefusedError, file_too_big, timed, too_long
from epicrag.connectors.decode import decode, is_blank
from epicrag.connectors.formats import (
    READING,
    extension_of,
    foreign_content,
    format_of,
    media_of,
    unsupported_reason,
)
from epicrag.connectors.opened import NotRegularError, open_regular
from epicrag.types import Document, Unread

if TYPE_CHECKING:
    from epicrag.connectors.formats import Format

__all__ = ["Limits", "read", "read_bytes", "refusal"]

_NO_LIMITS = Limits()


def refusal(name: str, limits: Limits = _NO_LIMITS) -> str | None:
    """Say why nothing is read from files of this name, whatever they hold; None when they are read."""
    form = format_of(name)
    if form is None:
        return unsupported_reason(name)
    if form.name == "image":
        from epicrag.connectors.picture import refusal as picture_refusal

        return picture_refusal(limits)
    return None


def read(path: str, *, limits: Limits = _NO_LIMITS, follow: bool = True) -> Document | Unread:
    """Read a file; what cannot be read is an `Unread` that says why. Bad content never raises.

    For `follow` see `load`.
    """
    if (why := refusal(path, limits)) is not None:
        return Unread("unsupported", why)
    data = load(path, limits.max_file_bytes, follow=follow)
    if isinstance(data, Unread):
        return data
    name = path.replace(os.sep, "/") if os.sep != "/" else path
    return read_bytes(name, data, limits=limits)


def read_bytes(
    path: str,
    data: bytes,
    *,
    limits: Limits = _NO_LIMITS,
    name: str | None = None,
    charset: str | None = None,
) -> Document | Unread:
    """Read what a file would hold. The format is that of `name`, by default the end of the path.

    `charset` is what the bytes are said to be in by whoever sent them.
    """
    why, form = refusal(name or path, limits), format_of(name or path)
    if why is not None or form is None:
        return Unread("unsupported", why or unsupported_reason(name or path))
    parsed = _guarded(form, name or path, data, limits, charset)
    if isinstance(parsed, Unread):
        return parsed
    if is_blank(parsed.text):
        return Unread("empty", "no text in it")
    if len(parsed.text) > limits.max_chars:
        return too_long(len(parsed.text), limits.max_chars)
    return Document(
        path=path,
        text=parsed.text,
        digest=hashlib.sha256(data).hexdigest(),
        media=parsed.media,
        title=parsed.title,
        encoding=parsed.encoding,
        anchors=parsed.anchors,
        blocks=parsed.blocks,
        tables=parsed.tables,
        meta=parsed.meta,
        reading=READING,
    )


def load(path: str, max_bytes: int, *, follow: bool = True) -> bytes | Unread:
    """Return the bytes of a file that is a regular file and not over the limit.

    Without `follow`, a link on its path is not followed: there was none when the file was found.
    """
    try:
        with open_regular(path, follow=follow) as file:
            if (size := os.fstat(file.fileno()).st_size) > max_bytes:
                return Unread("skipped", file_too_big(size, max_bytes))
            data = file.read(max_bytes + 1)  # it may have grown since
    except NotRegularError as error:
        return Unread("skipped", str(error.strerror))
    except (OSError, ValueError) as error:
        return Unread("failed", f"cannot be read: {getattr(error, 'strerror', None) or error}")
    if len(data) > max_bytes:
        return Unread("skipped", file_too_big(len(data), max_bytes))
    return data


def _guarded(
    form: Format, path: str, data: bytes, limits: Limits, charset: str | None
) -> Parsed | Unread:
    """Run a reader. A fault in it or in its library costs this file, not the run."""
    try:
        return _parse(form, path, data, limits, charset)
    except RefusedError as refused:
        return refused.unread
    except Exception as error:  # noqa: BLE001 - whatever a parser raises on hostile bytes
        name = type(error).__name__
        return Unread("failed", f"the {form.name} reader could not read it: {name}: {error}"[:500])


def _parse(
    form: Format, path: str, data: bytes, limits: Limits, charset: str | None
) -> Parsed | Unread:
    parse = _function(form)
    if form.takes == "bytes":
        return parse(data, limits)
    if (content := foreign_content(data)) is not None:
        return Unread("unsupported", f"named .{extension_of(path)}, but it holds {content}")
    decoded = decode(data, charset or _declared(form, data))
    if isinstance(decoded, Unread):
        return decoded
    if len(decoded.text) > limits.max_chars:
        return too_long(len(decoded.text), limits.max_chars)
    if is_blank(decoded.text):
        return Unread("empty", "no text in it" if data else "0 bytes")
    with timed(limits):
        if form.name == "code":
            return parse(decoded.text, media_of(path), decoded.encoding)
        return parse(decoded.text, decoded.encoding)


def _function(form: Format) -> Callable[..., Parsed | Unread]:
    """Import a reader: none is, before a file asks for it."""
    module, name = form.function.split(":")
    function: Callable[..., Parsed | Unread]
    function = getattr(import_module(f"epicrag.connectors.{module}"), name)
    return function


def _declared(form: Format, data: bytes) -> str | None:
    """The character set that a file says it is in, where its format has a way to say so."""
    if form.name not in ("html", "XML"):
        return None
    from epicrag.connectors.html import declared_charset

    return declared_charset(data)
