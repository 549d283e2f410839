"""One passage by its place, its id or its number in the last answer."""

from __future__ import annotations

import pytest

from epicrag.ask import sources_of
from epicrag.errors import UsageError
from epicrag.passages import LAST_ANSWER, remember, show
from epicrag.types import Chunk, Document, Hit, Place


@pytest.fixture
def long(bench):
    """A document of several passages, with lines."""
    lines = [f"Line {n} tells of harbour number {n}, at length and slowly.\n" for n in range(1, 60)]
    bench.write("long.txt", "".join(lines))
    bench.write("short.txt", "Only this.\n")
    with bench.open(chunk_tokens=64) as pipeline:
        pipeline.ingest([bench.docs])
    return bench


def texts(bench, name, **options):
    with bench.open() as pipeline:
        return [shown.chunk.text for shown in show(pipeline, name, **options)]


def test_a_document_is_shown_whole_and_in_order(long):
    with long.open() as pipeline:
        found = show(pipeline, "long.txt")
    assert "".join(shown.chunk.text for shown in found) == (long.docs / "long.txt").read_text()
    assert [shown.chunk.ordinal for shown in found] == list(range(found[0].of))
    assert all(shown.has_kv and shown.is_asked for shown in found)


def test_a_line_means_the_passage_that_holds_it(long):
    (found,) = texts(long, "long.txt:30")
    assert "Line 30 " in found
    span = texts(long, "long.txt:1-59")
    assert span == texts(long, "long.txt")


def test_context_adds_neighbours_that_were_not_asked_for(long):
    with long.open() as pipeline:
        (alone,) = show(pipeline, "long.txt:30")
        found = show(pipeline, "long.txt:30", context=1)
    assert [shown.is_asked for shown in found] == [False, True, False]
    assert found[1].chunk == alone.chunk


def test_a_passage_is_found_by_the_beginning_of_its_id(long):
    with long.open() as pipeline:
        chunk = show(pipeline, "long.txt")[2].chunk
        assert show(pipeline, chunk.id)[0].chunk == chunk
        assert show(pipeline, chunk.id[:10])[0].chunk == chunk


@pytest.mark.parametrize(
    "name", ["long.txt:900", "long.txt#3", "nowhere.txt", "abcdef0123", "", "[1]"]
)
def test_what_means_nothing_is_a_usage_error(long, name):
    with long.open() as pipeline, pytest.raises(UsageError):
        show(pipeline, name)


def test_a_name_of_several_documents_is_refused_with_their_paths(long):
    with long.open() as pipeline, pytest.raises(UsageError, match="means 2 documents"):
        show(pipeline, str(long.docs))


def put(pipeline, path, *places):
    chunks = [
        Chunk(path, n, n * 10, n * 10 + 6, f"text {n}", None, place, 2)
        for n, place in enumerate(places)
    ]
    vectors = pipeline.embedder.passages([chunk.text for chunk in chunks])
    pipeline.catalog.put_document(Document(path, "", "0" * 64), chunks, vectors)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("b.pdf#2", "text 1"),
        ("b.pdf, p. 2", "text 1"),
        ("/x/b.pdf#page=3", "text 2"),
        ("deck.pptx, slide 2", "text 1"),
        ("book.xlsx, sheet Sales, A4:F17", "text 0"),
        ("book.xlsx, sheet Sales, A18", "text 1"),
    ],
)
def test_a_page_a_slide_and_a_sheet_are_named_as_citations_print_them(bench, name, found):
    with bench.open() as pipeline:
        put(pipeline, "/x/b.pdf", *(Place(page=n) for n in (1, 2, 3)))
        put(pipeline, "/x/deck.pptx", *(Place(page=n, part=f"slide {n}") for n in (1, 2)))
        cells = (("A4", "F17"), ("A18", "F30"))
        put(pipeline, "/x/book.xlsx", *(Place(1, part="sheet Sales", cells=two) for two in cells))
        assert [shown.chunk.text for shown in show(pipeline, name)] == [found]


def test_a_number_means_a_source_of_the_last_answer(museum):
    with museum.open() as pipeline:
        rows = list(pipeline.catalog.all_chunks())
        remember(pipeline, sources_of([Hit(row, chunk, 0.5) for row, chunk in rows]))
        for name in ("2", "[2]"):
            (found,) = show(pipeline, name)
            assert found.chunk == rows[1][1]
        with pytest.raises(UsageError, match=r"no source \[7\]"):
            show(pipeline, "7")


def test_the_last_answer_holds_no_word_of_it_and_bad_files_are_no_answer(museum):
    with museum.open() as pipeline:
        row, chunk = next(iter(pipeline.catalog.all_chunks()))
        remember(pipeline, sources_of([Hit(row, chunk, 0.5)]))
        file = pipeline.config.index / LAST_ANSWER
        assert chunk.text[:10] not in file.read_text()
        for content in ("[1]", "{", '{"1": 5}', '{"1": "../../x"}', ""):
            file.write_text(content)
            with pytest.raises(UsageError):
                show(pipeline, "1")


def test_a_source_that_is_gone_says_so(museum):
    with museum.open() as pipeline:
        row, chunk = next(iter(pipeline.catalog.all_chunks()))
        remember(pipeline, sources_of([Hit(row, chunk, 0.5)]))
        pipeline.catalog.delete_document(chunk.document)
        with pytest.raises(UsageError, match="no longer in the index"):
            show(pipeline, "1")
