"""A presentation is read slide by slide: what is shown, what is said to it, and the numbers of its charts."""

import io
import zipfile
from typing import Any

import pptx
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches

from epicrag.connectors.base import Limits, Parsed
from epicrag.connectors.pptx import parse_pptx
from epicrag.types import Document, Unread


def saved(deck: Any) -> bytes:
    file = io.BytesIO()
    deck.save(file)
    return file.getvalue()


def parsed(deck: Any) -> Parsed:
    answer = parse_pptx(deck if isinstance(deck, bytes) else saved(deck), Limits())
    assert isinstance(answer, Parsed), answer
    return answer


def box(slide: Any, text: str, left: float, top: float) -> Any:
    shape = slide.shapes.add_textbox(Inches(left), Inches(top), Inches(2), Inches(1))
    shape.text_frame.text = text
    return shape


def test_slides_are_pages_with_titles_lists_and_notes():
    deck = pptx.Presentation()
    for number in (1, 2):
        slide = deck.slides.add_slide(deck.slide_layouts[1])
        slide.shapes.title.text = f"Title {number}"
        slide.placeholders[1].text = f"one\ntwo {number}"
        slide.notes_slide.notes_text_frame.text = f"said {number}"
    content = parsed(deck)
    assert content.text == (
        "Title 1\n\n- one\n- two 1\n\nNotes: said 1\n\nTitle 2\n\n- one\n- two 2\n\nNotes: said 2"
    )
    assert content.title == "Title 1"
    document = Document("/d", content.text, "", anchors=content.anchors)
    place = document.place(content.text.index("two 2"), len(content.text))
    assert (place.page, place.part, place.heading) == (2, "slide 2", "Title 2")


def test_a_slide_without_title_is_not_under_the_one_before():
    deck = pptx.Presentation()
    deck.slides.add_slide(deck.slide_layouts[5]).shapes.title.text = "First"
    box(deck.slides.add_slide(deck.slide_layouts[6]), "alone", 1, 1)
    content = parsed(deck)
    assert content.anchors[-1].heading is None


def test_shapes_are_read_from_the_top_left_and_groups_are_entered():
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[6])
    box(slide, "third", 1, 4)
    box(slide, "second", 5, 1.05)
    box(slide, "first", 1, 1.1)
    group = slide.shapes.add_group_shape()
    inner = group.shapes.add_textbox(Inches(1), Inches(6), Inches(1), Inches(1))
    inner.text_frame.text = "last"
    assert parsed(deck).text == "first\n\nsecond\n\nthird\n\nlast"


def test_tables_and_charts_are_rows():
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[6])
    table = slide.shapes.add_table(2, 3, 0, 0, Inches(4), Inches(1)).table
    for at, text in enumerate(["Region", "Sales", "Tax", "North", "17", "3"]):
        table.cell(at // 3, at % 3).text = text
    data = CategoryChartData()
    data.categories = ["2021", "2022"]
    data.add_series("Ducks", (110, 130.5))
    slide.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, 0, Inches(4), Inches(4), Inches(3), data)
    content = parsed(deck)
    assert content.text == (
        "Region | Sales | Tax\nNorth | 17 | 3\n\n| Ducks\n2021 | 110\n2022 | 130.5"
    )
    assert content.tables[0].head == "Region | Sales | Tax"


