"""Packages of Office Open XML (docx, pptx, xlsx): parts, how they are related, properties."""

from __future__ import annotations

import io
import posixpath
import zipfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from epicrag.connectors.base import Limits, RefusedError
from epicrag.connectors.properties import metadata
from epicrag.connectors.xmls import local, parse_xml
from epicrag.connectors.zips import advised, open_zip
from epicrag.types import Unread

if TYPE_CHECKING:
    from epicrag.types import MetaValue

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_SCHEMAS = b"http://schemas.openxmlformats.org/"
_STRICT = (
    (b"http://purl.oclc.org/ooxml/wordprocessingml/main", b"wordprocessingml/2006/main"),
    (b"http://purl.oclc.org/ooxml/spreadsheetml/main", b"spreadsheetml/2006/main"),
    (b"http://purl.oclc.org/ooxml/presentationml/main", b"presentationml/2006/main"),
    (b"http://purl.oclc.org/ooxml/officeDocument/math", b"officeDocument/2006/math"),
    (
        b"http://purl.oclc.org/ooxml/officeDocument/relationships",
        b"officeDocument/2006/relationships",
    ),
    (b"http://purl.oclc.org/ooxml/drawingml/", b"drawingml/2006/"),
)
_PROPERTIES = {
    "title": "title",
    "creator": "author",
    "modified": "date",
    "subject": "subject",
    "keywords": "keywords",
    "language": "language",
    "category": "category",
}


@dataclass(frozen=True, slots=True)
class Relation:
    """A part that a part refers to."""

    kind: str
    """The last word of the relationship's type: "image", "comments", "footnotes" …"""
    target: str
    """The name of the part, or an address where it is outside the package."""
    external: bool


class Package:
    """A package within its limits. Parts have names as in the ZIP, without a slash in front."""

    def __init__(self, data: bytes, limits: Limits, kind: str) -> None:
        """Open a package; raises RefusedError saying what is wrong. `kind` is what it should be."""
        if data.startswith(OLE):
            raise RefusedError(_locked_or_old(data, kind))
        archive = open_zip(data, limits)
        if isinstance(archive, Unread):
            raise RefusedError(_named(archive, kind))
        self._limits = limits
        self._archive = archive
        self._names = {name.lower(): name for name in archive.namelist()}
        main = [at for at in self.relations("") if at.kind == "officeDocument"]
        if not main or not self.has(main[0].target):
            reason = (
                f"a ZIP archive, but no {kind} file: it names no document; open it and save it as"
            )
            raise RefusedError(Unread("failed", f"{reason} what it is"))
        self.main = main[0].target
        self.is_strict = b"http://purl.oclc.org/ooxml/" in self._head(self.main)

    def has(self, name: str) -> bool:
        """Is there a part of this name?"""
        return name.lower() in self._names

    def read(self, name: str) -> bytes:
        """The bytes of a part, in the namespaces of the common variant of the format."""
        try:
            data = self._archive.read(self._names[name.lower()])
        except _DAMAGE as error:
            raise RefusedError(_damaged(name, error)) from error
        return transitional(data)

    def open(self, name: str) -> IO[bytes]:
        """A part to be read piece by piece."""
        if self.is_strict:
            return io.BytesIO(self.read(name))
        return self._archive.open(self._names[name.lower()])

    def xml(self, name: str) -> Any:
        """The root element of a part; None where there is no such part."""
        return parse_xml(self.read(name), name) if self.has(name) else None

    def relations(self, name: str) -> list[Relation]:
        """What a part refers to; of the package as a whole for ""."""
        return list(self.relations_by_id(name).values())

    def relations_by_id(self, name: str) -> dict[str, Relation]:
        """What a part refers to, by the ids that stand in it."""
        folder, base = posixpath.split(name)
        root = self.xml(posixpath.join(folder, "_rels", f"{base}.rels"))
        found: dict[str, Relation] = {}
        for node in root if root is not None else ():
            target, kind = node.get("Target"), node.get("Type", "")
            if not target or local(node) != "Relationship":
                continue
            external = node.get("TargetMode") == "External"
            if not external:
                target = posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")
            found[node.get("Id", "")] = Relation(kind.rpartition("/")[2], target, external)
        return found

    def related(self, name: str, kind: str) -> list[str]:
        """The parts of a kind that a part refers to, as far as they are there."""
        relations = self.relations(name)
        return [
            relation.target
            for relation in relations
            if relation.kind == kind and not relation.external and self.has(relation.target)
        ]

    def meta(self) -> dict[str, MetaValue]:
        """The core properties."""
        values: dict[str, str | None] = {}
        created = None
        for name in self.related("", "core-properties"):
            for node in self.xml(name):
                if local(node) in _PROPERTIES:
                    values[_PROPERTIES[local(node)]] = node.text
                elif local(node) == "created":
                    created = node.text
        values["date"] = values.get("date") or created
        return metadata(values)

    def for_library(self, data: bytes) -> io.BytesIO:
        """The file for a library that knows the common namespaces only, and does not guard itself."""
        if not self.is_strict:
            for info in self._archive.infolist():
                self._inflate(info)
            return io.BytesIO(data)
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as copy:
            for info in self._archive.infolist():
                copy.writestr(info.filename, transitional(self._inflate(info, keep=True)))
        file.seek(0)
        return file

    def _inflate(self, info: zipfile.ZipInfo, *, keep: bool = False) -> bytes:
        """Read a member through the guard once; XML with entities is refused."""
        from epicrag.connectors.xmls import refuse_entities

        try:
            with self._archive.open(info) as member:
                head = member.read(4096)
                if info.filename.lower().endswith((".xml", ".rels", ".vml")):
                    refuse_entities(head, info.filename)
                return head + member.read() if keep else b""
        except _DAMAGE as error:
            raise RefusedError(_damaged(info.filename, error)) from error

    def _head(self, name: str) -> bytes:
        try:
            with self._archive.open(self._names[name.lower()]) as member:
                return member.read(8192)
        except _DAMAGE as error:
            raise RefusedError(_damaged(name, error)) from error


_DAMAGE = (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OSError, RuntimeError)


def transitional(data: bytes) -> bytes:
    """XML of the strict variant in the namespaces of the common one."""
    if b"http://purl.oclc.org/ooxml/" in data[:8192]:
        for strict, common in _STRICT:
            data = data.replace(strict, _SCHEMAS + common)
    return data


def _damaged(name: str, error: Exception) -> Unread:
    return Unread("failed", f"damaged: its part {name} cannot be unpacked: {error}"[:300])


def _named(refusal: Unread, kind: str) -> Unread:
    """Say that a file is not what its name says, if that is what was wrong."""
    if refusal.status == "failed" and refusal.reason.startswith(
        ("not a ZIP", "cut off", "0 bytes")
    ):
        return Unread("failed", f"not a whole {kind} file: {advised(refusal.reason)}")
    return refusal


def _locked_or_old(data: bytes, kind: str) -> Unread:
    from epicrag.connectors.ole import is_encrypted_package

    if is_encrypted_package(data):
        reason = f"encrypted {kind} file: it opens with a password only; save an open copy"
        return Unread("failed", reason)
    reason = (
        f"not a {kind} file: it holds an old Office file (doc, xls, ppt); name it as what it is"
    )
    return Unread("failed", reason)
