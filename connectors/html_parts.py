"""Which parts of a web page are its text: not the hidden ones, the menus, the page furniture."""

from __future__ import annotations

import re
from typing import Any

_NEVER = frozenset(
    [
        "script",
        "style",
        "noscript",
        "template",
        "head",
        "iframe",
        "object",
        "embed",
        "applet",
        "svg",
        "canvas",
        "audio",
        "video",
        "button",
        "select",
        "option",
        "textarea",
        "input",
        "datalist",
        "map",
        "dialog",
        "nav",
        "aside",
        "annotation",
        "annotation-xml",
        "rp",
    ]
)
_FURNITURE_ROLES = frozenset(
    {"navigation", "banner", "contentinfo", "search", "complementary", "menu", "menubar", "toolbar"}
)
_HIDDEN_STYLE = re.compile(
    r"display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)|opacity\s*:\s*0(?:\.0*)?\s*(?:;|$|!)"
    r"|font-size\s*:\s*0(?:\.0*)?(?:px|pt|em|rem|%)?\s*(?:;|$|!)",
    re.IGNORECASE,
)
_FURNITURE = frozenset(
    [
        "nav",
        "navbar",
        "navigation",
        "docnav",
        "topnav",
        "sidenav",
        "menu",
        "mainmenu",
        "submenu",
        "searchmenu",
        "mobilemenu",
        "menubar",
        "sidebar",
        "breadcrumb",
        "breadcrumbs",
        "footer",
        "site-footer",
        "page-footer",
        "site-header",
        "cookie",
        "cookies",
        "cookie-banner",
        "cookie-consent",
        "skip-link",
        "skiplink",
        "skip-nav",
        "social",
        "share",
        "sharing",
        "advert",
        "advertisement",
        "ads",
        "pagination",
        "pager",
        "noprint",
        "mw-editsection",
        "mw-jump-link",
        "navbox",
        "navbox-styles",
        "catlinks",
        "printfooter",
        "vertical-navbox",
        "sistersitebox",
        "toctogglespan",
        "related",
        "relations",
        "sphinxsidebar",
        "headerlink",
        "navheader",
        "navfooter",
        "searchbox",
        "backlinks",
        "banner",
        "nosearch",
        "mw-portlet",
        "mw-interlanguage-selector",
        "after-portlet",
        "mw-redirectedfrom",
        "vector-page-toolbar",
    ]
)
_TOC = frozenset(
    ["toc", "fancy_toc", "fancy-toc", "table-of-contents", "tableofcontents", "contents"]
)
_CITATION_MARKS = frozenset({"reference", "noteref", "footnote-ref"})
_CONTAINERS = frozenset({"html", "body", "main", "article"})
_NOTES = re.compile(r"note|warning|tip|admonition|callout|important|caution", re.IGNORECASE)
_CELLS = ("td", "th")
_MAX_FURNITURE_SHARE = 0.4
_MAX_LINK_LIST_SHARE = 0.2
_MAX_CELL_CHARS = 1_500


