"""A sitemap to the addresses in it."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import NamedTuple

from epicrag.connectors.inflate import inflated

_ROOT = re.compile(rb"<(?:[\w.-]+:)?(urlset|sitemapindex)\b")
_HEAD_BYTES = 4096
_MAX_BYTES = 50 << 20
"""What a sitemap may have by its own standard: the rest is not read."""


class Sitemap(NamedTuple):
    """Addresses of pages, and of further sitemaps, in order, each once."""

    pages: tuple[str, ...]
    maps: tuple[str, ...]


def parse_sitemap(data: bytes, max_bytes: int) -> Sitemap | None:
    """Read a sitemap or an index of them, packed or not; None when it is something else."""
    if data.startswith(b"\x1f\x8b"):
        data = _unpacked(data, min(max_bytes, _MAX_BYTES))
    found = _ROOT.search(data[:_HEAD_BYTES])
    if found is None:
        return None
    data = data[:_MAX_BYTES]
    is_index = found[1] == b"sitemapindex"
    places = tuple(dict.fromkeys(_places(data, "sitemap" if is_index else "url")))
    return Sitemap((), places) if is_index else Sitemap(places, ())


def _unpacked(data: bytes, max_bytes: int) -> bytes:
    """Unpack as much as is whole and allowed."""
    found = bytearray()
    with suppress(ValueError):
        for piece in inflated([data], "gzip"):
            found += piece
            if len(found) > max_bytes:
                break
    return bytes(found[:max_bytes])


def _places(data: bytes, item: str) -> list[str]:
    """Return the text of `loc` in each item, as far as the XML can be read."""
    from lxml import etree

    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, recover=True, huge_tree=False
    )
    try:
        root = etree.fromstring(data, parser)
    except (etree.LxmlError, ValueError, LookupError):  # an encoding that nobody knows
        return []
    if root is None:
        return []
    found = root.xpath("/*/*[local-name() = $item]/*[local-name() = 'loc']", item=item)
    return [text for place in found if (text := (place.text or "").strip())]
