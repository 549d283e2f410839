"""Bytes to text: by mark, then strict UTF-8, then what is declared, then detection; never by locale."""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

from epicrag.types import Unread

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16: its mark begins with UTF-16's
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

_SAMPLE_BYTES = 1 << 16
_GUESS_BYTES = 6_000
_READABLE = -9.0
"""What reads like a text scores more than this for each character."""
_MAX_CONTROL_SHARE = 0.02
_NO_CHARSETS = frozenset(["idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape"])
"""Codecs for names and for source code."""

# Control characters that text files hold: tab, line ends, form feed, backspace, escape, end of file.
_CONTROL = bytes(sorted({*range(32), 127} - set(b"\t\n\r\f\b\x1b\x1a")))
_REPLACED = re.compile("[\0\ud800-\udfff]")
_INVISIBLE = re.compile(
    "[\\s\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff]+"
)


class Decoded(NamedTuple):
    """A text with line feeds only, without NULs and lone surrogates, and how it was decoded."""

    text: str
    encoding: str


def decode(data: bytes, declared: str | None = None) -> Decoded | Unread:
    """Decode the bytes of a text file; `Unread` when they are not text in any encoding.

    `declared` is what the file says of itself (an HTML charset): tried after UTF-8, because it is
    wrong more often than UTF-8 is right by chance.
    """
    found = _by_mark(data) or _wide(data)
    if found is None:
        if _looks_binary(data):
            return Unread("unsupported", "binary content, not text in any known encoding")
        found = _utf8(data) or _nearly_utf8(data) or _declared(data, declared) or _detected(data)
    return Decoded(normalise(found.text), found.encoding)


def normalise(text: str) -> str:
    """Use line feeds for all line ends, and U+FFFD for NULs and lone surrogates."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _REPLACED.sub("\ufffd", text)


def is_blank(text: str) -> bool:
    """Does a text hold nothing that can be seen: only white space and zero-width characters?"""
    return not text or _INVISIBLE.fullmatch(text) is not None


def _by_mark(data: bytes) -> Decoded | None:
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return Decoded(data[len(mark) :].decode(encoding, "replace"), encoding)
    return None


def _wide(data: bytes) -> Decoded | None:
    """UTF-16 or UTF-32 without a mark. Much of it is valid UTF-8 too, so this is asked first."""
    sample = data[:_SAMPLE_BYTES]
    if sample.count(0) >= len(sample) / 5 and (found := _wide_latin(data, sample)):
        return found
    suspicious = _control_share(sample) > _MAX_CONTROL_SHARE or _strict(data, "utf-8") is None
    return _wide_other(data) if suspicious and len(data) % 2 == 0 else None


def _wide_latin(data: bytes, sample: bytes) -> Decoded | None:
    """Latin text in UTF-16 or UTF-32: NULs stand in the same columns of all characters."""
    nulls = [sample[column::4].count(0) * 4 / max(len(sample), 1) for column in range(4)]
    columns = {  # columns full of NULs, columns without
        "utf-32-le": ((2, 3), (0,)),
        "utf-32-be": ((0, 1), (3,)),
        "utf-16-le": ((1, 3), (0, 2)),
        "utf-16-be": ((0, 2), (1, 3)),
    }
    for encoding, (full, empty) in columns.items():
        if min(nulls[c] for c in full) > 0.3 and max(nulls[c] for c in empty) < 0.05:
            return _strict(data, encoding)
    return None


def _wide_other(data: bytes) -> Decoded | None:
    """UTF-16 in other scripts: where it reads like a text, and better than in any code page."""
    from epicrag.connectors.guess import EBCDIC, PAGES, WIDE, best_guess

    sample = data[:_GUESS_BYTES]
    guess = best_guess(sample, WIDE, whole=len(data) <= _GUESS_BYTES)
    if guess.score < _READABLE * len(guess.text):
        return None
    if best_guess(sample, PAGES | EBCDIC).score > guess.score:
        return None
    return _strict(data, guess.encoding)


def _utf8(data: bytes) -> Decoded | None:
    """Strict UTF-8; surrogates written as UTF-8 (old Java, old databases) are mended or replaced."""
    if (found := _strict(data, "utf-8")) is not None:
        stateful = b"\x1b$B" in data or b"\x1b$@" in data
        return (_strict(data, "iso2022_jp") if stateful else None) or found
    try:
        text = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None
    return Decoded(
        text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"), "utf-8"
    )


def _nearly_utf8(data: bytes) -> Decoded | None:
    """UTF-8 with a few broken bytes: a cut at the end, or a line pasted from another encoding."""
    text = data.decode("utf-8", "replace")
    broken = text.count("\ufffd")
    sound = len(text) - len(text.encode("ascii", "ignore")) - broken
    return Decoded(text, "utf-8") if sound >= 3 * broken else None


def _looks_binary(data: bytes) -> bool:
    """Too many control bytes or NULs for any text. EBCDIC has control bytes of its own."""
    if _looks_ebcdic(data):
        return False
    # A few NULs in a short note are replaced; a share that no writer types is binary.
    share = _control_share(data[:_SAMPLE_BYTES])
    return share > (_MAX_CONTROL_SHARE if len(data) > 200 else 0.4)


def _control_share(sample: bytes) -> float:
    controls = len(sample) - len(sample.translate(None, _CONTROL))
    return controls / max(len(sample), 1)


def _looks_ebcdic(data: bytes) -> bool:
    """In EBCDIC the space is 0x40, letters are above 0x80, and ASCII's space is a control."""
    sample = data[:_SAMPLE_BYTES]
    letters = sum(
        sample.count(code) for start in (0x81, 0x91, 0xA2) for code in range(start, start + 9)
    )
    upper = sum(
        sample.count(code) for start in (0xC1, 0xD1, 0xE2) for code in range(start, start + 9)
    )
    spaces = sample.count(0x40)
    return (
        letters + upper + spaces > 0.75 * len(sample)
        and letters > len(sample) / 4
        and spaces > len(sample) / 20
        and sample.count(0x20) * 20 < spaces
    )


