"""EPUB: the chapters of a book in reading order, each through the reader of web pages."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from epicrag.connectors.base import Limits, Parsed, RefusedError, Watch, refusing
from epicrag.connectors.dates import dated
from epicrag.connectors.decode import decode
from epicrag.connectors.draft import Draft
from epicrag.connectors.graft import graft
from epicrag.connectors.html import declared_charset, parse_html
from epicrag.connectors.xml_text import children, local, words
from epicrag.connectors.xml_tree import parse_tree
from epicrag.connectors.zips import open_zip
from epicrag.types import Unread

if TYPE_CHECKING:
    import zipfile

    from epicrag.types import MetaValue

_CONTAINER = "meta-inf/container.xml"
_ENCRYPTION = "meta-inf/encryption.xml"
_PAGES = (".xhtml", ".html", ".htm", ".xml")
_DIGITS = re.compile(r"(\d+)")
_MAX_TITLE_CHARS = 200
_META = {"creator": "author", "language": "language", "publisher": "publisher", "subject": "tags"}
_TOLD = (("title", "Title"), ("author", "Author"), ("publisher", "Publisher"), ("date", "Date"))


@refusing
def parse_epub(data: bytes, limits: Limits) -> Parsed | Unread:
    """Read a book. `Anchor.part` is the chapter: a page of the book's own order that holds text."""
    archive = open_zip(data, limits)
    if isinstance(archive, Unread):
        return archive
    with archive:
        return _Book(archive, limits).read()


class _Book:
    """The members of the archive, by their names in lower case: some packers change the case."""

    def __init__(self, archive: zipfile.ZipFile, limits: Limits) -> None:
        self._archive = archive
        self._watch = Watch(limits)
        self._members = {info.filename.lower().lstrip("/"): info for info in archive.infolist()}
        self._draft = Draft()

    def read(self) -> Parsed | Unread:
        package_path = self._package_path()
        package = self._tree(package_path) if package_path else None
        pages = self._spine(package, posixpath.dirname(package_path or ""))
        if not pages:
            return Unread("failed", "not a book: the archive holds no pages of text")
        if locked := self._locked(pages):
            return Unread("failed", f"locked: {locked}; a copy without DRM can be read")
        meta = _meta(package)
        self._head(meta)
        missing = 0
        for number, path in enumerate(pages, 1):
            if (text := self._text(path)) is None:
                missing += 1
                continue
            self._chapter(text, number - missing)
        if missing == len(pages):
            return Unread("failed", "damaged: none of the pages that the book lists is in it")
        title = meta.get("title")
        return self._draft.parsed(
            "application/epub+zip",
            title=title if isinstance(title, str) and len(title) <= _MAX_TITLE_CHARS else None,
            meta=meta,
        )

    def _chapter(self, text: str, number: int) -> None:
        """Write a page. One that begins without a heading goes on under that of the page before it."""
        self._draft.part = f"chapter {number}"
        page = parse_html(text)
        if isinstance(page, Parsed):
            graft(self._draft, page)
        self._watch.check(self._draft.length)

    def _head(self, meta: dict[str, MetaValue]) -> None:
        """Write what the book says of itself: who wrote it is asked for more often than its text."""
        told = []
        for key, name in _TOLD:
            value = meta.get(key, "")
            value = ", ".join(value) if isinstance(value, tuple) else value
            told += [f"{name}: {value}"] if value else []
        self._draft.open("paragraph")
        self._draft.write("\n".join(told))
        self._draft.close()

    def _bytes(self, path: str) -> bytes | None:
        """A member's bytes; None when there is none, or it is damaged."""
        info = self._members.get(path.lower())
        if info is None or info.is_dir():
            return None
        try:
            return self._archive.read(info)
        except RefusedError:
            raise
        except Exception:  # noqa: BLE001 - zlib and zipfile raise what they like on damage
            return None

    def _text(self, path: str) -> str | None:
        data = self._bytes(path)
        decoded = decode(data, declared_charset(data)) if data else None
        return None if decoded is None or isinstance(decoded, Unread) else decoded.text

    def _tree(self, path: str) -> Any | None:
        text = self._text(path)
        root = parse_tree(text) if text else None
        return None if isinstance(root, Unread) else root

    def _package_path(self) -> str | None:
        """Where the package document is: as the container says, else wherever one lies."""
        container = self._tree(_CONTAINER)
        if container is not None:
            for node in container.iter():
                path = unquote(node.get("full-path", "")) if local(node) == "rootfile" else ""
                if path.lower() in self._members:
                    return path
        return next((name for name in self._members if name.endswith(".opf")), None)

    def _spine(self, package: Any | None, folder: str) -> list[str]:
        """The paths of the pages in reading order, tables of contents left out."""
        manifest: dict[str, tuple[str, str, str]] = {}
        skipped: set[str] = set()
        order: list[str] = []
        for node in package.iter() if package is not None else ():
            name = local(node)
            href = _resolved(folder, node.get("href", "")) if name in ("item", "reference") else ""
            if name == "item":
                kind, properties = node.get("media-type", ""), node.get("properties", "")
                manifest[node.get("id", "")] = (href, kind, properties)
            elif name == "itemref":
                order.append(node.get("idref", ""))
            elif name == "reference" and _is_contents(node):
                skipped.add(href)
        items = [manifest[key] for key in order if key in manifest] or list(manifest.values())
        pages = [
            path
            for path, kind, properties in items
            if path not in skipped and "nav" not in properties.split() and _is_page(path, kind)
        ]
        return list(dict.fromkeys(pages)) or self._all_pages()

    def _all_pages(self) -> list[str]:
        """Without a package document: every page in the archive, chapter 10 behind chapter 9."""
        names = [
            name
            for name in self._members
            if name.endswith(_PAGES[:3]) and not name.startswith("meta-inf/")
        ]
        return sorted(names, key=_natural)

    def _locked(self, pages: list[str]) -> str | None:
        """Say what keeps the pages from being read; fonts are often masked, and nobody minds."""
        encryption = self._tree(_ENCRYPTION)
        if encryption is None:
            return None
        paths = {
            posixpath.normpath(unquote(node.get("URI", ""))).lower()
            for node in encryption.iter()
            if local(node) == "CipherReference"
        }
        locked = sum(path.lower() in paths for path in pages)
        return f"{locked:,} of {len(pages):,} pages are encrypted (DRM)" if locked else None


