"""Documents that requests bring along fall into the same chunks each time, in whatever company."""

from __future__ import annotations

from pathlib import Path

import pytest

from epicrag.brought import MAX_DOCUMENTS, Bringer, BroughtDocument
from epicrag.chunkbook import BookLimits, ChunkBook, ChunksFullError
from epicrag.errors import UsageError


@pytest.fixture
def bringer(tmp_path: Path, word_counter, make_compiler):
    with ChunkBook.open(tmp_path, make_compiler(None), word_counter, None) as book:
        yield Bringer(book, word_counter, 40)


def text(name: str, n: int = 12) -> str:
    return "\n\n".join(
        f"Paragraph {k} of {name} says what {name} does in step {k}." for k in range(n)
    )


def test_chunks_tile_the_document_under_its_title(bringer):
    document = BroughtDocument(text("ferries"), "f", "Ferries")
    passages = bringer.bring("a", [document])
    assert len(passages) > 2
    assert "".join(passage.chunk.text for passage in passages) == document.text
    assert all(p.chunk.model_text == f"Ferries\n{p.chunk.text}" for p in passages)
    assert all(p.chunk.tokens <= 40 for p in passages)
    assert [(p.document, p.name, p.part) for p in passages[:2]] == [(0, "f", 0), (0, "f", 1)]
    befores = [passage.chunk.piece().before for passage in passages]
    assert befores == [None, *(p.chunk.model_text for p in passages[:-1])]


def test_order_and_company_change_nothing(bringer):
    documents = [BroughtDocument(text(name), title=name) for name in ("trams", "buses", "bikes")]
    first = bringer.bring("a", documents)
    again = bringer.bring("a", documents[::-1])
    assert {p.chunk.row for p in first} == {p.chunk.row for p in again}
    alone = Bringer(bringer._book, bringer._counter, 40).bring("a", documents[1:2])
    assert [p.chunk.kv_key for p in alone] == [p.chunk.kv_key for p in first if p.document == 1]


def test_namespaces_get_their_own(bringer):
    document = BroughtDocument(text("ferries"))
    mine, theirs = bringer.bring("a", [document]), bringer.bring("b", [document])
    assert not {p.chunk.row for p in mine} & {p.chunk.row for p in theirs}
    assert not {p.chunk.kv_key for p in mine} & {p.chunk.kv_key for p in theirs}


def test_a_text_is_put_before_the_model_once(bringer):
    document = BroughtDocument("The same short text.")
    passages = bringer.bring("a", [document, BroughtDocument("Another."), document])
    assert [p.name for p in passages] == ["document 1", "document 2"]


def test_what_cannot_be_brought_is_said(bringer):
    with pytest.raises(UsageError, match="document 2 has no text"):
        bringer.bring("a", [BroughtDocument("Text."), BroughtDocument(" \n")])
    with pytest.raises(UsageError, match="in one request"):
        bringer.bring("a", [BroughtDocument("Text.")] * (MAX_DOCUMENTS + 1))
    bringer._book.limits = BookLimits(max_chunks=2)
    with pytest.raises(ChunksFullError):
        bringer.bring("a", [BroughtDocument(text("ferries"))])


def test_text_that_is_no_unicode_is_read_as_the_tokenizer_does(bringer):
    (passage,) = bringer.bring("a", [BroughtDocument("A\ud800b, \udfff.", title="T\ud800")])
    assert passage.chunk.model_text == "T\ufffd\nA\ufffdb, \ufffd."
    assert len(bringer.bring("a", [BroughtDocument(text("x") + "\ud800", title="\ud800")])) > 1


def test_second_request_computes_nothing_of_its_documents(checkpoint, tmp_path):
    """Over a real engine: in another order, from a book that was opened anew, and only in its own namespace."""
    from epicrag.index.kvstore import KVStore
    from epicrag.recognise import Recogniser, Whoever
    from epicrag.serving.engine import Engine
    from epicrag.serving.policies import Naive
    from epicrag.serving.prompt import Chat, Message, Prompt
    from epicrag.serving.sample import Sampling

    store = KVStore(tmp_path / "served")
    engine = Engine.load(
        checkpoint("llama"),
        name="tiny",
        store=KVStore(tmp_path / "kv"),
        other_store=store,
        device="cpu",
        dtype="float32",
        kv_memory_bytes=16 << 20,
        self_check=False,
    )

    def asked(prompt):
        generation = engine.generate(prompt, policy=Naive(), sampling=Sampling(max_tokens=2))
        list(generation)
        return generation.receipt

    documents = [BroughtDocument(text(name, 2), title=name) for name in ("trams", "buses")]
    with ChunkBook.open(tmp_path, engine, engine.tokenizer, store) as book:
        passages = Bringer(book, engine.tokenizer, 90).bring("a", documents)
        pieces = tuple(passage.chunk.piece() for passage in passages)
        assert asked(Prompt("why?", pieces, namespace="a")).stitched == 0
        assert {passage.chunk.kv_key for passage in passages} <= store.keys()
    with ChunkBook.open(tmp_path, engine, engine.tokenizer, store) as book:
        bringer = Bringer(book, engine.tokenizer, 90)
        again = bringer.bring("a", documents[::-1])
        pieces = tuple(passage.chunk.piece() for passage in again)
        receipt = asked(Prompt("how?", pieces, namespace="a"))
        assert receipt.recomputed == 0
        assert receipt.stitched + receipt.exact >= sum(p.chunk.tokens for p in again)
        theirs = tuple(passage.chunk.piece() for passage in bringer.bring("b", documents))
        assert len(engine.lacking(Prompt("why?", theirs, namespace="b"), Naive())) == len(theirs)
        recogniser = Recogniser(engine.tokenizer, book=book)
        flat = f"Read: {again[0].chunk.model_text.strip()}\n\nWhy?"
        for namespace, is_known in (("a", True), ("b", True), ("c", False)):
            parts = recogniser.parts(flat, Whoever(namespace, may_ask=False))
            chat = Chat((Message("user", parts),), namespace)
            assert (asked(chat).stitched > 40) == (is_known and namespace == "a")


def test_work_that_nobody_waits_for_ends_between_two_documents(bringer, monkeypatch):
    cut = []
    monkeypatch.setattr("epicrag.brought._split", lambda document, *_: cut.append(document) or ())

    def check():
        if len(cut) == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        bringer.bring("a", [BroughtDocument(text(str(n))) for n in range(5)], check)
    assert len(cut) == 2
