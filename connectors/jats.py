"""JATS, the XML of journal articles: title, abstract, sections, tables, and references in short."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epicrag.connectors.dates import dated
from epicrag.connectors.rows import RowWriter
from epicrag.connectors.xml_text import (
    Read,
    children,
    find,
    lined,
    local,
    words,
    write_piece,
    write_words,
)

if TYPE_CHECKING:
    from epicrag.connectors.draft import Draft
    from epicrag.types import BlockKind, MetaValue

_MAX_DEPTH = 60
_NAMED = {
    "ack": "Acknowledgements",
    "app-group": "Appendix",
    "fn-group": "Notes",
    "glossary": "Glossary",
    "ref-list": "References",
}
_SILENT = {
    "graphic", "media", "inline-graphic", "object-id", "self-uri", "journal-id", "label", "title",
    "counts", "permissions", "related-object", "sec-meta",
}  # fmt: skip
_MAX_AUTHORS = 3


def write_articles(draft: Draft, root: Any) -> Read:
    """Write the article, or several in a set; title and meta are the first one's."""
    articles = [root] if local(root) == "article" else children(root, "article")
    reads = [_Article(draft).write(article) for article in articles]
    return reads[0] if reads else Read()


class _Article:
    """Writes one article and the letters and replies that belong to it."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def write(self, article: Any, level: int = 1) -> Read:
        front = next(iter(children(article, "front", "front-stub")), None)
        title_node = find(front, "article-title") if front is not None else None
        title = words(title_node)
        if title_node is not None:
            self._block("heading", title_node, level)
        if front is not None:
            self._front(front, level)
        for part in children(article, "body", "back"):
            self._inside(part, level)
        for reply in children(article, "sub-article", "response"):
            self.write(reply, level + 1)
        return Read(title or None, _meta(front) if front is not None else {})

    def _front(self, front: Any, level: int) -> None:
        authors = ", ".join(_names(front))
        facts = [authors, words(find(front, "journal-title")), str(_date(front).get("date", ""))]
        if doi := _doi(front):
            facts.append(f"doi:{doi}")
        self._line(" · ".join(filter(None, facts)), front)
        for abstract in (
            node
            for node in front.iterdescendants()
            if local(node) in ("abstract", "trans-abstract")
        ):
            heading = next(iter(children(abstract, "title")), None)
            self._heading(abstract, words(heading) or "Abstract", level + 1)
            self._inside(abstract, level + 1)
        if keywords := _keywords(front):
            self._line("Keywords: " + ", ".join(keywords), find(front, "kwd"))
        for name in ("author-notes", "funding-statement"):
            if (node := find(front, name)) is not None:
                self._block("paragraph", node)

    def _inside(self, parent: Any, level: int, depth: int = 0) -> None:
        """Write the parts of a section; its title has been written."""
        for node in children(parent):
            name = local(node)
            if name in _SILENT:
                continue
            if name == "ref-list":
                self._references(node, level + 1)
            elif name == "p":
                self._text(node, level, depth)
            elif name in ("table-wrap", "fig", "supplementary-material", "media-object"):
                self._captioned(node)
            elif name in ("list", "def-list", "fn-group"):
                self._list(node, level)
            elif depth < _MAX_DEPTH and _has_parts(node):
                self._section(node, level, depth)
            elif words(node):
                self._block("paragraph", node)

    def _section(self, node: Any, level: int, depth: int) -> None:
        own = next(iter(children(node, "title")), None)
        label = words(next(iter(children(node, "label")), None))
        heading = " ".join(filter(None, (label, words(own)))) or _NAMED.get(local(node), "")
        if heading:
            self._heading(node if own is None else own, heading, level + 1)
        self._inside(node, level + 1 if heading else level, depth + 1)

    def _text(self, node: Any, level: int, depth: int) -> None:
        """Write a paragraph; a list, table or figure within is taken out of it and follows."""
        parts = [
            inner
            for inner in node.iterdescendants()
            if local(inner) in ("list", "def-list", "table-wrap", "fig", "disp-quote", "boxed-text")
        ]
        if not parts:
            self._block("paragraph", node)
            return
        inside = {inner for part in parts for inner in part.iter()}
        self._draft.open("paragraph")
        self._pieces(node, inside)
        self._draft.close()
        nested = {inner for part in parts for inner in part.iterdescendants()}
        for part in parts:
            if part not in nested and depth < _MAX_DEPTH:
                self._one(part, level, depth + 1)

    def _one(self, part: Any, level: int, depth: int) -> None:
        if local(part) in ("table-wrap", "fig"):
            self._captioned(part)
        elif local(part) in ("list", "def-list"):
            self._list(part, level)
        else:
            self._inside(part, level, depth)

    def _pieces(self, node: Any, without: set[Any]) -> None:
        """Write a paragraph's own text, the parts in `without` left out but not what follows them."""
        if node.text:
            self._draft.line = node.sourceline
            write_piece(self._draft, node.text)
        for child in node:
            if isinstance(child.tag, str) and child not in without:
                for text, line in lined(child):
                    self._draft.line = line
                    write_piece(self._draft, text)
            if child.tail:
                write_piece(self._draft, child.tail)

    def _captioned(self, node: Any) -> None:
        """Write a table or figure: label and caption, then the rows."""
        label = words(next(iter(children(node, "label")), None))
        captions = [
            words(part) for caption in children(node, "caption") for part in children(caption)
        ]
        self._line(" ".join(filter(None, [label and f"{label.rstrip('.')}.", *captions])), node)
        for table in (inner for inner in node.iterdescendants() if local(inner) == "table"):
            self._table(table)
        for foot in children(node, "table-wrap-foot"):
            self._block("paragraph", foot)

    def _table(self, table: Any) -> None:
        rows = [row for row in table.iterdescendants() if local(row) == "tr"]
        heads = [row for row in rows if local(row.getparent()) == "thead"]
        heads = heads or [
            row for row in rows[:1] if children(row, "th") and not children(row, "td")
        ]
        names = _cells(heads[-1]) if heads else None
        for row in heads[:-1]:
            self._line(" | ".join(filter(None, _cells(row))), row)
        with RowWriter(
            self._draft, names, line=heads[-1].sourceline if heads else None, spanning=True
        ) as writer:
            for row in rows:
                if row not in heads:
                    writer.row(_cells(row), line=row.sourceline)

    def _list(self, node: Any, level: int) -> None:
        gap = "\n\n"
        for item in children(node):
            if not words(item):
                continue
            self._draft.open("row", gap)
            self._draft.line = item.sourceline
            self._draft.write("- ")
            write_words(self._draft, item)
            self._draft.close()
            gap = "\n"

    def _references(self, node: Any, level: int) -> None:
        own = next(iter(children(node, "title")), None)
        self._heading(node if own is None else own, words(own) or "References", level)
        gap = "\n\n"
        for ref in (inner for inner in node.iterdescendants() if local(inner) == "ref"):
            if told := _reference(ref):
                self._draft.open("row", gap)
                self._draft.line = ref.sourceline
                self._draft.write(told)
                self._draft.close()
                gap = "\n"

    def _heading(self, node: Any, text: str, level: int) -> None:
        self._draft.line = node.sourceline
        self._draft.open("heading")
        self._draft.write(text)
        self._draft.close(level)

    def _line(self, text: str, node: Any) -> None:
        self._draft.line = node.sourceline
        self._draft.open("paragraph")
        self._draft.write(text)
        self._draft.close()

    def _block(self, kind: BlockKind, node: Any, level: int | None = None) -> None:
        self._draft.open(kind)
        write_words(self._draft, node)
        self._draft.close(level)


