"""Follow files as they change: a full sync first, then each change through the same plan, and a sweep.

What the system tells of changes is a hint and no more: what is done is decided by looking at the files
again, and a sweep finds what was never told.
"""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from epicrag.errors import LockedError
from epicrag.ingest import Event, IngestResult, Manner, Progress
from epicrag.sources import folder_of, own_folders
from epicrag.types import FileReport

if TYPE_CHECKING:
    from epicrag.config import Config
    from epicrag.connectors.found import Source

Run = Callable[["Source", Manner, Progress], IngestResult]

TICK_SECONDS = 0.5
"""How often roots are looked at that no system call watches: those that are gone, and single files."""
LOSS_SECONDS = 60.0
"""Deletions within this time are taken for one loss."""
MANY_CHANGES = 2_000
"""More changes at once are a sweep: the system may have lost some of them as well."""
_RETRY_SECONDS = 2.0
_UNCHANGING = frozenset(["skipped", "unsupported", "failed", "empty", "unchanged"])


@dataclass(slots=True)
class Watch:
    """One watch over files and folders, until `stop` is set or Ctrl-C is pressed.

    `run` carries out one ingest, and holds the writer's lock for no longer than that.
    """

    run: Run
    config: Config
    paths: Sequence[Path]
    progress: Progress
    kv: bool = True
    yes: bool = False
    wait: float = 10.0
    debounce: float = 0.4
    """Seconds of quiet after a change before it is looked at."""
    stop: threading.Event = field(default_factory=threading.Event)
    _said: dict[str, FileReport] = field(default_factory=dict)
    _gone: deque[tuple[float, int]] = field(default_factory=deque)
    _touched: set[str] = field(default_factory=set)
    _stats: dict[str, object] = field(default_factory=dict)
    _due: float = 0.0
    _retry: float = 0.0
    _held: int = 0
    _is_first: bool = True

    def follow(self) -> bool:
        """Run; return whether a run was interrupted. MassDeleteError: already the first sync is one."""
        self._stats = {root: _stat(root) for root in self._roots()}
        while not self.stop.is_set():
            for changes in self._changes():
                self._touched |= changes
                if self._is_interrupted_by_work():
                    return True
                if self._have_roots_changed():
                    self._due = 0.0
                    break
        return False

    def _roots(self) -> list[str]:
        from epicrag.connectors.folder import real

        return list(dict.fromkeys(real(os.fspath(path)) for path in self.paths))

    def _changes(self) -> Iterator[set[str]]:
        """Yield what has changed, and an empty set now and then; ends when the watch must begin anew."""
        folders = [root for root in self._roots() if os.path.isdir(root)]
        if not folders:
            yield set()
            self.stop.wait(TICK_SECONDS)
            return
        try:
            for changes in self._watched(folders):
                yield {path for _, path in changes}
        except FileNotFoundError:  # a root that went between the look and the watch
            return

    def _watched(self, folders: Sequence[str]) -> Iterator[set[tuple[object, str]]]:
        import watchfiles

        is_ours = _filter(self.config, folders)
        for changes in watchfiles.watch(
            *folders,
            watch_filter=lambda change, path: is_ours(path),
            debounce=max(round(self.debounce * 4000), 1),
            step=max(round(self.debounce * 1000), 1),
            rust_timeout=round(TICK_SECONDS * 1000),
            yield_on_timeout=True,
            raise_interrupt=True,
            stop_event=self.stop,
            ignore_permission_denied=True,
        ):
            yield {(change, path) for change, path in changes}

    def _have_roots_changed(self) -> bool:
        """Note single files that changed; return whether a folder was lost, replaced or came back."""
        if self._roots() != list(self._stats):  # a link leads elsewhere now
            self._stats = {root: _stat(root) for root in self._roots()}
            return True
        is_new_folder = False
        for root, before in self._stats.items():
            now = _stat(root)
            if now != before:
                self._stats[root] = now
                self._touched.add(root)
                is_new_folder |= "folder" in (_kind(before), _kind(now))
        return is_new_folder

    # --- the work ---

    def _is_interrupted_by_work(self) -> bool:
        """Do what is due; keep it for later where another process is writing."""
        now = time.monotonic()
        if now < self._retry or not (self._touched or now >= self._due):
            return False
        touched = sorted(_tops(map(_whole, self._touched)))
        is_sweep = now >= self._due or len(touched) > MANY_CHANGES
        try:
            result = self._ingest(None if is_sweep else touched)
        except LockedError as error:
            if self._is_first:
                raise
            self._note(f"{error.message}: trying again")
            self._retry = time.monotonic() + _RETRY_SECONDS
            return False
        self._touched.clear()
        if is_sweep:
            self._due = time.monotonic() + 60 * self.config.sweep_minutes
        self._tell(result, is_sweep)
        return result.interrupted

    def _ingest(self, only: Sequence[str] | None) -> IngestResult:
        manner = Manner(
            kv=self.kv,
            yes=self.yes,
            wait=self.wait,
            hold=not self._is_first,
            lately=self._lately(),
            light=not self._is_first,
        )
        return self.run(folder_of(self.paths, self.config, only), manner, self._pass_on)

    def _lately(self) -> int:
        """How many documents went within the last minute."""
        while self._gone and time.monotonic() - self._gone[0][0] > LOSS_SECONDS:
            self._gone.popleft()
        return sum(n for _, n in self._gone)

    # --- what is said ---

    def _tell(self, result: IngestResult, is_sweep: bool) -> None:
        if result.removed:
            self._gone.append((time.monotonic(), result.removed))
        if result.held and result.held != self._held:
            self._note(
                f"paused: {result.held:,} documents are gone or empty, most of the index or all of a path; "
                f"they are kept. If they are to be forgotten: epicrag ingest {shlex.join(self._roots())} --yes"
            )
        if is_sweep and self._held and not result.held:
            self._note("the files that were missing are back, or forgotten: no longer paused")
        if is_sweep or result.held:
            self._held = result.held
        if self._is_first:
            self._is_first = False
            self.progress(Event("doing", message="watching for changes; Ctrl-C ends"))

    def _pass_on(self, event: Event) -> None:
        """Pass events on, but for what was said of a file before and is as it was."""
        if (report := event.report) is not None:
            if report.status in _UNCHANGING and self._said.get(report.path) == report:
                return
            self._said[report.path] = report
        self.progress(event)

    def _note(self, message: str) -> None:
        self.progress(Event("note", message=message))


