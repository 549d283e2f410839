"""What a source gives: what there is to read, what is passed over, and which documents it answers for."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from epicrag.types import Entry, FileReport, Origin


@dataclass(frozen=True, slots=True)
class Found:
    """What a source holds now. A known document it answers for, and that is not among it, is gone."""

    entries: tuple[Entry, ...] = ()
    reports: tuple[FileReport, ...] = ()
    """What was found and is not followed or not read: links, files over the limit, pages that fail."""
    roots: tuple[str, ...] = ()
    """It answers for every document at or below these paths."""
    held: frozenset[str] = frozenset()
    """And for these documents, wherever they lie."""
    spare: frozenset[str] = frozenset()
    """Nothing at or below these is gone: it could not be looked at."""
    passed: Mapping[str, str] = field(default_factory=dict)
    """What was passed over in silence, and why: hidden files and folders, matches of ignore rules."""
    absent: tuple[tuple[str, str], ...] = ()
    """What was asked for by a name that nothing has now, and its path."""
    missing: tuple[str, ...] = ()
    """What was asked for and is not there, or is a folder without anything: a share that is not mounted looks so."""
    origins: tuple[Origin, ...] = ()
    web_roots: tuple[str, ...] = ()
    areas: tuple[str, ...] = ()
    """Prefixes of its documents' paths: the chunk size is remembered for each."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Where the names that were given lead now, links resolved: a link may lead elsewhere the next time."""

    @property
    def asked(self) -> tuple[str, ...]:
        """The files, folders and addresses that were asked for, as they can be asked for again."""
        files = (root for root in self.areas if root.startswith("/"))
        return tuple(dict.fromkeys([*files, *self.web_roots]))

    @property
    def ignored(self) -> int:
        """Files and folders passed over in silence."""
        return len(self.passed)


class Source(Protocol):
    """A place that documents come from."""

    @property
    def is_remote(self) -> bool:
        """Whether looking takes long, and nobody should be kept from writing meanwhile."""

    def find(self) -> Found:
        """Look at what there is now."""

    def close(self) -> None:
        """Give back what was held for reading: its entries cannot be read any more."""


def told_apart(reports: Iterable[FileReport], taken: Container[str] = ()) -> dict[str, FileReport]:
    """Return reports by paths of their own: under that of another, or of a document that is read (`taken`),
    one would not be seen."""
    told: dict[str, FileReport] = {}
    for number, report in enumerate(reports, 2):
        path = report.path
        if told.get(path) == report:
            continue
        while path in taken or path in told:
            path, number = f"{report.path} ({number})", number + 1
        told[path] = replace(report, path=path)
    return told


def merged(parts: list[Found]) -> Found:
    """Several sources as one."""
    return Found(
        entries=tuple(entry for part in parts for entry in part.entries),
        reports=tuple(report for part in parts for report in part.reports),
        roots=tuple(root for part in parts for root in part.roots),
        held=frozenset().union(*(part.held for part in parts)),
        spare=frozenset().union(*(part.spare for part in parts)),
        passed={path: why for part in parts for path, why in part.passed.items()},
        absent=tuple(pair for part in parts for pair in part.absent),
        missing=tuple(root for part in parts for root in part.missing),
        origins=tuple(origin for part in parts for origin in part.origins),
        web_roots=tuple(root for part in parts for root in part.web_roots),
        areas=tuple(area for part in parts for area in part.areas),
        given={name: root for part in parts for name, root in part.given.items()},
    )