def _resolved(folder: str, href: str) -> str:
    """The member that a link within the book leads to."""
    path = unquote(href.partition("#")[0]).replace("\\", "/")
    return posixpath.normpath(posixpath.join(folder, path)).lstrip("/") if path else ""


def _is_contents(reference: Any) -> bool:
    """Is it the page of contents? With a "#" it is only a part of a page."""
    return reference.get("type", "").lower() == "toc" and "#" not in reference.get("href", "")


def _is_page(path: str, kind: str) -> bool:
    if kind in (
        "application/xhtml+xml",
        "text/html",
        "application/x-dtbook+xml",
        "text/x-oeb1-document",
    ):
        return True
    return kind in ("", "text/xml", "application/xml") and path.lower().endswith(_PAGES)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (0, part) for part in _DIGITS.split(name)]


def _meta(package: Any | None) -> dict[str, MetaValue]:
    """What the package document says of the book."""
    found: dict[str, list[str]] = {}
    for node in package.iter() if package is not None else ():
        name = local(node)
        if name == "metadata" or name in ("title", "date", *_META):
            text = words(node) if not children(node) else ""
            if text and text not in found.setdefault(name, []):
                found[name].append(text)
    meta: dict[str, MetaValue] = {}
    if titles := found.get("title"):
        meta["title"] = titles[0]
    for name, key in _META.items():
        values = found.get(name, [])
        if values:
            meta[key] = tuple(values) if key == "tags" or len(values) > 1 else values[0]
    meta.update(dated(next(iter(found.get("date", [])), None)))
    return meta
