"""Pieces of text found on a picture become lines in reading order."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from epicrag.connectors import ocr
from epicrag.connectors.base import Limits, Parsed
from epicrag.connectors.pdf_layout import Piece
from epicrag.connectors.picture import parse_picture
from epicrag.types import Unread


def column(name: str, left: float) -> list[Piece]:
    return [
        Piece(f"{name} line number {n} of all the words", left, 30 * n, left + 300, 30 * n + 20)
        for n in range(2, 6)
    ]


def test_columns_are_read_one_after_the_other_and_titles_across():
    title = Piece("The title of it all", 10, 0, 690, 25)
    pieces = [*column("right", 400), *column("left", 10), title]
    lines = ocr.text_of(pieces).split("\n")
    assert lines[0] == "The title of it all"
    assert [line.split()[0] for line in lines[1:]] == ["left"] * 4 + ["right"] * 4


def test_words_on_one_line_are_one_line():
    pieces = [Piece("world", 120, 2, 200, 22), Piece("Hello", 10, 0, 100, 20)]
    assert ocr.text_of(pieces) == "Hello world"
    assert ocr.text_of([]) == ""


def test_a_fault_of_the_engine_is_handed_on(monkeypatch: pytest.MonkeyPatch):
    def broken(image: object) -> list[Piece]:
        raise ValueError("no")

    monkeypatch.setattr(ocr, "engine", lambda: broken)
    with pytest.raises(ValueError, match="no"):
        ocr.read_picture(None, 5)  # type: ignore[arg-type]


def picture(pages: int = 1) -> bytes:
    image = pytest.importorskip("PIL.Image", reason="pictures are read with Pillow")
    images = [image.new("RGB", (60, 40), "white") for _ in range(pages)]
    file = io.BytesIO()
    if pages > 1:
        images[0].save(file, "TIFF", save_all=True, append_images=images[1:])
    else:
        images[0].save(file, "PNG")
    return file.getvalue()


def test_pictures_are_read_only_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ocr, "is_installed", lambda: False)
    answer = parse_picture(b"", Limits())
    assert isinstance(answer, Unread) and answer.status == "unsupported"
    assert "--ocr all" in answer.reason and ocr.INSTALL in answer.reason
    answer = parse_picture(b"", Limits(ocr="all"))
    assert isinstance(answer, Unread) and ocr.INSTALL in answer.reason


def test_pages_of_a_picture_are_its_pages(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ocr, "is_installed", lambda: True)
    monkeypatch.setattr(ocr, "engine", lambda: lambda image: [Piece("words", 0, 0, 50, 10)])
    answer = parse_picture(picture(2), Limits(ocr="all"))
    assert isinstance(answer, Parsed) and answer.text == "words\n\nwords"
    assert [anchor.page for anchor in answer.anchors] == [1, 2]
    broken = parse_picture(picture()[:50], Limits(ocr="all"))
    assert isinstance(broken, Unread) and broken.reason.startswith("damaged image")


@pytest.mark.skipif(not ocr.is_installed(), reason="no OCR engine: pip install 'epicrag[ocr]'")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_real_engine_reads_a_page(tmp_path: Path, make_pdf):
    import pypdfium2

    with pypdfium2.PdfDocument(make_pdf([["The code is 4471."]])) as document:
        image = document[0].render(scale=2).to_numpy()[100:600, :800].copy()
    text = ocr.read_picture(image, 60)
    assert text is not None and "4471" in text
