"""What goes where: the answer to stdout, everything else to stderr, JSON instead when asked for."""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO
from urllib.parse import quote_from_bytes

import typer

from epicrag.errors import EpicragError
from epicrag.types import Place, Source

SCHEMA_VERSION = 1
BROKEN_PIPE = 141
"""What a shell reports of a program whose reader went away, as `head` does."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_COMMAND = re.compile(
    r"\bepicrag (?:(?:models|config) [a-z]+|init|ingest|ask|search|list|show|delete|status|doctor|warm|gc|rebuild"
    r"|export|import|bench|eval|chat|serve)\b(?! (?:--index|--home|--config)\b)"
)


def make_printable() -> None:
    """Let printing never raise, however narrow the encoding of the terminal or pipe is."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


@dataclass(frozen=True, slots=True)
class Output:
    """The two streams, as the flags want them."""

    json: bool = False
    jsonl: bool = False
    quiet: bool = False
    verbose: bool = False
    no_color: bool = False
    index: str = ""
    """The flags that led to the index in use, as a shell takes them: a command that is advised needs them too."""

    def advice(self, text: str) -> str:
        """Return text whose commands are meant for the index in use: they can be copied as they stand."""
        flags = self.index.replace("\\", r"\\")
        return _COMMAND.sub(rf"\g<0> {flags}", text) if self.index else text

    @property
    def is_machine(self) -> bool:
        return self.json or self.jsonl

    @property
    def is_live(self) -> bool:
        """Whether bars may move: a person is looking at stderr."""
        return not (self.quiet or self.is_machine) and sys.stderr.isatty()

    def text(self, text: str, end: str = "\n") -> None:
        """Write a part of the answer to stdout, now."""
        _write(sys.stdout, clean(text) + end)

    def note(self, text: str = "") -> None:
        """Tell the user something on stderr, unless quiet."""
        if not self.quiet:
            _write(sys.stderr, clean(text) + "\n")

    def detail(self, text: str) -> None:
        """Tell on stderr what only those want to know who asked for more."""
        if self.verbose:
            self.note(text)

    def object(self, value: dict[str, object]) -> None:
        """Write one JSON object to stdout: indented, or on one line under --jsonl."""
        value = {"schema_version": SCHEMA_VERSION, **value}
        _write(sys.stdout, dumps(value, sys.stdout, indent=None if self.jsonl else 2) + "\n")

    def error(self, code: str, message: str, hint: str | None) -> None:
        """Say what went wrong: on stderr, or as JSON on stdout."""
        if self.is_machine:
            self.object({"error": {"code": code, "message": message, "hint": hint}})
            return
        lines = [f"error: {message}", *([f"hint: {hint}"] if hint else [])]
        _write(sys.stderr, clean("\n".join(lines)) + "\n")

    def failure(self, error: EpicragError) -> None:
        self.error(error.code, error.message, error.hint)

    def unexpected(self, error: Exception) -> None:
        """Say in one line what is a fault of ours; -v shows where."""
        if self.verbose:
            traceback.print_exception(error)
        first_line = (str(error).splitlines() or [""])[0]
        hint = None if self.verbose else "run with -v for the traceback"
        self.error("unexpected", f"{type(error).__name__}: {first_line}", hint)

    def place(self, path: str, place: Place | Source) -> str:
        """Where a passage stands, for stderr: a link where a person can click it."""
        text = clean(place_of(path, place))
        is_link = sys.stderr.isatty() and not self.no_color and "NO_COLOR" not in os.environ
        return f"\x1b]8;;{_url(path)}\x1b\\{text}\x1b]8;;\x1b\\" if is_link else text

    def linked_note(self, before: str, place: str, after: str) -> None:
        """A note that holds a `place`, whose link must reach the terminal as it is."""
        if not self.quiet:
            _write(sys.stderr, f"{clean(before)}{place}{clean(after)}\n")


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        _forget(stream)
        raise typer.Exit(BROKEN_PIPE) from None


def _forget(stream: TextIO) -> None:
    """Keep the interpreter from complaining, at its exit, that nobody reads what is left."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def dumps(value: object, stream: TextIO, indent: int | None) -> str:
    """Return JSON that the stream can encode: as readable as that allows."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        text.encode(stream.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return json.dumps(value, indent=indent)
    return text


def clean(text: str) -> str:
    """Show control characters instead of obeying them: documents must not steer the terminal."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def line_of(text: str) -> str:
    """Put a text on one line."""
    return " ".join(text.split("\n"))


def shown(path: str) -> str:
    """Return a path relative to the working folder where it lies below it."""
    with suppress(ValueError, OSError):
        return Path(path).relative_to(Path.cwd()).as_posix()
    return path


def place_of(path: str, place: Place | Source) -> str:
    """Where a passage stands, as `file:3-9`, `file, p. 2` or `file, sheet Sales, A4:F17`."""
    return line_of(shown(path) + _where(place))


def _where(place: Place | Source) -> str:
    lines = f":{_span(*place.lines)}" if place.lines else ""
    cells = f", {_span(*place.cells, joint=':')}" if place.cells else ""
    if place.part is not None:
        return f", {place.part}{lines.replace(':', ', line ')}{cells}"
    return f", p. {place.page}" if place.page is not None else lines + cells


def _span(first: object, last: object, joint: str = "-") -> str:
    return f"{first}" if first == last else f"{first}{joint}{last}"


def _url(path: str) -> str:
    return "file://" + quote_from_bytes(os.fsencode(path))


def count(n: int, word: str) -> str:
    """Return "1 chunk", "2,000 chunks"."""
    return f"{n:,} {word}{'' if n == 1 else 's'}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table that is Markdown, too: its first column to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    lines = [_row(head, widths), "|" + "|".join("-" * (width + 2) for width in widths) + "|"]
    return [*lines, *(_row(row, widths) for row in rows)]


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        f"{cell:<{width}}" if n == 0 else f"{cell:>{width}}"
        for n, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "| " + " | ".join([first, *rest]) + " |"


def size(n_bytes: float) -> str:
    """Return bytes as a person reads them: 512 B, 1.5 KiB, 2.0 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.0f} B" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} TiB"


def duration(seconds: float) -> str:
    """Return a time as a person reads it: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