def _has_parts(node: Any) -> bool:
    """Does it hold paragraphs or sections, rather than being one?"""
    return any(
        local(child) in ("p", "sec", "title", "list", "ref-list", "fn", "app", "table-wrap", "fig")
        for child in children(node)
    )


def _cells(row: Any) -> list[str]:
    return [words(cell) for cell in children(row)]


def _names(front: Any) -> list[str]:
    """The authors, as they are called."""
    found = []
    for contrib in (node for node in front.iterdescendants() if local(node) == "contrib"):
        if contrib.get("contrib-type", "author") != "author":
            continue
        name = next(
            (node for node in contrib if local(node) in ("name", "collab", "string-name")), None
        )
        if name is None:
            name = find(contrib, "name")
        given = words(find(name, "given-names")) if name is not None else ""
        surname = words(find(name, "surname")) if name is not None else ""
        if told := f"{given} {surname}".strip() or words(name):
            found.append(told)
    return found


def _keywords(front: Any) -> list[str]:
    nodes = (node for node in front.iterdescendants() if local(node) == "kwd")
    return list(dict.fromkeys(filter(None, map(words, nodes))))


def _doi(front: Any) -> str:
    ids = (node for node in front.iterdescendants() if local(node) == "article-id")
    return next((words(node) for node in ids if node.get("pub-id-type") == "doi"), "")


def _date(front: Any) -> dict[str, str | int]:
    node = find(front, "pub-date")
    if node is None:
        return {}
    parts = [words(find(node, name)) for name in ("year", "month", "day")]
    while parts and not parts[-1].isdigit():
        parts.pop()
    return dated("-".join(part.zfill(2) for part in parts)) if all(parts) else {}


def _meta(front: Any) -> dict[str, MetaValue]:
    meta: dict[str, MetaValue] = dict(_date(front))
    if names := _names(front):
        meta["author"] = tuple(names)
    if keywords := _keywords(front):
        meta["tags"] = tuple(keywords)
    if doi := _doi(front):
        meta["doi"] = doi
    if journal := words(find(front, "journal-title")):
        meta["journal"] = journal
    return meta


def _reference(ref: Any) -> str:
    """A reference in short: who, when, what, where."""
    label = words(next(iter(children(ref, "label")), None))
    citation = next((node for node in children(ref) if local(node) != "label"), None)
    if citation is None:
        return ""
    title = words(find(citation, "article-title")) or words(find(citation, "data-title"))
    source = words(find(citation, "source"))
    if not (title or source) or local(citation) == "mixed-citation":
        return f"{label} {words(citation)}".strip()
    people = [
        words(find(name, "surname")) for name in citation.iterdescendants() if local(name) == "name"
    ]
    people += [words(name) for name in citation.iterdescendants() if local(name) == "collab"]
    who = ", ".join(people[:_MAX_AUTHORS]) + (" et al." if len(people) > _MAX_AUTHORS else "")
    year = words(find(citation, "year"))
    volume = words(find(citation, "volume"))
    where = " ".join(filter(None, (source, volume)))
    told = ". ".join(part.rstrip(".") for part in (title, where) if part)
    return " ".join(filter(None, (label, who, f"({year})" if year else "", told))) + "."
