"""Journal articles: title, authors, abstract, sections, tables and short references."""

from __future__ import annotations

from epicrag.connectors.base import Parsed
from epicrag.connectors.xml_text import parse_xml

ARTICLE = """<article><front><journal-meta><journal-title>Acta</journal-title></journal-meta>
<article-meta><article-id pub-id-type="doi">10.1/x</article-id>
<title-group><article-title>On <italic>tea</italic></article-title></title-group>
<contrib-group><contrib contrib-type="author"><name><surname>Lee</surname><given-names>Ann</given-names></name></contrib>
<contrib contrib-type="editor"><name><surname>Ed</surname></name></contrib></contrib-group>
<pub-date><year>2020</year><month>6</month></pub-date>
<abstract><p>Tea is hot.</p></abstract>
<kwd-group><kwd>tea</kwd></kwd-group></article-meta></front>
<body><sec><label>1</label><title>Methods</title>
<p>We brewed<xref>1</xref> tea:
<list><list-item><p>green</p></list-item><list-item><p>black</p></list-item></list> and drank.</p>
<sec><title>Water</title><p>Soft.</p></sec>
<table-wrap><label>Table 1</label><caption><title>Heat</title></caption><table>
<thead><tr><th>Tea</th><th>C</th></tr></thead>
<tbody><tr><td>green</td><td>70</td></tr></tbody></table></table-wrap></sec></body>
<back><ack><p>Thanks.</p></ack><ref-list><ref><element-citation><person-group>
<name><surname>A</surname></name><name><surname>B</surname></name><name><surname>C</surname></name><name><surname>D</surname></name>
</person-group><year>1999</year><article-title>Pots</article-title><source>Nature</source><volume>4</volume></element-citation></ref>
</ref-list></back>
<sub-article><front-stub><title-group><article-title>Letter</article-title></title-group></front-stub><body><p>Fine.</p></body></sub-article>
</article>"""


def test_article_is_read_in_its_order():
    parsed = parse_xml(ARTICLE)
    assert isinstance(parsed, Parsed)
    assert parsed.text == (
        "On tea\n\nAnn Lee · Acta · 2020-06 · doi:10.1/x\n\nAbstract\n\nTea is hot.\n\nKeywords: tea\n\n"
        "1 Methods\n\nWe brewed1 tea: and drank.\n\n- green\n- black\n\nWater\n\nSoft.\n\n"
        "Table 1. Heat\n\nTea | C\ngreen | 70\n\nAcknowledgements\n\nThanks.\n\n"
        "References\n\nA, B, C et al. (1999) Pots. Nature 4.\n\nLetter\n\nFine."
    )
    assert parsed.title == "On tea"
    assert parsed.tables[0].head == "Tea | C"
    assert parsed.meta == {"date": "2020-06", "year": 2020, "author": ("Ann Lee",), "tags": ("tea",), "doi": "10.1/x", "journal": "Acta"}  # fmt: skip
    places = {parsed.text[a.start :].split()[0]: (a.heading, a.line) for a in parsed.anchors}
    assert places["Water"] == ("On tea > 1 Methods > Water", 12)
    assert places["green"][1] == 15


def test_sections_nested_without_end_do_no_harm():
    body = "<sec><title>t</title>" * 500 + "<p>deep</p>" + "</sec>" * 500
    parsed = parse_xml(f"<article><front/><body>{body}</body></article>")
    assert isinstance(parsed, Parsed)
    assert parsed.text.endswith("deep")
