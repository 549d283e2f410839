"""Any reader of LlamaIndex as a source: its documents, under names that stay the same from run to run."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from epicrag.connectors.base import Limits
from epicrag.connectors.found import Found
from epicrag.errors import UsageError
from epicrag.types import Anchor, Document, FileReport, MetaValue, Unread

if TYPE_CHECKING:
    from collections.abc import Sequence

_VOLATILE = frozenset(
    ["file_path", "file_size", "creation_date", "last_modified_date", "last_accessed_date"]
)
"""What says when and where a file was looked at, and nothing of its content."""
_NAMING = ("file_path", "file_name", "filename", "url", "URL", "source", "path", "title")
"""Metadata that tell one document from another, best first."""


@dataclass(frozen=True, slots=True)
class Given:
    """One document of LlamaIndex."""

    path: str
    text: str
    metadata: Mapping[str, Any]
    limits: Limits

    @property
    def size(self) -> int:
        return len(self.text)

    def __str__(self) -> str:
        return "a document"

    def digest(self) -> str:
        stable = {
            str(key): _plain(value) for key, value in self.metadata.items() if key not in _VOLATILE
        }
        facts = json.dumps([self.text, stable], sort_keys=True, default=str)
        return hashlib.sha256(facts.encode("utf-8", "surrogatepass")).hexdigest()

    def read(self) -> Document | Unread:
        from epicrag.connectors.read import read_bytes

        data = self.text.encode("utf-8", "surrogatepass")
        document = read_bytes(self.path, data, limits=self.limits, name="document.txt")
        if isinstance(document, Unread):
            return document
        title = self.metadata.get("title")
        return replace(
            document,
            digest=self.digest(),
            title=title if isinstance(title, str) and title.strip() else None,
            anchors=_anchors(document, self.metadata.get("page_label")),
            meta=_meta(self.metadata),
        )

    def refusal(self) -> str | None:
        return None


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents of LlamaIndex (anything with text, metadata and an id) as a source named `name`."""

    name: str
    documents: Iterable[Any]
    limits: Limits
    is_remote = True

    def find(self) -> Found:
        # A name is one step of the path: what is below `team` is not what is below `team/x`.
        root = "reader:" + re.sub(r"[%/!\0-\x1f]", lambda c: f"%{ord(c[0]):02X}", self.name)
        entries: dict[str, Given] = {}
        reports: list[FileReport] = []
        nameless: list[tuple[str, Given]] = []
        is_whole = True
        for number, document in enumerate(self.documents, 1):
            try:
                doc_id = str(document.doc_id)
                text, metadata = str(document.get_content()), dict(document.metadata or {})
                path = f"{root}/{_identity(doc_id, text, metadata)}"
            except Exception as error:  # noqa: BLE001 - whatever somebody else's document raises
                is_whole = False  # and nobody knows which it was in the run before
                reason = f"{type(error).__name__}: {error}"[:500]
                reports.append(FileReport(f"{root}/document {number}", "failed", reason))
                continue
            given = Given(path, text, metadata, self.limits)
            if _is_random(doc_id):
                nameless.append((path, given))
            elif path not in entries:
                entries[path] = given
            elif given != entries[path]:
                reason = f"document {number} has the id of another before it, which is read"
                reports.append(FileReport(path, "skipped", reason))
        seen: Counter[str] = Counter()
        for path, given in nameless:
            name = path
            while name in entries:
                seen[path] += 1
                name = f"{path}#{seen[path] + 1}"
            entries[name] = replace(given, path=name)
        return Found(
            entries=tuple(entries.values()),
            reports=tuple(reports),
            roots=(root,),
            spare=frozenset() if is_whole else frozenset([root]),
            areas=(root,),
        )

    def close(self) -> None:
        """Nothing is held open."""


def load(reader: str, arguments: Mapping[str, Any]) -> list[Any]:
    """Return the documents of a reader class, named as `module.path:Class`.

    Arguments go to the class, but for those that only its `load_data` knows. UsageError: there is no
    such class, or it does not take these arguments or fails.
    """
    found = _class(reader)
    try:
        own, rest = _shared(found, arguments)
        return list(found(**own).load_data(**rest))
    except Exception as error:  # whatever somebody else's reader raises
        first = (str(error).splitlines() or [""])[0]
        raise UsageError(
            f"the reader {reader} failed: {type(error).__name__}: {first}",
            "see what it takes in its documentation, and give it as --reader-args '{…}'",
        ) from error


def _class(reader: str) -> Any:
    module, _, name = reader.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"there is no reader {reader}: {error}",
            "name it as module.path:ClassName, and install the package it is in",
        ) from error
    if not callable(getattr(found, "load_data", None)):
        raise UsageError(f"{reader} is no reader: it has no load_data", "name a class that has")
    return found


def _shared(reader: Any, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part arguments into those of the class and those of its `load_data`."""
    mine, its = (
        set(inspect.signature(call).parameters) for call in (reader.__init__, reader.load_data)
    )
    fields = set(getattr(reader, "model_fields", ()))  # pydantic's constructors take anything
    rest = {key: arguments[key] for key in arguments if key in its - mine - fields}
    return {key: arguments[key] for key in arguments if key not in rest}, rest


def _identity(doc_id: str, text: str, metadata: Mapping[str, Any]) -> str:
    """Return a name that is the same in the next run: an id that was made up for this run is none."""
    name = doc_id
    if _is_random(doc_id):
        name = next((str(metadata[key]) for key in _NAMING if metadata.get(key)), "")
        name = name or hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        if (page := metadata.get("page_label")) is not None:
            name += f"#page={page}"
    return re.sub(r"[\0-\x1f]+", " ", name).strip("/ ") or "document"


def _is_random(doc_id: str) -> bool:
    try:
        return uuid.UUID(doc_id).version == 4
    except ValueError:
        return False


def _anchors(document: Document, label: object) -> tuple[Anchor, ...]:
    """The page that the reader names, in place of lines that are those of no file."""
    if label is None or not str(label).strip():
        return document.anchors
    text = str(label).strip()
    if text.isdecimal() and int(text) > 0:
        return (Anchor(0, page=int(text)),)
    return (Anchor(0, part=f"page {text}"),)


def _plain(value: Any) -> Any:
    """A value whose keys can be sorted, whatever they are."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _meta(metadata: Mapping[str, Any]) -> dict[str, MetaValue]:
    """Keep what filters can use: texts, numbers, flags and lists of texts."""
    kept: dict[str, MetaValue] = {}
    for key, value in metadata.items():
        if key in _VOLATILE:
            continue
        name = str(key).strip().lower()
        if isinstance(value, str | int | float | bool):
            kept[name] = value
        elif isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
            words: Sequence[str] = value
            kept[name] = tuple(words)
    return kept
