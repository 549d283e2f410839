"""Files that made other systems fail, made in code. Each test stands for reports that others have had to read."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def docx_with_table() -> bytes:
    """A Word document whose answer is in a table of two columns."""
    import docx

    document = docx.Document()
    document.add_heading("Results", 1)
    table = document.add_table(rows=2, cols=2)
    for cell, text in zip(table._cells, ("Region", "Sales", "North", "17"), strict=True):
        cell.text = text
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def pdf_of(*pages: str, image_only: bool = False) -> bytes:
    """A PDF with a line of text a page; `image_only` draws a grey box where a scan would be."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>"]
    first = 4
    kids = " ".join(f"{first + 2 * n} 0 R" for n in range(len(pages)))
    objects.append(f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode())
    objects.append(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    for n, text in enumerate(pages):
        drawn = (
            "0.5 g 72 600 300 100 re f" if image_only else f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET"
        )
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] "
            b"/Resources << /Font << /F1 3 0 R >> >> /Contents %d 0 R >>" % (first + 2 * n + 1)
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(drawn), drawn.encode()))
    out = bytearray(b"%PDF-1.4\n")
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    out += b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, start)
    return bytes(out)


@pytest.fixture
def lay(bench: Any) -> Callable[[str | bytes, bytes], Path]:
    """Write bytes under a name into the folder of documents; a name may be bytes."""
    import os

    def write(name: str | bytes, data: bytes) -> Path:
        path = Path(os.fsdecode(os.path.join(os.fsencode(bench.docs), os.fsencode(name))))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    return write


@pytest.fixture
def table_docx() -> bytes:
    return docx_with_table()


@pytest.fixture
def make_pdf_of() -> Callable[..., bytes]:
    return pdf_of
