"""Files of questions: one a line, a table, or JSON lines with answers and documents. A bad line is an error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from epicrag.errors import UsageError

TABLE_COLUMNS = ("question", "answer", "path")


@dataclass(frozen=True, slots=True)
class Passage:
    """A document that comes with a question."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Item:
    """A question, and what its file says of it: what is absent is empty."""

    question: str
    answers: tuple[str, ...] = ()
    """Right answers, each as good as the others."""
    documents: tuple[Passage, ...] = ()
    """What it is to be answered from, in place of the index."""
    paths: tuple[str, ...] = ()
    """Where an answer should point to; the end of a path is enough."""
    answerable: bool = True
    line: int = 0
    file: str = field(default="", compare=False)

    @property
    def where(self) -> str:
        """Where it was read, for messages."""
        return _where(self.file, self.line)


def read_items(path: Path) -> list[Item]:
    """Read `.jsonl`, `.tsv` (with a line of column names), or a text of one question a line.

    UsageError, with the line, for whatever cannot be read: nothing is left out but blank lines.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: {error}", "save it as UTF-8") from error
    # Split at newlines only: the texts in JSON may hold other separators.
    lines = [(n, line.rstrip("\r")) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    readers = {".jsonl": _from_json, ".json": _from_json, ".tsv": _from_table}
    items = list(readers.get(path.suffix.lower(), _from_text)(path, lines))
    if not items:
        raise UsageError(f"{path} holds no question")
    return items


def _where(file: str, line: int) -> str:
    return f"{file}, line {line}" if file else f"line {line}"


_Lines = Sequence[tuple[int, str]]


def _from_text(path: Path, lines: _Lines) -> Iterator[Item]:
    for number, line in lines:
        yield Item(line.strip(), line=number, file=str(path))


def _from_table(path: Path, lines: _Lines) -> Iterator[Item]:
    (first, head), *rows = lines or [(1, "")]
    columns = head.split("\t")
    if "question" not in columns:
        _refuse(path, first, "the columns must have names, and one must be: question")
    for number, line in rows:
        cells = line.split("\t")
        if len(cells) > len(columns):
            _refuse(path, number, f"{len(cells)} cells, and {len(columns)} columns")
        found = dict(zip(columns, cells, strict=False))
        yield _item(path, number, {name: found.get(name, "") for name in TABLE_COLUMNS})


def _from_json(path: Path, lines: _Lines) -> Iterator[Item]:
    for number, line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            _refuse(path, number, f"not JSON: {error}")
        if not isinstance(value, dict):
            _refuse(path, number, "not a JSON object")
        yield _item(path, number, value)


def _item(path: Path, number: int, value: dict[str, Any]) -> Item:
    question = value.get("question")
    if not isinstance(question, str) or not question.strip():
        _refuse(path, number, "no question")
    answerable = value.get("answerable", True)
    if not isinstance(answerable, bool):
        _refuse(path, number, "answerable must be true or false")
    try:
        return Item(
            question=question.strip(),
            answers=_texts(value, "answers", "answer"),
            documents=tuple(_passage(each) for each in _list(value.get("documents"))),
            paths=_texts(value, "paths", "path"),
            answerable=answerable,
            line=number,
            file=str(path),
        )
    except TypeError as error:
        _refuse(path, number, str(error))


def _list(value: object) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise TypeError("documents must be a list")
    return value


def _texts(value: dict[str, Any], many: str, one: str) -> tuple[str, ...]:
    """Texts under either name, as a list or alone; empty ones are none."""
    found = value.get(one) if value.get(many) is None else value[many]
    texts = [] if found is None else found if isinstance(found, list) else [found]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"{many} must be texts")
    return tuple(text.strip() for text in texts if text.strip())


def _passage(value: object) -> Passage:
    if isinstance(value, str):
        return Passage("", value)
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return Passage(str(value.get("title") or ""), value["text"])
    raise TypeError("a document must be a text, or an object with a text and a title")


def _refuse(path: Path, number: int, why: str) -> NoReturn:
    raise UsageError(
        f"{_where(str(path), number)}: {why}",
        'a line of JSON looks like: {"question": "…", "answers": ["…"]}',
    )
