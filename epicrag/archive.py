"""An index as one file that any machine and any version can check: a zip of JSON lines, a matrix and KV.

    manifest.json     format, schema version, models, counts, and size and SHA-256 of every other file
    documents.jsonl   a document a line: path, digest, title, media, meta, reading
    chunks.jsonl      a passage a line, in reading order: all that a `Chunk` holds, its id, its KV's key
    vectors.npy       (N, dim) float32, the windows of all passages one after another
    kv/<key>.safetensors   as they lie in the index

Nothing in it is run or unpickled, and no name in it is used as a path.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from epicrag.errors import DamagedError, MismatchError, UsageError
from epicrag.types import Chunk, Document, MetaValue, Place

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORMAT = "epicrag-archive"
SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
DOCUMENTS, CHUNKS, VECTORS = PARTS = ("documents.jsonl", "chunks.jsonl", "vectors.npy")
KV = re.compile(r"kv/([0-9a-f]{64})\.safetensors")
_MANIFEST_BYTES = 256 << 20
_LINE_BYTES = 256 << 20
BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in the archive, as the manifest promises it."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an archive says of itself."""

    epicrag: str
    created: str
    embedder: Mapping[str, Any]
    """name, fingerprint, dim."""
    model: Mapping[str, str]
    """What decides KV: name, fingerprint, tokenizer_fingerprint, dtype, compile_mode, profile; empty without."""
    settings: Mapping[str, str]
    """Of the catalog, those that mean the same on every machine."""
    documents: int
    chunks: int
    vectors: int
    kv: int
    files: Mapping[str, Entry]

    def dump(self) -> bytes:
        head = {"format": FORMAT, "schema_version": SCHEMA_VERSION}
        return json.dumps({**head, **asdict(self)}, indent=1).encode()


def kv_name(key: str) -> str:
    return f"kv/{key}.safetensors"


# --- lines ---------------------------------------------------------------------------------------


def document_line(document: Document) -> dict[str, object]:
    return {
        "path": document.path,
        "digest": document.digest,
        "title": document.title,
        "media": document.media,
        "meta": dict(document.meta),
        "reading": document.reading,
    }


def chunk_line(chunk: Chunk, windows: int, key: str | None) -> dict[str, object]:
    return {**asdict(chunk), "id": chunk.id, "windows": windows, "kv": key}


def dumps(line: dict[str, object]) -> bytes:
    """One line. Paths need not be UTF-8: what is not stays an escaped surrogate."""
    return json.dumps(line, sort_keys=True).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class ChunkLine:
    chunk: Chunk
    windows: int
    key: str | None


def _document(line: dict[str, Any]) -> Document:
    meta = {str(name): _meta(value) for name, value in line["meta"].items()}
    return Document(
        path=_text(line["path"]),
        text="",
        digest=_text(line["digest"]),
        title=_optional(line["title"]),
        media=_text(line["media"]),
        meta=meta,
        reading=_reading(line.get("reading", 0)),
    )


def _chunk(line: dict[str, Any]) -> ChunkLine:
    place = line["place"]
    pair = {
        name: tuple(place[name]) if place[name] is not None else None for name in ("lines", "cells")
    }
    known = {name: place[name] for name in (f.name for f in fields(Place)) if name in place}
    values = {name: line[name] for name in (f.name for f in fields(Chunk)) if name in line}
    chunk = Chunk(**{**values, "place": Place(**{**known, **pair})})
    at = chunk.place
    counts = (chunk.ordinal, chunk.start, chunk.end, chunk.n_tokens, line["windows"])
    if not all(
        _is_count(n) for n in (*counts, *(at.lines or ()), 0 if at.page is None else at.page)
    ):
        raise ValueError("a number is none")
    for text in (chunk.document, chunk.text, *(at.cells or ())):
        _text(text)
    for maybe in (chunk.title, chunk.table, at.heading, at.part):
        _optional(maybe)
    if any(pair is not None and len(pair) != 2 for pair in (at.lines, at.cells)):
        raise ValueError("a place is none")
    if chunk.id != line["id"]:
        raise ValueError(f"the text of chunk {line['id']} has changed")
    key = line["kv"]
    if key is not None and not KV.fullmatch(kv_name(key)):
        raise ValueError("a KV key is none")
    return ChunkLine(chunk, line["windows"], key)


