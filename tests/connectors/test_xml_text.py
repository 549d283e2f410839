"""XML by kind: data as records, documents as paragraphs, pages as pages; encodings and lines right."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from epicrag.connectors.base import Parsed
from epicrag.connectors.read import read
from epicrag.connectors.xml_text import parse_xml
from epicrag.types import Document, Unread


def parse(xml: str) -> Parsed:
    parsed = parse_xml(xml)
    assert isinstance(parsed, Parsed), parsed
    return parsed


def lines_of(parsed: Parsed) -> list[tuple[int | None, str]]:
    """The source line of each anchor, and the first word there."""
    return [
        (a.line, parsed.text[a.start :].lstrip().partition(" ")[0].strip()) for a in parsed.anchors
    ]


FACTBOOK = """<?xml version="1.0" encoding="UTF-8"?>
<factbook>
  <country code="TT">
    <name>Trinidad &amp; Tobago</name>
    <capital>Port of Spain</capital>
    <head><of><state>
      Christine Kangaloo</state></of></head>
  </country>
  <country>
    <name>Fiji</name><capital>Suva</capital>
  </country>
</factbook>"""


def test_elements_alike_are_records():
    parsed = parse(FACTBOOK)
    assert parsed.text == (
        "code: TT\nname: Trinidad & Tobago\ncapital: Port of Spain\nhead.of.state: Christine Kangaloo\n\n"
        "name: Fiji\ncapital: Suva"
    )
    assert [line for line, _ in lines_of(parsed)] == [3, 4, 5, 7, 10]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-16-le"])
def test_bytes_beat_what_the_file_says(read_bytes: Any, encoding: str):
    assert "Port of Spain" in read_bytes("a.xml", FACTBOOK.encode(encoding)).text


@pytest.mark.parametrize(("encoding", "word"), [("euc-jp", "風博士の作者"), ("koi8-r", "Дюймовочка"), ("windows-1255", "רפואה"), ("gb2312", "世界"), ("iso-8859-2", "źle")])  # fmt: skip
def test_declared_encodings_are_believed(read_bytes: Any, encoding: str, word: str):
    xml = f'<?xml version="1.0" encoding="{encoding}"?><r><p>{word}</p></r>'
    assert read_bytes("a.xml", xml.encode(encoding)).text == word


def test_documents_are_paragraphs_under_headings():
    parsed = parse(
        "<book><title>Tea</title><chapter><title>Green</title>\n<para>Not <b>so</b> hot,\n70 degrees.</para>"
        "<para>Two.</para></chapter><chapter><title>Black</title><para>Hot.</para></chapter></book>"
    )
    assert parsed.text == "Tea\n\nGreen\n\nNot so hot, 70 degrees.\n\nTwo.\n\nBlack\n\nHot."
    assert parsed.title == "Tea"
    assert [anchor.heading for anchor in parsed.anchors][-1] == "Tea > Black"
    assert (3, "70") in lines_of(parsed)


def test_attributes_that_hold_text_are_text():
    parsed = parse(
        '<posts><row Id="1" Title="A question" Body="&lt;p&gt;Is it &lt;b&gt;so&lt;/b&gt;?&lt;/p&gt;"/>'
        '<img src="x.png" alt="A red fox" width="3">on a hill</img></posts>'
    )
    assert (
        parsed.text == "Id: 1\nTitle: A question\nBody: Is it so?\nalt: A red fox\nimg: on a hill"
    )


def test_headings_end_with_their_element_and_hold_for_records():
    people = "".join(
        f"<person><name>P{n}</name><about>{'word ' * 200}</about></person>" for n in (1, 2)
    )
    parsed = parse(
        f"<r><part><title>Staff</title><intro>All of us</intro>{people}<p>And you?</p></part><note>Bye</note></r>"
    )
    found = {a.heading for a in parsed.anchors}
    assert found == {"Staff", "Staff > P1", "Staff > P2", None}
    assert parsed.anchors[-1].heading is None and parsed.text.endswith("Bye")


def test_outlines_on_maps_do_not_drown_names():
    outline = " ".join(f"{n / 7},{n / 3},0" for n in range(5_000))
    parsed = parse(
        f"<kml><Placemark><name>Fiji</name><coordinates>{outline}</coordinates></Placemark></kml>"
    )
    assert parsed.text == "name: Fiji\ncoordinates: 15,000 numbers from 0 to 1666.33333333"


def test_pages_are_read_as_pages():
    parsed = parse("<html xmlns='http://www.w3.org/1999/xhtml'><body><h1>A</h1><script>no</script><p>b</p></body></html>")  # fmt: skip
    assert (parsed.text, parsed.media) == ("A\n\nb", "text/html")


def test_no_xml_under_its_name_is_the_text_it_is():
    assert parse("just words\n\nand more").text == "just words\n\nand more"


def test_file_that_only_points_elsewhere_is_empty(tmp_path: Path):
    path = tmp_path / "xxe.xml"
    path.write_text(
        '<?xml version="1.0"?>\n<!DOCTYPE r PUBLIC "-//X" "file:///etc/passwd">\n<r>\n</r>'
    )
    assert read(str(path)) == Unread("empty", "no text in it")


def test_bomb_is_reported_as_one(tmp_path: Path):
    path = tmp_path / "bomb.xml"
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
    path.write_text(f'<!DOCTYPE r [<!ENTITY l0 "ha">{laughs}]><r>&l11;</r>')
    report = read(str(path))
    assert isinstance(report, Unread)
    assert report.status == "failed"
    assert "XML bomb" in report.reason


@pytest.mark.parametrize(
    "inside",
    ["<title>a</title>", "<a/>", "<a>x</a>y", "<p><title>b</title></p>", "<c><d>x</d></c>"],
)
def test_many_elements_beside_each_other_take_no_time(inside: str):
    began = time.monotonic()
    parse(f"<r><q>{inside * 20_000}</q></r>")
    assert time.monotonic() - began < 30


def test_text_between_elements_of_a_long_one_is_kept():
    inner = "".join(f"<s>{'word ' * 200}</s> between {n} " for n in range(10))
    parsed = parse(f"<r><d>first {inner}</d>last</r>")
    assert all(f"between {n}" in parsed.text for n in range(10))
    assert parsed.text.startswith("first") and parsed.text.endswith("last")
    assert parsed.text.count("word") == 2_000


def test_text_over_many_lines_is_cited_by_the_line_each_piece_is_on():
    body = "\n".join(f"tok{at}" for at in range(40))
    source = (
        f"<root>\n<p>{body}</p>\n<item><a>{body.replace('tok', 'key')}</a></item><item/></root>"
    )
    parsed = parse_xml(source)
    assert isinstance(parsed, Parsed)
    document = Document("/d", parsed.text, "", anchors=parsed.anchors)
    for word, line in (("tok0", 2), ("tok17", 19), ("tok39", 41), ("key0", 42), ("key39", 81)):
        at = parsed.text.index(word)
        assert document.place(at, at + len(word)).lines == (line, line), word


def test_attributes_of_data_are_read_and_those_of_layout_are_not():
    source = '<shop><item id="SKU-1" width="3"><name>Pan</name></item><item id="SKU-2" /></shop>'
    parsed = parse_xml(source)
    assert isinstance(parsed, Parsed)
    assert "id: SKU-1" in parsed.text
    assert "id: SKU-2" in parsed.text
    assert "width" not in parsed.text
