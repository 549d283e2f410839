"""XML: feeds, articles and pages each in their own way, and any other by its elements."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from epicrag.connectors.base import Parsed
from epicrag.connectors.draft import Draft
from epicrag.connectors.graft import graft
from epicrag.connectors.text import parse_text
from epicrag.connectors.xml_tree import parse_tree
from epicrag.types import Unread

if TYPE_CHECKING:
    from epicrag.types import MetaValue

_MARKUP = re.compile(
    r"</(?:p|div|span|a|b|i|u|em|strong|ul|ol|li|table|tr|td|h[1-6]|blockquote|pre|code|font)>|<(?:br|hr|img|p)\b[^<>]*>",
    re.IGNORECASE,
)
_SPACE = re.compile(r"\s+")


class Read(NamedTuple):
    """What a reader of one kind of XML returns, beside what it wrote."""

    title: str | None = None
    meta: dict[str, MetaValue] = {}  # noqa: RUF012 - never changed


def parse_xml(text: str, encoding: str | None = None) -> Parsed | Unread:
    """Read XML by what its root element is. What is no XML at all is read as the text it is."""
    root = parse_tree(text)
    if isinstance(root, Unread):
        return root
    if root is None:
        return replace(parse_text(text, encoding), media="application/xml")
    kind = local(root)
    if kind == "html":
        from epicrag.connectors.html import parse_html

        return parse_html(text, encoding)
    draft = Draft()
    media, read = _write(draft, root, kind)
    return draft.parsed(
        media,
        title=read.title,
        encoding=encoding,
        meta=read.meta,
    )


def _write(draft: Draft, root: Any, kind: str) -> tuple[str, Read]:
    if kind in ("rss", "RDF", "feed"):
        from epicrag.connectors.feed import write_feed

        if (read := write_feed(draft, root)) is not None:
            return "application/atom+xml" if kind == "feed" else "application/rss+xml", read
    if kind in ("article", "pmc-articleset") and find(root, "front") is not None:
        from epicrag.connectors.jats import write_articles

        return "application/jats+xml", write_articles(draft, root)
    from epicrag.connectors.xml_any import write_any

    return "application/xml", write_any(draft, root)


def local(node: Any) -> str:
    """The name of an element without its namespace; "" for comments and instructions."""
    tag = node.tag
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def children(node: Any, *names: str) -> list[Any]:
    """The elements right below, of these names or of any."""
    inner = [child for child in node if isinstance(child.tag, str)]
    return [child for child in inner if local(child) in names] if names else inner


def find(node: Any, name: str) -> Any | None:
    """The first element of this name below, however deep; the element itself does not count."""
    return next((inner for inner in node.iterdescendants() if local(inner) == name), None)


def words(node: Any | None) -> str:
    """All text of an element, on one line; "" for none."""
    return "" if node is None else _SPACE.sub(" ", "".join(pieces_of(node))).strip()


def pieces_of(node: Any) -> Iterator[str]:
    """The texts of an element and all below it, comments left out."""
    return (text for text, _ in lined(node))


def lined(node: Any) -> Iterator[tuple[str, int]]:
    """Yield the texts of an element, each with the source line it begins on."""
    import lxml.etree

    line = node.sourceline or 1
    for event, inner in lxml.etree.iterwalk(node, events=("start", "end", "comment", "pi")):
        if event != "end":
            line = inner.sourceline or line
        if event == "start" and inner.text:
            yield inner.text, line
            line += inner.text.count("\n")
        elif event != "start" and inner.tail and inner is not node:
            yield inner.tail, line
            line += inner.tail.count("\n")


def write_words(draft: Draft, node: Any) -> None:
    """Write an element's text into the open block, with the source line of each piece."""
    for text, line in lined(node):
        for at, source in enumerate(text.split("\n")):
            draft.line = line + at
            write_piece(draft, (" " if at else "") + source)


def write_piece(draft: Draft, text: str) -> None:
    """Write into the open block with white space as single spaces."""
    text = _SPACE.sub(" ", text)
    if draft.last_character in (" ", "\n", ""):
        text = text.lstrip(" ")
    if text:
        draft.write(text)


def inner_markup(node: Any) -> str:
    """What an element holds, as HTML: its text where that is markup, else its elements written out."""
    if not children(node):
        return "".join(pieces_of(node))
    import lxml.etree

    rest = [lxml.etree.tostring(child, encoding="unicode", method="html") for child in node]
    return escaped(node.text or "") + "".join(rest)


def escaped(text: str) -> str:
    """Plain text as HTML has it."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


def is_markup(text: str) -> bool:
    """Is this HTML rather than plain text?"""
    return "<" in text and _MARKUP.search(text) is not None


def plain(text: str) -> str:
    """A text without the HTML in it."""
    if not is_markup(text):
        return text
    from epicrag.connectors.html import parse_html

    page = parse_html(text)
    return text if isinstance(page, Unread) else page.text


def write_content(draft: Draft, node: Any, level: int) -> None:
    """Write an element that holds a page or a piece of one: HTML, escaped or not, or plain text."""
    from epicrag.connectors.html import parse_html

    markup = inner_markup(node)
    if children(node) or is_markup(markup):
        page = parse_html(markup)
        if isinstance(page, Parsed):
            graft(draft, page, level=level, line=node.sourceline)
            return
    graft(draft, parse_text(_unescaped(markup)), level=level, line=node.sourceline)


def _unescaped(text: str) -> str:
    """Undo one more escaping: many feeds write `&amp;quot;`."""
    import html

    return html.unescape(text) if re.search(r"&#?\w+;", text) else text
