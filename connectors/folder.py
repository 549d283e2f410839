"""Which files there are: a walk that honours ignore rules and is not led astray by links."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from epicrag.connectors.base import MAX_FILE_BYTES, file_too_big
from epicrag.connectors.decode import decode
from epicrag.types import FileEntry, FileReport, Unread

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILES = (".gitignore", ".epicragignore")
NEVER = frozenset(
    [
        ".git",
        ".hg",
        ".svn",
        "node_modules",
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
class Walk:
    """What was found below the given paths."""

    entries: tuple[FileEntry, ...]
    """Regular files, sorted by path, each once. Whether a reader takes them is not asked here."""
    reports: tuple[FileReport, ...]
    """What was found and is not followed or not read: links, files over the limit, unreadable folders."""
    roots: tuple[str, ...]
    """The given paths: absolute, links resolved, forward slashes; those that do not exist too."""
    ignored: int = 0
    """Files and folders passed over in silence: hidden, or matched by an ignore rule."""


class _Rules(NamedTuple):
    """The ignore rules that a folder brings along."""

    folder: str
    spec: GitIgnoreSpec


def walk(
    paths: Sequence[Path], *, max_file_bytes: int = MAX_FILE_BYTES, hidden: bool = False
) -> Walk:
    """Walk files and folders. Hidden and ignored mean: below the given path, whatever lies above it.

    A path given by name is taken as it is, hidden, ignored or a link; one that does not exist is a
    root without entries.
    """
    roots = tuple(dict.fromkeys(_real(os.fspath(path)) for path in paths))
    tour = _Tour(roots, max_file_bytes, hidden)
    for root in roots:
        tour.visit(root)
    return Walk(
        entries=tuple(sorted(tour.entries.values(), key=lambda entry: entry.path)),
        reports=tuple(sorted(tour.reports.values(), key=lambda report: report.path)),
        roots=tuple(_slashes(root) for root in roots),
        ignored=tour.ignored,
    )


class _Tour:
    """One walk over all roots; every file and folder is visited once."""

    def __init__(self, roots: tuple[str, ...], max_file_bytes: int, hidden: bool) -> None:
        self.entries: dict[str, FileEntry] = {}
        self.reports: dict[str, FileReport] = {}
        self.ignored = 0
        self._roots = roots
        self._max_file_bytes = max_file_bytes
        self._hidden = hidden
        self._seen: set[tuple[int, int]] = set()  # folders, by device and inode

    def visit(self, root: str) -> None:
        try:
            status = os.stat(root)
        except (FileNotFoundError, NotADirectoryError):
            return
        except (OSError, ValueError) as error:
            self._fail(root, f"cannot be opened: {_why(error)}")
            return
        if not stat.S_ISDIR(status.st_mode):
            self._file(root, status)
            return
        waiting: list[tuple[str, tuple[_Rules, ...]]] = [(root, ())]
        while waiting:
            folder, rules = waiting.pop()
            waiting += reversed(list(self._folder(folder, rules)))

    def _folder(
        self, folder: str, rules: tuple[_Rules, ...]
    ) -> Iterator[tuple[str, tuple[_Rules, ...]]]:
        """Take the files of a folder; yield the folders below it that are to be visited."""
        try:
            status = os.stat(folder)
            with os.scandir(folder) as listing:
                items = sorted(listing, key=lambda item: item.name)
        except OSError as error:
            self._fail(folder, f"the folder cannot be opened: {_why(error)}")
            return
        if (status.st_dev, status.st_ino) in self._seen:
            return
        self._seen.add((status.st_dev, status.st_ino))
        rules = (*rules, *_rules_of(folder))
        for item in items:
            if (below := self._item(item, rules)) is not None:
                yield below, rules

    def _item(self, item: os.DirEntry[str], rules: tuple[_Rules, ...]) -> str | None:
        """Take one item; return its path when it is a folder to visit."""
        try:
            is_link = item.is_symlink()
            is_folder = item.is_dir(follow_symlinks=False)
            if self._is_ignored(item, is_folder, rules):
                self.ignored += 1
            elif is_link:
                self._link(item.path)
            elif is_folder:
                return item.path
            else:
                self._file(item.path, item.stat(follow_symlinks=False))
        except OSError as error:
            self._fail(item.path, f"cannot be read: {_why(error)}")
        return None

    def _is_ignored(
        self, item: os.DirEntry[str], is_folder: bool, rules: tuple[_Rules, ...]
    ) -> bool:
        if item.name in NEVER or (item.name.startswith(".") and not self._hidden):
            return True
        return _matches(rules, item.path, is_folder)

    def _file(self, path: str, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            self._skip(path, "not a regular file (a pipe, socket or device)")
        elif status.st_size > self._max_file_bytes:
            self._skip(path, file_too_big(status.st_size, self._max_file_bytes))
        else:
            path = _slashes(path)
            self.entries[path] = FileEntry(path, status.st_size)

    def _link(self, path: str) -> None:
        """Report a link. Its target is read where it lies, if that is below a root, and only there."""
        try:
            target = os.path.realpath(path, strict=True)
        except OSError as error:
            broken = "broken link" if isinstance(error, FileNotFoundError) else "link that loops"
            self._skip(path, f"{broken} to {_shown(os.readlink(path))}")
            return
        if any(_is_below(target, root) for root in self._roots):
            self._skip(path, f"link to {_shown(target)}, which is read there and not twice")
        else:
            self._skip(path, f"link out of the given folders, to {_shown(target)}: not followed")

    def _fail(self, path: str, reason: str) -> None:
        """Report what could not be looked at, unlike a link or a device, which is passed over."""
        path = _slashes(path)
        self.reports[path] = FileReport(path, "failed", reason)

    def _skip(self, path: str, reason: str) -> None:
        path = _slashes(path)
        self.reports[path] = FileReport(path, "skipped", reason)


def _rules_of(folder: str) -> Iterator[_Rules]:
    """Read a folder's ignore files; the rules of `.epicragignore` come last, so they win."""
    from pathspec import GitIgnoreSpec

    lines: list[str] = []
    for name in IGNORE_FILES:
        try:
            decoded = decode(Path(folder, name).read_bytes())
        except OSError:
            continue
        if not isinstance(decoded, Unread):
            lines += [line for line in decoded.text.split("\n") if _is_rule(line)]
    if lines:
        yield _Rules(folder, GitIgnoreSpec.from_lines(lines))


def _is_rule(line: str) -> bool:
    """Can the line be understood as a rule? As git does, lines that cannot are passed over."""
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return bool(line.strip())


def _matches(rules: tuple[_Rules, ...], path: str, is_folder: bool) -> bool:
    """Is the path ignored? The rules of the nearest folder that say anything decide."""
    for rule in reversed(rules):
        inner = _slashes(os.path.relpath(path, rule.folder)) + ("/" if is_folder else "")
        verdict = rule.spec.check_file(inner).include
        if verdict is not None:
            return verdict
    return False


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def _real(path: str) -> str:
    return os.path.realpath(os.path.expanduser(path))


def _slashes(path: str) -> str:
    return path if os.sep == "/" else path.replace(os.sep, "/")


def _shown(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def _why(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)
