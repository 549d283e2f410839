"""The words in the catalog are those of its chunks, always; and looking for them cannot go wrong."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from epicrag.index import migrations, wordsearch
from epicrag.index.catalog import Catalog
from epicrag.index.words import joined, query_words


def found(catalog: Catalog, query: str, n: int = 10, allowed=None) -> list[str]:
    rows = catalog.by_words(query_words(query), n, allowed)
    return [catalog.chunk(row).text for row, _ in rows]


def check(catalog: Catalog) -> None:
    """The index of words equals the chunks, and is sound by FTS5's own account."""
    rows = dict(catalog._rows("SELECT rowid, body FROM words"))
    assert rows == {row: joined(chunk.text) for row, chunk in catalog.all_chunks()}
    with catalog._database.writing() as connection:
        connection.execute("INSERT INTO words (words) VALUES ('integrity-check')")


def test_words_follow_documents_through_put_change_rename_and_delete(catalog, put):
    put(catalog, "/d/a.md", "the code is 4471", "another part")
    put(catalog, "/d/b.md", "unrelated")
    check(catalog)
    assert found(catalog, "4471") == ["the code is 4471"]
    put(catalog, "/d/a.md", "the code is 8820")
    check(catalog)
    assert (found(catalog, "4471"), found(catalog, "code")) == ([], ["the code is 8820"])
    catalog.rename_documents([("/d/a.md", "/d/c.md")])
    check(catalog)
    assert found(catalog, "8820") == ["the code is 8820"]
    catalog.delete_document("/d/c.md")
    check(catalog)
    assert found(catalog, "8820") == []
    assert catalog._rows("SELECT term FROM words_vocabulary") == [("b",), ("unrel",)]


def test_a_failed_put_leaves_the_words_as_they_were(catalog, put, make):
    put(catalog, "/d/a.md", "the code is 4471")
    document, chunks = make("/d/a.md", "the code is 8820", "twice")
    twice = [chunks[0], replace(chunks[1], ordinal=0)]
    with pytest.raises(Exception, match="UNIQUE"):
        catalog.put_document(document, twice, [np.zeros((0, 64), np.float32)] * 2)
    assert (found(catalog, "4471"), found(catalog, "8820")) == (["the code is 4471"], [])
    check(catalog)


def test_a_catalog_from_before_words_is_filled_when_it_is_opened(tmp_path, make, monkeypatch):
    document, chunks = make("/d/a.md", "the code is 4471", "明天下雨")
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:2])
        with Catalog.open(tmp_path, create=True) as old, old._database.writing() as connection:
            connection.execute(
                "INSERT INTO documents (row, path, digest, media) VALUES (1, ?, 'x', 'text/plain')",
                (document.path.encode(),),
            )
            for chunk in chunks:
                place = chunk.place
                values = (
                    chunk.ordinal,
                    chunk.id,
                    chunk.start,
                    chunk.end,
                    chunk.text,
                    chunk.n_tokens,
                )
                connection.execute(
                    "INSERT INTO chunks (document_row, ordinal, id, start, end, text, n_tokens, page,"
                    " line_first, line_last, heading) VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (*values, place.page, *place.lines, place.heading),
                )
    with Catalog.open(tmp_path) as catalog:
        assert found(catalog, "4471") == ["the code is 4471"]
        assert found(catalog, "明天") == ["明天下雨"]
        check(catalog)


def test_two_character_words_of_a_text_without_spaces_are_found(catalog, put):
    put(catalog, "/d/a.md", "今天天气很好。", "明天下雨。")
    assert found(catalog, "明天") == ["明天下雨。"]
    assert found(catalog, "雨") == ["明天下雨。"]


def test_emoji_and_names_that_read_as_stop_words_are_found(catalog, put):
    put(catalog, "/d/a.md", "All went well 👍", "Ask the IT department", "It is a department")
    assert found(catalog, "👍") == ["All went well 👍"]
    assert found(catalog, "IT") == ["Ask the IT department"]
    assert found(catalog, "it") == []


@pytest.mark.parametrize("query", ["?", "", "the of and", '"', "''", "*", "\x00", "-", "()"])
def test_a_question_without_words_finds_nothing(catalog, put, query):
    put(catalog, "/d/a.md", "the and of")
    assert found(catalog, query) == []


