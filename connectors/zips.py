"""ZIP archives opened safely: what they say of themselves is checked first, then what they really hold.

Office files are ZIP archives too. Names of members are only ever keys, never paths: nothing is unpacked.
"""

from __future__ import annotations

import io
import struct
import zipfile
from typing import IO, TYPE_CHECKING, Any, cast

from epicrag.connectors.base import (
    MEBIBYTE,
    Limits,
    RefusedError,
    Watch,
    too_dense,
    too_inflated,
    too_many_members,
)
from epicrag.types import Unread

if TYPE_CHECKING:
    from typing import Self

_ENCRYPTED = 0x1
_PACKINGS = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "LZMA", 9: "Deflate64", 93: "Zstandard"}
_SMALL = 16 * MEBIBYTE
"""A member that unpacks to less than this does no harm, whatever its ratio: blank sheets reach 1,000."""
_LOCAL = b"PK\x03\x04"
_END = b"PK\x05\x06"
_END_SIZE = 22
_ENTRY_SIZE = 46
_LENGTHS = struct.Struct("<HHH")


def open_zip(data: bytes, limits: Limits) -> zipfile.ZipFile | Unread:
    """Open an archive within the limits; what is none, is cut off, locked or too big is an `Unread`.

    While its members are read, what comes out is counted: a member that unpacks to more than it declares,
    or all of them to more than the limit, raise RefusedError, and so does reading that takes too long.
    """
    if (count := _count_members(data)) > limits.max_archive_members:
        return too_many_members(count, limits.max_archive_members)  # before each gets an object
    try:
        archive = _GuardedZip(data, limits)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError) as error:
        return _damaged(data, error)
    refusal = _foreign_list(data) or _refusal(archive.infolist(), limits)
    if refusal is not None:
        archive.close()
        return refusal
    return archive


def _foreign_list(data: bytes) -> Unread | None:
    """Refuse an archive whose only member list is that of another one within it: it was cut off behind that.

    A list says how far before it its archive begins. What stands before that may be a program that unpacks the
    archive, and must not be members.
    """
    if (found := _directory(data)) is None:
        return None
    end, size, offset = found
    if end - size - offset > 0 and data.startswith(_LOCAL):
        reason = (
            "cut off: its own member list is missing, and the one found is of an archive within it"
        )
        return Unread("failed", f"{reason}; copy or download it again")
    return None


def _directory(data: bytes) -> tuple[int, int, int] | None:
    """Return where the member list ends, its length, and where it should begin; None: there is none."""
    at = len(data) - _END_SIZE
    if data[at : at + 4] != _END or data[-2:] != b"\0\0":  # there is a comment behind the end
        at = data.rfind(_END, max(len(data) - _END_SIZE - 0xFFFF, 0))
    if at < 0 or at + _END_SIZE > len(data):
        return None
    size, offset = (int.from_bytes(data[at + n : at + n + 4], "little") for n in (12, 16))
    wide = at - 76
    if (
        wide >= 0
        and data[at - 20 : at - 16] == b"PK\x06\x07"
        and data[wide : wide + 4] == b"PK\x06\x06"
    ):
        at = wide
        size, offset = (int.from_bytes(data[at + n : at + n + 8], "little") for n in (40, 48))
    return at, size, offset


def _count_members(data: bytes) -> int:
    """Count the entries of the directory, where `zipfile` will look for it; what is declared is no bound."""
    if (found := _directory(data)) is None:
        return 0
    at, size, _ = found
    count, entry = 0, max(at - size, 0)
    while entry + _ENTRY_SIZE <= at and data.startswith(b"PK\x01\x02", entry):
        count += 1
        entry += _ENTRY_SIZE + sum(_LENGTHS.unpack_from(data, entry + 28))  # name, extra, comment
    return count


