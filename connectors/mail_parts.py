"""What a message holds: its text in one of the forms it is given in, what is attached, messages within."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from epicrag.connectors.base import Parsed
from epicrag.connectors.decode import is_blank
from epicrag.connectors.mail_head import file_name, text_of
from epicrag.connectors.text import paragraphs
from epicrag.types import Block

if TYPE_CHECKING:
    from collections.abc import Iterator
    from email.message import Message

_MAX_NESTED = 20
_WORD = re.compile(r"[^\W_]{3,}")
_URL = re.compile(r"<?https?://\S+>?")
_TRACKER = re.compile(r"(https?://[^/\s<>]+/)[^\s<>]{100,}")
_QUOTE = re.compile(r"[ \t]*>")
_ENOUGH = 0.6
_TOO_MANY_URLS = 0.3


@dataclass(slots=True)
class Contents:
    """The parts of a message, sorted by what they are for, each list in order."""

    texts: list[Parsed] = field(default_factory=list)
    attached: list[tuple[str, Message]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)

    @property
    def is_blank(self) -> bool:
        """Is there nothing to read, and nothing attached?"""
        return not (self.texts or self.attached or self.messages)


def contents_of(part: Message, nested: int = 0) -> Contents:
    """Sort the parts of a message."""
    contents = Contents()
    _sort(part, contents, nested)
    return contents


def _sort(part: Message, into: Contents, nested: int) -> None:
    kind, inner = part.get_content_type(), _inner(part)
    if inner and nested > _MAX_NESTED:
        return
    if kind == "message/rfc822" and inner:
        into.messages += inner
    elif kind == "multipart/alternative" and inner:
        _alternative(inner, into, nested + 1)
    elif inner:
        for other in inner:
            _sort(other, into, nested + 1)
    elif _is_attached(part):
        if not _is_picture_of_page(part):
            into.attached.append((file_name(part) or f"({kind})", part))
    elif (page := _page(part)) is not None:
        into.texts.append(page)


def _alternative(parts: list[Message], into: Contents, nested: int) -> None:
    """Take the plain text, the page, or both where each says what the other does not."""
    plain, page = Contents(), Contents()
    for part in parts:
        _sort(part, plain if part.get_content_type() == "text/plain" else page, nested)
    for side in (plain, page):
        into.attached += side.attached
        into.messages += side.messages
    into.texts += chosen(plain.texts, page.texts)


def chosen(plain: list[Parsed], page: list[Parsed]) -> list[Parsed]:
    """Which of two forms of a text are read: the plain one, unless the page says clearly more.

    The same text twice would count twice. A plain form is sometimes only "see the page", or made of the
    addresses of trackers; then the page is read, and both only when neither holds the other's words.
    """
    own, others = _words(plain), _words(page)
    if not own or not others:
        return plain if own or not others else page
    both = own & others
    text = "\n".join(form.text for form in plain)
    n_urls = sum(map(len, _URL.findall(text)))
    if n_urls > _TOO_MANY_URLS * len(text) and len(both) >= _ENOUGH * len(own):
        return page
    if len(both) >= _ENOUGH * len(others):
        return plain
    return page if len(both) >= _ENOUGH * len(own) else plain + page


def _words(forms: list[Parsed]) -> set[str]:
    return {word for form in forms for word in _WORD.findall(_URL.sub(" ", form.text).lower())}


def _inner(part: Message) -> list[Message]:
    if (
        not part.is_multipart()
    ):  # asked for its payload, it would decode a text by what it says it is
        return []
    payload: Any = part.get_payload()
    return [inner for inner in payload if hasattr(inner, "get_content_type")]


def _is_attached(part: Message) -> bool:
    """Is it something beside the text: by what it says, by its name, or because it is no text?"""
    if part.get_content_disposition() == "attachment" or part.get_content_maintype() != "text":
        return True
    return bool(file_name(part)) and part.get_content_type() not in ("text/plain", "text/html")


def _is_picture_of_page(part: Message) -> bool:
    """Is it a picture that a page shows, rather than one sent to be looked at?"""
    shown = part.get_content_disposition() != "attachment" and part.get("Content-ID") is not None
    return shown and part.get_content_maintype() == "image"


def bytes_of(part: Message) -> bytes:
    """A part's bytes, its transfer encoding undone; what is broken in it is left as it stands."""
    try:
        data: Any = part.get_payload(decode=True)
    except (ValueError, LookupError, TypeError):
        data = None
    return data if isinstance(data, bytes) else b""


def part_text(part: Message) -> str:
    """A part's text, by the character set it says it is in where that can be."""
    try:
        charset = part.get_content_charset()
    except (ValueError, LookupError, TypeError):
        charset = None
    return text_of(bytes_of(part), charset)


def _page(part: Message) -> Parsed | None:
    """A part's text as its format's reader gives it; None for nothing."""
    text = part_text(part)
    if is_blank(text):
        return None
    if part.get_content_type() == "text/html":
        from epicrag.connectors.html import parse_html

        page = parse_html(text)
        return page if isinstance(page, Parsed) and not is_blank(page.text) else None
    text = _TRACKER.sub(r"\1…", text)  # ids of who clicked what: no text, and longer than all of it
    return Parsed(text=text, media="text/plain", blocks=tuple(_quoted_apart(text)))


def _quoted_apart(text: str) -> Iterator[Block]:
    """Yield paragraphs; what is quoted from another message is never in one with what is not."""
    start = at = 0
    quoted: bool | None = None
    for line in text.splitlines(keepends=True):
        if line.strip():
            is_quoted = _QUOTE.match(line) is not None
            if quoted is not None and is_quoted != quoted:
                yield from paragraphs(text, start, at)
                start = at
            quoted = is_quoted
        at += len(line)
    yield from paragraphs(text, start, at)
