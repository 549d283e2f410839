"""Headers and footers: left out, but for what nobody else says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from epicrag.connectors.rows import one_line

_PAGE_NUMBER = re.compile(
    r"[-–—|/\s]*(?:page|seite|p\.|página|pagina|pag\.)?[-–—\s]*\d*\s*(?:of|von|de|sur|di|/|-|–)?\s*\d*[-–—|\s]*",
    re.IGNORECASE,
)


def only_in_margins(texts: Iterable[tuple[str, str]], body: str) -> Iterator[str]:
    """Yield a line for each text of a margin that the body does not hold, and that is no page number.

    Args:
        texts: ("header" | "footer", text), as they stand in the file: once for each section.
    """
    found = list(texts)
    if not found:
        return
    known = one_line(body).casefold()
    seen: set[str] = set()
    for kind, text in found:
        line = one_line(text)
        key = line.casefold()
        if key in seen or _PAGE_NUMBER.fullmatch(key) or key in known:
            continue
        seen.add(key)
        yield f"Page {kind}: {line}"
