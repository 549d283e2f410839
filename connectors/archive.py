"""What is in archives, as documents of their own: `a.zip!/inner/x.md`. Nothing is ever unpacked to disk."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, NamedTuple, Protocol, cast

from epicrag.connectors.base import (
    MEBIBYTE,
    Limits,
    RefusedError,
    Watch,
    file_too_big,
    too_dense,
    too_inflated,
    too_many_members,
)
from epicrag.connectors.found import told_apart
from epicrag.types import Document, FileReport, Unread

if TYPE_CHECKING:
    from typing import Self

    from epicrag.types import Entry

_Unpack = Callable[[IO[bytes]], IO[bytes]]
_SINGLE: Mapping[str, _Unpack] = {
    ".gz": lambda file: cast("IO[bytes]", gzip.GzipFile(fileobj=file)),
    ".bz2": cast("_Unpack", bz2.BZ2File),
    ".xz": cast("_Unpack", lzma.LZMAFile),
}
"""Packed streams: of one file, or of a tar archive."""
_TARS = {
    ".tar": "", ".tar.gz": ".gz", ".tgz": ".gz", ".tar.bz2": ".bz2", ".tbz2": ".bz2", ".tbz": ".bz2",
    ".tar.xz": ".xz", ".txz": ".xz",
}  # fmt: skip
_SMALL = 16 * MEBIBYTE
"""What unpacks to less does no harm, whatever its ratio."""
_NO_TIME_LIMIT = 1e9
_OPEN_AT_ONCE = 4
_TAR_BLOCK = tarfile.BLOCKSIZE

WhyIgnored = Callable[[str, bool], str | None]
"""Of the path of a member or a folder of members, and whether it is a folder: why it is passed over."""


class Item(NamedTuple):
    """One member: its number in the archive, its name as a relative path, its size as declared."""

    number: int
    name: str
    size: int
    problem: str | None = None
    """Why it is not read, whatever it holds."""


class _Opened(Protocol):
    """An archive that is open for reading."""

    def items(self, watch: Watch) -> Iterator[Item]: ...

    def load(self, item: Item, most: int) -> bytes:
        """Return up to `most` bytes of a member. RefusedError: over a limit; what its library raises."""


def is_archive(path: str) -> bool:
    """Is this the name of an archive whose members are read? Office files and e-books are none."""
    return _ending(path) is not None


@dataclass(frozen=True, slots=True)
class Listing:
    """What an archive holds."""

    entries: tuple[Entry, ...]
    reports: tuple[FileReport, ...]
    passed: Mapping[str, str]
    spare: frozenset[str]
    """Archives that could not be listed."""


def members(path: str, limits: Limits, shelf: Shelf, why_ignored: WhyIgnored) -> Listing:
    """List the members of an archive file, those of archives within it too, as deep as the limits say."""
    tour = _Tour(limits, shelf, why_ignored, Watch(limits))
    tour.visit(_Outer(path, limits.max_file_bytes), 0)
    return Listing(
        entries=tuple(tour.entries),
        reports=tuple(told_apart(tour.reports, {entry.path for entry in tour.entries}).values()),
        passed=tour.passed,
        spare=frozenset(report.path for report in tour.reports if report.status == "failed"),
    )


@dataclass(slots=True, eq=False)
class Shelf:
    """Keeps the archives that were opened last, so that one pass over their members opens each once."""

    _opened: OrderedDict[str, _Opened] = field(default_factory=OrderedDict)

    def get(self, archive: _Archive, limits: Limits) -> _Opened | Unread:
        if (opened := self._opened.get(archive.path)) is None:
            data = archive.load()
            found = data if isinstance(data, Unread) else _open(archive.path, data, limits)
            if isinstance(found, Unread):
                return found
            self._opened[archive.path] = opened = found
        self._opened.move_to_end(archive.path)
        while len(self._opened) > _OPEN_AT_ONCE:
            self._opened.popitem(last=False)
        return opened


class _Archive(Protocol):
    """Something whose bytes are an archive."""

    @property
    def path(self) -> str: ...
    def load(self) -> bytes | Unread: ...


@dataclass(frozen=True, slots=True)
class _Outer:
    """An archive that is a file."""

    path: str
    max_bytes: int

    def load(self) -> bytes | Unread:
        from epicrag.connectors.read import load

        return load(self.path, self.max_bytes, follow=False)


@dataclass(frozen=True, slots=True)
class Member:
    """One member of an archive."""

    archive: _Archive
    item: Item
    limits: Limits
    shelf: Shelf

    @property
    def path(self) -> str:
        return f"{self.archive.path}!/{self.item.name}"

    def __str__(self) -> str:
        return f"member {self.item.number + 1} of {self.archive.path}"

    @property
    def size(self) -> int:
        return self.item.size

    def load(self) -> bytes | Unread:
        """Return its bytes, or why they cannot be had."""
        most = self.limits.max_file_bytes
        try:
            opened = self.shelf.get(self.archive, self.limits)
            if isinstance(opened, Unread):
                return opened
            data = opened.load(self.item, most + 1)
        except RefusedError as refused:
            return refused.unread
        except Exception as error:  # noqa: BLE001 - whatever the archive's library raises
            return Unread("failed", f"damaged in its archive: {_told(error)}")
        return data if len(data) <= most else Unread("skipped", file_too_big(len(data), most))

    def digest(self) -> str:
        data = self.load()
        if isinstance(data, Unread):
            raise OSError(data.reason)
        return hashlib.sha256(data).hexdigest()

    def read(self) -> Document | Unread:
        from epicrag.connectors.read import read_bytes

        if (reason := self.refusal()) is not None:
            return Unread("unsupported", reason)
        data = self.load()
        return data if isinstance(data, Unread) else read_bytes(self.path, data, limits=self.limits)

    def refusal(self) -> str | None:
        from epicrag.connectors.read import refusal

        return refusal(self.item.name, self.limits)


@dataclass(slots=True)
class _Tour:
    """One listing, of an archive and those within it; their limits are shared."""

    limits: Limits
    shelf: Shelf
    why_ignored: WhyIgnored
    watch: Watch
    entries: list[Entry] = field(default_factory=list)
    reports: list[FileReport] = field(default_factory=list)
    passed: dict[str, str] = field(default_factory=dict)
    n_members: int = 0
    n_bytes: int = 0

    def visit(self, archive: _Archive, depth: int) -> None:
        """Take all members; an archive that cannot be listed whole is taken not at all."""
        n_entries, n_reports = len(self.entries), len(self.reports)
        try:
            opened = self.shelf.get(archive, self._left())
            if isinstance(opened, Unread):
                self._refuse(archive.path, opened)
                return
            within = [
                member
                for item in opened.items(self.watch)
                if (member := self._take(archive, item, depth)) is not None
            ]
        except RefusedError as refused:
            problem = refused.unread
        except Exception as error:  # noqa: BLE001 - whatever the archive's library raises
            problem = Unread("failed", f"damaged archive: {_told(error)}")
        else:
            for member in within:  # afterwards: an archive is listed in one pass
                self.visit(member, depth + 1)
            return
        del self.entries[n_entries:], self.reports[n_reports:]
        self._refuse(archive.path, problem)

    def _left(self) -> Limits:
        return replace(
            self.limits,
            max_archive_members=max(self.limits.max_archive_members - self.n_members, 1),
            max_inflated_bytes=max(self.limits.max_inflated_bytes - self.n_bytes, 1),
        )

    def _take(self, archive: _Archive, item: Item, depth: int) -> Member | None:
        """Take one member; return it when it is an archive to visit."""
        self._count(item)
        member = Member(archive, item, self.limits, self.shelf)
        if item.problem is not None:
            self._refuse(member.path, Unread("skipped", item.problem))
        elif self._is_ignored(archive.path, item.name):
            pass
        elif item.size > self.limits.max_file_bytes:
            reason = file_too_big(item.size, self.limits.max_file_bytes)
            self._refuse(member.path, Unread("skipped", reason))
        elif not is_archive(item.name):
            self.entries.append(member)
        elif depth < self.limits.max_archive_depth:
            return member
        else:
            reason = (
                f"an archive {depth + 1} deep in others; raise the limit with max_archive_depth"
            )
            self._refuse(member.path, Unread("skipped", reason))
        return None

    def _count(self, item: Item) -> None:
        self.watch.check()
        self.n_members += 1
        self.n_bytes += item.size
        if self.n_members > self.limits.max_archive_members:
            raise RefusedError(too_many_members(self.n_members, self.limits.max_archive_members))
        if self.n_bytes > self.limits.max_inflated_bytes:
            raise RefusedError(too_inflated(self.n_bytes, self.limits.max_inflated_bytes))

    def _is_ignored(self, archive: str, name: str) -> bool:
        """Are the member, or a folder that it is in, passed over?"""
        parts = name.split("/")
        for n in range(1, len(parts) + 1):
            path = f"{archive}!/{'/'.join(parts[:n])}"
            if path in self.passed:
                return True
            if (why := self.why_ignored(path, n < len(parts))) is not None:
                self.passed[path] = why
                return True
        return False

    def _refuse(self, path: str, unread: Unread) -> None:
        self.reports.append(FileReport(path, unread.status, unread.reason))


def _told(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:450]


def _ending(path: str) -> str | None:
    """The longest ending of a name that makes it an archive."""
    name = os.path.basename(path).lower()
    endings = (".zip", *_TARS, *_SINGLE)
    return max((end for end in endings if name.endswith(end)), key=len, default=None)


def _open(path: str, data: bytes, limits: Limits) -> _Opened | Unread:
    ending = _ending(path) or ""
    if ending == ".zip":
        from epicrag.connectors.zips import open_zip

        # The time of one member is watched here: reading them all includes all that is done between.
        opened = open_zip(data, replace(limits, max_file_seconds=_NO_TIME_LIMIT))
        return opened if isinstance(opened, Unread) else _Zip(opened)
    if not data:
        return Unread("failed", "0 bytes: an empty file, not an archive")
    if ending in _TARS:
        return _Tar(data, _TARS[ending], limits)
    name = os.path.basename(path)[: -len(ending)] or "content"
    return _Packed(data, ending, name, limits)


class _Zip:
    """A ZIP archive, its limits checked by whoever opened it."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._infos = archive.infolist()

    def items(self, watch: Watch) -> Iterator[Item]:
        for number, info in enumerate(self._infos):
            if not info.filename.endswith("/"):  # is_dir() fails for a member without a name
                kind = info.external_attr >> 28  # of the Unix mode: 8 is a regular file, 0 unknown
                problem = None if kind in (0, 8) else "a link or device in the archive"
                yield _item(number, _unix(info), info.file_size, problem)

    def load(self, item: Item, most: int) -> bytes:
        with self._archive.open(self._infos[item.number]) as file:
            return file.read(most)


