"""JSON as a stream of events with their offsets: any depth, nothing built in memory, numbers as written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

Kind = Literal["{", "}", "[", "]", "key", "value", "numbers", "end"]

_SPACE = re.compile(r"[ \t\n\r\ufeff]*+")
_LITERAL = re.compile(
    r"(?:-?(?:Infinity|\d++(?:\.\d++)?+(?:[eE][+-]?\d++)?+)|true|false|null|NaN)(?![\w.])"
)
_RUN = re.compile(r"[\[\]\d\s,.eE+-]++")
_NUMBER = re.compile(r"-?\d[\d.]*+(?:[eE][+-]?\d++)?+")
_BRACKET = re.compile(r"[\[\]]")
_MAX_LISTED = 32
_MAX_NESTED = 16
_MAX_CHARS = 400


class Event(NamedTuple):
    """A piece of JSON: what it is, where it begins, and a key's or value's text.

    "numbers" is a whole array of numbers, nested or not, of which only the essence is told; "end" stands
    behind the value, at the offset where it ended.
    """

    kind: Kind
    at: int
    text: str = ""
    is_string: bool = False


class BrokenJsonError(Exception):
    """The text is not JSON from `at` on."""

    def __init__(self, at: int) -> None:
        super().__init__(f"not JSON from character {at:,} on")
        self.at = at


def scan(text: str, start: int = 0) -> Iterator[Event]:
    """Yield the events of the value that begins at `start`; BrokenJsonError where it breaks off.

    Python's own names for no number (NaN, Infinity) are taken, as are commas behind the last element: both
    are common and leave no doubt. Keys that stand twice come twice.
    """
    return Scanner(text).run(start)


class Scanner:
    """`scan` for a text that holds one value after the other: what was looked at is not looked at again."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._decode = json.JSONDecoder(strict=False).raw_decode
        self._runs = _NumberRuns(text)

    def run(self, start: int) -> Iterator[Event]:
        text = self._text
        closers: list[Literal["}", "]"]] = []
        at = self._skip(start)
        while True:
            sign = text[at : at + 1]
            if closers and sign == closers[-1]:
                yield Event(closers.pop(), at)
                at += 1
            else:
                if closers and closers[-1] == "}":
                    key, end = self._string(at)
                    yield Event("key", at, key, True)
                    at = self._skip(self._expect(":", end))
                    sign = text[at : at + 1]
                if sign == "[" and (run := self._runs.end_of(at)) is not None:
                    yield Event("numbers", at, essence(text[at:run]))
                    at = run
                elif sign == "{" or sign == "[":
                    closers.append("}" if sign == "{" else "]")
                    yield Event("{" if sign == "{" else "[", at)
                    at = self._skip(at + 1)
                    continue
                elif sign == '"':
                    value, end = self._string(at)
                    yield Event("value", at, value, True)
                    at = end
                elif literal := _LITERAL.match(text, at):
                    yield Event("value", at, literal[0])
                    at = literal.end()
                else:
                    raise BrokenJsonError(at)
            if not closers:
                break
            at = self._skip(at)
            if text[at : at + 1] == ",":
                at = self._skip(at + 1)
            elif text[at : at + 1] != closers[-1]:
                raise BrokenJsonError(at)
        yield Event("end", at)

    def _skip(self, at: int) -> int:
        if " " < self._text[at : at + 1] < "\ufeff":
            return at
        space = _SPACE.match(self._text, at)
        return space.end() if space else at

    def _expect(self, sign: str, at: int) -> int:
        at = self._skip(at)
        if self._text[at : at + 1] != sign:
            raise BrokenJsonError(at)
        return at + 1

    def _string(self, at: int) -> tuple[str, int]:
        if self._text[at : at + 1] != '"':
            raise BrokenJsonError(at)
        try:
            value, end = self._decode(self._text, at)
        except ValueError as error:
            raise BrokenJsonError(at) from error
        return value, end


class _NumberRuns:
    """Finds arrays that hold nothing but numbers and such arrays. Each character is looked at once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._looked = -1
        self._ends: dict[int, int] = {}

    def end_of(self, at: int) -> int | None:
        """Return where the array that opens at `at` ends; None when it holds something else."""
        if at >= self._looked:
            run = _RUN.match(self._text, at)
            self._looked = run.end() if run else at + 1
            self._ends = self._pairs(at, self._looked)
        return self._ends.get(at)

    def _pairs(self, start: int, end: int) -> dict[int, int]:
        opened: list[int] = []
        pairs: dict[int, int] = {}
        for bracket in _BRACKET.finditer(self._text, start, end):
            if bracket[0] == "[":
                opened.append(bracket.start())
            elif opened:
                pairs[opened.pop()] = bracket.end()
        return pairs


def essence(source: str) -> str:
    """Tell an array of numbers: as it stands when short, else by count and range; "" when empty.

    The outline of a country is 100,000 coordinates. Nobody asks for one of them by its words, and as text
    they would crowd out everything that somebody does ask for.
    """
    numbers = _NUMBER.findall(source)
    if not numbers:
        return ""
    is_flat = source.count("[") == 1
    if len(numbers) <= (_MAX_LISTED if is_flat else _MAX_NESTED):
        listed = "".join(source.split()).replace(",", ", ")
        return listed[1:-1].rstrip(", ") if is_flat else listed[:_MAX_CHARS]
    values = [float(number) for number in numbers if number.count(".") < 2]
    low, high = min(values, default=0.0), max(values, default=0.0)
    return f"{len(numbers):,} numbers from {low:.12g} to {high:.12g}"
