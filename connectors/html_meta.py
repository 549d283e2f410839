"""What a web page says of itself in its head: author, date, description, language, keywords."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epicrag.connectors.meta import meta_of

if TYPE_CHECKING:
    from epicrag.types import MetaValue

_NAMES = {
    "author": "author",
    "article:author": "author",
    "dc.creator": "author",
    "dcterms.creator": "author",
    "citation_author": "author",
    "date": "date",
    "article:published_time": "date",
    "datepublished": "date",
    "dc.date": "date",
    "dcterms.date": "date",
    "dcterms.created": "date",
    "citation_publication_date": "date",
    "pubdate": "date",
    "last-modified": "modified",
    "article:modified_time": "modified",
    "description": "description",
    "og:description": "description",
    "dc.description": "description",
    "keywords": "tags",
    "article:tag": "tags",
    "news_keywords": "tags",
    "og:site_name": "site",
    "og:locale": "language",
    "content-language": "language",
    "dc.language": "language",
}
_MANY = frozenset({"author", "tags"})


def page_meta(root: Any) -> dict[str, MetaValue]:
    """Return what `<meta>`, `<html lang>` and the first `<time>` of an article say."""
    found: dict[str, list[str]] = {}
    if language := root.get("lang") or root.get("{http://www.w3.org/XML/1998/namespace}lang"):
        found["language"] = [language]
    for node in root.iter("meta"):
        key = (
            node.get("name")
            or node.get("property")
            or node.get("http-equiv")
            or node.get("itemprop")
        )
        name = _NAMES.get((key or "").strip().lower())
        content = " ".join((node.get("content") or "").split())
        if name and content and not (name == "author" and content.startswith("http")):
            found.setdefault(name, []).append(content)
    if "date" not in found:
        times = (node.get("datetime") for node in root.iterfind(".//article//time[@datetime]"))
        if first := next(filter(None, times), None):
            found["date"] = [first]
    return meta_of({name: _one(name, values) for name, values in found.items()})


def _one(name: str, values: list[str]) -> object:
    """Several authors or tags stay several; of anything else the first counts."""
    values = list(dict.fromkeys(values))
    return values if name in _MANY and len(values) > 1 else values[0]


def og_title(root: Any) -> str | None:
    """The title that the page gives for sharing: without the site's name."""
    for node in root.iter("meta"):
        if (node.get("property") or node.get("name") or "").lower() == "og:title":
            return " ".join((node.get("content") or "").split()) or None
    return None
