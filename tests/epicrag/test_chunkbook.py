"""The book of chunks: who finds what, what conflicts, what goes and what stays."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from epicrag.brought import Bringer, BroughtDocument
from epicrag.chunkbook import (
    FILE_NAME,
    BookLimits,
    ChunkBook,
    ChunkConflictError,
    ChunksFullError,
    GivenChunk,
    UnknownChunkError,
    UnwritableError,
)
from epicrag.errors import DamagedError, UsageError
from epicrag.index.database import Database, translated
from epicrag.index.kvstore import KVStore

TEXT = "The ferry to the island leaves every hour from pier three."


class Words:
    def count(self, text: str) -> int:
        return len(text.split())


@dataclass
class Shelf:
    """Opens the same book as another process would."""

    folder: Path
    store: KVStore
    engine: Any

    def open(self, **limits: Any) -> ChunkBook:
        return ChunkBook.open(self.folder, self.engine, Words(), self.store, BookLimits(**limits))


@pytest.fixture
def shelf(tmp_path: Path, make_compiler: Callable[[KVStore | None], Any]) -> Shelf:
    store = KVStore(tmp_path / "kv")
    return Shelf(tmp_path, store, make_compiler(store))


def given(text: str = TEXT, id: str | None = None, **fields: Any) -> GivenChunk:
    return GivenChunk(text, id, **fields)


def test_chunks_survive_a_restart(shelf: Shelf):
    with shelf.open() as book:
        (made,) = book.put("a", [given(id="one", title="Ferries", metadata={"year": 2020})])
        assert made.kv == "computed"
        assert made.model_text == f"Ferries\n{TEXT}"
        assert made.tokens == 12
        assert made.bytes == 120
    with shelf.open() as book:
        found = book.get("a", "one")
        assert (found.text, found.title, found.metadata) == (TEXT, "Ferries", {"year": 2020})
        assert found.kv_key == made.kv_key
        (again,) = book.put("a", [given(id="one", title="Ferries")])
        assert (again.row, again.kv, again.metadata) == (found.row, "stored", {"year": 2020})


def test_id_by_content_is_the_same_each_time(shelf: Shelf):
    with shelf.open() as book:
        first, second = book.put("a", [given(), given()])
        assert first.id == second.id
        (other,) = book.put("a", [given(title="T")])
        assert other.id != first.id
        assert len(book.page("a").chunks) == 2


def test_other_content_under_an_id_conflicts(shelf: Shelf):
    with shelf.open() as book:
        (old,) = book.put("a", [given(id="one")])
        with pytest.raises(ChunkConflictError, match="one"):
            book.put("a", [given("Fresh.", "two"), given("Another text.", "one")])
        with pytest.raises(UnknownChunkError):
            book.get("a", "two")  # all or none
        (new,) = book.put("a", [given("Another text.", "one")], replace=True)
        assert book.get("a", "one").text == "Another text."
        assert new.row != old.row
        assert shelf.store.keys() == {new.kv_key}


def test_chunk_is_compiled_behind_the_one_before_it(shelf: Shelf):
    with shelf.open() as book:
        _, second = book.put("a", [given(id="1", title="T"), given("More.", "2", before="1")])
        assert second.piece().before == f"T\n{TEXT}"
        assert second.before == "1"
        assert second.piece(offset=9).offset == 9
        with pytest.raises(UnknownChunkError, match="'3'"):
            book.put("a", [given("Lost.", before="3")])
        with pytest.raises(UsageError, match="before itself"):
            book.put("a", [given("Lost.", "4", before="4")])


def test_what_stands_before_may_change(shelf: Shelf):
    with shelf.open() as book:
        book.put("a", [given(id="1"), given("More.", "2", before="1")])
        book.put("a", [given("Changed.", "1")], replace=True)
        behind = book.get("a", "2")
        assert (behind.before, behind.before_text, behind.kv_key) == ("1", "Changed.", None)
        (behind,) = book.put("a", [given("More.", "2", before="1")])
        assert behind.kv == "computed"
        book.delete("a", "1")
        behind = book.get("a", "2")
        assert (behind.before, behind.piece().before, behind.kv_key) == (None, None, None)
        assert shelf.store.keys() == set()


def test_kv_goes_with_the_last_chunk_that_needs_it(shelf: Shelf):
    with shelf.open() as book:
        one, two = book.put("a", [given(id="one"), given(id="two")])
        assert one.kv_key == two.kv_key
        book.delete("a", "one")
        assert shelf.store.keys() == {two.kv_key}
        book.delete("a", "two")
        assert shelf.store.keys() == set()
        with pytest.raises(UnknownChunkError, match="'two'"):
            book.delete("a", "two")


def test_namespaces_know_nothing_of_each_other(shelf: Shelf):
    with shelf.open() as book:
        (mine,) = book.put("a", [given(id="one")])
        for use in (book.get, book.use, book.delete):
            with pytest.raises(UnknownChunkError):
                use("b", "one")
        assert book.page("b").chunks == ()
        assert book.rows("b") == {}
        assert book.read("b", [mine.row]) == []
        (theirs,) = book.put("b", [given("Another text.", "one")])
        (same,) = book.put("b", [given(id="two")])
        assert same.kv == "computed"  # nobody learns that another has this text
        assert same.kv_key != mine.kv_key
        with pytest.raises(UnknownChunkError):
            book.put("b", [given("x", before=mine.id + "x")])
        book.delete("b", "two")
        assert shelf.store.keys() == {mine.kv_key, theirs.kv_key}
        assert book.forget("b") == 1
        assert shelf.store.keys() == {mine.kv_key}
        assert book.get("a", "one").text == TEXT


def test_listing_goes_on_where_it_ended(shelf: Shelf):
    with shelf.open() as book:
        book.put("a", [given(f"Text {n}.", str(n)) for n in range(5)])
        book.put("b", [given("Other.")])
        page = book.page("a", limit=2)
        assert ([chunk.id for chunk in page.chunks], page.has_more) == (["0", "1"], True)
        page = book.page("a", limit=3, after="1")
        assert ([chunk.id for chunk in page.chunks], page.has_more) == (["2", "3", "4"], False)
        with pytest.raises(UnknownChunkError):
            book.page("a", after="nine")


def test_least_recently_used_of_what_was_brought_goes(shelf: Shelf):
    with shelf.open(max_chunks=3) as book:
        book.put("a", [given("Named.", "named")])
        first, second = book.bring("a", [given("First."), given("Second.")])
        book.note_use([first.row])
        book.bring("a", [given("Third.")])
        assert {c.text for c in book.page("a").chunks} == {"Named.", "First.", "Third."}
        with pytest.raises(UnknownChunkError):
            book.get("a", second.id)
        with pytest.raises(ChunksFullError, match="at most 3"):
            book.bring("a", [given(f"Text {n}.") for n in range(3)])
        assert len(book.page("a").chunks) == 3  # nothing went for what was not taken
        book.bring("b", [given("First.")])
        book.put("a", [given(f"Named {n}.") for n in range(2)])
        with pytest.raises(ChunksFullError):
            book.put("a", [given("One too many.")])


def test_budget_is_of_bytes_as_well(shelf: Shelf):
    with shelf.open(max_bytes=50) as book:
        book.bring("a", [given("one two three")])
        book.bring("a", [given("four five six")])
        assert [chunk.text for chunk in book.page("a").chunks] == ["four five six"]


def test_chain_leaves_from_its_end(shelf: Shelf):
    with shelf.open(max_chunks=3) as book:
        one = given("One.")
        two = given("Two.", before=one.content_id)
        three = given("Three.", before=two.content_id)
        book.bring("a", [one, two, three])
        book.bring("a", [given("New.")])
        assert [c.text for c in book.page("a").chunks] == ["One.", "Two.", "New."]
        assert book.get("a", two.content_id).before == one.content_id


def test_brought_chunk_that_is_registered_stays(shelf: Shelf):
    with shelf.open(max_chunks=1) as book:
        book.bring("a", [given("One.")])
        (named,) = book.put("a", [given("One.")])
        assert named.named
        with pytest.raises(ChunksFullError):
            book.bring("a", [given("Two.")])


def test_brought_again_after_what_stood_before_it_has_gone(shelf: Shelf):
    with shelf.open() as book:
        one = given("One.")
        chain = [one, given("Two.", before=one.content_id)]
        book.bring("a", chain)
        book.delete("a", one.content_id)
        assert [chunk.before for chunk in book.bring("a", chain)] == [None, one.content_id]


def test_orphans_are_freed_at_opening(shelf: Shelf):
    with shelf.open() as book:
        (kept,) = book.put("a", [given()])
    zeros = torch.zeros(1, 1, 1, 2)
    shelf.store.put("ab" * 32, zeros, zeros, {})
    with shelf.open():
        assert shelf.store.keys() == {kept.kv_key}
    shelf.engine.profile = "another model"
    with shelf.open() as book:
        assert shelf.store.keys() == set()
        assert book.get("a", kept.id).kv_key is None
        (again,) = book.put("a", [given()])
        assert (again.kv, again.kv_key == kept.kv_key) == ("computed", False)


def test_chunk_deleted_while_it_is_compiled_leaves_nothing(shelf: Shelf):
    with shelf.open() as book:
        shelf.engine.on_compile = lambda: book.delete("a", "one") and None
        book.put("a", [given(id="one")])
        assert book.page("a").chunks == ()
        assert shelf.store.keys() == set()


def test_model_without_reuse_keeps_texts(shelf: Shelf):
    shelf.engine.refusal = "no reuse"
    with shelf.open() as book:
        (made,) = book.put("a", [given()])
        assert (made.kv, made.kv_key) == ("none", None)
        (brought,) = book.bring("a", [given("Brought.")])
        assert brought.kv_key is None


@pytest.mark.parametrize("chunk_id", ["", "a/b", "..", "a b", "x" * 201, "\ud800", "a\0b", "?"])
def test_ids_can_stand_in_an_address(shelf: Shelf, chunk_id: str):
    with shelf.open() as book:
        with pytest.raises(UsageError):
            book.put("a", [given(id=chunk_id)])
        with pytest.raises(UnknownChunkError):
            book.get("a", chunk_id)


def test_text_of_any_kind_is_kept_or_refused(shelf: Shelf):
    with shelf.open(max_chunk_tokens=20) as book:
        (made,) = book.put("a", [given("a\ud800b\0c", title="t\udfff", metadata={"x": "\ud800"})])
        assert (made.text, made.title) == ("a\ufffdb\0c", "t\ufffd")
        assert made.metadata == {"x": "\ufffd"}
        for bad in ("", " \n"):
            with pytest.raises(UsageError, match="no text"):
                book.put("a", [given(bad)])
        with pytest.raises(UsageError, match="21 tokens"):
            book.put("a", [given("word " * 21)])
        with pytest.raises(UsageError, match="not JSON"):
            book.put("a", [given(metadata={"x": float("nan")})])
        book._counter = None  # what is surely too long is not counted
        with pytest.raises(UsageError, match="more than 31 tokens"):
            book.put("a", [given("w" * 1000)])


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], bool]], None]:
    """Have every transaction fail for want of room, for as long as `is_full` says."""

    def fill(is_full: Callable[[], bool]) -> None:
        writing = Database.writing

        @contextmanager
        def failing(self: Database, **options: Any) -> Iterator[Any]:
            with writing(self, **options) as connection:
                yield connection
                if is_full():
                    with translated(self.file):
                        error = sqlite3.OperationalError("database or disk is full")
                        error.sqlite_errorcode = sqlite3.SQLITE_FULL
                        raise error

        monkeypatch.setattr(Database, "writing", failing)

    return fill


def test_on_a_full_disk_chunks_are_found_and_documents_are_read(
    shelf: Shelf, full_disk: Any, word_counter: Any, caplog: Any
):
    documents = [BroughtDocument("One sentence here. " * 30, title="T"), BroughtDocument("Two.")]
    with shelf.open() as book:
        (made,) = book.put("a", [given(id="one")])
        bringer = Bringer(book, word_counter, 40)
        before = [p.chunk.piece() for p in bringer.bring("b", documents)]
        full_disk(lambda: True)
        with pytest.raises(UnwritableError, match="full"):
            book.put("a", [given("Another.")])
        book._uses.since = 0.0
        assert book.use("a", "one").kv_key == made.kv_key
        passages = bringer.bring("a", documents)
        assert "not kept" in caplog.text
        pieces = [p.chunk.piece() for p in passages]
        assert [(p.text, p.before) for p in pieces] == [(p.text, p.before) for p in before]
        assert {p.namespace for p in pieces} == {"a"}
        assert len(book.page("a").chunks) == 1


def test_to_forget_a_chunk_on_a_full_disk_its_kv_goes_first(shelf: Shelf, full_disk: Any):
    with shelf.open() as book:
        (made,) = book.put("a", [given(id="one")])
        full_disk(lambda: shelf.store.contains(made.kv_key))
        book.delete("a", "one")
        with pytest.raises(UnknownChunkError):
            book.get("a", "one")
        assert not shelf.store.keys()


def test_a_book_that_was_removed_says_what_to_do(shelf: Shelf, word_counter: Any):
    with shelf.open() as book:
        book.put("a", [given(id="one")])
        (shelf.folder / FILE_NAME).unlink()
        with pytest.raises(UnwritableError, match="removed") as told:
            book.put("a", [given("Another.")])
        assert "restart" in str(told.value.hint)
        assert "ingest" not in f"{told.value} {told.value.hint}"
        bringer = Bringer(book, word_counter, 40)
        assert len(bringer.bring("a", [BroughtDocument("Two.")])) == 1


def test_damaged_book_says_so(shelf: Shelf):
    (shelf.folder / FILE_NAME).write_bytes(b"no database at all, just text" * 10)
    with pytest.raises(DamagedError, match=FILE_NAME):
        shelf.open()


def test_threads_share_a_book(shelf: Shelf):
    failed: list[BaseException] = []

    def work(namespace: str) -> None:
        try:
            for n in range(12):
                book.put(namespace, [given(f"Text {n}.", f"id{n}")])
                book.bring(namespace, [given(f"Brought {n % 3}.")])
                book.use(namespace, f"id{n}")
                if n % 3 == 2:
                    book.delete(namespace, f"id{n}")
        except BaseException as error:  # noqa: BLE001 - it is raised below
            failed.append(error)

    with shelf.open() as book:
        threads = [threading.Thread(target=work, args=(f"t{n % 3}",)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        for n in range(3):
            assert len(book.page(f"t{n}").chunks) == 8 + 3
        keys = {chunk.kv_key for n in range(3) for chunk in book.page(f"t{n}").chunks}
        assert shelf.store.keys() <= keys
    with shelf.open() as book:
        assert len(book.page("t1").chunks) == 11


def test_the_kv_of_a_chunk_behind_another_is_kept(shelf: Shelf):
    with shelf.open() as book:
        first, second = book.put("a", [given("One.", "1"), given("Two.", "2", before="1")])
        assert (second.kv, second.kv_key is None) == ("computed", False)
        assert book.get("a", "2").kv_key == second.kv_key
        assert shelf.store.keys() == {first.kv_key, second.kv_key}
        (again,) = book.put("a", [given("Two.", "2", before="1")])
        assert again.kv == "stored"
        brought = book.bring("b", [given("One.", "1"), given("Two.", "2", before="1")])
        assert [book.get("b", c.id).kv_key for c in brought] == [c.kv_key for c in brought]


def test_an_id_by_content_tells_a_title_from_a_line(shelf: Shelf):
    with shelf.open() as book:
        (titled,) = book.put("a", [given("body", title="T")])
        (plain,) = book.put("a", [given("T\nbody")])
        assert titled.id != plain.id
        assert book.get("a", titled.id).title == "T"


def test_one_id_for_two_texts_is_refused(shelf: Shelf):
    with shelf.open() as book:
        with pytest.raises(ChunkConflictError, match="two of the chunks"):
            book.put("a", [given("one", "x"), given("two", "x")], replace=True)
        one, two = book.put("a", [given("one", "x"), given("one", "x")])
        assert one.row == two.row


def test_what_goes_while_it_is_registered_is_said(shelf: Shelf, monkeypatch):
    with shelf.open() as book:
        register = book._register

        def and_deleted(namespace: str, *args: Any, **kwargs: Any) -> list[int]:
            rows = register(namespace, *args, **kwargs)
            book.delete(namespace, "x")
            return rows

        monkeypatch.setattr(book, "_register", and_deleted)
        with pytest.raises(ChunkConflictError, match="while it was registered"):
            book.put("a", [given("one", "x")])
