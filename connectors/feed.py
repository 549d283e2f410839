"""RSS and Atom: each entry a section under its title, with its date, author and text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epicrag.connectors.dates import dated, iso_date
from epicrag.connectors.xml_text import (
    Read,
    children,
    find,
    inner_markup,
    local,
    plain,
    words,
    write_content,
)

if TYPE_CHECKING:
    from epicrag.connectors.draft import Draft
    from epicrag.types import MetaValue

_DATES = ("pubDate", "published", "date", "issued", "updated", "modified")
_AUTHORS = ("author", "creator")
_TEXTS = ("encoded", "content", "description", "summary", "subtitle")
_MAX_TITLE_CHARS = 200


def write_feed(draft: Draft, root: Any) -> Read | None:
    """Write a feed; None when the root is no feed after all. Links are left out: they are no text."""
    channel = root if local(root) == "feed" else find(root, "channel")
    entries = [node for node in root.iterdescendants() if local(node) in ("item", "entry")]
    if channel is None or not (entries or children(channel, "title")):
        return None
    title = _title(channel)
    _text(draft, channel, level=0, but=title)
    for entry in entries:
        _entry(draft, entry)
    meta: dict[str, MetaValue] = {}
    if language := words(_first(channel, "language")) or _xml_language(root):
        meta["language"] = language
    if author := words(_first(channel, "managingEditor", *_AUTHORS)):
        meta["author"] = author
    meta.update(dated(words(_first(channel, "lastBuildDate", *_DATES))))
    return Read(title if 0 < len(title) <= _MAX_TITLE_CHARS else None, meta)


def _first(node: Any, *names: str) -> Any | None:
    """The first child of these names, in the order of the names, that holds something."""
    for name in names:
        for child in children(node, name):
            if words(child):
                return child
    return None


def _title(node: Any) -> str:
    title = _first(node, "title")
    return " ".join(plain(inner_markup(title)).split()) if title is not None else ""


def _entry(draft: Draft, entry: Any) -> None:
    title = _title(entry)
    draft.line = entry.sourceline
    if title:
        draft.line = (_first(entry, "title")).sourceline  # type: ignore[union-attr]
        draft.open("heading")
        draft.write(title)
        draft.close(1)
    else:
        draft.enter(1, "")
    facts = [iso_date(words(_first(entry, *_DATES))) or words(_first(entry, *_DATES))]
    facts.append(words(_first(entry, *_AUTHORS)))
    facts.append(
        ", ".join(
            filter(None, (_category(node) for node in children(entry, "category", "subject")))
        )
    )
    if line := " · ".join(filter(None, facts)):
        draft.open("paragraph")
        draft.write(line)
        draft.close()
    _text(draft, entry, level=1, but=title)


def _category(node: Any) -> str:
    return words(node) or node.get("label") or node.get("term") or ""


def _text(draft: Draft, node: Any, *, level: int, but: str) -> None:
    """Write the texts of a feed or an entry, those that only repeat the start of another left out."""
    nodes = [child for child in children(node) if local(child) in _TEXTS and words(child)]
    if len(nodes) == 1 and words(nodes[0]) != but:
        write_content(draft, nodes[0], level)
        nodes = []
    shown = {child: " ".join(plain(inner_markup(child)).split()) for child in nodes}
    kept: list[Any] = []
    for child in sorted(nodes, key=lambda child: -len(shown[child])):
        told = shown[child].rstrip(".… [])")
        if told and told != but and not any(told in shown[other] for other in kept):
            kept.append(child)
    for child in sorted(kept, key=nodes.index):
        write_content(draft, child, level)
    draft.line = None


def _xml_language(root: Any) -> str | None:
    language: str | None = root.get("{http://www.w3.org/XML/1998/namespace}lang")
    return language
