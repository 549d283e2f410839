"""Headers of mail as text, however they are encoded, and whatever is wrong with them."""

from __future__ import annotations

import re
from email.errors import MessageError
from email.header import decode_header
from email.utils import getaddresses
from typing import TYPE_CHECKING

from epicrag.connectors.decode import decode, normalise
from epicrag.types import Unread

if TYPE_CHECKING:
    from email.message import Message

_MAX_CHARS = 10_000


def header(message: Message, name: str) -> str:
    """A header's text on one line; "" when there is none."""
    raw = next(
        (str(value) for key, value in message.raw_items() if key.lower() == name.lower()), ""
    )
    return decoded_words(raw[:_MAX_CHARS])


def decoded_words(raw: str) -> str:
    """Decode `=?charset?q?…?=`; bytes that stand in a header unencoded are decoded by detection."""
    try:
        words: list[tuple[bytes | str, str | None]] = list(decode_header(raw))
    except (MessageError, ValueError, LookupError):
        words = [(raw, None)]
    return " ".join(normalise("".join(_text(word, charset) for word, charset in words)).split())


def _text(word: bytes | str, charset: str | None) -> str:
    if isinstance(word, str):
        word = word.encode("utf-8", "surrogateescape")
    elif charset is None and b"\\udc" in word:  # how the library hands on bytes it does not know
        word = word.decode("raw-unicode-escape").encode("utf-8", "surrogateescape")
    return text_of(word, charset)


def text_of(data: bytes, charset: str | None) -> str:
    """Decode bytes that are said to be in a character set."""
    decoded = decode(data, charset)
    return data.decode("utf-8", "replace") if isinstance(decoded, Unread) else decoded.text


def addresses(line: str) -> tuple[str, ...]:
    """The people of a header, each as `Name <address>`."""
    try:
        pairs = getaddresses([line])
    except (ValueError, IndexError):
        return (line,) if line else ()
    people = [f"{name} <{address}>" if name else address for name, address in pairs if address]
    return tuple(people) or ((line,) if line else ())


def file_name(part: Message) -> str:
    """What an attachment is called, without folders."""
    try:
        name = part.get_filename() or ""
    except (ValueError, LookupError, TypeError, MessageError):
        return ""
    return re.split(r"[/\\]", decoded_words(name))[-1]
