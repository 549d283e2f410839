"""Mailboxes: many messages in one file, each a page of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator

from epicrag.connectors.base import Limits, Parsed, Watch, refusing
from epicrag.connectors.draft import Draft
from epicrag.connectors.mail import as_mail_bytes, parsed_message, write_message
from epicrag.types import Unread

_START = re.compile(rb"^From [^\n]*\d{1,2}:\d{2}[^\n]*\d{4}[^\n]*\r?\n", re.MULTILINE)
_ANY_START = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\r\n\r\n))From [^\n]*\n")
_QUOTED = re.compile(rb"^>(>*From )", re.MULTILINE)


@refusing
def parse_mailbox(data: bytes, limits: Limits) -> Parsed | Unread:
    """Read a mailbox in the mbox format. `page` counts messages, and a passage never holds two."""
    data = as_mail_bytes(data)
    draft, watch = Draft(), Watch(limits)
    refused: list[Unread] = []
    written = 0
    for number, source in enumerate(_messages(data), 1):
        message = parsed_message(source)
        if isinstance(message, Unread):
            refused.append(message)
            continue
        draft.page, draft.part = number, f"message {number}"
        before = draft.length
        write_message(draft, message, watch)
        written += draft.length > before
    if refused and not written:
        return refused[0]
    return draft.parsed("application/mbox")


def _messages(data: bytes) -> Iterator[bytes]:
    """Yield the messages one by one, without the lines that part them."""
    start = _START if _START.search(data) else _ANY_START
    begin: int | None = None
    for found in start.finditer(data):
        if begin is not None:
            yield _QUOTED.sub(rb"\1", data[begin : found.start()])
        begin = found.end()
    yield _QUOTED.sub(rb"\1", data[begin or 0 :])