class _Tar:
    """A tar archive, packed or not. Members are read best in their order: going back starts anew."""

    def __init__(self, data: bytes, packing: str, limits: Limits) -> None:
        self._data = data
        self._packing = packing
        self._limits = limits
        self._restart(Watch(limits))

    def items(self, watch: Watch) -> Iterator[Item]:
        self._restart(watch)
        last = ""
        try:
            for number, info in enumerate(self._infos):
                last = info.name
                if not info.isdir():
                    problem = None
                    if not info.isreg() or info.issparse():
                        problem = "a link or device in the archive, or a sparse file"
                    yield _item(number, info.name, 0 if problem else info.size, problem)
            self._check_end()
        except (tarfile.TarError, EOFError) as error:
            where = f"after its member {last!r}" if last else "at its beginning"
            raise tarfile.ReadError(f"cut off or broken {where}: {error}") from error
        self._restart(watch)

    def _check_end(self) -> None:
        """Raise ReadError where the archive does not end as one does: members may be lost then."""
        stream = cast("IO[bytes]", self._tar.fileobj)
        # The first block of zeros was taken for a header.
        if len(rest := stream.read(_TAR_BLOCK)) < _TAR_BLOCK:
            raise tarfile.ReadError("its end is missing")
        while rest:
            if rest.count(0) < len(rest):
                raise tarfile.ReadError("something stands behind its end")
            rest = stream.read(MEBIBYTE)

    def load(self, item: Item, most: int) -> bytes:
        if item.number < self._next:
            self._restart(Watch(self._limits))
        self._stream.watch = Watch(self._limits)
        for info in self._infos:
            self._next += 1
            if self._next > item.number:
                file = self._tar.extractfile(info)
                return b"" if file is None else file.read(most)
        raise EOFError("the archive ends before this member")

    def _restart(self, watch: Watch) -> None:
        packed: IO[bytes] = io.BytesIO(self._data)
        inner = _SINGLE[self._packing](packed) if self._packing else packed
        self._stream = _Counted(inner, len(self._data), self._limits, watch)
        # As a stream: nothing is read twice, and tarfile does not look for other packings.
        self._tar = _open_tar(self._stream)
        self._infos = iter(self._tar)
        self._next = 0


