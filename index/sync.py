"""What must be done to an index so that it equals its sources: a plan, which changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from posixpath import basename
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epicrag.index.catalog import Catalog
    from epicrag.types import Entry


@dataclass(frozen=True, slots=True)
class Plan:
    """What to add, to read again, to relabel and to leave, and the documents to forget."""

    add: tuple[Entry, ...] = ()
    change: tuple[Entry, ...] = ()
    rename: tuple[tuple[str, Entry], ...] = ()
    """The old path, and the entry that now holds the same bytes. All at once: names may be swapped."""
    unchanged: tuple[Entry, ...] = ()
    delete: tuple[str, ...] = ()
    twice: tuple[tuple[Entry, Entry], ...] = ()
    """What is not read because another entry has its path, and that other."""

    @property
    def has_work(self) -> bool:
        return bool(self.add or self.change or self.rename or self.delete)


def plan(
    catalog: Catalog,
    entries: Sequence[Entry],
    roots: Collection[str],
    *,
    held: AbstractSet[str] = frozenset(),
    spare: Collection[str] = (),
) -> Plan:
    """Compare what was found with the documents known below `roots` or `held`; the others are not touched.

    A document is unchanged if its digest is. An entry that cannot be digested is planned as
    added or changed, so that reading it reports why. Nothing at or below a path of `spare` (what could
    not be looked at) is deleted. Of entries with one path the last counts, as it does in an archive that
    was added to; the others are `twice`.
    """
    known = {row.path: row.digest for row in catalog.documents()}
    found: dict[str, Entry] = {}
    lost: list[Entry] = []
    for entry in entries:
        before = found.get(entry.path)
        if before is not None and before != entry:  # equal: overlapping roots find a file twice
            lost.append(before)
        found[entry.path] = entry
    answered, spared = set(roots), set(spare)
    gone = {
        path: digest
        for path, digest in known.items()
        if path not in found
        and (path in held or is_below(path, answered))
        and not is_below(path, spared)
    }
    kept = {path: _digest(entry) for path, entry in found.items() if path in known}
    changed = [path for path, digest in kept.items() if digest != known[path]]
    new = [path for path in found if path not in known]
    renamed = _renames(known, gone, new, changed, kept, found)
    old_paths = set(renamed.values())
    return Plan(
        add=tuple(found[path] for path in new if path not in renamed),
        change=tuple(found[path] for path in changed if path not in renamed),
        rename=tuple((old, found[path]) for path, old in renamed.items()),
        unchanged=tuple(found[path] for path, digest in kept.items() if digest == known[path]),
        delete=tuple(path for path in gone if path not in old_paths),
        twice=tuple((entry, found[entry.path]) for entry in lost),
    )


def is_most(doomed: int, known: int, lately: int = 0) -> bool:
    """Return whether so many documents are most of an index of `known`: a lost disk looks so.

    `lately` were forgotten a moment ago, as part of the same loss.
    """
    gone = doomed + lately
    return doomed > 0 and gone > 1 and 2 * gone > known + lately


def above(path: str) -> Iterator[str]:
    """Yield a path and all it lies below: folders, archives, the top. `a.zip!/b` lies below `a.zip`."""
    if path.startswith("/"):
        yield "/"
    while path:
        yield path
        path = path.rpartition("/")[0]
        if path.endswith("!"):
            yield path[:-1]


def is_below(path: str, roots: AbstractSet[str]) -> bool:
    """Return whether a path is one of the roots, or lies below one."""
    return bool(roots) and any(place in roots for place in above(path))


def _digest(entry: Entry) -> str | None:
    try:
        return entry.digest()
    except Exception:  # noqa: BLE001 - of whatever is read: reading it says what is wrong
        return None


def _renames(
    known: Mapping[str, str],
    gone: Mapping[str, str],
    new: Sequence[str],
    changed: Sequence[str],
    kept: Mapping[str, str | None],
    found: Mapping[str, Entry],
) -> dict[str, str]:
    """Return new path: old path for equal content. A file that is still there passes its old content on
    only if it got another's itself: names that were swapped, or moved up by one."""
    free = {**gone, **{path: known[path] for path in changed}}
    if not gone and len(changed) < 2:
        return {}  # and what is new need not be digested
    digests = {path: _digest(found[path]) for path in new} | {path: kept[path] for path in changed}
    pairs = dict(_pairs(digests, free))
    while loose := [new for new, old in pairs.items() if old in found and old not in pairs]:
        for path in loose:
            del pairs[path]
    return pairs


def _pairs(wanted: Mapping[str, str | None], free: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Yield (new path, old path) for equal content, each old path once, the same names first."""
    left, unused = list(wanted), dict(free)
    for same_name in (True, False):
        olds: dict[tuple[str, str], list[str]] = {}
        for path, digest in sorted(unused.items(), reverse=True):
            olds.setdefault((digest, basename(path) if same_name else ""), []).append(path)
        rest = []
        for path in left:
            key = (wanted[path] or "", basename(path) if same_name else "")
            if old := olds.get(key):
                unused.pop(old[-1])
                yield path, old.pop()
            else:
                rest.append(path)
        left = rest
