"""Web pages: the visible main text, without menus and hidden parts, with the lines of the source."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from epicrag.connectors.base import Parsed
from epicrag.connectors.draft import Draft
from epicrag.connectors.html_meta import og_title, page_meta
from epicrag.connectors.html_parts import Parts
from epicrag.types import Unread

if TYPE_CHECKING:
    from epicrag.types import BlockKind

_SPACE = re.compile(r"[ \t\r\f\xa0\u2000-\u200a\u3000]+")
_GHOSTS = re.compile("[\u00ad\u200b\u2060\ufeff]")
_CJK = re.compile("[\u3000-\u30ff\u3400-\u9fff\uff00-\uff60]")
_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_XML_ENCODING = re.compile(rb"^\s*<\?xml[^>]{0,100}?encoding\s*=\s*[\"']([\w.:-]+)")

_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_BLOCKS = frozenset(
    [
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "center",
        "dd",
        "details",
        "dir",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "form",
        "header",
        "hgroup",
        "html",
        "legend",
        "main",
        "menu",
        "nav",
        "ol",
        "p",
        "section",
        "summary",
        "table",
        "tbody",
        "td",
        "tfoot",
        "th",
        "thead",
        "tr",
        "ul",
        "caption",
    ]
)
_BETWEEN_NAMES = re.compile(r"\s+[-–—|·•»:]+\s+|:\s+")
_NO_TITLES = frozenset({"title", "untitled", "untitled document", "index", "home", "document"})
_MAX_TITLE_CHARS = 200


def declared_charset(data: bytes) -> str | None:
    """Return the character set that a page says it is in."""
    head = data[:4096]
    found = _XML_ENCODING.search(head) or _CHARSET.search(head)
    return found[1].decode("ascii", "replace") if found else None


def parse_html(text: str, encoding: str | None = None) -> Parsed | Unread:
    """Read a page. Table rows are lines with ` | ` between cells; list items begin with `- `."""
    import lxml.etree
    import lxml.html

    parser = lxml.html.HTMLParser(
        encoding="utf-8", remove_comments=True, remove_pis=True, huge_tree=True, no_network=True
    )
    try:
        root = lxml.html.document_fromstring(text.encode("utf-8"), parser=parser)
    except lxml.etree.ParserError:  # nothing but white space or comments
        return Parsed(text="", media="text/html", encoding=encoding)
    if any(entry.type_name == "ERR_RESOURCE_LIMIT" for entry in parser.error_log):
        return Unread("failed", "elements nested too deeply: what they hold cannot be read")
    parts = Parts(root)
    writer = _Writer(parts)
    writer.run()
    draft = writer.draft
    return draft.parsed(
        "text/html",
        title=_title(root, writer.first_heading),
        encoding=encoding,
        meta=page_meta(root),
    )


def _title(root: Any, first_heading: str | None) -> str | None:
    """The page's own title; where it only adds the site's name to the main heading, the heading."""
    node = root.find(".//head/title")
    title = " ".join((node.text_content() if node is not None else "").split())
    if first_heading and (not title or first_heading in _BETWEEN_NAMES.split(title)):
        title = first_heading
    if not title or title.lower() in _NO_TITLES:
        title = og_title(root) or ""
    if title.lower() in _NO_TITLES or len(title) > _MAX_TITLE_CHARS:
        return None
    return title or None


class _Writer:
    """Walks the tree without recursion, and writes what a reader of the page would read."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.draft = Draft()
        self.first_heading: str | None = None
        self._pre = 0
        self._row: list[int] = []  # cells written in each open row of a data table
        self._table_start = 0
        self._in_head = False
        self._head_end = 0  # where the rows end that say what the columns are; 0: there are none
        self._lists: list[int | None] = []  # next number of each open list; None: bullets
        self._prefix = ""  # bullet or number of the list item just entered
        self._pending = False  # the prefix is not written yet
        self._owed = False  # a line ended after a CJK character: a space, unless another follows
        self._line = 1

    def run(self) -> None:
        import lxml.etree

        self.draft.open("paragraph")
        walk = lxml.etree.iterwalk(self.parts.main, events=("start", "end"))
        for event, node in walk:
            if not isinstance(node.tag, str):
                self._after(node, event)
            elif event == "end":
                self._leave(node)
                self._after(node, event)
            elif self.parts.is_dropped(node):
                walk.skip_subtree()  # its end event still comes, and writes its tail
            else:
                self._enter(node)
        self.draft.close()

    def _after(self, node: Any, event: str) -> None:
        if event == "end" and node.tail and node is not self.parts.main:
            self._text(node.tail)

    def _enter(self, node: Any) -> None:
        self._line = max(self._line, node.sourceline or 0)
        tag = node.tag
        if tag in _HEADINGS and not self._row:
            self._new("heading")
        elif tag == "pre":
            self._pre += 1
            self._new("code")
        elif tag == "tr" and self.parts.is_data(node):
            self._new("row", "\n" if self._is_next_row(node) else "\n\n")
            if self.parts.is_first_row(node):
                self._table_start, self._head_end = self.draft.length, 0
                self._in_head = True
            self._row.append(0)
        elif tag in ("td", "th") and self._row:
            self._cell()
        elif tag == "li" and not self._row:
            self._item()
        elif tag == "br":
            self._break()
        elif tag in ("ul", "ol", "menu", "dir"):
            self._lists.append(_first_number(node) if tag == "ol" else None)
            self._boundary()
        elif tag in _BLOCKS or tag == "hr":
            self._boundary()
        if node.text:
            self._text(node.text)

    def _leave(self, node: Any) -> None:
        if self.parts.is_dropped(node):
            return
        tag = node.tag
        if tag in _HEADINGS and not self._row:
            self._end_heading(_HEADINGS[tag])
        elif tag == "pre":
            self._pre -= 1
            self._new("paragraph")
        elif tag == "tr" and self._row and self.parts.is_data(node):
            self._row.pop()
            self._new("paragraph")
            self._in_head = self._in_head and self.parts.is_head_row(node)
            if self._in_head:
                self._head_end = self.draft.length
        elif tag == "table" and self._head_end:
            self._end_table()
        elif tag in ("ul", "ol", "menu", "dir"):
            self._lists.pop()
            self._boundary()
        elif tag in _BLOCKS or tag == "li":
            self._pending = self._pending and tag != "li"
            self._boundary()

    def _new(self, kind: BlockKind, gap: str = "\n\n") -> None:
        self.draft.close()
        self.draft.open(kind, gap)

    def _end_heading(self, level: int) -> None:
        if self.draft.is_open:
            self.draft.close(level)
            if self.first_heading is None:
                self.first_heading = (self.draft.headings.path or "").rsplit(" > ", 1)[-1] or None
        self._new("paragraph")

    def _boundary(self) -> None:
        """A block-level element begins or ends; inside a row that is only a space."""
        if self._row:
            self._write(" ")
        elif self.draft.is_open and not self._pre:
            self._new("paragraph")

    def _cell(self) -> None:
        if self._row[-1]:
            self._write(" | ")
        self._row[-1] += 1

    def _item(self) -> None:
        blocks = self.draft.blocks
        self.draft.close()
        self.draft.open("row", "\n" if blocks and blocks[-1].kind == "row" else "\n\n")
        depth = max(len(self._lists) - 1, 0)
        number = self._lists[-1] if self._lists else None
        if number is not None:
            self._lists[-1] = number + 1
        self._prefix = "  " * depth + (f"{number}. " if number is not None else "- ")
        self._pending = True

    def _break(self) -> None:
        if self._row:
            self._write(" ")
        elif self.draft.last_character == "\n" and not self._pre:
            self._new("paragraph")  # two breaks are how old pages part their paragraphs
        else:
            self.draft.trim()
            self._write("\n")

    def _end_table(self) -> None:
        """Note the table that ends here, when it has rows below its head."""
        self._new("paragraph")
        if self.draft.length > self._head_end:
            written = self.draft.text_from(self._table_start)
            head = written[: self._head_end - self._table_start].strip()
            self.draft.table(self._table_start, head)
        self._head_end = 0

    def _is_next_row(self, node: Any) -> bool:
        """Does a row of the same table stand right before this row?"""
        blocks = self.draft.blocks
        return bool(blocks) and blocks[-1].kind == "row" and not self.parts.is_first_row(node)

    def _text(self, text: str) -> None:
        text = _GHOSTS.sub("", text)
        if self._pre and not self._row:
            self._lines(text.replace("\xa0", " "), keep=True)
        else:
            self._lines(text, keep=False)

    def _lines(self, text: str, *, keep: bool) -> None:
        """Write a text node line by line, so that each source line has its anchor."""
        for at, line in enumerate(text.split("\n")):
            if at:
                self._line += 1
                self._write("\n" if keep else " ")
            self._write(line if keep else _SPACE.sub(" ", line))

    def _write(self, text: str) -> None:
        if not text:
            return
        draft = self.draft
        draft.line = self._line
        if self._pending and not text.isspace():
            self._pending = False
            text = self._prefix + text.lstrip()
            draft.write_exact(text)
            return
        if not self._pre or self._row:
            draft.write(self._join(text))
        elif draft.is_open or not text.isspace():
            draft.write_exact(text)  # the indentation of the first line is part of the code

    def _join(self, text: str) -> str:
        """Drop a space after a space, and the space of a line end between two CJK characters."""
        last = self.draft.last_character
        if last in (" ", "\n", "") and text.startswith(" "):
            text = text.lstrip(" ")
        if text == " " and _CJK.match(last):
            self._owed = True
            return ""
        if self._owed:
            self._owed = False
            if last and text and not _CJK.match(text[0]) and not text[0].isspace():
                text = " " + text
        return text


def _first_number(node: Any) -> int:
    try:
        return int(node.get("start", "1"))
    except ValueError:
        return 1