def _meta(value: object) -> MetaValue:
    if isinstance(value, list):
        return tuple(map(_text, value))
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int | float | bool):
        return value
    raise ValueError("a document's metadata hold what they cannot")


def _reading(value: object) -> int:
    if isinstance(value, int) and 0 <= value < 1 << 31:
        return value
    raise ValueError("a version of the readers is none")


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63  # what SQLite holds


def _text(value: object) -> str:
    """Return a text that can be written: paths may hold bytes that are no UTF-8, as Python escapes them."""
    if not isinstance(value, str):
        raise TypeError("a text is none")
    value.encode("utf-8", "surrogateescape")
    return value


def _optional(value: object) -> str | None:
    return None if value is None else _text(value)


# --- reading -------------------------------------------------------------------------------------


class Archive:
    """An archive that was opened and found whole: a context manager. See `Archive.open`."""

    def __init__(self, path: Path, file: zipfile.ZipFile, manifest: Manifest) -> None:
        self.path = path
        self._file = file
        self.manifest = manifest

    @classmethod
    def open(cls, path: Path) -> Archive:
        """Open an archive and check that its list of files, sizes and schema are what they may be.

        UsageError: it is none, or not there. DamagedError: its parts do not fit. MismatchError: written by
        a newer epicrag. The bytes themselves are checked by `verify`.
        """
        try:
            file = zipfile.ZipFile(path)
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
        except (zipfile.BadZipFile, ValueError) as error:
            raise damaged(path, f"it is no zip file, or cut short ({error})") from error
        try:
            manifest = _manifest(path, file)
            _check_names(path, file, manifest)
        except BaseException:
            file.close()
            raise
        return cls(path, file, manifest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    @property
    def keys(self) -> set[str]:
        """Keys of the KV that is in it."""
        return {found[1] for name in self.manifest.files if (found := KV.fullmatch(name))}

    @property
    def nbytes(self) -> int:
        return sum(entry.bytes for entry in self.manifest.files.values())

    def verify(self, name: str) -> None:
        """Read one file and compare it with its checksum; DamagedError when it differs."""
        digest = hashlib.sha256()
        for block in self.blocks(name):
            digest.update(block)
        if digest.hexdigest() != self.manifest.files[name].sha256:
            raise damaged(self.path, f"{name} is not what it was: its checksum differs")

    def blocks(self, name: str) -> Iterator[bytes]:
        """Yield a file's bytes: exactly as many as promised, whatever a crafted zip would unpack to."""
        left = self.manifest.files[name].bytes
        with _Reading(self.path, name), self._file.open(name) as stream:
            while block := stream.read(min(BLOCK, left + 1)):
                left -= len(block)
                if left < 0:
                    break
                yield block
        if left:
            raise damaged(self.path, f"{name} is longer or shorter than it should be")

    def documents(self) -> Iterator[Document]:
        for line in self._lines(DOCUMENTS):
            with self._parsing(DOCUMENTS):
                yield _document(line)

    def chunks(self) -> Iterator[ChunkLine]:
        for line in self._lines(CHUNKS):
            with self._parsing(CHUNKS):
                yield _chunk(line)

    def vectors(self) -> NDArray[np.float32]:
        """Return all vectors, (N, dim)."""
        import numpy as np

        from epicrag.index.catalog import checked

        with self._parsing(VECTORS), _Reading(self.path, VECTORS):
            dim = int(self.manifest.embedder.get("dim", 0))
            with self._file.open(VECTORS) as stream:
                if np.lib.format.read_magic(stream) != (1, 0):
                    raise ValueError("its form is another")
                try:
                    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
                except Exception as error:
                    raise ValueError("it has no head") from error
                if dtype != np.float32 or shape != (self.manifest.vectors, dim):
                    raise ValueError(f"{shape} of {dtype}")  # before room is taken for it
            with self._file.open(VECTORS) as stream:
                array = np.lib.format.read_array(stream, allow_pickle=False)
            return checked(array)

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        with _Reading(self.path, name), self._file.open(name) as stream:
            yield from map(self._line, _cut(stream))

    def _line(self, raw: bytes) -> dict[str, Any]:
        with self._parsing("a line"):
            line = json.loads(raw)
            if not isinstance(line, dict):
                raise TypeError("it is no object")
            return line

    def _parsing(self, name: str) -> _Translated:
        return _Translated(self.path, name)


class _Translated:
    """Whatever is wrong with what was parsed within is damage of the archive."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        wrong = (ValueError, KeyError, TypeError, AttributeError, RecursionError, EOFError)
        if isinstance(error, wrong):
            detail = f"{self._name}: {type(error).__name__}: {error}"
            raise damaged(self._path, detail) from error


class _Reading(_Translated):
    """What a torn zip raises while it is read."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        import zlib

        if isinstance(error, zipfile.BadZipFile | zlib.error | NotImplementedError | EOFError):
            raise damaged(self._path, f"{self._name}: {error}") from error


def _cut(stream: IO[bytes]) -> Iterator[bytes]:
    while line := stream.readline(_LINE_BYTES):
        yield line


def damaged(path: Path, detail: str) -> DamagedError:
    return DamagedError(
        f"the archive {path} is damaged: {detail}", "copy it again, or export it again"
    )


def _manifest(path: Path, file: zipfile.ZipFile) -> Manifest:
    infos = [info for info in file.infolist() if info.filename == MANIFEST]
    if len(infos) != 1 or infos[0].file_size > _MANIFEST_BYTES:
        raise UsageError(
            f"{path} is no archive of epicrag: it has no {MANIFEST}",
            "give a file that `epicrag export` wrote",
        )
    with _Translated(path, MANIFEST), _Reading(path, MANIFEST):
        facts = json.loads(file.read(MANIFEST))
        if facts.pop("format") != FORMAT:
            raise ValueError("another format")
        version = facts.pop("schema_version")
        if version != SCHEMA_VERSION:
            raise MismatchError(
                f"{path} was written by another version of epicrag: its schema is {version}, "
                f"this version reads {SCHEMA_VERSION}",
                "update epicrag, or export it again with this version",
            )
        files = {name: Entry(**entry) for name, entry in facts.pop("files").items()}
        manifest = Manifest(**facts, files=files)
        _check_types(manifest)
    return manifest


def _check_types(manifest: Manifest) -> None:
    numbers = (manifest.documents, manifest.chunks, manifest.vectors, manifest.kv)
    sizes = [entry.bytes for entry in manifest.files.values()]
    if not all(type(n) is int and n >= 0 for n in (*numbers, *sizes)):
        raise ValueError("a number is none")
    texts = {**manifest.settings, **manifest.model}
    if not all(isinstance(text, str) for pair in texts.items() for text in pair):
        raise ValueError("a setting is no text")
    if not manifest.vectors and not manifest.embedder:
        return
    kinds = {name: type(value) for name, value in manifest.embedder.items()}
    if kinds != {"name": str, "fingerprint": str, "dim": int}:
        raise ValueError("its embedder is not named")


def _check_names(path: Path, file: zipfile.ZipFile, manifest: Manifest) -> None:
    """Only the files that belong there, each once, and as big as promised."""
    sizes: dict[str, int] = {}
    for info in file.infolist():
        if info.filename in sizes:
            raise damaged(path, f"{info.filename} is in it twice")
        sizes[info.filename] = info.file_size
    del sizes[MANIFEST]
    wanted = {name: entry.bytes for name, entry in manifest.files.items()}
    strange = [name for name in sizes if name not in PARTS and not KV.fullmatch(name)]
    if strange:
        raise damaged(path, f"{strange[0]!r} does not belong there")
    if sizes != wanted or not set(PARTS) <= set(wanted):
        raise damaged(path, "its files are not those that its manifest names")
