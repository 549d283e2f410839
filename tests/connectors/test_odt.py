"""OpenDocument texts and slides are read in order, with tables, notes and comments."""

import pytest

from epicrag.connectors.base import Limits, Parsed
from epicrag.connectors.odt import parse_odp, parse_odt
from epicrag.types import Document, Unread

_NAMES = ("office", "text", "table", "style", "presentation")
NAMESPACES = " ".join(
    f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in _NAMES
)
NAMESPACES += ' xmlns:draw="urn:oasis:names:tc:opendocument:xmlns:drawing:1.0"'
NAMESPACES += ' xmlns:svg="urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0"'
NAMESPACES += (
    ' xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:xlink="http://www.w3.org/1999/xlink"'
)


def made(make_zip, body: str, kind: str = "text", styles: str = "", **parts: str) -> bytes:
    content = f"<office:document-content {NAMESPACES}><office:automatic-styles>{styles}"
    content += f"</office:automatic-styles><office:body><office:{kind}>{body}</office:{kind}>"
    content += "</office:body></office:document-content>"
    members = {
        "mimetype": f"application/vnd.oasis.opendocument.{kind}",
        "content.xml": content,
        **{name.replace("_", "."): text for name, text in parts.items()},
    }
    return make_zip(members)


def parsed(data: bytes) -> Parsed:
    answer = parse_odt(data, Limits())
    assert isinstance(answer, Parsed), answer
    return answer


def p(text: str, style: str = "") -> str:
    return f'<text:p text:style-name="{style}">{text}</text:p>'


def h(text: str, level: int) -> str:
    return f'<text:h text:outline-level="{level}">{text}</text:h>'


def item(content: str) -> str:
    return f"<text:list-item>{content}</text:list-item>"


def test_headings_lists_and_spaces(make_zip):
    styles = '<style:style style:name="P1" style:parent-style-name="Title"/>'
    styles += '<text:list-style style:name="L1"><text:list-level-style-number text:level="1"'
    styles += ' style:num-format="1"/></text:list-style>'
    inner = f"<text:list>{item(p('inner'))}</text:list>"
    body = p("The Title", "P1") + h("One", 1)
    body += p('a<text:s text:c="3"/>b<text:tab/>c<text:line-break/>d <text:span>e\n  f</text:span>')
    body += f'<text:list text:style-name="L1">{item(p("x") + p("more"))}{item(p("y") + inner)}'
    content = parsed(made(make_zip, body + "</text:list>" + h("Two", 2) + p("z"), styles=styles))
    assert content.text == (
        "The Title\n\nOne\n\na   b\tc\nd e f\n\n1. x\nmore\n2. y\n  - inner\n\nTwo\n\nz"
    )
    assert content.title == "The Title"
    assert content.anchors[-1].heading == "The Title > One > Two"


def test_tables_keep_head_and_columns(make_zip):
    def row(*cells: str) -> str:
        return f"<table:table-row>{''.join(cells)}</table:table-row>"

    def cell(text: str, more: str = "") -> str:
        return f"<table:table-cell {more}>{p(text)}</table:table-cell>"

    body = "<table:table><table:table-header-rows>" + row(cell("Zone"), cell("Sales"), cell("Tax"))
    body += "</table:table-header-rows>"
    body += row(
        cell("wide", 'table:number-columns-spanned="2"'), "<table:covered-table-cell/>", cell("1")
    )
    body += row(cell("same", 'table:number-columns-repeated="3"')) + "</table:table>"
    content = parsed(made(make_zip, body))
    assert content.text == "Zone | Sales | Tax\nwide |  | 1\nsame | same | same"
    assert content.tables[0].head == "Zone | Sales | Tax"


