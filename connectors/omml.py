"""Equations of Office (OMML) as a line of text: `a2+b2=c2`, `(a+b)/c`, `√(x)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from epicrag.connectors.xmls import attribute, local


def linear(node: Any) -> str:
    """Return the text of an equation, or of any part of one."""
    write = _WRITERS.get(local(node), _children)
    return write(node)


def _children(node: Any) -> str:
    return "".join(linear(child) for child in node)


def _text(node: Any) -> str:
    return node.text or ""


def _part(node: Any, name: str) -> str:
    found = next((child for child in node if local(child) == name), None)
    return _children(found) if found is not None else ""


def _setting(node: Any, kind: str, name: str, default: str) -> str:
    """A setting such as the character of brackets: `node/kindPr/name/@val`."""
    for properties in node:
        if local(properties) == kind:
            for setting in properties:
                if local(setting) == name:
                    return attribute(setting, "val") or ""
    return default


def _group(text: str) -> str:
    return text if len(text) <= 1 or text.isalnum() else f"({text})"


def _fraction(node: Any) -> str:
    return f"{_group(_part(node, 'num'))}/{_group(_part(node, 'den'))}"


def _raised(text: str) -> str:
    """An exponent: a plain one follows its base as in running text, a longer one is marked."""
    return text if len(text) <= 1 else f"^{_group(text)}"


def _lowered(text: str) -> str:
    return f"_{_group(text)}" if text else ""


def _script(node: Any) -> str:
    base, low, high = (_part(node, name) for name in ("e", "sub", "sup"))
    return base + _lowered(low) + (f"^{_group(high)}" if low and high else _raised(high))


def _before(node: Any) -> str:
    return _lowered(_part(node, "sub")) + _raised(_part(node, "sup")) + _part(node, "e")


def _root(node: Any) -> str:
    degree = _part(node, "deg")
    return f"{degree if len(degree) <= 1 else _group(degree)}√{_group(_part(node, 'e'))}"


def _nary(node: Any) -> str:
    sign = _setting(node, "naryPr", "chr", "∫")
    upper = _part(node, "sup")
    limits = _lowered(_part(node, "sub")) + (f"^{_group(upper)}" if upper else "")
    return f"{sign}{limits} {_part(node, 'e')}"


def _brackets(node: Any) -> str:
    first = _setting(node, "dPr", "begChr", "(")
    last = _setting(node, "dPr", "endChr", ")")
    between = _setting(node, "dPr", "sepChr", "|")
    return first + between.join(_children(part) for part in node if local(part) == "e") + last


def _function(node: Any) -> str:
    return f"{_part(node, 'fName')} {_part(node, 'e')}".strip()


def _matrix(node: Any) -> str:
    rows = [
        ", ".join(_children(cell) for cell in row if local(cell) == "e")
        for row in node
        if local(row) == "mr"
    ]
    return f"[{'; '.join(rows)}]"


def _lines(node: Any) -> str:
    return "; ".join(_children(part) for part in node if local(part) == "e")


def _limit(node: Any) -> str:
    return _part(node, "e") + _lowered(_part(node, "lim"))


def _nothing(node: Any) -> str:
    return ""


_WRITERS: dict[str, Callable[[Any], str]] = {
    "t": _text,
    "f": _fraction,
    "sSup": _script,
    "sSub": _script,
    "sSubSup": _script,
    "sPre": _before,
    "rad": _root,
    "nary": _nary,
    "d": _brackets,
    "func": _function,
    "m": _matrix,
    "eqArr": _lines,
    "limLow": _limit,
    "limUpp": _limit,
    "rPr": _nothing,
    "ctrlPr": _nothing,
    "del": _nothing,
    "delText": _nothing,
}
