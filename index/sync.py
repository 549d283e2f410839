"""What must be done to an index so that it equals a tree: a plan, which changes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from posixpath import basename
from typing import TYPE_CHECKING

from epicrag.types import FileEntry

if TYPE_CHECKING:
    from epicrag.index.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Plan:
    """The files to add, to read again, to relabel and to leave, and the documents to forget."""

    add: tuple[FileEntry, ...] = ()
    change: tuple[FileEntry, ...] = ()
    rename: tuple[tuple[str, FileEntry], ...] = ()
    """The old path, and the file that now holds the same bytes."""
    unchanged: tuple[FileEntry, ...] = ()
    delete: tuple[str, ...] = ()


def plan(
    catalog: Catalog,
    entries: Sequence[FileEntry],
    roots: Sequence[str],
    digest_of: Callable[[str], str],
    *,
    spare: Sequence[str] = (),
) -> Plan:
    """Compare the files found with the documents known below `roots`; the others are not touched.

    A document is unchanged if its bytes are, by `digest_of(path)`. A file that cannot be digested
    (OSError) is planned as added or changed, so that reading it reports why. Nothing at or below a
    path of `spare` (files and folders that could not be looked at) is deleted.
    """
    known = {row.path: row.digest for row in catalog.documents()}
    found = {entry.path: entry for entry in entries}  # overlapping roots find a file twice
    digests = {path: _digest(digest_of, path) for path in found}
    gone = {
        path: digest
        for path, digest in known.items()
        if path not in found and _is_below(path, roots) and not _is_below(path, spare)
    }
    new = [entry for path, entry in found.items() if path not in known]
    renamed = dict(_pairs(new, gone, digests))
    old_paths = {old for old, _ in renamed.values()}
    kept = [entry for path, entry in found.items() if path in known]
    return Plan(
        add=tuple(entry for entry in new if entry.path not in renamed),
        change=tuple(entry for entry in kept if digests[entry.path] != known[entry.path]),
        rename=tuple(renamed.values()),
        unchanged=tuple(entry for entry in kept if digests[entry.path] == known[entry.path]),
        delete=tuple(path for path in gone if path not in old_paths),
    )


def is_mass_delete(plan: Plan, known: int) -> bool:
    """Return whether a plan forgets most of an index of `known` documents: a lost disk looks so."""
    return len(plan.delete) > 1 and 2 * len(plan.delete) > known


def file_digest(path: str) -> str:
    """Return the SHA-256 of a file's bytes in hex, without holding them in memory."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(digest_of: Callable[[str], str], path: str) -> str | None:
    try:
        return digest_of(path)
    except OSError:
        return None


def _is_below(path: str, roots: Iterable[str]) -> bool:
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def _pairs(
    new: Sequence[FileEntry], gone: Mapping[str, str], digests: Mapping[str, str | None]
) -> Iterator[tuple[str, tuple[str, FileEntry]]]:
    """Yield new path: (old path, entry) for equal bytes, each old path once, the same names first."""
    free = dict(gone)
    left = list(new)
    for same_name in (True, False):
        olds: dict[tuple[str, str], list[str]] = {}
        for path, digest in sorted(free.items(), reverse=True):
            olds.setdefault((digest, basename(path) if same_name else ""), []).append(path)
        rest = []
        for entry in left:
            key = (digests[entry.path] or "", basename(entry.path) if same_name else "")
            if old := olds.get(key):
                del free[old[-1]]
                yield entry.path, (old.pop(), entry)
            else:
                rest.append(entry)
        left = rest