def _damaged(data: bytes, error: Exception) -> Unread:
    if not data:
        return Unread("failed", "0 bytes: an empty file, not a ZIP archive")
    if not data.startswith((_LOCAL, _END)):
        return Unread("failed", "not a ZIP archive: its first bytes are not those of one")
    if _END not in data[-(_END_SIZE + 0xFFFF) :]:
        return Unread("failed", "cut off: the end of the ZIP is missing; copy or download it again")
    return Unread("failed", f"damaged ZIP archive: {error}")


def advised(reason: str) -> str:
    """Say what to do about a file that should be an archive of some format and is none."""
    return reason if ";" in reason else f"{reason}; name it as what it is, or copy it again"


def _refusal(members: list[zipfile.ZipInfo], limits: Limits) -> Unread | None:
    """Say what in the central directory forbids reading."""
    if len(members) > limits.max_archive_members:
        return too_many_members(len(members), limits.max_archive_members)
    total = sum(member.file_size for member in members)
    if total > limits.max_inflated_bytes:
        return too_inflated(total, limits.max_inflated_bytes)
    for member in members:
        if member.flag_bits & _ENCRYPTED:
            return Unread(
                "failed",
                f"locked: {member.filename!r} opens with a password only; save an open copy",
            )
        ratio = member.file_size / max(member.compress_size, 1)
        if member.file_size > _SMALL and ratio > limits.max_inflation_ratio:
            return too_dense(member.filename, ratio, limits.max_inflation_ratio)
        # The other packings give all they hold at once, before anything could be counted.
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            packing = _PACKINGS.get(member.compress_type, f"method {member.compress_type}")
            reason = f"{member.filename!r} is packed with {packing}, which is not read"
            return Unread("failed", f"{reason}; pack it again with ordinary ZIP compression")
    return None


class _GuardedZip(zipfile.ZipFile):
    """Counts what its members really hold, each once however often it is read."""

    def __init__(self, data: bytes, limits: Limits) -> None:
        super().__init__(io.BytesIO(data))
        self._limits = limits
        self._watch = Watch(limits)
        self._read_of: dict[int, int] = {}
        self._total = 0

    def open(
        self,
        name: str | zipfile.ZipInfo,
        mode: str = "r",
        pwd: bytes | None = None,
        *,
        force_zip64: bool = False,
    ) -> IO[bytes]:
        if mode != "r":
            raise ValueError("this archive is only read")
        info = name if isinstance(name, zipfile.ZipInfo) else self.getinfo(name)
        member = _Member(super().open(info), lambda position: self._count(info, position))
        return cast("IO[bytes]", member)

    def _count(self, info: zipfile.ZipInfo, position: int) -> None:
        """Note that a member was read up to here."""
        before = self._read_of.get(info.header_offset, 0)
        if position > before:
            self._read_of[info.header_offset] = position
            self._total += position - before
        if self._total > self._limits.max_inflated_bytes:
            raise RefusedError(too_inflated(self._total, self._limits.max_inflated_bytes))
        self._watch.check()


class _Member(io.BufferedIOBase):
    """A member being read, counted piece by piece."""

    _PIECE = MEBIBYTE

    def __init__(self, member: IO[bytes], count: Any) -> None:
        self._member = member
        self._count = count
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._member.seekable()

    def tell(self) -> int:
        return self._member.tell()

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._position = self._member.seek(offset, whence)
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and 0 <= size <= self._PIECE:
            return self._piece(size)
        left = -1 if size is None or size < 0 else size
        pieces = []
        while left and (piece := self._piece(self._PIECE if left < 0 else min(left, self._PIECE))):
            pieces.append(piece)
            left = left if left < 0 else left - len(piece)
        return b"".join(pieces)

    def read1(self, size: int = -1, /) -> bytes:
        return self._piece(self._PIECE if size < 0 else min(size, self._PIECE))

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        piece = self.read(len(view))
        view[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._member.close()
        super().close()

    def __enter__(self) -> Self:
        return self

    def _piece(self, size: int) -> bytes:
        piece = self._member.read(size)
        self._position += len(piece)
        self._count(self._position)
        return piece