def _whole(path: str) -> str:
    """What to look at again for a change: for an ignore file, the folder it rules."""
    from epicrag.connectors.folder import IGNORE_FILES

    folder, name = os.path.split(path)
    return folder if name in IGNORE_FILES else path


def _tops(paths: Iterable[str]) -> set[str]:
    """Leave out what lies below another path."""
    from epicrag.index.sync import above

    every = set(paths)
    return {
        path for path in every if not any(place in every for place in above(path) if place != path)
    }


def _filter(config: Config, roots: Sequence[str]) -> Callable[[str], bool]:
    """Return whether a path may concern documents: not the index, whose writing would never end."""
    from epicrag.connectors.folder import NEVER
    from epicrag.index.sync import is_below

    own = {folder for folder in own_folders(config) if not _lie_in(roots, folder)}

    def concerns(path: str) -> bool:
        root = max((root for root in roots if is_below(path, {root})), key=len, default="")
        return not is_below(path, own) and NEVER.isdisjoint(path[len(root) :].split(os.sep))

    return concerns


def _lie_in(paths: Sequence[str], folder: str) -> bool:
    """Is one of the paths this folder, or in it?"""
    from epicrag.index.sync import is_below

    return any(is_below(path, {folder}) for path in paths)


def _stat(path: str) -> object:
    """Return what tells one state of a root from another; None when it is not there."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    if os.path.isdir(path):
        return ("folder", found.st_dev, found.st_ino)
    return ("file", found.st_ino, found.st_size, found.st_mtime_ns)


def _kind(state: object) -> object:
    return state[0] if isinstance(state, tuple) else None
