"""Each passage of a PDF stands on exactly the page it is cited with."""

import time
from collections.abc import Callable

import pytest

from epicrag.connectors import ocr
from epicrag.connectors.base import Limits, Parsed
from epicrag.connectors.pdf import clean, mend_words, parse_pdf
from epicrag.connectors.pdf_layout import Piece
from epicrag.connectors.pdf_scan import is_garbage
from epicrag.connectors.split import split
from epicrag.types import Document, Unread

MakePdf = Callable[..., bytes]


def parsed(data: bytes) -> Parsed:
    answer = parse_pdf(data, Limits())
    assert isinstance(answer, Parsed), answer
    return answer


def failure(data: bytes, limits: Limits | None = None) -> str:
    answer = parse_pdf(data, limits or Limits())
    assert isinstance(answer, Unread), answer
    return f"{answer.status}: {answer.reason}"


def document_of(data: bytes) -> Document:
    content = parsed(data)
    return Document("/a.pdf", content.text, "", anchors=content.anchors, blocks=content.blocks)


def test_pages_are_exact(make_pdf: MakePdf):
    document = document_of(make_pdf([["First page."], ["Second."], ["The code is 4471."]]))
    for word, page in (("First", 1), ("Second", 2), ("4471", 3)):
        start = document.text.index(word)
        place = document.place(start, start + 1)
        assert (place.page, place.lines) == (page, None)


def test_no_passage_spans_two_pages(make_pdf: MakePdf, words):
    document = document_of(make_pdf([["First page."], [], ["The code is 4471."], ["Last."]]))
    chunks = split(document, words, chunk_tokens=100)
    assert [(chunk.text.strip(), chunk.place.page) for chunk in chunks] == [
        ("First page.", 1),
        ("The code is 4471.", 3),
        ("Last.", 4),
    ]


@pytest.mark.parametrize("rotate", [0, 90, 180, 270])
def test_rotated_pages_are_read(make_pdf: MakePdf, rotate: int):
    assert parsed(make_pdf([["one two", "three"]], rotate=rotate)).text == "one two\nthree"


def test_bookmarks_that_stand_in_the_text_are_headings(make_pdf: MakePdf):
    pages = [["Front matter"], ["1 Results", "We found it."], ["More of it."]]
    document = document_of(make_pdf(pages, bookmarks=[("Results", 1), ("Elsewhere", 2)]))
    assert [block.kind for block in document.blocks] == [
        "paragraph",
        "heading",
        "paragraph",
        "paragraph",
    ]
    headings = [document.place(block.start, block.end).heading for block in document.blocks]
    assert headings == [None, "1 Results", "1 Results", "1 Results"]


def row(*cells: str) -> str:
    """A line of `make_pdf` whose cells stand 150 points apart."""
    back = f") Tj {-150 * (len(cells) - 1)} 0 Td ("
    return ") Tj 150 0 Td (".join(cells) + back


def test_a_table_is_rows_under_their_head(make_pdf: MakePdf, words):
    rows = [row(f"State {n}", f"{n},123", f"{n}.5") for n in range(1, 9)]
    data = make_pdf([["Checks by state.", row("Name", "Total", "Share"), *rows, "The end."]])
    content = parsed(data)
    assert "Checks by state.\nName | Total | Share\nState 1 | 1,123 | 1.5\n" in content.text
    assert content.text.endswith("State 8 | 8,123 | 8.5\nThe end.")
    (table,) = content.tables
    assert table.head == "Name | Total | Share"
    document = Document("/a.pdf", content.text, "", blocks=content.blocks, tables=content.tables)
    chunks = split(document, words, chunk_tokens=40)
    assert len(chunks) > 1
    assert all("Name | Total" in chunk.model_text for chunk in chunks if "State 7" in chunk.text)


def test_properties_of_the_file_are_meta(make_pdf: MakePdf):
    data = make_pdf([["one"]], title="x) /Author (Ann Lee) /CreationDate (D:20240501120000Z")
    assert parsed(data).meta == {"author": "Ann Lee", "date": "2024-05-01", "year": 2024}


@pytest.fixture(autouse=True)
def no_ocr(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ocr, "is_installed", lambda: False)


def test_a_scan_says_that_it_needs_ocr_and_how_to_get_it(make_pdf: MakePdf):
    reason = failure(make_pdf([[], []]))
    assert reason.startswith("failed: no text: a scan of 2 pages, which needs OCR")
    assert "pip install 'epicrag[ocr]'" in reason


