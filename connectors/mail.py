"""E-mail: who wrote to whom, when and about what, the text once, and what text is attached."""

from __future__ import annotations

import email
import email.policy
import re
from typing import TYPE_CHECKING

from epicrag.connectors.base import Limits, Parsed, Watch, refusing
from epicrag.connectors.dates import dated
from epicrag.connectors.decode import decode, is_blank
from epicrag.connectors.draft import Draft
from epicrag.connectors.formats import extension_of
from epicrag.connectors.graft import graft
from epicrag.connectors.mail_head import addresses, header
from epicrag.connectors.mail_parts import bytes_of, contents_of, part_text
from epicrag.connectors.read import read_bytes
from epicrag.connectors.text import parse_text
from epicrag.types import Document, Unread

if TYPE_CHECKING:
    from email.message import Message

    from epicrag.types import MetaValue

_TOLD = {"from": "From", "to": "To", "cc": "Cc", "date": "Date", "subject": "Subject"}
_MULTIPART = re.compile(rb"content-type:\s*(?:multipart/|message/rfc822)", re.IGNORECASE)
_MAX_MULTIPARTS = 200
_MAX_DEPTH = 5
ATTACHED = Limits(
    max_file_bytes=20 << 20,
    max_chars=1_000_000,
    max_pages=500,
    max_pdf_seconds=20,
    max_file_seconds=20,
)
"""How much an attachment may ask of the machine, so that a mail of many is read all the same."""
_MAX_TITLE_CHARS = 200


@refusing
def parse_mail(data: bytes, limits: Limits) -> Parsed | Unread:
    """Read a message. Its subject is the title; attachments are named, and read where a reader takes them."""
    message = parsed_message(as_mail_bytes(data))
    if isinstance(message, Unread):
        return message
    draft = Draft()
    meta = write_message(draft, message, Watch(limits))
    subject = meta.get("subject")
    return draft.parsed(
        "message/rfc822",
        title=subject if isinstance(subject, str) and len(subject) <= _MAX_TITLE_CHARS else None,
        meta=meta,
    )


def as_mail_bytes(data: bytes) -> bytes:
    """Messages saved as UTF-16 or with a mark are ones in UTF-8 all the same."""
    is_marked = data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"))
    if is_marked or b"\0" in data[:64]:
        decoded = decode(data)
        if not isinstance(decoded, Unread):
            return decoded.text.encode("utf-8", "replace")
    return data


def parsed_message(data: bytes) -> Message | Unread:
    """Parse a message; what is malformed is read as far as it goes, only a trap is refused."""
    # The parser needs time and stack for each open part: real mail has a dozen at most.
    if (count := len(_MULTIPART.findall(data))) > _MAX_MULTIPARTS:
        return Unread(
            "failed", f"a MIME bomb: {count:,} parts within parts in one message, refused"
        )
    return email.message_from_bytes(data.lstrip(), policy=email.policy.compat32)


def write_message(
    draft: Draft, message: Message, watch: Watch, depth: int = 0
) -> dict[str, MetaValue]:
    """Write a message's head and all it holds; return what it says of itself, {} when it is empty."""
    heads = {key: header(message, name) for key, name in _TOLD.items()}
    contents = contents_of(message)
    if contents.is_blank and not heads["subject"]:
        return {}
    draft.enter(depth + 1, heads["subject"])
    draft.open("paragraph")
    draft.write("\n".join(f"{_TOLD[key]}: {told}" for key, told in heads.items() if told))
    draft.close()
    for page in contents.texts:
        graft(draft, page, level=depth + 1)
        watch.check(draft.length)
    for name, part in contents.attached:
        _attachment(draft, name, part, watch, depth)
        watch.check(draft.length)
    for inner in contents.messages if depth < _MAX_DEPTH else ():
        write_message(draft, inner, watch, depth + 1)
    return _meta(heads)


def _meta(heads: dict[str, str]) -> dict[str, MetaValue]:
    meta: dict[str, MetaValue] = {key: heads[key] for key in ("subject", "from") if heads[key]}
    if people := addresses(heads["to"]):
        meta["to"] = people if len(people) > 1 else people[0]
    meta.update(dated(heads["date"]))
    return meta


def _attachment(draft: Draft, name: str, part: Message, watch: Watch, depth: int) -> None:
    """Name an attachment, and write what is in it where it can be read and is not too long."""
    draft.enter(depth + 2, name)
    draft.open("paragraph")
    draft.write(f"Attachment: {name}")
    draft.close()
    data = bytes_of(part)
    if extension_of(name) in (
        "eml",
        "mbox",
        "msg",
    ):  # a reader of its own would not know how deep it is
        message = parsed_message(data) if extension_of(name) == "eml" else None
        if message is not None and not isinstance(message, Unread) and depth < _MAX_DEPTH:
            write_message(draft, message, watch, depth + 1)
        return
    page = read_bytes(name, data, limits=ATTACHED) if len(data) <= ATTACHED.max_file_bytes else None
    if isinstance(page, Document):
        graft(draft, page, level=depth + 2)
    elif part.get_content_maintype() == "text":
        text = part_text(part)
        if len(text) <= ATTACHED.max_chars and not is_blank(text):
            graft(draft, parse_text(text), level=depth + 2)
