"""Charts and diagrams of Office files: the numbers behind them as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epicrag.connectors.rows import RowWriter
from epicrag.connectors.xmls import attribute, local

if TYPE_CHECKING:
    from epicrag.connectors.prose import Prose


def write_chart(prose: Prose, root: Any) -> None:
    """Write a chart's title as a paragraph, and the numbers behind it as a table."""
    title, rows = chart_rows(root)
    if title:
        prose.plain(title)
    if rows:
        with RowWriter(prose.draft, rows[0]) as writer:
            for row in rows[1:]:
                writer.row(row)


def chart_rows(root: Any) -> tuple[str, list[list[str]]]:
    """Return a chart's title, and its data: the first row is the head, with a name a series."""
    title = ""
    series: list[tuple[str, dict[int, str], dict[int, str]]] = []
    for node in root.iter():
        name = local(node)
        if name == "title" and not title and local(node.getparent()) == "chart":
            title = _text(node)
        elif name == "ser":
            series.append(_series(node))
    if not series:
        return title, []
    categories: dict[int, str] = {}
    for _, names, _ in series:
        categories |= {at: text for at, text in names.items() if at not in categories}
    points = sorted({at for _, _, values in series for at in values} | set(categories))
    head = ["", *(name or f"series {at}" for at, (name, _, _) in enumerate(series, 1))]
    rows = [
        [categories.get(at, str(at + 1)), *(values.get(at, "") for _, _, values in series)]
        for at in points
    ]
    return title, [head, *rows]


def diagram_texts(root: Any) -> list[str]:
    """The texts of a diagram (SmartArt), in order."""
    texts = [_text(node) for node in root.iter() if local(node) == "t" and len(node)]
    return [text for text in texts if text]


def _series(node: Any) -> tuple[str, dict[int, str], dict[int, str]]:
    name, categories, values = "", {}, {}
    for child in node:
        kind = local(child)
        if kind == "tx":
            name = " ".join(_points(child).values()) or _plain(child)
        elif kind in ("cat", "xVal"):
            categories = _points(child)
        elif kind in ("val", "yVal"):
            values = {at: _number(text) for at, text in _points(child).items()}
    return name, categories, values


def _points(node: Any) -> dict[int, str]:
    """The cached points below a reference; of categories in levels, all levels joined."""
    found: dict[int, str] = {}
    for point in node.iter():
        if local(point) != "pt":
            continue
        index = attribute(point, "idx") or ""
        text = next((child.text or "" for child in point if local(child) == "v"), "")
        if index.isdigit() and text.strip():
            at = int(index)
            found[at] = f"{text.strip()} {found[at]}" if at in found else text.strip()
    return found


def _plain(node: Any) -> str:
    return " ".join((child.text or "").strip() for child in node.iter() if local(child) == "v")


def _text(node: Any) -> str:
    runs = (child.text or "" for child in node.iter() if local(child) == "t")
    return " ".join("".join(runs).split())


def _number(text: str) -> str:
    """A value without the noise of binary fractions: 0.30000000000000004 is 0.3."""
    try:
        return f"{float(text):.12g}"
    except ValueError:
        return text
