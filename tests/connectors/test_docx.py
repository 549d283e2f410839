"""A Word file is read as a person reads it: in order, once, with what hangs on each paragraph."""

import io

import docx
import pytest

from epicrag.connectors.base import Limits, Parsed
from epicrag.connectors.docx import parse_docx
from epicrag.connectors.split import split
from epicrag.types import Document, Unread

_NAMESPACES = (
    'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" '
    'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math" '
    'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006" '
    'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships" '
    'xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart"'
)
_TYPE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/"


def relations(targets: dict[str, str]) -> str:
    lines = "".join(
        f'<Relationship Id="{kind}" Type="{_TYPE}{kind.rstrip("0123456789")}" Target="{target}"/>'
        for kind, target in targets.items()
    )
    return f'<Relationships xmlns="http://x/rels">{lines}</Relationships>'


def made(make_zip, body: str, **parts: str) -> bytes:
    """A Word file of this body, and of further parts by their names."""
    members = {
        "_rels/.rels": relations({"officeDocument": "word/document.xml"}),
        "word/document.xml": f"<w:document {_NAMESPACES}><w:body>{body}</w:body></w:document>",
        "word/_rels/document.xml.rels": relations({name: f"{name}.xml" for name in parts}),
    }
    for name, content in parts.items():
        tag = name.rstrip("0123456789")
        root = {"header": "hdr", "footer": "ftr", "chart": "c"}.get(tag, tag)
        prefix = "c" if tag == "chart" else "w"
        members[f"word/{name}.xml"] = f"<{prefix}:{root} {_NAMESPACES}>{content}</{prefix}:{root}>"
    return make_zip(members)


def parsed(data: bytes) -> Parsed:
    answer = parse_docx(data, Limits())
    assert isinstance(answer, Parsed), answer
    return answer


def text_of(make_zip, body: str, **parts: str) -> str:
    return parsed(made(make_zip, body, **parts)).text


def p(text: str, properties: str = "") -> str:
    return f"<w:p><w:pPr>{properties}</w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"


def cell(text: str, properties: str = "") -> str:
    return f"<w:tc><w:tcPr>{properties}</w:tcPr>{text if text.startswith('<') else p(text)}</w:tc>"


def row(*cells: str, properties: str = "") -> str:
    return f"<w:tr><w:trPr>{properties}</w:trPr>{''.join(cells)}</w:tr>"