def test_pages_that_no_ocr_could_read_are_counted(make_pdf: MakePdf):
    content = parsed(make_pdf([["one"], [], ["two"]]))
    assert content.text == "one\n\ntwo" and content.meta == {"pages_without_text": 1}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """An engine that reads two columns off every picture; returns the shapes it was given."""
    seen: list[tuple[int, ...]] = []

    def read(image):
        seen.append(image.shape)
        lines = [
            (f"left line number {n} of this page", f"right line number {n} of it")
            for n in range(1, 5)
        ]
        return [
            Piece(text, 50 + 500 * side, 40 * at, 450 + 500 * side, 40 * at + 20)
            for at, pair in enumerate(lines)
            for side, text in enumerate(pair)
        ]

    monkeypatch.setattr(ocr, "is_installed", lambda: True)
    monkeypatch.setattr(ocr, "engine", lambda: read)
    return seen


def test_pages_without_text_are_read_by_ocr_and_only_they(make_pdf: MakePdf, engine):
    document = document_of(make_pdf([["one"], []]))
    assert len(engine) == 1 and engine[0][2] == 3
    left, right = document.text.index("left line number 4"), document.text.index("right line")
    assert left < right
    assert document.place(right, right + 1).page == 2


def test_ocr_can_be_switched_off(make_pdf: MakePdf, engine):
    reason = failure(make_pdf([[]]), Limits(ocr="never"))
    assert "--ocr auto" in reason and not engine


def test_ocr_has_a_limit_of_time(make_pdf: MakePdf, engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ocr, "engine", lambda: lambda image: time.sleep(1))
    reason = failure(make_pdf([[], []]), Limits(max_ocr_seconds=0.05))
    assert reason.startswith("skipped: OCR stopped after 0 of 2 pages")
    assert "0.05 seconds" in reason and "--max-ocr-seconds" in reason


def test_a_page_of_glyphs_without_meaning_counts_as_one_without_text():
    assert is_garbage("\ue001\ue002\ue003 \ue004\ue005\ue006 \ue007\ue008")
    assert is_garbage("(cid:12)(cid:13)(cid:14)(cid:15)(cid:16)(cid:17)(cid:18)(cid:19)")
    assert not is_garbage("plain words, and one \ue001")
    assert not is_garbage("")


def test_an_encrypted_pdf_says_so(make_pdf: MakePdf):
    assert failure(make_pdf([["secret"]], encrypted=True)).startswith("failed: encrypted PDF")


def test_broken_pdfs_say_how_they_are_broken(make_pdf: MakePdf):
    whole = make_pdf([["one"], ["two"]])
    assert "0 bytes" in failure(b"")
    assert "not a PDF" in failure(b"hello, this is no PDF")
    assert "truncated" in failure(whole[: len(whole) // 2])
    assert "damaged" in failure(b"%PDF-1.4\nnothing here\n%%EOF\n")


@pytest.mark.parametrize(
    ("title", "taken"),
    [
        ("Of ducks", "Of ducks"),
        ("10811.exe", None),
        ("Microsoft Word - ducks.doc", None),
        ("Annual_report", None),
        ("A title that the text does not have", None),
        ("", None),
    ],
)
def test_the_title_is_taken_only_where_it_is_one(make_pdf: MakePdf, title: str, taken: str | None):
    assert parsed(make_pdf([["Of Ducks", "and geese"]], title=title)).title == taken


def test_limits_name_themselves_their_value_and_their_flag(
    make_pdf: MakePdf, monkeypatch: pytest.MonkeyPatch
):
    data = make_pdf([["one"], ["two"], ["three"]])
    pages = failure(data, Limits(max_pages=2))
    assert pages.startswith("skipped") and "3 pages" in pages and "--max-pages" in pages
    assert "--max-chars" in failure(data, Limits(max_chars=5))
    clock = iter(range(0, 1000, 100))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    slow = failure(data, Limits(max_pdf_seconds=150))
    assert "page 2 of 3" in slow and "150 seconds" in slow and "--max-pdf-seconds" in slow


def test_words_broken_at_line_ends_are_joined_as_the_document_spells_them():
    pages = [
        "adip\x02iscing",
        "a well-known way",
        "well\x02known and Lucene\x02BM25",
        "top\ufffe20",
    ]
    assert mend_words(pages) == [
        "adipiscing",
        "a well-known way",
        "well-known and Lucene-BM25",
        "top-20",
    ]


def test_ligatures_positional_letters_and_glyphs_are_mended():
    assert clean("e\ufb03cient \ufe8e\ufedf") == "efficient \u0627\u0644"
    assert clean("\x1f one \x1f two\r\n\x00") == "• one • two\n"
    assert clean("".join(f"{n}\n" for n in range(1, 11)) + "text") == "text"
    assert clean("".join(f"{n * n}\n" for n in range(1, 11)) + "text").startswith("1\n4\n9")
