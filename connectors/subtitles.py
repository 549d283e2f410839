"""Subtitles (SubRip, WebVTT): what is said, joined into sentences, and when it is said."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from epicrag.connectors.base import Parsed, pace
from epicrag.connectors.draft import Draft
from epicrag.connectors.text import parse_text
from epicrag.types import Unread

_TIME = re.compile(
    r"\s*(?:(\d{1,3}):)?(\d{1,2}):(\d{2})[.,](\d{1,3})\s*-->\s*(?:(\d{1,3}):)?(\d{1,2}):(\d{2})[.,](\d{1,3})"
)
_VOICE = re.compile(r"<v(?:\.[\w.]+)?\s+([^<>]+)>")
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>|<\d[\d:.]*>|\{\\[^{}]*\}")
_ENDS = re.compile("[.!?…。！？؟।♪][\"'”’»)\\]]*$")
_SPEAKER = re.compile(r"(?:[-–—>]{1,2}\s*\S|\[?[A-Z][\w .'-]{0,30}\]?:\s)")
_CJK_END = re.compile("[\u3000-\u30ff\u3400-\u9fff\uff00-\uff60]$")
_PAUSE = 4.0
"""Seconds of silence that end a paragraph."""


class _Cue(NamedTuple):
    """What is shown at one time: its seconds, and its lines with their numbers from 1."""

    start: float
    end: float
    lines: tuple[tuple[int, str], ...]


def parse_subtitles(text: str, encoding: str | None = None) -> Parsed | Unread:
    """Read subtitles. `part` is when a passage begins ("0:01:12"); a file without a time is plain text."""
    cues = list(_cues(text.split("\n")))
    if not cues:
        return parse_text(text, encoding)
    draft = Draft()
    shown: Sequence[str] = ()
    before: _Cue | None = None
    for cue in cues:
        # Live captions scroll: a line that was shown already is not said again.
        lines = [(number, line) for number, line in cue.lines if line not in shown]
        shown = [line for _, line in cue.lines]
        if lines:
            _write(draft, cue, lines, _parted(draft, before, cue, lines[0][1]))
            before = cue
    if draft.length:
        draft.close()
    return draft.parsed(
        "text/vtt" if text.lstrip("\ufeff").startswith("WEBVTT") else "application/x-subrip",
        encoding=encoding,
    )


def _cues(rows: Sequence[str]) -> Iterator[_Cue]:
    """Yield the cues: the lines below a time, up to a blank line or the next time."""
    at = 0
    while at < len(rows):
        pace()
        time = _TIME.match(rows[at])
        at += 1
        if not time:
            continue
        lines: list[tuple[int, str]] = []
        while at < len(rows) and rows[at].strip() and not _TIME.match(rows[at]):
            if words := _words(rows[at]):
                lines.append((at + 1, words))
            at += 1
        if at < len(rows) and _TIME.match(rows[at]) and lines and lines[-1][1].isdigit():
            lines.pop()  # the number of the next cue, with no blank line above it
        yield _Cue(_seconds(*time.groups()[:4]), _seconds(*time.groups()[4:]), tuple(lines))


def _seconds(hours: str | None, minutes: str, seconds: str, rest: str) -> float:
    return int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds) + float(f"0.{rest}")


def _words(row: str) -> str:
    """What is said in a line: without mark-up, with the speaker that the mark-up names."""
    row = _TAG.sub("", _VOICE.sub(r"\1: ", row))
    return " ".join(html.unescape(row).split())


def _parted(draft: Draft, before: _Cue | None, cue: _Cue, words: str) -> bool:
    """Does a new paragraph begin: after a sentence's end, a pause, or with another speaker?"""
    if before is None:
        return True
    ended = _ENDS.search(before.lines[-1][1]) is not None
    return ended or cue.start - before.end > _PAUSE or _SPEAKER.match(words) is not None


def _write(draft: Draft, cue: _Cue, lines: Sequence[tuple[int, str]], parted: bool) -> None:
    draft.part = clock(cue.start)
    if parted and draft.length:
        draft.close()
    for at, (number, words) in enumerate(lines):
        draft.line = number
        if parted and at == 0:
            draft.open("paragraph", "\n")
        else:
            words = words if _CJK_END.search(draft.last_character) else f" {words}"
        draft.write(words)


def clock(seconds: float) -> str:
    """A time as a player shows it: 0:01:12."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