def test_cells_merged_over_columns_stand_once():
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[6])
    table = slide.shapes.add_table(3, 3, 0, 0, Inches(4), Inches(1)).table
    table.first_row = False
    for at in range(9):
        table.cell(at // 3, at % 3).text = str(at)
    table.cell(0, 0).merge(table.cell(0, 1))
    table.cell(1, 0).merge(table.cell(2, 0))
    # What was in a cell that is merged away is taken into the one that stays.
    assert parsed(deck).text == "0 1 |  | 2\n3 6 | 4 | 5\n| 7 | 8"


def rewritten(deck: Any, changes: dict[str, Any]) -> bytes:
    """The deck with some of its parts changed or added."""
    archive = zipfile.ZipFile(io.BytesIO(saved(deck)))
    parts = {name: archive.read(name) for name in archive.namelist()}
    for name, change in changes.items():
        parts[name] = change(parts.get(name, b"").decode()).encode()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as copy:
        for name, content in parts.items():
            copy.writestr(name, content)
    return file.getvalue()


def test_comments_of_older_and_newer_programs_have_their_authors():
    deck = pptx.Presentation()
    deck.slides.add_slide(deck.slide_layouts[6])
    types = "application/vnd.openxmlformats-officedocument.presentationml."

    def related(kind: str, target: str) -> Any:
        line = f'<Relationship Id="x{target[-5]}" Type="{kind}" Target="{target}"/></Relationships>'
        return lambda old: old.replace("</Relationships>", line)

    def typed(old: str) -> str:
        for part, kind in (("comments/c1.xml", "comments"), ("authors1.xml", "commentAuthors")):
            line = f'<Override PartName="/ppt/{part}" ContentType="{types}{kind}+xml"/></Types>'
            old = old.replace("</Types>", line)
        return old

    old = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/"
    data = rewritten(
        deck,
        {
            "ppt/slides/_rels/slide1.xml.rels": related(f"{old}comments", "../comments/c1.xml"),
            "ppt/_rels/presentation.xml.rels": related(f"{old}commentAuthors", "authors1.xml"),
            "ppt/authors1.xml": lambda _: '<a xmlns="x"><b id="0" name="Ann"/></a>',
            "ppt/comments/c1.xml": lambda _: (
                '<l xmlns="x"><cm authorId="0"><text>Why?</text></cm>'
                "<cm authorId='9'><txBody><p>new</p></txBody></cm></l>"
            ),
            "[Content_Types].xml": typed,
        },
    )
    assert parsed(data).text == "[Comment by Ann: Why?]\n\n[Comment: new]"


def test_what_is_stored_twice_is_read_once():
    deck = pptx.Presentation()
    box(deck.slides.add_slide(deck.slide_layouts[6]), "shown", 1, 1)

    def twice(old: str) -> str:
        start, end = old.index("<p:sp>"), old.index("</p:sp>") + len("</p:sp>")
        shape = old[start:end]
        name = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
        both = f"<mc:AlternateContent {name}><mc:Choice>{shape}</mc:Choice>"
        both += f"<mc:Fallback>{shape.replace('shown', 'old')}</mc:Fallback></mc:AlternateContent>"
        return old[:start] + both + old[end:]

    assert parsed(rewritten(deck, {"ppt/slides/slide1.xml": twice})).text == "shown"


def failure(data: bytes, limits: Limits | None = None) -> str:
    answer = parse_pptx(data, limits or Limits())
    assert isinstance(answer, Unread), answer
    return f"{answer.status}: {answer.reason}"


def test_what_is_no_presentation_says_so(make_zip, make_ole):
    whole = saved(pptx.Presentation())
    assert "cut off" in failure(whole[:2_000])
    assert "no PowerPoint file" in failure(make_zip({"a": "x"}))
    assert "encrypted" in failure(make_ole({("EncryptedPackage",): b"x"}))


def test_entities_and_limits():
    deck = pptx.Presentation()
    for _ in range(3):
        box(deck.slides.add_slide(deck.slide_layouts[6]), "text " * 20, 1, 1)
    bomb = {"ppt/slides/slide1.xml": lambda old: f'<!DOCTYPE a [<!ENTITY b "c">]>{old[55:]}'}
    assert "entities" in failure(rewritten(deck, bomb))
    assert "--max-pages" in failure(saved(deck), Limits(max_pages=2))
    assert "--max-chars" in failure(saved(deck), Limits(max_chars=100))
    assert "--max-file-seconds" in failure(saved(deck), Limits(max_file_seconds=-1))