def test_a_corpus_of_stop_words_is_no_error(catalog, put):
    put(catalog, "/d/a.md", "the of and", "?!")
    assert found(catalog, "anything") == []


@pytest.mark.parametrize(
    "query",
    [
        '"code',
        "code*",
        "NEAR(code 4471)",
        "head: code",
        "code - 4471",
        "code AND NOT",
        "{head body}: code",
        "^code",
        "code + 4471",
        "'; DROP TABLE chunks; --code",
        "code" + " word" * 5000,
    ],
)
def test_what_means_something_to_fts5_means_nothing_here(catalog, put, query):
    put(catalog, "/d/a.md", "the code is 4471", "other")
    assert found(catalog, query) == ["the code is 4471"]


def test_a_word_in_the_title_counts_more(catalog, make, embedder):
    for path, title, text in (("/a", None, "ferry times"), ("/b", "ferry", "times table")):
        document, chunks = make(path, text, title=title)
        catalog.put_document(document, chunks, embedder.passages([text]))
    assert found(catalog, "ferry") == ["times table", "ferry times"]


def test_only_allowed_rows_are_found(catalog, put):
    rows = put(catalog, "/d/a.md", *(f"code {n} " for n in range(30)))
    assert found(catalog, "code", allowed=rows[20:22]) == ["code 20 ", "code 21 "]
    assert found(catalog, "code", allowed=[]) == []


def test_under_a_filter_rare_is_what_is_rare_among_the_allowed(catalog, put, monkeypatch):
    """A word that stands in no allowed passage takes no other's place."""
    put(catalog, "/d/a.md", *(f"rare{n} state " for n in range(9)))
    (row,) = put(catalog, "/d/b.md", "the state of the code")
    monkeypatch.setattr(wordsearch, "MOST_TERMS", 4)
    query = " ".join(f"rare{n}" for n in range(9)) + " state"
    assert found(catalog, query, allowed=[row]) == ["the state of the code"]
    monkeypatch.setattr(wordsearch, "_MOST_ROWS", 5)  # `state` is common in all, and rare here
    assert found(catalog, "rare1 state", allowed=[row]) == ["the state of the code"]


def test_few_rows_are_scored_however_common_the_words(catalog, put, monkeypatch):
    put(catalog, "/d/a.md", *(f"state year n{n % 7} " for n in range(200)), "state rare year")
    everything = found(catalog, "rare state year")
    monkeypatch.setattr(wordsearch, "_MOST_ROWS", 50)
    assert found(catalog, "rare state year") == everything[:1]
    assert len(found(catalog, "state year")) == 10
    assert len(found(catalog, "state")) == 10
    allowed = [row for row, _ in catalog.all_chunks()][-3:]
    assert len(found(catalog, "state year", allowed=allowed)) == 3


def test_a_rescored_ranking_is_bm25(catalog, put, monkeypatch):
    texts = [f"alpha{' beta' * (n % 5)}{' gamma' * (n % 3)} f{n} g{n} " for n in range(60)]
    put(catalog, "/d/a.md", *texts)
    terms = query_words("beta gamma")
    exact = catalog.by_words(terms, 60)
    counts = wordsearch.frequencies(catalog._rows, terms)
    again = wordsearch._rescored(catalog._rows, [row for row, _ in exact], counts)
    assert Counter(row for row, _ in again) == Counter(row for row, _ in exact)
    assert [row for row, _ in again][:8] == [row for row, _ in exact][:8]


def test_frequencies_of_common_words_are_estimates(catalog, put, monkeypatch):
    put(catalog, "/d/a.md", *(f"state {'year' if n % 2 else ''} n{n} " for n in range(400)))
    assert catalog.frequencies(["state", "year", "none"]) == {"state": 400, "year": 200, "none": 0}
    monkeypatch.setattr(wordsearch, "_MOST_ROWS", 40)
    counts = catalog.frequencies(["state", "year", "n7"])
    assert (counts["state"], counts["n7"]) == (400, 1)
    assert 190 <= counts["year"] <= 210


def test_sqlite_without_full_text_search_is_told(tmp_path, monkeypatch):
    from epicrag.errors import UsageError
    from epicrag.index.database import translated

    with pytest.raises(UsageError, match="FTS5"), translated(tmp_path / "catalog.sqlite"):
        raise sqlite3.OperationalError("no such module: fts5")
