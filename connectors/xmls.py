"""XML from strangers: no entities, no network, no depth without end."""

from __future__ import annotations

import re
from typing import IO, TYPE_CHECKING, Any

from epicrag.connectors.base import RefusedError
from epicrag.types import Unread

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENTITY = re.compile(rb"<!\s*ENTITY")
_SAFE = {
    "resolve_entities": False,
    "no_network": True,
    "load_dtd": False,
    "dtd_validation": False,
    "huge_tree": False,
    "remove_comments": True,
    "remove_pis": True,
}


def parse_xml(data: bytes, name: str) -> Any:
    """Return the root element; XML that is broken, or declares entities, raises RefusedError."""
    import lxml.etree

    refuse_entities(data, name)
    try:
        return lxml.etree.fromstring(data, lxml.etree.XMLParser(**_SAFE))
    except lxml.etree.XMLSyntaxError as error:
        raise RefusedError(_broken(name, error)) from error


def iterate_xml(file: IO[bytes], name: str, tags: tuple[str, ...]) -> Iterator[Any]:
    """Yield elements of these tags as they end, from a part of any size; the caller clears them."""
    import lxml.etree

    refuse_entities(file.read(4096), name)
    file.seek(0)
    walk = lxml.etree.iterparse(file, events=("end",), tag=tags, **_SAFE)
    try:
        for _, node in walk:
            yield node
    except lxml.etree.XMLSyntaxError as error:
        raise RefusedError(_broken(name, error)) from error


def refuse_entities(data: bytes, name: str) -> None:
    """Raise RefusedError where entities are declared: Office files have none, and bombs are made of them."""
    head = data[:4096]
    if b"\0<" in head or b"<\0" in head:  # UTF-16
        head = head.replace(b"\0", b"")
    if _ENTITY.search(head):
        reason = f"{name} declares XML entities, which no Office program writes: it was not read"
        raise RefusedError(Unread("failed", reason))


def local(node: Any) -> str:
    """The name of an element without its namespace; "" for what is no element."""
    tag = node.tag
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def attribute(node: Any, name: str) -> str | None:
    """An attribute by its name without namespace."""
    for key, value in node.attrib.items():
        if key.rpartition("}")[2] == name:
            return str(value)
    return None


def _broken(name: str, error: Exception) -> Unread:
    return Unread("failed", f"damaged: {name} is not well-formed XML: {error}"[:300])
