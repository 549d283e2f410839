"""Feeds: entries as sections, HTML within cleaned, texts that repeat each other once."""

from __future__ import annotations

from epicrag.connectors.base import Parsed
from epicrag.connectors.xml_text import parse_xml


def parse(xml: str) -> Parsed:
    parsed = parse_xml(xml)
    assert isinstance(parsed, Parsed), parsed
    return parsed


RSS = """<?xml version="1.0"?>
<rss version="2.0" xmlns:content="c" xmlns:dc="d"><channel>
<title>Tea News</title><link>http://x.example/</link>
<description>All about tea</description><language>en</language>
<lastBuildDate>Fri, 04 Mar 2005 15:21:02 +0300</lastBuildDate>
<item>
<title>Green &amp; good</title>
<description><![CDATA[<img src="a.jpg">Brew at
<b>70 degrees</b>.<br><a href="http://x.example/1">more</a>]]></description>
<pubDate>Fri, 04 Mar 2005 10:00:00 GMT</pubDate><dc:creator>Ann</dc:creator><category>brewing</category>
</item>
<item><title>Black</title><description>Boil it ...</description>
<content:encoded>&lt;p&gt;Boil it first.&lt;/p&gt;&lt;p&gt;Then pour.&lt;/p&gt;</content:encoded></item>
</channel></rss>"""


def test_entries_are_sections_under_their_titles():
    parsed = parse(RSS)
    assert parsed.text == (
        "All about tea\n\nGreen & good\n\n2005-03-04 · Ann · brewing\n\nBrew at 70 degrees.\nmore\n\n"
        "Black\n\nBoil it first.\n\nThen pour."
    )
    assert parsed.title == "Tea News"
    assert dict(parsed.meta) == {"language": "en", "date": "2005-03-04", "year": 2005}
    headings = {parsed.text[a.start :].split()[0]: (a.heading, a.line) for a in parsed.anchors}
    assert headings["Green"] == ("Green & good", 7)
    assert headings["70"] == ("Green & good", 9)
    assert headings["Black"][0] == "Black"


def test_atom_with_pages_within_is_read():
    parsed = parse(
        '<feed xmlns="http://www.w3.org/2005/Atom" xml:lang="fr"><title type="html">T &amp;lt;b&amp;gt;</title>'
        "<updated>2020-02-30</updated><entry><title>Un</title><author><name>Eve</name></author>"
        "<published>2021-05-06T07:08:09Z</published><category term='x'/>"
        '<content type="xhtml"><div xmlns="http://www.w3.org/1999/xhtml"><h2>Sous</h2><p>a<br/>b</p></div></content>'
        "</entry></feed>"
    )
    assert parsed.text == "Un\n\n2021-05-06 · Eve · x\n\nSous\n\na\nb"
    assert parsed.meta["language"] == "fr"
    assert "year" not in parsed.meta
    assert parsed.anchors[-1].heading == "Un > Sous"


def test_rdf_feed_has_its_items_beside_the_channel():
    parsed = parse(
        '<rdf:RDF xmlns:rdf="r" xmlns="http://purl.org/rss/1.0/"><channel><title>A</title></channel>'
        "<item><title>one</title><description>1</description></item><item><description>no title</description></item></rdf:RDF>"
    )
    assert parsed.text == "one\n\n1\n\nno title"
    assert parsed.anchors[-1].heading is None


def test_what_only_calls_itself_a_feed_is_read_like_any_xml():
    assert parse("<feed><cow><name>Berta</name></cow></feed>").text == "name: Berta"
