"""Outlook e-mails: who wrote what to whom and when, the text, the names of attachments."""

from __future__ import annotations

import datetime
import struct
from typing import Any

from epicrag.connectors.base import Limits, Parsed, RefusedError, Watch, refusing
from epicrag.connectors.dates import dated
from epicrag.connectors.draft import Draft
from epicrag.connectors.formats import extension_of
from epicrag.connectors.graft import graft
from epicrag.connectors.mail import ATTACHED
from epicrag.connectors.ole import open_ole, stream
from epicrag.connectors.read import read_bytes
from epicrag.connectors.rows import one_line
from epicrag.connectors.rtf_words import codec_of
from epicrag.connectors.text import parse_text
from epicrag.types import Document, MetaValue, Unread

_SUBJECT, _BODY, _HTML, _RICH = "0037", "1000", "1013", "1009"
_SENDER = (("0C1A", "0042"), ("5D01", "0C1F", "5D02", "0065"))
_TO, _CC = "0E04", "0E03"
_SENT, _RECEIVED = 0x00390040, 0x0E060040
_CODE_PAGES = (0x3FDE0003, 0x3FFD0003)
_HEADER, _INNER_HEADER = 32, 24
"""Bytes before the first entry of the table of properties: of the file, and of a message within it."""
_EPOCH = datetime.datetime(1601, 1, 1, tzinfo=datetime.UTC)
_MAX_DEPTH = 5
_MAX_TITLE_CHARS = 200
_MAX_RICH = 64 << 20


@refusing
def parse_msg(data: bytes, limits: Limits) -> Parsed | Unread:
    """Read a message. Attachments are named, and read where a reader takes them; so are messages within it."""
    ole = open_ole(data, "Outlook e-mail", ("__properties_version1.0",))
    reader = _Reader(ole, limits)
    try:
        facts = reader.message([], 0)
    except struct.error as error:
        return Unread("failed", f"damaged Outlook e-mail: {error}; copy or download it again")
    draft = reader.draft
    subject = facts["subject"]
    return draft.parsed(
        "application/vnd.ms-outlook",
        title=subject if subject and len(subject) <= _MAX_TITLE_CHARS else None,
        meta=_meta(facts),
    )


def _meta(facts: dict[str, str]) -> dict[str, MetaValue]:
    meta: dict[str, MetaValue] = {key: facts[key] for key in ("subject", "from") if facts[key]}
    people = tuple(name.strip() for name in facts["to"].split(";") if name.strip())
    if people:
        meta["to"] = people if len(people) > 1 else people[0]
    return meta | dated(facts["date"])


