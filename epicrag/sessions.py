"""Conversations kept beside the index: one file a session, a line a turn, appended and never rewritten.

A turn is one line, question and answer together, so that a crash loses a whole turn or none. Of a line that was torn
nothing is read, and the next turn is written in its place. What is taken back (`undo`) is a line, too, and says by its
id which turn is meant: another chat may have written turns of its own since.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from epicrag.errors import DamagedError, EpicragError, UsageError
from epicrag.types import Answer

FOLDER = "sessions"
SCHEMA_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SUFFIX = ".jsonl"
_NO_TURN = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
"""What a line raises that was written by something else."""


@dataclass(frozen=True, slots=True)
class Cited:
    """A passage that a turn was answered from: where it stands, and no word of it."""

    n: int
    chunk: str
    path: str
    heading: str | None = None
    cited: bool = False


@dataclass(frozen=True, slots=True)
class Exchange:
    """One turn of a conversation: what was asked, what was searched for, what was answered, and from what."""

    question: str
    answer: str
    answered: bool = True
    query: str = ""
    """What was searched for in place of the question; the question itself where it stood alone."""
    sources: tuple[Cited, ...] = ()
    at: str = ""
    id: str = field(default="", compare=False)
    """What the turn is called in its file; made when it is added."""

    @classmethod
    def of(cls, answer: Answer, query: str) -> Exchange:
        sources = tuple(Cited(s.n, s.chunk, s.path, s.heading, s.cited) for s in answer.sources)
        return cls(answer.question, answer.text, answer.answered, query, sources, _now())


@dataclass(frozen=True, slots=True)
class Summary:
    """One line of `--list`."""

    name: str
    turns: int
    first: str
    """The first question; empty where the file cannot be read."""
    modified: float
    """Seconds since 1970."""
    damage: str | None = None


@dataclass(slots=True)
class Session:
    """A conversation. With `file` None nothing is written: it ends with the process."""

    name: str
    file: Path | None = None
    turns: list[Exchange] = field(default_factory=list)
    is_new: bool = False
    """Whether its file has still to be made, under the first name like it that nobody has."""

    def add(self, turn: Exchange, instead: Exchange | None = None) -> Exchange:
        """Append a turn, and return it with its id; `instead`: a turn that is taken back by the same line.

        UsageError where the file cannot be written; the turn stays in memory then.
        """
        turn = replace(turn, id=secrets.token_hex(8))
        if instead is not None:
            self._drop(instead)
        self.turns.append(turn)
        line = {"turn": len(self.turns), **asdict(turn)}
        self._write(line if instead is None else {**line, "instead": instead.id})
        return turn

    def undo(self) -> Exchange | None:
        """Take the last turn back; None where there is none. UsageError: it cannot be written, and stays."""
        if not self.turns:
            return None
        taken = self.turns[-1]
        self._write({"undo": len(self.turns), "id": taken.id})
        self.turns.pop()
        return taken

    def _drop(self, turn: Exchange) -> None:
        self.turns[:] = [one for one in self.turns if one is not turn]

    def _write(self, line: Mapping[str, Any]) -> None:
        if self.is_new and self.file is not None:
            self.file = _made(self.file)
            self.name, self.is_new = self.file.name.removesuffix(_SUFFIX), False
        if self.file is not None:
            head = {"schema_version": SCHEMA_VERSION, "session": self.name, "started": _now()}
            _append(self.file, line, head)


class Sessions:
    """The sessions of one index."""

    def __init__(self, index: Path) -> None:
        self.folder = index / FOLDER

    def new(self) -> Session:
        """A session under a name of its own; its file is made with its first turn."""
        name = datetime.now().astimezone().strftime("%Y-%m-%d-%H%M%S")
        file = next(file for file in _like(self._file(name)) if not file.exists())
        return Session(file.name.removesuffix(_SUFFIX), file, is_new=True)

    def open(self, name: str, *, must_exist: bool = False) -> Session:
        """The session of a name, new where there is none. UsageError: the name cannot be one, or `must_exist`.

        DamagedError: a line of it that is not its last cannot be read.
        """
        file = self._file(name)
        if not file.exists() and not file.is_symlink():
            if must_exist:
                raise self._unknown(name)
            return Session(name, file)
        return Session(name, file, _read(file))

    def latest(self) -> Session:
        """The session that was written to last. UsageError: there is none."""
        files = sorted(self._files(), key=lambda item: item[1])
        if not files:
            raise UsageError(
                "there is no conversation to continue", 'begin one: epicrag chat "your question"'
            )
        return self.open(files[-1][0].name.removesuffix(_SUFFIX))

    def list(self) -> list[Summary]:
        """Every session, the latest first; one that is damaged says so."""
        return [
            _summary(file, modified)
            for file, modified in sorted(self._files(), key=lambda item: -item[1])
        ]

    def forget(self, name: str) -> None:
        """Remove a session for good. UsageError: there is none of this name."""
        file = self._file(name)
        try:
            file.unlink()
        except FileNotFoundError:
            raise self._unknown(name) from None
        except OSError as error:
            raise UsageError(f"{file} cannot be removed: {error.strerror}") from error

    def _file(self, name: str) -> Path:
        if not _NAME.fullmatch(name) or name.endswith((".", _SUFFIX)):
            raise UsageError(
                f"a session cannot be called {name!r}",
                "up to 64 letters, digits, dots, dashes and underscores, beginning with a letter or digit",
            )
        return self.folder / f"{name}{_SUFFIX}"

    def _files(self) -> Iterator[tuple[Path, float]]:
        with suppress(FileNotFoundError, NotADirectoryError):
            for entry in os.scandir(self.folder):
                name = entry.name.removesuffix(_SUFFIX)
                if entry.name.endswith(_SUFFIX) and _NAME.fullmatch(name):
                    with suppress(OSError):
                        facts = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(facts.st_mode):
                            yield Path(entry.path), facts.st_mtime

    def _unknown(self, name: str) -> UsageError:
        names = sorted(file.name.removesuffix(_SUFFIX) for file, _ in self._files())
        more = ", …" if len(names) > 8 else ""
        known = f"there are {', '.join(names[-8:])}{more}" if names else "there are none yet"
        return UsageError(f"there is no session called {name!r}", known)


def _summary(file: Path, modified: float) -> Summary:
    name = file.name.removesuffix(_SUFFIX)
    try:
        turns = _read(file)
    except EpicragError as error:
        return Summary(name, 0, "", modified, error.message)
    return Summary(name, len(turns), turns[0].question if turns else "", modified)


# --- the file ------------------------------------------------------------------------------------


def _read(file: Path) -> list[Exchange]:
    """The turns of a file, without what was taken back and without a torn last line."""
    try:
        with _opened(file, os.O_RDONLY) as handle:
            data = _all(handle)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    *lines, _torn = data.split(b"\n")
    turns: list[Exchange] = []
    for n, line in enumerate(lines, 1):
        try:
            _take(json.loads(line), turns, f"line {n}")
        except _NO_TURN as error:
            raise DamagedError(
                f"line {n} of {file} cannot be read: {error}",
                f"mend the line, or: epicrag chat --forget {file.name.removesuffix(_SUFFIX)}",
            ) from error
    return turns


def _take(line: Mapping[str, Any], turns: list[Exchange], place: str) -> None:
    """Apply one line. A version that is not known is refused, fields that are not known are left alone.

    Lines stay where they are: a turn without an id is called by its `place`.
    """
    if line.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
        raise ValueError(f"schema_version {line['schema_version']!r} is not {SCHEMA_VERSION}")
    if "undo" in line:
        _take_back(line, turns)
    elif "turn" in line:
        if "instead" in line:
            turns[:] = [turn for turn in turns if turn.id != line["instead"]]
        sources = [
            Cited(int(s["n"]), str(s["chunk"]), str(s["path"]), s.get("heading"), bool(s["cited"]))
            for s in line.get("sources", ())
        ]
        turns.append(
            Exchange(
                str(line["question"]),
                str(line["answer"]),
                bool(line.get("answered", True)),
                str(line.get("query", "")),
                tuple(sources),
                str(line.get("at", "")),
                str(line.get("id") or place),
            )
        )


def _take_back(line: Mapping[str, Any], turns: list[Exchange]) -> None:
    """Apply an undo: of the turn it names, or, as it was written once, of all from a number on."""
    if "id" in line:
        turns[:] = [turn for turn in turns if turn.id != line["id"]]
        return
    first = line["undo"]
    if type(first) is not int or first < 1:
        raise ValueError(f"undo takes the number of a turn, not {first!r}")
    del turns[first - 1 :]


def _like(file: Path) -> Iterator[Path]:
    """A file, and the same with a number behind its name."""
    yield file
    stem = file.name.removesuffix(_SUFFIX)
    for n in itertools.count(2):
        yield file.with_name(f"{stem}-{n}{_SUFFIX}")


def _made(file: Path) -> Path:
    """Make an empty file that was not there: this one, or one like it where another chat was faster."""
    with _keeping(file):
        file.parent.mkdir(mode=0o700, exist_ok=True)
        for one in _like(file):
            with suppress(FileExistsError):
                os.close(os.open(one, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
                return one
    raise AssertionError("there is a number that is not taken")


@contextmanager
def _keeping(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"the conversation cannot be kept in {file}: {error.strerror}",
            "go on without keeping it: --no-save",
        ) from error


def _append(file: Path, line: Mapping[str, Any], head: Mapping[str, Any]) -> None:
    """Write a line to its end and wait until it is on disk; a torn line before it is cut off."""
    with _keeping(file):
        # Of others' eyes: what was asked and answered is nobody else's business.
        file.parent.mkdir(mode=0o700, exist_ok=True)
        with _opened(file, os.O_RDWR | os.O_CREAT) as handle:
            data = _all(handle)
            whole = data.rfind(b"\n") + 1
            os.ftruncate(handle, whole)
            os.lseek(handle, whole, os.SEEK_SET)
            lines = [line] if whole else [head, line]
            _write_all(handle, "".join(f"{_dumps(one)}\n" for one in lines).encode())
            os.fsync(handle)


@contextmanager
def _opened(file: Path, flags: int) -> Iterator[int]:
    """The file, opened as what it is (no link, no pipe), and locked against another chat of the same session."""
    handle = os.open(file, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(0, "it is no file")
        with suppress(ImportError):
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_SH if flags == os.O_RDONLY else fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def _all(handle: int) -> bytes:
    parts = []
    while part := os.read(handle, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _dumps(value: Mapping[str, Any]) -> str:
    # ASCII only: lone surrogates of a bad command line survive, and no tool splits at U+2028.
    return json.dumps(value, ensure_ascii=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def ago(seconds_since_1970: float, now: float | None = None) -> str:
    """Return how long ago that was, as a person says it."""
    seconds = max(0.0, (time.time() if now is None else now) - seconds_since_1970)
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            n = int(seconds // size)
            return f"{n} {unit}{'' if n == 1 else 's'} ago"
    return "just now"