def _strict(data: bytes, encoding: str) -> Decoded | None:
    try:
        return Decoded(data.decode(encoding), encoding)
    except (UnicodeError, LookupError):
        return None


def _declared(data: bytes, declared: str | None) -> Decoded | None:
    """Decode as the file says; a web page's latin-1 means windows-1252, as browsers read it."""
    if not declared:
        return None
    try:
        encoding = codecs.lookup(declared).name
    except (LookupError, ValueError):
        return None
    # UTF-16 would have been found by now, and codecs such as base64 are no character sets.
    if encoding.startswith(("utf", "ascii")) or encoding.replace("-", "_") in _NO_CHARSETS:
        return None
    if not _is_text_codec(encoding):
        return None
    wider = {"iso8859-1": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932"}
    return _strict(data, wider.get(encoding, encoding))


def _is_text_codec(encoding: str) -> bool:
    try:
        return isinstance(b"a".decode(encoding), str)
    except (LookupError, UnicodeError):
        return False


def _detected(data: bytes) -> Decoded:
    """Decode in the code page in which the bytes read most like a text. This always answers."""
    from epicrag.connectors.guess import EBCDIC, PAGES, best_guess

    pages = PAGES | EBCDIC if _looks_ebcdic(data) else PAGES
    sample, whole = _telling_sample(data)
    encoding = best_guess(sample, pages, whole=whole).encoding
    text = data.decode(encoding, "replace")
    # NEL ends a line on mainframes.
    return Decoded(text.replace("\x85", "\n") if encoding in EBCDIC else text, encoding)


def _telling_sample(data: bytes) -> tuple[bytes, bool]:
    """Return lines that hold bytes above ASCII, and whether that is all of them: an English preface
    tells nothing of what follows."""
    lines = re.split(rb"[\r\n]+", data[: 1 << 20])
    telling = b"\n".join(line for line in lines if not line.isascii()) or data
    return telling[:_GUESS_BYTES], len(telling) <= _GUESS_BYTES