class _Reader:
    """Writes a message and those within it."""

    def __init__(self, ole: Any, limits: Limits) -> None:
        self._ole = ole
        self._limits = limits
        self._watch = Watch(limits)
        self._names = {tuple(entry) for entry in ole.listdir(streams=True, storages=True)}
        self._codec = "cp1252"
        self.draft = Draft()

    def message(self, folder: list[str], depth: int) -> dict[str, str]:
        """Write the message that a folder of the file holds, [] for the file itself; return its head."""
        self._watch.check(self.draft.length)
        numbers = self._numbers(folder, _INNER_HEADER if folder else _HEADER)
        self._codec = next((codec_of(numbers[t]) for t in _CODE_PAGES if t in numbers), "cp1252")
        facts = self._facts(folder, numbers)
        self.draft.enter(depth + 1, facts["subject"])
        self._plain(
            "\n".join(f"{name.capitalize()}: {text}" for name, text in facts.items() if text)
        )
        self._body(folder, depth)
        self._attachments(folder, depth)
        return facts

    def _facts(self, folder: list[str], numbers: dict[int, int]) -> dict[str, str]:
        names, addresses = _SENDER
        name = next((text for tag in names if (text := self._line(folder, tag))), "")
        address = next((text for tag in addresses if "@" in (text := self._line(folder, tag))), "")
        sender = name if not address or address == name else f"{name} <{address}>".strip()
        moment = numbers.get(_SENT) or numbers.get(_RECEIVED) or 0
        return {
            "from": sender,
            "to": self._line(folder, _TO) or self._recipients(folder),
            "cc": self._line(folder, _CC),
            "date": _moment(moment),
            "subject": self._line(folder, _SUBJECT),
        }

    def _recipients(self, folder: list[str]) -> str:
        names = []
        for storage in self._storages(folder, "__recip_version1.0_#"):
            name, address = self._line(storage, "3001"), self._line(storage, "39FE")
            address = address or self._line(storage, "3003")
            names.append(
                f"{name} <{address}>" if name and "@" in address != name else name or address
            )
        return "; ".join(name for name in names if name)

    # --- the text ---

    def _body(self, folder: list[str], depth: int) -> None:
        """Write the plain text, else the web page, else the Rich Text."""
        plain = self._text(folder, _BODY).replace("\r\n", "\n").replace("\r", "\n").strip()
        page = self._binary(folder, _HTML) or self._text(folder, _HTML).encode("utf-8")
        parsed: Parsed | Unread | None
        if plain:
            parsed = parse_text(plain)
        else:
            parsed = self._page(page) if page.strip() else self._rich(self._binary(folder, _RICH))
        if isinstance(parsed, Unread) and parsed.status != "empty":
            raise RefusedError(parsed)
        if isinstance(parsed, Parsed):
            graft(self.draft, parsed, level=depth + 1)

    def _page(self, data: bytes) -> Parsed | Unread:
        from epicrag.connectors.decode import decode
        from epicrag.connectors.html import declared_charset, parse_html

        decoded = decode(data, declared_charset(data) or self._codec)
        return decoded if isinstance(decoded, Unread) else parse_html(decoded.text)

    def _rich(self, data: bytes) -> Parsed | Unread | None:
        from epicrag.connectors.rtf import parse_rtf

        if not data:
            return None
        return parse_rtf(unpacked(data), self._limits)

    def _plain(self, text: str) -> None:
        self._watch.check(self.draft.length)
        self.draft.open("paragraph")
        self.draft.write(text)
        self.draft.close()

    # --- attachments ---

    def _attachments(self, folder: list[str], depth: int) -> None:
        for storage in self._storages(folder, "__attach_version1.0_#"):
            name = self._line(storage, "3707") or self._line(storage, "3704")
            name = name or self._line(storage, "3001")
            message = [*storage, "__substg1.0_3701000D"]
            if (*message, "__properties_version1.0") in self._names:
                if depth < _MAX_DEPTH:
                    self.message(message, depth + 1)
            elif name:
                self._attachment(name, self._binary(storage, "3701"), depth)

    def _attachment(self, name: str, data: bytes, depth: int) -> None:
        """Name an attachment, and write what is in it where it can be read and is not too long."""
        self.draft.enter(depth + 2, name)
        self._plain(f"Attachment: {name}")
        # A message of its own would not know how deep it is.
        if len(data) > ATTACHED.max_file_bytes or extension_of(name) in ("msg", "eml", "mbox"):
            return
        page = read_bytes(name, data, limits=ATTACHED)
        if isinstance(page, Document):
            graft(self.draft, page, level=depth + 2)

    def _storages(self, folder: list[str], prefix: str) -> list[list[str]]:
        depth = len(folder)
        return [
            list(name)
            for name in sorted(self._names)
            if len(name) == depth + 1
            and list(name[:depth]) == folder
            and name[depth].startswith(prefix)
        ]

    # --- properties ---

    def _numbers(self, folder: list[str], header: int) -> dict[int, int]:
        """The properties of fixed size: times and numbers."""
        data = stream(self._ole, [*folder, "__properties_version1.0"])
        found = {}
        for at in range(header, len(data) - 15, 16):
            tag, _, value = struct.unpack_from("<IIQ", data, at)
            found[tag] = value
        return {
            tag: value & 0xFFFFFFFF if tag & 0xFFFF == 3 else value for tag, value in found.items()
        }

    def _line(self, folder: list[str], tag: str) -> str:
        return one_line(self._text(folder, tag).replace("\0", ""))

    def _text(self, folder: list[str], tag: str) -> str:
        wide = self._binary(folder, tag, "001F")
        if wide:
            return wide.decode("utf-16-le", "replace").rstrip("\0")
        narrow = self._binary(folder, tag, "001E")
        codec = "cp1252" if self._codec == "symbol" else self._codec
        return narrow.decode(codec, "replace").rstrip("\0")

    def _binary(self, folder: list[str], tag: str, kind: str = "0102") -> bytes:
        return stream(self._ole, [*folder, f"__substg1.0_{tag}{kind}"])


def _moment(value: int) -> str:
    """A time of Windows as ISO, in UTC; "" for what is no time."""
    if not value:
        return ""
    try:
        moment = _EPOCH + datetime.timedelta(microseconds=value // 10)
    except OverflowError:
        return ""
    return moment.strftime("%Y-%m-%d %H:%M UTC") if 1970 <= moment.year <= 2200 else ""


_DICTIONARY = (
    b"{\\rtf1\\ansi\\mac\\deff0\\deftab720{\\fonttbl;}{\\f0\\fnil \\froman \\fswiss \\fmodern \\fscript "
    b"\\fdecor MS Sans SerifSymbolArialTimes New RomanCourier{\\colortbl\\red0\\green0\\blue0\r\n\\par "
    b"\\pard\\plain\\f0\\fs20\\b\\i\\u\\tab\\tx"
)


def unpacked(data: bytes) -> bytes:
    """Unpack Rich Text as Outlook packs it; raises RefusedError for what is damaged or too large."""
    if len(data) < 16:
        raise RefusedError(Unread("failed", "damaged: its Rich Text is cut off"))
    _, size, kind = struct.unpack_from("<III", data)
    if kind == 0x414C454D:  # not packed
        return data[16 : 16 + size]
    if kind != 0x75465A4C or size > _MAX_RICH:
        raise RefusedError(Unread("failed", "damaged: its Rich Text is packed in an unknown way"))
    window = bytearray(_DICTIONARY.ljust(4096, b"\0"))
    write, at = len(_DICTIONARY), 16
    out = bytearray()
    while at < len(data) and len(out) < size:
        flags = data[at]
        at += 1
        for bit in range(8):
            if at >= len(data):
                break
            if not flags >> bit & 1:
                piece = data[at : at + 1]
                at += 1
            else:
                pair = int.from_bytes(data[at : at + 2], "big")
                at += 2
                offset, length = pair >> 4, (pair & 0xF) + 2
                if offset == write:
                    return bytes(out)
                piece = b""
                for step in range(length):  # it may run into what it writes
                    byte = window[(offset + step) % 4096]
                    window[(write + step) % 4096] = byte
                    piece += bytes([byte])
            for step, byte in enumerate(piece):
                window[(write + step) % 4096] = byte
            write = (write + len(piece)) % 4096
            out += piece
    return bytes(out)
