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

# The code pages that files are really written in, likeliest first: the order decides near ties.
_CODE_PAGES = [
    "cp1252",
    "gb18030",
    "euc_jp",
    "big5",
    "cp949",
    "cp1255",
    "cp1251",
    "koi8_r",
    "koi8_u",
    "cp866",
    "cp1250",
    "iso8859_2",
    "cp1254",
    "cp1253",
    "iso8859_7",
    "cp1256",
    "iso8859_6",
    "cp874",
    "cp932",
    "cp1257",
    "cp1258",
    "iso8859_15",
    "cp850",
    "cp437",
    "mac_roman",
    "cp852",
    "iso8859_5",
    "mac_cyrillic",
]
_EBCDIC = ["cp500", "cp037"]
_NEAR = 0.012
"""Two candidates this close in the detector's score are a tie."""
_SAMPLE_BYTES = 1 << 16
_MAX_CONTROL_SHARE = 0.02

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
    return _wide_other(data, sample) if suspicious else None


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


def _wide_other(data: bytes, sample: bytes) -> Decoded | None:
    """UTF-16 in other scripts: told by its spaces, line ends and CJK full stops."""
    if len(data) % 2:
        return None
    units = {sample[at : at + 2] for at in range(0, len(sample), 2)}
    for encoding in ("utf-16-le", "utf-16-be"):
        if not units.intersection(mark.encode(encoding) for mark in " \n。、，"):
            continue
        found = _strict(data, encoding)
        if found is not None and _is_common(found.text[:_SAMPLE_BYTES]):
            return found
    return None


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


_COMMON = re.compile(
    "[\\s!-~\u00a0-\u024f\u0370-\u06ff\u0900-\u0e7f\u2010-\u206f\u3000-\u30ff\u4e00-\u9fff"
    "\uac00-\ud7a3\uff00-\uffef]"
)


def _is_common(text: str) -> bool:
    """Is this made of everyday characters of one or two scripts, as real text is?"""
    return len(_COMMON.findall(text)) > 0.98 * len(text) and len(
        {ord(character) >> 12 for character in set(text)}
    ) <= (4 if re.search("[\u4e00-\u9fff]", text) is None else 9)


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
    except (UnicodeDecodeError, LookupError):
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
    if encoding.startswith(("utf", "ascii")) or not _is_text_codec(encoding):
        return None
    wider = {"iso8859-1": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932"}
    return _strict(data, wider.get(encoding, encoding))


def _is_text_codec(encoding: str) -> bool:
    try:
        return isinstance(b"a".decode(encoding), str)
    except (LookupError, UnicodeError):
        return False


def _detected(data: bytes) -> Decoded:
    """Decode by detection; the last resort is windows-1252 with replacement characters."""
    if _looks_ebcdic(data):
        text = data.decode(_EBCDIC[0], "replace")
        return Decoded(text.replace("\x85", "\n"), _EBCDIC[0])  # NEL ends a line on mainframes
    for encoding in _ranked(_telling_sample(data)):
        if (found := _strict(data, encoding)) is not None:
            return found
    return Decoded(data.decode("cp1252", "replace"), "cp1252")


_HIRAGANA = re.compile("[\u3041-\u3096]")
_ODD = re.compile(
    r"(?<=[^\W\d_])[^\w\s\x00-\x7f’‘´·\u0300-\u036f\u0591-\u065f\u0900-\u0e7f]+(?=[^\W\d_])"
)


def _oddness(text: str) -> float:
    """Signs inside words (`k‰yttˆˆ`), as a share of what is not ASCII: a wrong code page shows so.

    Hiragana counts for less than nothing: no other language's bytes look like it.
    """
    n_other = len(text) - len(text.encode("ascii", "ignore"))
    n_hiragana = len(_HIRAGANA.findall(text))
    return (sum(map(len, _ODD.findall(text))) - n_hiragana) / max(n_other, 1)


def _is_turkish(sample: bytes) -> bool:
    """Turkish ğ ı ş İ Ş stand where windows-1252 has ð ý þ Ý Þ, but it has no á é í ó æ beside them."""
    return any(code in sample for code in b"\xf0\xfd\xfe") and not any(
        code in sample for code in b"\xe1\xe9\xed\xf3\xe6"
    )


def _telling_sample(data: bytes) -> bytes:
    """Return lines that hold bytes above ASCII: an English preface tells nothing of what follows."""
    lines = re.split(rb"[\r\n]+", data[: 16 * _SAMPLE_BYTES])
    telling = b"\n".join(line for line in lines if not line.isascii())
    return (telling or data)[:_SAMPLE_BYTES]


def _ranked(sample: bytes) -> list[str]:
    """Return the code pages the sample may be in, best first."""
    import charset_normalizer

    scores: dict[str, float] = {}
    for match in charset_normalizer.from_bytes(sample, cp_isolation=list(_CODE_PAGES)):
        score = match.chaos - 0.1 * match.coherence + 0.1 * _oddness(str(match))
        for encoding in match.could_be_from_charset:
            scores.setdefault(encoding, score)
    if not scores:
        return []
    if "cp1254" in scores and _is_turkish(sample):
        scores["cp1254"] -= 2 * _NEAR
    best = min(scores.values())
    near = [page for page in _CODE_PAGES if scores.get(page, 9.0) <= best + _NEAR]
    return near + sorted(set(scores) - set(near), key=lambda page: (scores[page], page))