def _open_tar(stream: _Counted) -> tarfile.TarFile:
    return tarfile.open(
        fileobj=cast("IO[bytes]", stream), mode="r|", errors="surrogateescape", tarinfo=_Header
    )


class _Header(tarfile.TarInfo):
    """A member's head. One that is none is an error: tarfile takes it for the archive's end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        is_end = len(buf) == _TAR_BLOCK and buf.count(0) == len(buf)
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if is_end:
                raise
            raise tarfile.ReadError(str(error)) from error


class _Packed:
    """One packed file: an archive of one member."""

    def __init__(self, data: bytes, packing: str, name: str, limits: Limits) -> None:
        self._data = data
        self._packing = packing
        self._name = name
        self._limits = limits

    def items(self, watch: Watch) -> Iterator[Item]:
        yield _item(0, self._name, 0, None)

    def load(self, item: Item, most: int) -> bytes:
        inner = _SINGLE[self._packing](io.BytesIO(self._data))
        stream = _Counted(inner, len(self._data), self._limits, Watch(self._limits))
        pieces, left = [], most
        while left and (piece := stream.read(min(left, MEBIBYTE))):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)


class _Counted:
    """A stream that is being unpacked: what comes out is counted, and how long it takes."""

    def __init__(self, stream: IO[bytes], packed: int, limits: Limits, watch: Watch) -> None:
        self._stream = stream
        self._packed = max(packed, 1)
        self._limits = limits
        self._total = 0
        self.watch = watch

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._total += len(data)
        if self._total > self._limits.max_inflated_bytes:
            raise RefusedError(too_inflated(self._total, self._limits.max_inflated_bytes))
        ratio = self._total / self._packed
        if self._total > _SMALL and ratio > self._limits.max_inflation_ratio:
            raise RefusedError(too_dense("content", ratio, self._limits.max_inflation_ratio))
        self.watch.check()
        return data


def _unix(info: zipfile.ZipInfo) -> str:
    """The name of a member: many packers write UTF-8 without saying so, and DOS has another slash."""
    name = info.filename
    if not info.flag_bits & 0x800:
        try:
            name = name.encode("cp437").decode("utf-8")
        except UnicodeError:
            name = info.filename
    return name.replace("\\", "/")


def _item(number: int, name: str, size: int, problem: str | None) -> Item:
    """A member by its name as a relative path; one that leads out of the archive is a problem."""
    parts = PurePosixPath(name).parts
    is_drive = len(name) > 1 and name[1] == ":"
    if not parts:
        return Item(number, "?", size, "it has no name")
    if name.startswith("/") or is_drive or ".." in parts:
        return Item(number, name.strip("/") or "?", size, "its name leads out of the archive")
    return Item(number, "/".join(parts), size, problem)
