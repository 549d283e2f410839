"""Which files there are: a walk that honours ignore rules and is not led astray by links."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from epicrag.connectors.archive import Shelf, is_archive, members
from epicrag.connectors.base import Limits, file_too_big
from epicrag.connectors.decode import decode
from epicrag.connectors.found import Found
from epicrag.connectors.globs import MAX_RULE_CHARS, bounded
from epicrag.connectors.opened import open_regular
from epicrag.types import Document, FileReport, Unread

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

    from epicrag.types import Entry

IGNORE_FILES = (".gitignore", ".epicragignore")
OWN_FILES = ("epicrag.toml", ".epicragignore")
"""What `init` writes is no document, unless it is asked for by name."""
NEVER = frozenset(
    [
        ".git",
        ".hg",
        ".svn",
        "node_modules",
        "__MACOSX",
        "__pycache__",
        ".venv",
        ".tox",
        ".nox",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
    ]
)


@dataclass(frozen=True, slots=True)
class File:
    """A regular file that the walk found."""

    path: str
    size: int
    limits: Limits

    def __str__(self) -> str:
        return "a file"

    def digest(self) -> str:
        return file_digest(self.path)

    def read(self) -> Document | Unread:
        from epicrag.connectors.read import read

        return read(self.path, limits=self.limits, follow=False)

    def refusal(self) -> str | None:
        from epicrag.connectors.read import refusal

        return refusal(self.path, self.limits)


def file_digest(path: str) -> str:
    """Return the SHA-256 of a file's bytes in hex, without holding them in memory."""
    with open_regular(path, follow=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class Rules:
    """What a walk passes over, and how far it goes."""

    hidden: bool = False
    """Take hidden files and folders too."""
    ignore_files: bool = True
    """Honour `.gitignore` and `.epicragignore`."""
    follow_links: bool = False
    """Read what a link leads to even if that is hidden or ignored; out of the given paths never."""
    archives: bool = True
    """Take what is in archives."""
    never: Collection[str] = ()
    """Folders that are not entered: the index's own. Absolute, links resolved."""


_RULES = Rules()
_MAX_IGNORE_BYTES = 1 << 20
_NO_LIMITS = Limits()


class _Ignores(NamedTuple):
    """The ignore rules that a folder brings along."""

    folder: str
    spec: GitIgnoreSpec


_Above = tuple[_Ignores, ...]


@dataclass(frozen=True, slots=True)
class Folder:
    """Files and folders as a source of documents; see `walk`."""

    paths: Sequence[Path]
    limits: Limits = _NO_LIMITS
    rules: Rules = _RULES
    only: Collection[str] | None = None
    is_remote = False

    def find(self) -> Found:
        return walk(self.paths, limits=self.limits, rules=self.rules, only=self.only)

    def close(self) -> None:
        """Nothing is held open."""


def walk(
    paths: Sequence[Path],
    *,
    limits: Limits = _NO_LIMITS,
    rules: Rules = _RULES,
    only: Collection[str] | None = None,
) -> Found:
    """Walk files and folders. Hidden and ignored mean: below the given path, whatever lies above it.

    A path given by name is taken as it is, hidden, ignored or a link; one that does not exist is a
    root without entries. Entries are sorted by path, each once, the members of an archive in its own
    order. `only` restricts the walk to what lies at or below these paths (absolute, links resolved):
    the walk answers for them alone.
    """
    given = [(os.fspath(path), real(os.fspath(path))) for path in paths]
    roots = tuple(dict.fromkeys(root for _, root in given))
    tour = _Tour(roots, limits, rules, None if only is None else frozenset(only))
    for root in roots:
        tour.visit(root)
    tour.tell_of_links()
    answered = roots if only is None else [o for o in only if any(_is_below(o, r) for r in roots)]
    return Found(
        entries=tuple(entry for _, entries in sorted(tour.entries.items()) for entry in entries),
        reports=tuple(sorted(tour.reports.values(), key=lambda report: report.path)),
        roots=tuple(_slashes(root) for root in answered),
        spare=frozenset(tour.unseen),
        passed=tour.passed,
        absent=tuple(
            (name, _slashes(root))
            for name, root in given
            if not os.path.lexists(os.path.expanduser(name))
        ),
        missing=tuple(_slashes(root) for root in roots if is_missing(root)),
        areas=tuple(_slashes(root) for root in roots) if only is None else (),
        given=_given(given) if only is None else {},
    )


def is_missing(root: str) -> bool:
    """Whether a path leads to nothing, or to a folder without anything in it."""
    try:
        with os.scandir(root) as listing:
            return next(listing, None) is None
    except (FileNotFoundError, ValueError):
        return True
    except OSError:  # a file; or it cannot be looked at, which is told
        return not os.path.exists(root)


def _given(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return absolute name: real path, of the folders given and of links. Names that lead nowhere now say
    nothing, and neither do those with `..`, which may mean another place behind a link."""
    found = {}
    for name, root in pairs:
        place = os.path.abspath(os.path.expanduser(name))
        is_folder, is_plain = os.path.isdir(root), os.pardir not in name.split(os.sep)
        if is_plain and (is_folder or (place != root and os.path.exists(root))):
            found[_slashes(place)] = _slashes(root)
    return found


@dataclass
class _Tour:
    """One walk over all roots; every file and folder is visited once."""

    roots: tuple[str, ...]
    limits: Limits
    rules: Rules
    only: frozenset[str] | None = None
    entries: dict[str, tuple[Entry, ...]] = field(default_factory=dict)
    """By the file they are in: one of an ordinary file, many of an archive."""
    reports: dict[str, FileReport] = field(default_factory=dict)
    passed: dict[str, str] = field(default_factory=dict)
    unseen: set[str] = field(default_factory=set)
    shelf: Shelf = field(default_factory=Shelf)
    seen: set[tuple[int, int]] = field(default_factory=set)
    """Folders, by device and inode."""
    waiting: list[tuple[str, _Above]] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)
    led: dict[str, str] = field(default_factory=dict)
    """Links to what lies below a root, and where they lead."""
    followed: set[str] = field(default_factory=set)
    way: frozenset[str] = frozenset()
    """What lies above `only`."""

    def __post_init__(self) -> None:
        self.way = frozenset(place for path in self.only or () for place in _up(path))

    def visit(self, root: str) -> None:
        if not self._is_wanted(root):
            return
        try:
            status = os.stat(root)
        except (FileNotFoundError, NotADirectoryError):
            return
        except (OSError, ValueError) as error:
            self._fail(root, f"cannot be opened: {_why(error)}")
            return
        self._take(root, status, ())
        self._walk()
        for path, target in self._led():
            self._follow(path, target)

    def _walk(self) -> None:
        while self.waiting:
            folder, ignores = self.waiting.pop()
            self.waiting += reversed(
                [(path, rules) for path, rules in self._folder(folder, ignores)]
            )

    def _take(self, path: str, status: os.stat_result, ignores: _Above) -> None:
        if stat.S_ISDIR(status.st_mode):
            self.waiting.append((path, ignores))
        else:
            self._file(path, status, ignores)

    def _is_wanted(self, path: str) -> bool:
        """Does the path lie below one of `only`, or on the way there?"""
        if self.only is None:
            return True
        return path in self.way or any(place in self.only for place in _up(path))

    def _folder(self, folder: str, ignores: _Above) -> Iterator[tuple[str, _Above]]:
        """Take the files of a folder; yield the folders below it that are to be visited."""
        try:
            status = os.stat(folder)
            with os.scandir(folder) as listing:
                items = sorted(listing, key=lambda item: item.name)
        except OSError as error:
            self._fail(folder, f"the folder cannot be opened: {_why(error)}")
            return
        if os.path.islink(folder):  # since it was found
            self._link(folder)
            return
        if (status.st_dev, status.st_ino) in self.seen:
            return
        self.seen.add((status.st_dev, status.st_ino))
        if self.rules.ignore_files:
            ignores = (*ignores, *_ignores_of(folder, self._skip))
        for item in items:
            if self._is_wanted(item.path) and (below := self._item(item, ignores)) is not None:
                yield below, ignores

    def _item(self, item: os.DirEntry[str], ignores: _Above) -> str | None:
        """Take one item; return its path when it is a folder to visit."""
        try:
            is_link = item.is_symlink()
            is_folder = item.is_dir(follow_symlinks=False)
            if (why := self._why_ignored(item.name, item.path, is_folder, ignores)) is not None:
                self.passed[_slashes(item.path)] = why
            elif is_link:
                self._link(item.path)
            elif is_folder:
                return item.path
            else:
                self._file(item.path, item.stat(follow_symlinks=False), ignores)
        except OSError as error:
            self._fail(item.path, f"cannot be read: {_why(error)}")
        return None

    def _why_ignored(self, name: str, path: str, is_folder: bool, ignores: _Above) -> str | None:
        if name in NEVER:
            return f"what is in {name} is never read"
        if name in OWN_FILES and not is_folder:
            return f"{name} is epicrag's own"
        if path in self.rules.never:
            return "it is the index itself"
        if name.startswith(".") and not self.rules.hidden:
            return "it is hidden"
        if (folder := _matches(ignores, path, is_folder)) is not None:
            return f"it matches an ignore rule in {_shown(folder)}"
        return None

    def _file(self, path: str, status: os.stat_result, ignores: _Above) -> None:
        if not stat.S_ISREG(status.st_mode):
            self._skip(path, "not a regular file (a pipe, socket or device)")
        elif status.st_size > self.limits.max_file_bytes:
            self._skip(path, file_too_big(status.st_size, self.limits.max_file_bytes))
            self.unseen.add(_slashes(path))  # what was read of it before is not gone
        elif self.rules.archives and is_archive(path):
            self._archive(path, ignores)
        else:
            path = _slashes(path)
            self.entries[path] = (File(path, status.st_size, self.limits),)

    def _archive(self, path: str, ignores: _Above) -> None:
        """Take the members of an archive as files of their own."""

        def why_ignored(member: str, is_folder: bool) -> str | None:
            return self._why_ignored(os.path.basename(member), member, is_folder, ignores)

        listing = members(_slashes(path), self.limits, self.shelf, why_ignored)
        self.entries[_slashes(path)] = listing.entries
        self.reports.update((report.path, report) for report in listing.reports)
        self.unseen.update(listing.spare)
        self.unseen.update(r.path for r in listing.reports if r.status in ("failed", "skipped"))
        self.passed.update(listing.passed)

    def _link(self, path: str) -> None:
        """Report a link. Its target is read where it lies, if that is below a root, and only there."""
        try:
            target = os.path.realpath(path, strict=True)
        except OSError as error:
            broken = "broken link" if isinstance(error, FileNotFoundError) else "link that loops"
            self._skip(path, f"{broken} to {_shown(os.readlink(path))}")
            return
        if any(_is_below(target, root) for root in self.roots):
            self._skip(path, f"link to {_shown(target)}, which is read there and not twice")
            self.links.append((path, target))
            self.led[path] = target
        else:
            self._skip(path, f"link out of the given folders, to {_shown(target)}: not followed")

    def _led(self) -> Iterator[tuple[str, str]]:
        """Yield the links to follow and where they lead, those that are found on the way too."""
        while self.rules.follow_links and self.links:
            yield self.links.pop(0)

    def _follow(self, path: str, target: str) -> None:
        """Read what the walk itself has passed over: it is hidden or ignored, but a link leads there."""
        passed = [at for at in self.passed if _is_below(_slashes(target), at)]
        if not passed or target in self.rules.never:
            return
        self.passed.pop(_slashes(target), None)
        self.followed.add(target)
        self._take(target, os.stat(target), ())
        self._walk()

    def tell_of_links(self) -> None:
        """When all is visited: correct what was said of links to what is passed over."""
        for path, target in self.led.items():
            places = list(_up(target))
            why = next(
                (self.passed[_slashes(at)] for at in places if _slashes(at) in self.passed), None
            )
            if why is not None and self.followed.isdisjoint(places):
                self._skip(path, f"link to {_shown(target)}, which is not read: {why}")

    def _fail(self, path: str, reason: str) -> None:
        """Report what could not be looked at, unlike a link or a device, which is passed over."""
        path = _slashes(path)
        self.unseen.add(path)
        self.reports[path] = FileReport(path, "failed", reason)

    def _skip(self, path: str, reason: str) -> None:
        path = _slashes(path)
        self.reports[path] = FileReport(path, "skipped", reason)


def _ignores_of(folder: str, say: Callable[[str, str], None]) -> Iterator[_Ignores]:
    """Read a folder's ignore files; the rules of `.epicragignore` come last, so they win."""
    from pathspec import GitIgnoreSpec

    from epicrag.connectors.read import load

    lines: list[str] = []
    for name in IGNORE_FILES:
        data = load(os.path.join(folder, name), _MAX_IGNORE_BYTES)
        decoded = data if isinstance(data, Unread) else decode(data)
        if not isinstance(decoded, Unread):
            rules = [line for line in decoded.text.split("\n") if _is_rule(line)]
            sound = [line for line in rules if _is_bounded(line)]
            if len(sound) < len(rules):
                long = next(line for line in rules if line not in sound)
                say(
                    os.path.join(folder, name),
                    f"too many wildcards in a rule, passed over: {long:.100}",
                )
            lines += sound
    if lines:
        yield _Ignores(folder, _bound(GitIgnoreSpec.from_lines(lines)))


def _is_rule(line: str) -> bool:
    """Can the line be understood as a rule? As git does, lines that cannot are passed over."""
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([line[: MAX_RULE_CHARS + 1]])
    except ValueError:
        return False
    return bool(line.strip())


def _is_bounded(line: str) -> bool:
    from pathspec import GitIgnoreSpec

    if len(line) > MAX_RULE_CHARS:
        return False
    rules = GitIgnoreSpec.from_lines([line]).patterns
    return all(rule.regex is None or bounded(rule.regex.pattern) for rule in rules)


def _bound(spec: GitIgnoreSpec) -> GitIgnoreSpec:
    """See to it that no name takes long to be held against the rules."""
    for rule in spec.patterns:
        if rule.regex is not None and (regex := bounded(rule.regex.pattern)) is not None:
            rule.regex = re.compile(regex)
    return spec


def _matches(ignores: _Above, path: str, is_folder: bool) -> str | None:
    """Return the folder whose rules ignore the path, if any: those of the nearest that say anything."""
    for rule in reversed(ignores):
        inner = _slashes(os.path.relpath(path, rule.folder)) + ("/" if is_folder else "")
        verdict = rule.spec.check_file(inner).include
        if verdict is not None:
            return rule.folder if verdict else None
    return None


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def _up(path: str) -> Iterator[str]:
    """Yield a path and the folders that it lies in."""
    yield path
    while (folder := os.path.dirname(path)) != path:
        yield folder
        path = folder


def real(path: str) -> str:
    return os.path.realpath(os.path.expanduser(path))


def _slashes(path: str) -> str:
    return path if os.sep == "/" else path.replace(os.sep, "/")


def _shown(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def _why(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)
