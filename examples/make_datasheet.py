"""Write docs/tern-datasheet.pdf, by hand: a three-page PDF is a list of objects and a table of offsets."""

from __future__ import annotations

from pathlib import Path

PAGES = (
    (
        "Tern T2 data sheet",
        "The Tern T2 weighs 1.4 kilograms without batteries and is 38 centimetres tall.",
        "The housing is made of recycled polycarbonate and is rated IP66.",
        "It works from minus 40 to plus 60 degrees Celsius.",
        "The price of the Tern T2 is 289 euros. The Hub H1 is sold for 119 euros.",
    ),
    (
        "Radio",
        "The station sends on 868 megahertz with a power of 25 milliwatts.",
        "The Skylark protocol sends one packet of 16 bytes for each reading.",
        "The range is 800 metres in the open and 120 metres through buildings.",
        "Outside Europe, order the version for 915 megahertz.",
    ),
    (
        "Spare parts",
        "The mast clamp is part TC-20 and costs 18 euros.",
        "The rain funnel is part TF-07 and costs 12 euros.",
        "The wind cups are part TW-11 and cost 24 euros.",
        "Spare parts are kept in stock for ten years after the last station is sold.",
    ),
)


def content(lines: tuple[str, ...]) -> bytes:
    """Return a page's drawing: a heading, then a line for each sentence."""
    heading, *rest = lines
    drawn = [f"BT /F1 18 Tf 60 760 Td ({heading}) Tj ET"]
    drawn += [f"BT /F1 11 Tf 60 {724 - 20 * n} Td ({line}) Tj ET" for n, line in enumerate(rest)]
    return "\n".join(drawn).encode("ascii")


def objects() -> list[bytes]:
    """Return the bodies of objects 1, 2, 3 …: catalog, page tree, font, then each page and its drawing."""
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(PAGES)))
    bodies = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(PAGES)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for n, lines in enumerate(PAGES):
        page = "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842]"
        page += f" /Resources << /Font << /F1 3 0 R >> >> /Contents {5 + 2 * n} 0 R >>"
        stream = content(lines)
        bodies.append(page.encode())
        bodies.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
    return bodies


def pdf() -> bytes:
    """Return the whole file."""
    out, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(objects(), 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(offsets) + 1
    return out + (
        b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
        % (size, table, size, len(out))
    )


if __name__ == "__main__":
    (Path(__file__).parent / "docs" / "tern-datasheet.pdf").write_bytes(pdf())
