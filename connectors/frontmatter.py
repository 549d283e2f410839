"""Front matter: what stands between `---` (YAML) or `+++` (TOML) lines at the top of a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from epicrag.connectors.meta import meta_of

if TYPE_CHECKING:
    from epicrag.types import MetaValue

_MAX_LINES = 200
_MAX_CHARS = 20_000


def front_matter_end(rows: Sequence[str]) -> int:
    """Return how many lines the front matter has, its fences included; 0 when there is none."""
    if not rows or (fence := rows[0].rstrip()) not in ("---", "+++"):
        return 0
    ends = ("---", "...") if fence == "---" else ("+++",)
    for at, row in enumerate(rows[1:_MAX_LINES], 1):
        if row.rstrip() in ends:
            return at + 1 if at > 1 else 0
    return 0


def front_matter(rows: Sequence[str]) -> dict[str, MetaValue]:
    """Return what front matter says, fences included in `rows`. What cannot be read says nothing."""
    inner = "\n".join(rows[1:-1])
    if len(inner) > _MAX_CHARS:
        return {}
    found = _toml(inner) if rows[0].startswith("+") else _yaml(inner)
    return meta_of({str(key): value for key, value in found.items()})


def _yaml(text: str) -> Mapping[object, object]:
    import yaml

    # An alias repeated a hundred times over would grow without end: front matter has no use for one.
    if any(isinstance(token, yaml.AliasToken) for token in _tokens(text)):
        return {}
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _tokens(text: str) -> list[object]:
    import yaml

    try:
        return list(yaml.scan(text))
    except (yaml.YAMLError, ValueError):
        return []


def _toml(text: str) -> Mapping[str, object]:
    import tomllib

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}
