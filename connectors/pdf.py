"""PDF: the text of each page, and on which page it stands."""

from __future__ import annotations

import re
import time
import unicodedata
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from epicrag.connectors.base import Limits, Parsed, too_long, too_many_pages, too_slow
from epicrag.connectors.decode import is_blank
from epicrag.connectors.draft import Draft
from epicrag.connectors.meta import meta_of
from epicrag.connectors.pdf_chars import Characters, is_right_to_left, may_be_tabular
from epicrag.connectors.pdf_layout import HEAD, ROW, arranged
from epicrag.connectors.pdf_scan import read_scans, why_not_read, without_text
from epicrag.types import Unread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epicrag.types import MetaValue

_TAIL_BYTES = 4096
_BROKEN = re.compile(
    "([^\\W_]*)[\x02\ufffe]\\s*([^\\W_]*)"
)  # PDFium's mark of a word broken at a line's end
_BULLET = re.compile(
    "(?:^|(?<=\\s))[\x03-\x08\x0b-\x1f\uf0a7\uf0b7\uf0d8\uf0fc](?=\\s)", re.MULTILINE
)
_LOOSE_MARK = re.compile(r"\n(?=[,;:)\]])")  # what follows a superscript, put on a line of its own
_NUMBER_LINES = re.compile(r"^(?:\d{1,4}\n){8,}", re.MULTILINE)
_CONTROL = re.compile("[\0\x01\x03-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_SHAPES = re.compile("[\ufb00-\ufdff\ufe70-\ufefc]+")  # ligatures, and letters by their position
_SPACES = re.compile("[ \t\xa0]+")
_FILE_NAME = re.compile(
    r"\.(?:docx?|xlsx?|pptx?|pdf|exe|indd|qxd|tex|dvi|ps|eps|rtf|wpd|html?)\b|^microsoft |_|^untitled",
    re.IGNORECASE,
)
_SAID = {"Author": "author", "CreationDate": "date", "Subject": "subject", "Keywords": "tags"}
_ENDS_PARAGRAPH = re.compile("[.!?:;。！？؟][\"'”’)\\]]*$")
_SHORT_LINE = 0.75
"""A line that ends a sentence and is shorter than this share of its page's long lines ends a paragraph."""


def parse_pdf(data: bytes, limits: Limits) -> Parsed | Unread:
    """Read a PDF that PDFium can open without a password.

    PDFium must not be called from two threads at once: neither must this.
    """
    import pypdfium2

    if (broken := _broken(data)) is not None:
        return broken
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        return _not_opened(str(error))
    try:
        return _read(document, limits)
    except pypdfium2.PdfiumError as error:
        return Unread("failed", f"damaged PDF: {error}")
    finally:
        document.close()


def _broken(data: bytes) -> Unread | None:
    """Tell what is no PDF, or only the first part of one. PDFium would mend it and lose pages."""
    if not data:
        return Unread("failed", "0 bytes: an empty file, not a PDF")
    if b"%PDF-" not in data[:1024]:
        return Unread("failed", "not a PDF: its first bytes are not those of one")
    tail = data[-_TAIL_BYTES:]
    if b"%%EOF" not in tail and b"startxref" not in tail:
        return Unread("failed", "truncated PDF: its end is missing; copy or download it again")
    return None


def _not_opened(message: str) -> Unread:
    if "password" in message.lower():
        return Unread("failed", "encrypted PDF: it opens with a password only; save an open copy")
    if "security" in message.lower():
        return Unread("failed", "encrypted PDF, in a way that cannot be read; save an open copy")
    return Unread("failed", f"damaged PDF: {message}")


def _read(document: Any, limits: Limits) -> Parsed | Unread:
    n_pages = len(document)
    if n_pages == 0:
        return Unread("failed", "damaged PDF: it has no pages")
    if n_pages > limits.max_pages:
        return too_many_pages(n_pages, limits.max_pages)
    pages = _page_texts(document, n_pages, limits)
    if isinstance(pages, Unread):
        return pages
    bare = without_text(document, pages)
    scanned = read_scans(document, bare, limits)
    if isinstance(scanned, Unread):
        return scanned
    for index in bare:
        pages[index] = clean(scanned.get(index, ""))
    draft = Draft()
    outline = _outline(document)
    for number, page in enumerate(mend_words(pages), 1):
        draft.page = number
        write_page(draft, page, outline.get(number, []))
    text = draft.text()
    if is_blank(text):
        if not bare:
            return Unread("empty", "no text: its pages are blank")
        return Unread("failed", why_not_read(len(bare), limits))
    unread = sum(index not in scanned for index in bare)
    return Parsed(
        text=text,
        media="application/pdf",
        title=_title(document, text),
        anchors=draft.anchors(),
        blocks=tuple(draft.blocks),
        tables=draft.tables(),
        meta=_meta(document, unread),
    )


def _meta(document: Any, unread: int) -> dict[str, MetaValue]:
    """What the file's properties say, and how many pages could not be read."""
    said = {name: clean(document.get_metadata_value(key) or "") for key, name in _SAID.items()}
    if found := re.match(r"(?:D:)?(\d{4})(\d\d)?(\d\d)?", said["date"]):
        said["date"] = "-".join(part for part in found.groups() if part)
    meta = meta_of(said)
    if unread:
        meta["pages_without_text"] = unread
    return meta


def _page_texts(document: Any, n_pages: int, limits: Limits) -> list[str] | Unread:
    """Return the text of each page, within the limits of length and time."""
    pages: list[str] = []
    n_chars = 0
    deadline = time.monotonic() + limits.max_pdf_seconds
    for index in range(n_pages):
        if index and time.monotonic() > deadline:
            return too_slow(index, n_pages, limits.max_pdf_seconds)
        pages.append(_page_text(document, index))
        n_chars += len(pages[-1])
        if n_chars > limits.max_chars:
            return too_long(n_chars, limits.max_chars)
    return pages


def _page_text(document: Any, index: int) -> str:
    page = document[index]
    try:
        textpage = page.get_textpage()
        try:
            text: str = textpage.get_text_range(errors="replace")
            text = _looked_at(page, textpage, text)
        finally:
            textpage.close()
    finally:
        page.close()
    return clean(text)


def _looked_at(page: Any, textpage: Any, text: str) -> str:
    """The page's text, in the order of its letters and cells where PDFium's own is another."""
    turned, tabular = is_right_to_left(text), may_be_tabular(text)
    if not turned and not tabular:
        return text
    characters = Characters(page, textpage)
    found = arranged(characters.pieces()) if tabular else None
    return found or (characters.logical() if turned else text)


def clean(text: str) -> str:
    """Mend what is PDF's and not the author's: ligatures, positional letters, glyphs without meaning."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n")
    text = _SHAPES.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)
    text = _CONTROL.sub(" ", _BULLET.sub("•", text)).replace("\uffff", "")
    text = "\n".join(_SPACES.sub(" ", line).strip() for line in text.split("\n"))
    return _NUMBER_LINES.sub(_without_count, _LOOSE_MARK.sub("", text))


def _without_count(found: re.Match[str]) -> str:
    """Drop the margin of a transcript: lines that only count 1, 2, 3 …"""
    numbers = [int(line) for line in found[0].split()]
    counts = all(after == before + 1 for before, after in pairwise(numbers))
    return "" if counts else found[0]


def mend_words(pages: list[str]) -> list[str]:
    """Join words that were broken at line ends. The hyphen stays where the document spells it so."""
    if not any("\x02" in page or "\ufffe" in page for page in pages):
        return pages
    words = {
        word for page in pages for word in re.findall(r"[^\W_]+(?:-[^\W_]+)*", page.casefold())
    }

    def mend(found: re.Match[str]) -> str:
        left, right = found[1], found[2]
        joined, hyphenated = left + right, f"{left}-{right}"
        if joined.casefold() in words:
            return joined
        # Nobody breaks a word before a capital or a digit: there the hyphen is the author's.
        own = hyphenated.casefold() in words or right[:1].isupper() or right[:1].isdigit()
        return hyphenated if own else joined

    return [_BROKEN.sub(mend, page) for page in pages]


def write_page(draft: Draft, text: str, bookmarks: list[tuple[int, str]]) -> None:
    """Write the paragraphs and tables of a page; a line that is a bookmark's title is a heading."""
    waiting = {_key(title): level for level, title in reversed(bookmarks)}
    gap = "\n\n"
    for is_table, group in groupby(text.split("\n"), lambda line: line[:1] in (ROW, HEAD)):
        if is_table:
            _write_table(draft, list(group), gap)
            gap = "\n"
            continue
        for paragraph in _paragraphs(list(group), waiting):
            level = waiting.pop(_key(paragraph), None)
            draft.open("paragraph" if level is None else "heading", gap)
            draft.write(paragraph)
            draft.close(level)
            gap = "\n"


def _write_table(draft: Draft, rows: list[str], gap: str) -> None:
    """Write a table row by row; the lines of its head are one row."""
    head = "\n".join(row[1:] for row in rows if row[0] == HEAD)
    start = draft.length
    for row in [head, *(row[1:] for row in rows if row[0] == ROW)]:
        if row.strip():
            draft.open("row", gap)
            draft.write(row)
            draft.close()
            gap = "\n"
    if head:
        draft.table(start, head)


def _paragraphs(lines: list[str], headings: dict[str, int]) -> Iterator[str]:
    """Join lines into paragraphs: by blank lines, headings, and sentences that end a short line."""
    lengths = sorted(map(len, lines))
    long_line = lengths[len(lengths) * 9 // 10] if lengths else 0
    held: list[str] = []
    for line in lines:
        is_heading = _key(line) in headings
        if held and (not line or is_heading):
            yield "\n".join(held)
            held = []
        if line:
            held.append(line)
        ends = len(line) < _SHORT_LINE * long_line and _ENDS_PARAGRAPH.search(line)
        if held and (is_heading or ends):
            yield "\n".join(held)
            held = []
    if held:
        yield "\n".join(held)


def _key(text: str) -> str:
    """A heading for comparison: without its number, case and spacing."""
    return re.sub(r"^[\dA-Z.]{1,8}\s+", "", " ".join(text.split())).casefold()


def _outline(document: Any) -> dict[int, list[tuple[int, str]]]:
    """Return the bookmarks of each page, from 1, as (level, title)."""
    found: dict[int, list[tuple[int, str]]] = {}
    for at, bookmark in enumerate(document.get_toc(max_depth=6)):
        if at >= 10_000:
            break
        target = bookmark.get_dest()
        index = target.get_index() if target else None
        title = clean(bookmark.get_title() or "").replace("\x02", "").strip()
        if index is not None and title:
            found.setdefault(index + 1, []).append((bookmark.level + 1, title))
    return found


def _title(document: Any, text: str) -> str | None:
    """The title in the file's properties, where it is one: not a file name, and in the text."""
    title = " ".join(clean(document.get_metadata_value("Title") or "").replace("\x02", "").split())
    if not 4 <= len(title) <= 200 or _FILE_NAME.search(title):
        return None
    beginning = " ".join(text[:20_000].split()).casefold()
    return title if title.casefold() in beginning else None