def test_what_python_docx_writes_is_read_in_order():
    document = docx.Document()
    document.add_heading("The Title", 0)
    document.add_heading("Part", 1)
    document.add_paragraph("First.")
    document.add_heading("Section", 2)
    document.add_paragraph("An item", style="List Bullet")
    document.add_paragraph("Another", style="List Bullet")
    table = document.add_table(2, 2)
    for at, text in enumerate(["Region", "Sales", "North", "17"]):
        table.cell(at // 2, at % 2).text = text
    document.core_properties.title = "Microsoft Word - draft.doc"
    document.core_properties.author = "Ann"
    file = io.BytesIO()
    document.save(file)
    content = parsed(file.getvalue())
    assert content.text == (
        "The Title\n\nPart\n\nFirst.\n\nSection\n\n- An item\n- Another\n\nRegion | Sales\nNorth | 17"
    )
    assert content.title == "The Title"
    assert content.meta["author"] == "Ann"
    assert content.meta["title"] == "The Title"
    assert content.tables[0].head == "Region | Sales"
    assert content.anchors[-1].heading == "The Title > Part > Section"


def test_a_first_heading_is_the_title_only_where_it_stands_alone(make_zip):
    styles = '<w:style w:styleId="h1"><w:name w:val="heading 1"/></w:style>'
    styles += '<w:style w:styleId="h2"><w:name w:val="heading 2"/></w:style>'
    one, two = '<w:pStyle w:val="h1"/>', '<w:pStyle w:val="h2"/>'
    alone = made(make_zip, p("Report", one) + p("a", two) + p("b", two), styles=styles)
    assert parsed(alone).title == "Report"
    chapters = made(make_zip, p("Chapter 1", one) + p("Chapter 2", one), styles=styles)
    assert parsed(chapters).title is None


@pytest.mark.parametrize(
    ("style", "level"),
    [
        ('<w:style w:styleId="berschrift2"><w:name w:val="heading 2"/></w:style>', 2),
        ('<w:style w:styleId="Mine"><w:pPr><w:outlineLvl w:val="2"/></w:pPr></w:style>', 3),
        ('<w:style w:styleId="Mine"><w:basedOn w:val="h"/></w:style>', 1),
        ('<w:style w:styleId="Mine"><w:name w:val="Überschrift 4"/></w:style>', 4),
        ('<w:style w:styleId="Mine"><w:basedOn w:val="Mine"/></w:style>', None),
    ],
)
def test_headings_are_known_by_style_outline_and_descent(make_zip, style: str, level: int | None):
    name = "berschrift2" if "berschrift2" in style else "Mine"
    base = '<w:style w:styleId="h"><w:name w:val="heading 1"/></w:style>'
    body = p("Head", f'<w:pStyle w:val="{name}"/>') + p("under")
    content = parsed(made(make_zip, body, styles=base + style))
    assert (content.blocks[0].kind == "heading") == (level is not None)


def test_lists_are_counted_as_word_counts_them(make_zip):
    level = '<w:lvl w:ilvl="{}"><w:start w:val="1"/><w:numFmt w:val="{}"/><w:lvlText w:val="{}"/></w:lvl>'
    numbering = '<w:abstractNum w:abstractNumId="0">'
    numbering += level.format(0, "decimal", "%1.") + level.format(1, "lowerLetter", "%1.%2)")
    numbering += "</w:abstractNum>"
    numbering += '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>'
    numbering += '<w:num w:numId="2"><w:abstractNumId w:val="0"/><w:lvlOverride w:ilvl="0">'
    numbering += '<w:startOverride w:val="7"/></w:lvlOverride></w:num>'
    items = [("1", 0), ("1", 0), ("1", 1), ("1", 1), ("1", 0), ("1", 1), ("2", 0)]
    body = "".join(
        p("x", f'<w:numPr><w:ilvl w:val="{at}"/><w:numId w:val="{number}"/></w:numPr>')
        for number, at in items
    )
    text = text_of(make_zip, body, numbering=numbering)
    assert text == "1. x\n2. x\n  2.a) x\n  2.b) x\n3. x\n  3.a) x\n7. x"


def test_merged_cells_stand_once_and_keep_their_columns(make_zip):
    span, first, rest = '<w:gridSpan w:val="2"/>', '<w:vMerge w:val="restart"/>', "<w:vMerge/>"
    body = "<w:tbl>"
    body += row(cell("wide", span), cell("c"))
    body += row(cell("tall", first), cell("1"), cell("2"))
    body += row(cell("tall", rest), cell("3"), cell("4")) + "</w:tbl>"
    assert text_of(make_zip, body) == "wide |  | c\ntall | 1 | 2\n| 3 | 4"


def test_nested_tables_stay_in_their_cell(make_zip):
    inner = f"<w:tbl>{row(cell('x'), cell('1'))}{row(cell('y'), cell('2'))}</w:tbl>"
    body = f"<w:tbl>{row(cell('a'), cell('b'))}{row(cell(inner), cell('z'))}</w:tbl>"
    assert text_of(make_zip, body) == "a | b\nx, 1; y, 2 | z"


def test_a_table_of_one_column_is_a_frame(make_zip):
    body = f"<w:tbl>{row(cell(p('One.') + p('Two.')))}</w:tbl>"
    assert text_of(make_zip, body) == "One.\n\nTwo."


def test_a_long_table_repeats_its_head(make_zip, words):
    rows = [row(cell("Region"), cell("Sales"), properties="<w:tblHeader/>")]
    rows += [row(cell(f"North {at}"), cell(str(at))) for at in range(60)]
    content = parsed(made(make_zip, f"<w:tbl>{''.join(rows)}</w:tbl>"))
    document = Document("/d", content.text, "", blocks=content.blocks, tables=content.tables)
    chunks = split(document, words, chunk_tokens=50)
    assert len(chunks) > 3
    assert all("Region | Sales" in chunk.model_text for chunk in chunks)


def test_tracked_deletions_are_out_and_insertions_in(make_zip):
    body = "<w:p><w:r><w:t>The fee is </w:t></w:r>"
    body += "<w:del><w:r><w:delText>5</w:delText></w:r></w:del>"
    body += "<w:ins><w:r><w:t>9</w:t></w:r></w:ins></w:p>"
    body += f"<w:tbl>{row(cell('gone'), cell('x'), properties='<w:del/>')}"
    body += f"{row(cell('kept'), cell('y'), properties='<w:ins/>')}</w:tbl>"
    assert text_of(make_zip, body) == "The fee is 9\n\nkept | y"


def test_hidden_text_and_prompts_are_left_out(make_zip):
    hidden = "<w:r><w:rPr><w:vanish/></w:rPr><w:t>secret</w:t></w:r>"
    shown = '<w:r><w:rPr><w:vanish w:val="0"/></w:rPr><w:t>shown</w:t></w:r>'
    prompt = "<w:sdt><w:sdtPr><w:showingPlcHdr/></w:sdtPr><w:sdtContent><w:p><w:r><w:t>Click"
    prompt += "</w:t></w:r></w:p></w:sdtContent></w:sdt>"
    filled = f"<w:sdt><w:sdtPr/><w:sdtContent>{p('filled')}</w:sdtContent></w:sdt>"
    assert text_of(make_zip, f"<w:p>{hidden}{shown}</w:p>{prompt}{filled}") == "shown\n\nfilled"


def test_boxes_stored_twice_are_read_once(make_zip):
    box = f"<w:txbxContent>{p('in the box')}</w:txbxContent>"
    both = f"<mc:AlternateContent><mc:Choice><w:drawing>{box}</w:drawing></mc:Choice>"
    both += f"<mc:Fallback><w:pict>{box}</w:pict></mc:Fallback></mc:AlternateContent>"
    body = f"<w:p><w:r><w:t>before</w:t>{both}</w:r></w:p>"
    assert text_of(make_zip, body) == "before\n\nin the box"


def test_notes_follow_the_paragraph_that_refers_to_them(make_zip):
    body = '<w:p><w:r><w:t>Said</w:t><w:footnoteReference w:id="2"/></w:r></w:p>' + p("next")
    notes = f'<w:footnote w:id="0" w:type="separator">{p("---")}</w:footnote>'
    notes += f'<w:footnote w:id="2">{p("by whom")}</w:footnote>'
    text = text_of(make_zip, body, footnotes=notes)
    assert text == "Said (footnote 1)\n\nFootnote 1: by whom\n\nnext"


def test_comments_have_their_authors(make_zip):
    body = '<w:p><w:r><w:t>Said</w:t><w:commentReference w:id="0"/></w:r></w:p>'
    comments = f'<w:comment w:id="0" w:author="Ann">{p("Why?")}</w:comment>'
    comments += f'<w:comment w:id="1">{p("lost")}</w:comment>'
    text = text_of(make_zip, body, comments=comments)
    assert text == "Said\n\n[Comment by Ann: Why?]\n\n[Comment: lost]"


def test_fields_show_their_results_only(make_zip):
    mark = '<w:r><w:fldChar w:fldCharType="{}"/></w:r>'
    body = "<w:p>" + mark.format("begin") + "<w:r><w:instrText>PAGEREF x</w:instrText></w:r>"
    body += "<w:r><w:t>code</w:t></w:r>" + mark.format("separate") + "<w:r><w:t>12</w:t></w:r>"
    body += mark.format("end") + "<w:r><w:t> pages</w:t></w:r></w:p>"
    body += "<w:p>" + mark.format("begin") + "<w:r><w:t>broken</w:t></w:r></w:p>" + p("still read")
    assert text_of(make_zip, body) == "12 pages\n\nstill read"


def test_equations_are_a_line_of_text(make_zip):
    def power(base: str) -> str:
        return f"<m:sSup><m:e><m:r><m:t>{base}</m:t></m:r></m:e><m:sup><m:r><m:t>2</m:t></m:r></m:sup></m:sSup>"

    plus = "<m:r><m:t>{}</m:t></m:r>"
    body = f"<w:p><m:oMath>{power('a')}{plus.format('+')}{power('b')}{plus.format('=')}{power('c')}"
    body += (
        "</m:oMath></w:p><w:p><m:oMath><m:f><m:num><m:r><m:t>a+1</m:t></m:r></m:num><m:den><m:r>"
    )
    body += "<m:t>2</m:t></m:r></m:den></m:f></m:oMath></w:p>"
    assert text_of(make_zip, body) == "a2+b2=c2\n\n(a+1)/2"


def test_headers_say_only_what_nobody_else_says(make_zip):
    head = p("Report") + p("Page 3 of 9") + p("Draft, not for release")
    text = text_of(make_zip, p("The Report"), header1=head, header2=head, footer1=p("7"))
    assert text == "The Report\n\nPage header: Draft, not for release"


def test_charts_are_tables(make_zip):
    def points(*values: str) -> str:
        return "".join(f'<c:pt idx="{at}"><c:v>{v}</c:v></c:pt>' for at, v in enumerate(values))

    chart = "<c:ser><c:tx><c:v>Ducks</c:v></c:tx>"
    chart += f"<c:cat><c:strCache>{points('2021', '2022')}</c:strCache></c:cat>"
    chart += f"<c:val><c:numCache>{points('110', '130.0')}</c:numCache></c:val></c:ser>"
    body = '<w:p><w:r><w:drawing><c:chart r:id="chart1"/></w:drawing></w:r></w:p>'
    assert text_of(make_zip, body, chart1=chart) == "| Ducks\n2021 | 110\n2022 | 130"


def test_strict_files_are_read(make_zip):
    data = made(make_zip, p("strict"))
    import zipfile

    archive = zipfile.ZipFile(io.BytesIO(data))
    old = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    members = {name: archive.read(name).decode() for name in archive.namelist()}
    strict = {
        name: text.replace(old, "http://purl.oclc.org/ooxml/wordprocessingml/main")
        for name, text in members.items()
    }
    assert parsed(make_zip(strict)).text == "strict"


def failure(data: bytes, limits: Limits | None = None) -> str:
    answer = parse_docx(data, limits or Limits())
    assert isinstance(answer, Unread), answer
    return f"{answer.status}: {answer.reason}"


def test_entities_are_refused_and_never_followed(make_zip, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    for entity in (f'SYSTEM "file://{secret}"', '"x"'):
        members = {
            "_rels/.rels": relations({"officeDocument": "word/document.xml"}),
            "word/document.xml": f"<!DOCTYPE d [<!ENTITY e {entity}>]><w:document {_NAMESPACES}>"
            f"<w:body><w:p><w:r><w:t>&e;</w:t></w:r></w:p></w:body></w:document>",
        }
        assert "entities" in failure(make_zip(members))


def test_what_is_no_word_file_says_so(make_zip, make_ole):
    whole = made(make_zip, p("text"))
    assert "cut off" in failure(whole[: len(whole) // 2])
    assert "not a ZIP archive" in failure(b"plain text")
    assert "0 bytes" in failure(b"")
    assert "no Word file" in failure(make_zip({"a.txt": "x"}))
    locked = make_ole({("EncryptedPackage",): b"x", ("EncryptionInfo",): b"x"})
    assert "encrypted" in failure(locked)
    assert "old Office file" in failure(make_ole({("WordDocument",): b"x"}))
    broken = made(make_zip, "<w:p><w:r>")
    assert "not well-formed" in failure(broken)


def test_deep_nesting_is_a_reason_not_a_crash(make_zip):
    deep = "<w:sdt><w:sdtContent>" * 400 + p("x") + "</w:sdtContent></w:sdt>" * 400
    assert failure(made(make_zip, deep)).startswith("failed")


def test_limits_of_length_and_time(make_zip):
    data = made(make_zip, p("some text") * 50)
    assert "--max-chars" in failure(data, Limits(max_chars=100))
    assert "--max-file-seconds" in failure(data, Limits(max_file_seconds=-1))