def test_notes_comments_and_frames_follow_their_paragraph(make_zip):
    note = '<text:note text:note-class="footnote"><text:note-citation>1</text:note-citation>'
    note += f"<text:note-body>{p('by whom')}</text:note-body></text:note>"
    comment = f"<office:annotation><dc:creator>Ann</dc:creator>{p('Why?')}</office:annotation>"
    frame = f"<draw:frame><draw:text-box>{p('in the box')}</draw:text-box></draw:frame>"
    content = parsed(made(make_zip, p(f"Said{note}{comment}{frame} so.") + p("next")))
    assert content.text == (
        "Said (footnote 1) so.\n\nin the box\n\nFootnote 1: by whom\n\n[Comment by Ann: Why?]\n\nnext"
    )


def test_deletions_hidden_text_and_contents_are_left_out(make_zip):
    styles = (
        '<style:style style:name="H"><style:text-properties text:display="none"/></style:style>'
    )
    body = f"<text:tracked-changes><text:changed-region>{p('deleted')}</text:changed-region>"
    body += f"</text:tracked-changes><text:table-of-content>{p('toc')}</text:table-of-content>"
    body += p('shown<text:span text:style-name="H">secret</text:span>') + p("secret", "H")
    body += f'<text:section text:display="none">{p("secret")}</text:section>'
    assert parsed(made(make_zip, body, styles=styles)).text == "shown"


def test_properties_are_told(make_zip):
    meta = f"<office:document-meta {NAMESPACES}><office:meta><dc:title>Untitled1</dc:title>"
    meta += "<dc:creator>Ann</dc:creator><dc:date>2021-03-04T05:06:07</dc:date></office:meta>"
    content = parsed(made(make_zip, p("x"), meta_xml=meta + "</office:document-meta>"))
    assert content.meta == {"author": "Ann", "date": "2021-03-04", "year": 2021}


def test_slides_are_pages_read_from_the_top(make_zip):
    def frame(text: str, y: str, kind: str = "") -> str:
        return (
            f'<draw:frame svg:y="{y}" svg:x="1cm" presentation:class="{kind}">'
            f"<draw:text-box>{p(text)}</draw:text-box></draw:frame>"
        )

    def slide(*content: str) -> str:
        return f"<draw:page>{''.join(content)}</draw:page>"

    notes = f"<presentation:notes>{frame('said', '1cm', 'notes')}</presentation:notes>"
    body = slide(frame("low", "9cm"), frame("high", "2cm"), frame("First", "1cm", "title"), notes)
    body += slide(f"<draw:g>{frame('alone', '1cm')}</draw:g>", frame("7", "9cm", "page-number"))
    answer = parse_odp(made(make_zip, body, "presentation"), Limits())
    assert isinstance(answer, Parsed)
    assert answer.text == "First\n\nhigh\n\nlow\n\nNotes: said\n\nalone"
    assert answer.title == "First"
    place = Document("/d", answer.text, "", anchors=answer.anchors).place(31, 36)
    assert (place.page, place.part, place.heading) == (2, "slide 2", None)


def failure(data: bytes, limits: Limits | None = None) -> str:
    answer = parse_odt(data, limits or Limits())
    assert isinstance(answer, Unread), answer
    return f"{answer.status}: {answer.reason}"


def test_what_is_no_text_document_says_so(make_zip):
    assert "not a ZIP archive" in failure(b"plain text")
    assert "no content.xml" in failure(make_zip({"a": "x"}))
    assert "spreadsheet" in failure(made(make_zip, "", "spreadsheet"))
    manifest = {"META-INF/manifest.xml": "<a><encryption-data/></a>", "content.xml": "x"}
    assert "encrypted" in failure(make_zip(manifest))
    broken = make_zip({"content.xml": "<office:document-content"})
    assert "not well-formed" in failure(broken)


@pytest.mark.parametrize("entity", ['SYSTEM "file:///etc/passwd"', '"x"'])
def test_entities_are_refused(make_zip, entity: str):
    content = f"<!DOCTYPE a [<!ENTITY e {entity}>]><a>&e;</a>"
    assert "entities" in failure(make_zip({"content.xml": content}))


def test_limits(make_zip):
    data = made(make_zip, p("some text") * 50)
    assert "--max-chars" in failure(data, Limits(max_chars=100))
    assert "--max-file-seconds" in failure(data, Limits(max_file_seconds=-1))
