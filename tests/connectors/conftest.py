"""Inputs made in code: text files, PDFs, and token counters that need no model."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from epicrag.connectors.read import read
from epicrag.types import Document

MakePdf = Callable[..., bytes]
ReadBytes = Callable[[str, bytes], Document]


class WordCounter:
    """One token for each word with the space before it, and for each 8 characters of a longer one."""

    def __init__(self) -> None:
        self.longest_text = 0

    def count(self, text: str) -> int:
        return len(self.ends(text))

    def ends(self, text: str) -> Sequence[int]:
        self.longest_text = max(self.longest_text, len(text))
        ends, start = [], 0
        for at in range(1, len(text) + 1):
            edge = at == len(text) or (text[at].isspace() and not text[at - 1].isspace())
            if edge or at - start == 8:
                ends.append(at)
                start = at
        return ends


class ByteCounter:
    """One token for each byte of UTF-8, as a byte-level tokenizer that knows no merges."""

    def count(self, text: str) -> int:
        return len(text.encode("utf-8", "surrogatepass"))

    def ends(self, text: str) -> Sequence[int]:
        sizes = (len(character.encode("utf-8", "surrogatepass")) for character in text)
        return [at for at, size in enumerate(sizes, 1) for _ in range(size)]


@pytest.fixture
def words() -> WordCounter:
    return WordCounter()


@pytest.fixture
def octets() -> ByteCounter:
    return ByteCounter()


@pytest.fixture
def read_bytes(tmp_path: Path) -> ReadBytes:
    """Write bytes under a name, and read them as a document that must be readable."""

    def write_and_read(name: str, data: bytes) -> Document:
        path = tmp_path / name
        path.write_bytes(data)
        document = read(str(path))
        assert isinstance(document, Document), document
        return document

    return write_and_read


@pytest.fixture
def make_pdf() -> MakePdf:
    return _make_pdf


# Text matrices that make text upright on a page that is shown rotated.
_UPRIGHT = {
    0: "1 0 0 1 72 720",
    90: "0 1 -1 0 72 72",
    180: "-1 0 0 -1 540 72",
    270: "0 -1 1 0 540 720",
}


def _make_pdf(
    pages: Sequence[Sequence[str]],
    *,
    title: str = "",
    rotate: int = 0,
    bookmarks: Sequence[tuple[str, int]] = (),
    encrypted: bool = False,
) -> bytes:
    """A PDF with one list of lines for each page; `bookmarks` are (title, page index)."""
    n = len(pages)
    kids = " ".join(f"{4 + 2 * at} 0 R" for at in range(n))
    first_mark = 4 + 2 * n
    root = "<< /Type /Catalog /Pages 2 0 R"
    root += f" /Outlines {first_mark} 0 R >>" if bookmarks else " >>"
    objects = [
        root,
        f"<< /Type /Pages /Kids [{kids}] /Count {n} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for at, page in enumerate(pages):
        shown = "".join(f"({line}) Tj 0 -16 Td " for line in page)
        stream = f"BT /F1 12 Tf {_UPRIGHT[rotate]} Tm {shown}ET" if page else "0 0 100 100 re f"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Rotate {rotate} "
            f"/Resources << /Font << /F1 3 0 R >> >> /Contents {5 + 2 * at} 0 R >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    if bookmarks:
        objects += _outline(bookmarks, first_mark)
    objects.append(f"<< /Title ({title}) >>")
    return _file(objects, encrypted)


def _outline(bookmarks: Sequence[tuple[str, int]], number: int) -> list[str]:
    last = number + len(bookmarks)
    objects = [f"<< /Type /Outlines /First {number + 1} 0 R /Last {last} 0 R >>"]
    for at, (title, page) in enumerate(bookmarks, number + 1):
        links = f" /Prev {at - 1} 0 R" if at > number + 1 else ""
        links += f" /Next {at + 1} 0 R" if at < last else ""
        target = f"[{4 + 2 * page} 0 R /Fit]"
        objects.append(f"<< /Title ({title}) /Parent {number} 0 R /Dest {target}{links} >>")
    return objects


def _file(objects: list[str], encrypted: bool) -> bytes:
    body, offsets = "%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n{content}\nendobj\n"
    key = "00" * 32
    lock = (
        f" /Encrypt << /Filter /Standard /V 1 /R 2 /O <{key}> /U <{key}> /P -4 >> /ID [<00> <00>]"
    )
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    trailer = f"/Size {len(objects) + 1} /Root 1 0 R /Info {len(objects)} 0 R"
    trailer += lock if encrypted else ""
    return (
        f"{body}xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
        f"trailer << {trailer} >>\nstartxref\n{len(body)}\n%%EOF\n"
    ).encode("latin-1")


MakeZip = Callable[[dict[str, str | bytes]], bytes]
MakeOle = Callable[[dict[tuple[str, ...], bytes]], bytes]


@pytest.fixture(scope="session")
def make_zip() -> MakeZip:
    """A ZIP archive of these members."""

    def make(members: dict[str, str | bytes]) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return file.getvalue()

    return make


@pytest.fixture(scope="session")
def make_ole() -> MakeOle:
    """A container of the old Office formats, of streams by their paths."""
    return _make_ole


_SECTOR, _MINI, _CUTOFF, _END, _FREE = 512, 64, 4096, 0xFFFFFFFE, 0xFFFFFFFF


def _make_ole(streams: dict[tuple[str, ...], bytes]) -> bytes:
    paths = sorted({path[:n] for path in streams for n in range(1, len(path) + 1)})
    ids = {path: at for at, path in enumerate(paths, 1)}
    mini, mini_table, starts = b"", list[int](), dict[tuple[str, ...], int]()
    sectors, table = list[bytes](), list[int]()

    def store(data: bytes) -> int:
        first = len(sectors)
        pieces = [data[at : at + _SECTOR] for at in range(0, len(data), _SECTOR)]
        for number, piece in enumerate(pieces, 1):
            sectors.append(piece.ljust(_SECTOR, b"\0"))
            table.append(_END if number == len(pieces) else len(sectors))
        return first if pieces else _END

    for path, data in streams.items():
        if len(data) >= _CUTOFF:
            starts[path] = store(data)
            continue
        starts[path] = len(mini_table) if data else _END
        count = -(-len(data) // _MINI)
        mini += data.ljust(count * _MINI, b"\0")
        mini_table += [len(mini_table) + at for at in range(1, count)] + ([_END] if count else [])
    root = store(mini)
    mini_fat = store(b"".join(struct.pack("<I", at) for at in mini_table))

    def entry(name: str, kind: int, child: int, sibling: int, start: int, size: int) -> bytes:
        wide = name.encode("utf-16-le")
        head = wide.ljust(64, b"\0") + struct.pack("<HBB", len(wide) + 2, kind, 1)
        links = struct.pack("<III", _FREE, sibling, child)
        return head + links + bytes(36) + struct.pack("<IQ", start, size)

    def children(parent: tuple[str, ...]) -> list[tuple[str, ...]]:
        return [path for path in paths if path[:-1] == parent]

    def first(parent: tuple[str, ...]) -> int:
        found = children(parent)
        return ids[found[0]] if found else _FREE

    entries = entry("Root Entry", 5, first(()), _FREE, root, len(mini))
    for path in paths:
        kin = children(path[:-1])
        at = kin.index(path) + 1
        sibling = ids[kin[at]] if at < len(kin) else _FREE
        is_stream = path in streams
        start, size = (starts[path], len(streams[path])) if is_stream else (0, 0)
        entries += entry(path[-1], 2 if is_stream else 1, first(path), sibling, start, size)
    directory = store(entries)
    n_fat = 1
    while (len(sectors) + n_fat) * 4 > n_fat * _SECTOR:
        n_fat += 1
    fat_at = len(sectors)
    table += [0xFFFFFFFD] * n_fat
    fat = b"".join(struct.pack("<I", at) for at in table).ljust(n_fat * _SECTOR, b"\xff")
    head = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16)
    head += struct.pack("<HHHHH6x", 0x3E, 3, 0xFFFE, 9, 6)
    head += struct.pack(
        "<IIIIIIIIII", 0, n_fat, directory, 0, _CUTOFF, mini_fat, 1, _END, 0, fat_at
    )
    head += b"".join(
        struct.pack("<I", fat_at + at if at < n_fat else _FREE) for at in range(1, 109)
    )
    return head + b"".join(sectors) + fat