class Parts:
    """Decides, once for each element, whether it is dropped and whether a table holds data."""

    def __init__(self, root: Any) -> None:
        self.main = _main(root)
        self._n_chars = max(_n_chars(self.main), 1)
        self._dropped: dict[Any, bool] = {}
        self._data: dict[Any, bool] = {}

    def is_dropped(self, node: Any) -> bool:
        """Is the element hidden, or furniture of the page rather than its text?"""
        if node not in self._dropped:
            self._dropped[node] = node is not self.main and self._judge(node)
        return self._dropped[node]

    def is_data(self, row: Any) -> bool:
        """Does the row stand in a table of data? Tables that only lay out a page are plain blocks."""
        table = next(row.iterancestors("table"), None)
        if table is None:
            return False
        if table not in self._data:
            self._data[table] = _is_data_table(table)
        return self._data[table]

    def is_first_row(self, row: Any) -> bool:
        """Is this the first row of its table?"""
        table = next(row.iterancestors("table"), None)
        return table is None or next(table.iter("tr"), None) is row

    def is_head_row(self, row: Any) -> bool:
        """Does the row say what the columns are: in a `thead`, or of nothing but `th`?"""
        parent = row.getparent()
        if parent is not None and parent.tag == "thead":
            return True
        cells = [cell for cell in row if cell.tag in _CELLS]
        return len(cells) > 1 and all(cell.tag == "th" for cell in cells)

    def _judge(self, node: Any) -> bool:
        tag = node.tag
        if tag == "aside" and _NOTES.search(f"{node.get('class', '')} {node.get('role', '')}"):
            return False
        if tag in _NEVER or _is_hidden(node):
            return True
        if tag in ("header", "footer"):
            return not _belongs_to_text(node)
        if tag in _CONTAINERS:
            return False
        return _is_citation_mark(node) or self._is_furniture(node) or self._is_link_list(node)

    def _is_furniture(self, node: Any) -> bool:
        names = {*node.get("class", "").lower().split(), node.get("id", "").lower()}
        if node.get("role", "") in _FURNITURE_ROLES or names & _FURNITURE:
            return self._share(node) < _MAX_FURNITURE_SHARE
        return bool(names & _TOC) and _links_within_page(node)

    def _is_link_list(self, node: Any) -> bool:
        """A list of nothing but links: a menu, or a table of contents, without the name of one."""
        if node.tag not in ("ul", "ol", "table", "dl"):
            return False
        if node.tag != "table" and next(node.iterancestors("ul", "ol", "dl"), None) is not None:
            return False  # the list around it has been judged with it
        links = [link for link in node.iter("a") if link.get("href")]
        if len(links) < 2:
            return False
        n_linked = sum(map(_n_chars, links))
        n_chars = _n_chars(node)
        if n_linked <= 0.9 * n_chars:
            return False
        if len(links) > 2 and _links_within_page(node):
            return self._share(node) < _MAX_FURNITURE_SHARE
        return n_linked / len(links) < 25 and self._share(node) < _MAX_LINK_LIST_SHARE

    def _share(self, node: Any) -> float:
        return _n_chars(node) / self._n_chars


def _main(root: Any) -> Any:
    """The element that holds the text: the only `main`, the only large `article`, or the body."""
    body = root.find("body")
    body = root if body is None else body
    for path in (".//main", ".//*[@role='main']"):
        found = body.findall(path)
        if len(found) == 1 and _n_chars(found[0]) > 0:
            return found[0]
    articles = body.findall(".//article")
    if len(articles) == 1 and _n_chars(articles[0]) > _n_chars(body) / 2:
        return articles[0]
    return body


def _n_chars(node: Any) -> int:
    """Characters of an element that are not white space, scripts left out."""
    texts = [
        text
        for text in node.itertext()
        if (owner := text.getparent() if hasattr(text, "getparent") else None) is None
        or text.is_tail
        or owner.tag not in ("script", "style")
    ]
    return sum(len("".join(text.split())) for text in texts)


def _is_hidden(node: Any) -> bool:
    if node.get("hidden") is not None or node.get("aria-hidden", "").lower() == "true":
        return True
    style = node.get("style")
    return bool(style) and _HIDDEN_STYLE.search(style) is not None


def _belongs_to_text(node: Any) -> bool:
    """A header or footer of an article or quotation is text; that of the page is not."""
    if node.tag == "footer":
        return next(node.iterancestors("blockquote", "figure"), None) is not None
    if next(node.iterancestors("article", "main", "section"), None) is not None:
        return True
    heading = node.find(".//h1")
    return heading is not None and len(node.getroottree().findall(".//h1")) == 1


def _is_citation_mark(node: Any) -> bool:
    """`[12]` behind a statement: it means nothing away from its page, and looks like our own marks."""
    classes = set(node.get("class", "").lower().split())
    return node.tag in ("sup", "a") and bool(
        classes & _CITATION_MARKS or node.get("role") == "doc-noteref"
    )


def _links_within_page(node: Any) -> bool:
    """Do its links lead to this page? Only then does a table of contents repeat what follows."""
    targets = [link.get("href") for link in node.iter("a") if link.get("href")]
    inside = sum(target.startswith("#") for target in targets)
    return bool(targets) and inside > len(targets) / 2


def _is_data_table(table: Any) -> bool:
    """More than one column, no table or heading inside, and no cell as long as a page's text."""
    if table.get("role") in ("presentation", "none"):
        return False
    if next(table.iterdescendants("table", "h1", "h2", "h3"), None) is not None:
        return False
    rows = list(table.iter("tr"))
    if not any(sum(cell.tag in _CELLS for cell in row) > 1 for row in rows):
        return False
    return all(_n_chars(cell) <= _MAX_CELL_CHARS for row in rows for cell in row)
