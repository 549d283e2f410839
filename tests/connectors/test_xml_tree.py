"""XML parsed safely: bombs refused, nothing fetched, entities known, lines those of the file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from epicrag.connectors.xml_tree import parse_tree
from epicrag.types import Unread


def text_of(xml: str) -> str:
    root = parse_tree(xml)
    assert root is not None and not isinstance(root, Unread), root
    return "".join(root.itertext())


def test_billion_laughs_are_refused_with_a_word_on_why():
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
    began = time.monotonic()
    refused = parse_tree(f'<!DOCTYPE r [<!ENTITY l0 "ha">{laughs}]><r>&l11;</r>')
    assert isinstance(refused, Unread)
    assert "XML bomb" in refused.reason
    assert time.monotonic() - began < 5


def test_one_large_entity_many_times_is_refused_too():
    refused = parse_tree(f'<!DOCTYPE r [<!ENTITY a "{"a" * 10_000}">]><r>{"&a;" * 10_000}</r>')
    assert isinstance(refused, Unread)
    assert "100,000,000 characters" in refused.reason


def test_entities_within_themselves_are_refused():
    refused = parse_tree('<!DOCTYPE r [<!ENTITY a "&b;"><!ENTITY b "&a;">]><r>&a;</r>')
    assert isinstance(refused, Unread)
    assert "no end" in refused.reason


def test_external_entities_are_nothing(tmp_path: Path):
    secret = tmp_path / "secret.txt"
    secret.write_text("TOP SECRET")
    doctype = f'<!DOCTYPE r SYSTEM "{secret.as_uri()}" [<!ENTITY x SYSTEM "{secret.as_uri()}"><!ENTITY % p SYSTEM "http://127.0.0.1:9/">%p;]>'  # fmt: skip
    assert text_of(f"{doctype}<r>a&x;b</r>") == "ab"


def test_entities_of_the_document_and_of_html_are_put_in():
    doctype = '<!DOCTYPE r [ <!-- "a]> --> <!ENTITY me "J. &amp; Co"> <!ENTITY us "we, &me;"> ]>'
    assert (
        text_of(f"{doctype}<r>&us;&nbsp;&eacute; &unknown; AT&T &#65; &lt;</r>")
        == "we, J. & Co\xa0é &unknown; AT&T A <"
    )


def test_cdata_is_as_it_stands():
    assert (
        text_of('<!DOCTYPE r [<!ENTITY a "x">]><r><![CDATA[&a; &amp; <b>]]>&a;</r>')
        == "&a; &amp; <b>x"
    )


def test_lines_are_those_of_the_file():
    root: Any = parse_tree(
        '<?xml version="1.0"\n?>\n<!DOCTYPE r [\n<!ENTITY a "1\n2">\n]>\n<r>&a;\n<b/></r>'
    )
    assert (root.sourceline, root[0].sourceline) == (7, 8)


def test_broken_xml_is_read_as_far_as_it_goes():
    assert text_of("<r><a>one</b><c>two") == "onetwo"


def test_no_xml_is_none():
    assert parse_tree("nothing of the kind") is None
    assert parse_tree("") is None


def test_elements_nested_without_end_are_said_to_be():
    refused = parse_tree("<a>" * 100_000)
    assert isinstance(refused, Unread)
    assert "too deeply" in refused.reason


def test_cdata_and_doctypes_that_never_end_take_no_time():
    began = time.monotonic()
    parse_tree("<r>" + "<![CDATA[" * 100_000)
    parse_tree("<!DOCTYPE r [" + "<!ENTITY a '" * 50_000)
    parse_tree("<!--" * 100_000)
    assert time.monotonic() - began < 10
