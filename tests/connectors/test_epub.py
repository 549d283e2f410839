"""Books: chapters in reading order, contents left out, broken packages read all the same."""

from __future__ import annotations

import io
import zipfile

from epicrag.connectors.base import Limits, Parsed
from epicrag.connectors.epub import parse_epub
from epicrag.types import Unread

CONTAINER = '<container><rootfiles><rootfile full-path="{}"/></rootfiles></container>'


def packed(members: dict[str, str | bytes]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return written.getvalue()


def book(
    items: dict[str, str], spine: str, chapters: dict[str, str | bytes], more: str = ""
) -> bytes:
    """A book with its package in OPS/: `items` are ids and the attributes of each."""
    manifest = "".join(f'<item id="{key}" {told}/>' for key, told in items.items())
    refs = "".join(f'<itemref idref="{key}"/>' for key in spine.split())
    opf = (
        '<package xmlns:dc="d"><metadata><dc:title>Tea</dc:title><dc:creator>Ann</dc:creator>'
        f"<dc:language>en</dc:language><dc:date>2001-02-03</dc:date></metadata>"
        f"<manifest><!-- none -->{manifest}</manifest><spine>{refs}</spine>{more}</package>"
    )
    members = {
        "META-INF/container.xml": CONTAINER.format("OPS/a%20book.opf"),
        "OPS/a book.opf": opf,
    }
    return packed({**members, **{f"OPS/{name}": text for name, text in chapters.items()}})


def page(body: str) -> str:
    return f'<html xmlns="http://www.w3.org/1999/xhtml"><head><title/></head><body>{body}</body></html>'


def item(href: str, more: str = "") -> str:
    return f'href="{href}" media-type="application/xhtml+xml" {more}'


def parse(data: bytes) -> Parsed:
    parsed = parse_epub(data, Limits())
    assert isinstance(parsed, Parsed), parsed
    return parsed


def refusal(data: bytes, limits: Limits | None = None) -> Unread:
    refused = parse_epub(data, limits or Limits())
    assert isinstance(refused, Unread)
    return refused


HEAD = "Title: Tea\nAuthor: Ann\nDate: 2001-02-03"


def test_chapters_come_in_reading_order_and_contents_do_not():
    parsed = parse(
        book(
            {"two": item("text/2.xhtml#start"), "one": item("text/K%C3%B6ln%201.xhtml"), "nav": item("nav.xhtml", 'properties="nav"'), "toc": item("toc.html"), "css": 'href="x.css" media-type="text/css"'},
            "nav toc one two gone css",
            {
                "text/2.xhtml": page("<p>goes on</p><h2>Two</h2><p>end &nbsp;</p>"),
                "text/Köln 1.xhtml": page("<h1>One</h1><h2>Sub</h2><p>begin</p>"),
                "nav.xhtml": page("<p>NAV</p>"),
                "toc.html": page("<p>TOC</p>"),
            },
            '<guide><reference type="toc" href="toc.html"/><reference type="toc" href="text/2.xhtml#x"/></guide>',
        )
    )  # fmt: skip
    assert parsed.text == f"{HEAD}\n\nOne\n\nSub\n\nbegin\n\ngoes on\n\nTwo\n\nend"
    assert (parsed.title, parsed.meta["author"], parsed.meta["year"]) == ("Tea", "Ann", 2001)
    places = {parsed.text[a.start :].split()[0]: (a.part, a.heading) for a in parsed.anchors}
    assert places["Sub"] == ("chapter 1", "One > Sub")
    assert places["goes"] == ("chapter 2", "One > Sub")
    assert all(anchor.line is None for anchor in parsed.anchors)


def test_missing_chapters_cost_themselves_only():
    parsed = parse(
        book({"a": item("gone.html"), "b": item("B.HTML")}, "a b", {"b.html": page("here")})
    )
    assert parsed.text.endswith("here")
    assert parsed.anchors[-1].part == "chapter 1"


def test_book_without_its_package_is_read_by_names():
    chapters = {f"c{n}.html": page(f"part {n}") for n in (10, 9, 1)}
    assert parse(packed(dict(chapters))).text == "part 1\n\npart 9\n\npart 10"


def test_package_is_found_though_the_container_lies():
    data = packed({"META-INF/container.xml": CONTAINER.format("no.opf"), "x.opf": "<package><manifest><item id='a' href='a.html' media-type='text/html'/></manifest></package>", "a.html": page("found")})  # fmt: skip
    assert parse(data).text == "found"


def test_encodings_of_chapters_are_their_own():
    text = (
        '<?xml version="1.0" encoding="windows-1251"?><html><body><p>Привет, мир</p></body></html>'
    )
    parsed = parse(book({"a": item("a.html")}, "a", {"a.html": text.encode("cp1251")}))
    assert parsed.text.endswith("Привет, мир")


def test_locked_book_says_so():
    encryption = '<encryption><EncryptedData><CipherData><CipherReference URI="OPS/a.html"/></CipherData></EncryptedData></encryption>'
    data = packed(
        {"META-INF/encryption.xml": encryption, "OPS/a.html": b"\x01\x02", "OPS/b.html": page("b")}
    )
    assert "1 of 2 pages are encrypted (DRM)" in refusal(data).reason
    assert refusal(data).status == "failed"


def test_masked_fonts_are_no_lock():
    encryption = '<encryption><CipherReference URI="OPS/font.otf"/></encryption>'
    assert (
        parse(packed({"META-INF/encryption.xml": encryption, "OPS/a.html": page("open")})).text
        == "open"
    )


def test_archives_without_pages_are_no_books():
    assert refusal(packed({"a.txt": "x"})).reason.startswith("not a book")
    assert refusal(b"PK\x03\x04 damaged").status == "failed"
    assert refusal(b"no zip").status == "failed"
    assert "none of the pages" in refusal(book({"a": item("a.html")}, "a", {})).reason


def test_books_over_the_limits_are_skipped():
    data = packed({"a.html": page("word " * 1_000)})
    assert refusal(data, Limits(max_chars=100)).reason.startswith("the text has")
    assert refusal(data, Limits(max_inflated_bytes=100)).status == "skipped"
