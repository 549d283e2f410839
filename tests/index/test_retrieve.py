"""A question finds the passages that are in the index now, each content once."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from epicrag.errors import MismatchError
from epicrag.index.catalog import Catalog
from epicrag.index.filters import parse_filter
from epicrag.index.retrieve import Request, check_embedder, search
from epicrag.index.vectors import VectorIndex


@pytest.fixture
def ask(catalog, embedder, tmp_path):
    vectors = VectorIndex.open(catalog, tmp_path)

    def do(query, k=6, **options):
        return search(catalog, vectors, embedder, Request(query, k, **options))

    return do


def test_best_passage_comes_first_with_its_place(ask, catalog, put):
    put(catalog, "/d/a.md", "the cat sat ", "the dog ran fast")
    hit, other = ask("dog ran")
    assert (hit.chunk.text, hit.chunk.place.page) == ("the dog ran fast", 2)
    assert catalog.chunk(hit.row) == hit.chunk
    assert 1 >= hit.score > other.score >= -1


def test_empty_index_finds_nothing(ask):
    assert ask("anything") == []


def test_deleted_document_is_no_longer_found(ask, catalog, put):
    put(catalog, "/d/a.md", "code is 4471")
    put(catalog, "/d/b.md", "unrelated")
    assert ask("code is 4471")[0].chunk.text == "code is 4471"
    catalog.delete_document("/d/a.md")
    assert [hit.chunk.text for hit in ask("code is 4471")] == ["unrelated"]


def test_edited_document_is_found_by_its_new_text_only(ask, catalog, put):
    put(catalog, "/d/a.md", "code is 4471")
    ask("code")
    put(catalog, "/d/a.md", "code is 8820")
    assert [hit.chunk.text for hit in ask("code is 4471")] == ["code is 8820"]


def test_renamed_document_is_found_under_its_new_name(ask, catalog, put):
    put(catalog, "/d/a.md", "code is 4471")
    catalog.rename_documents([("/d/a.md", "/d/b.md")])
    assert ask("code")[0].chunk.document == "/d/b.md"


def test_one_content_in_many_files_is_one_hit_and_leaves_room(ask, catalog, put):
    for i in range(20):
        put(catalog, f"/d/{i}.md", "the same words")
    put(catalog, "/d/other.md", "the other words")
    put(catalog, "/d/last.md", "something else")
    texts = [hit.chunk.text for hit in ask("the same words", k=3)]
    assert texts == ["the same words", "the other words", "something else"]


def test_no_more_than_k_are_found(ask, catalog, put):
    put(catalog, "/d/a.md", *[f"word{i} " for i in range(9)])
    assert len(ask("word3", k=4)) == 4
    assert ask("word3", k=4)[0].chunk.text == "word3 "
    assert ask("word3", k=0) == []
    assert len(ask("word3", k=100)) == 9


def test_fact_far_into_a_long_passage_is_found(ask, catalog, put):
    filler = [f"filler{i}" for i in range(700)]
    put(catalog, "/d/long.md", " ".join([*filler, "the vault opens with 4471"]))
    put(catalog, "/d/other.md", "the garden opens at noon")
    hit = ask("the vault opens with 4471", k=1)[0]
    assert hit.chunk.document == "/d/long.md" and hit.score > 0.3


def test_search_sees_one_state_of_the_index_while_another_writes(ask, catalog, put, tmp_path):
    put(catalog, "/d/a.md", *[f"w{i} version 0 " for i in range(4)])
    stop = threading.Event()

    def write():
        with Catalog.open(tmp_path) as writer:
            for version in range(1, 40):
                put(writer, "/d/a.md", *[f"w{i} version {version} " for i in range(4)])
        stop.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not stop.is_set():
        hits = ask("w2 version")
        assert len(hits) == 4
        assert len({hit.chunk.text.split()[-1] for hit in hits}) == 1
    thread.join()


def test_first_embedder_is_taken_on_and_then_expected(catalog, embedder, put):
    check_embedder(catalog, embedder)
    put(catalog, "/d/a.md", "text")
    check_embedder(catalog, embedder)


def test_other_embedder_is_refused_with_both_names_and_nothing_is_written(
    catalog, put, new_embedder
):
    check_embedder(catalog, new_embedder("words"))
    put(catalog, "/d/a.md", "text")
    stored = catalog.setting("embedder")
    for other in (new_embedder("bigger", dim=16), new_embedder("retrained")):
        with pytest.raises(MismatchError) as caught:
            check_embedder(catalog, other)
        assert "words" in caught.value.message and other.name in caught.value.message
        assert "--embed-model words" in caught.value.hint and caught.value.exit_code == 6
    assert catalog.setting("embedder") == stored


def test_same_name_with_other_weights_is_refused(catalog, put, new_embedder):
    check_embedder(catalog, new_embedder())
    put(catalog, "/d/a.md", "text")
    changed = new_embedder()
    changed.fingerprint = "other weights"
    with pytest.raises(MismatchError, match="fingerprint"):
        check_embedder(catalog, changed)


def test_index_without_vectors_takes_another_embedder_on(catalog, put, new_embedder):
    check_embedder(catalog, new_embedder())
    put(catalog, "/d/a.md", "text")
    catalog.delete_document("/d/a.md")
    check_embedder(catalog, new_embedder("other", dim=16))
    check_embedder(catalog, new_embedder("other", dim=16))


# --- by meaning and by words ---


def test_every_hit_has_its_cosine_and_its_ranks(ask, catalog, put, embedder):
    put(catalog, "/d/a.md", "the cat sat ", "a running dog ", "nothing here")
    hits = ask("the cat", k=3)
    assert [hit.stages["fused"].rank for hit in hits] == [1, 2, 3]
    assert set(hits[0].stages) == {"dense", "words", "fused"}
    for hit in hits:
        vector = embedder.passages([hit.chunk.text])[0][0]
        assert hit.score == pytest.approx(float(vector @ embedder.query("the cat")), abs=1e-5)


def test_modes_and_weights_decide_the_order(ask, catalog, put):
    # The stub embedder knows no stems and the index of words does; it takes "who" and "was" for words.
    put(catalog, "/d/a.md", "who was that ", "he jumped")
    dense, words = ["who was that ", "he jumped"], ["he jumped"]

    def texts(**options):
        return [hit.chunk.text for hit in ask("who was jumping", **options)]

    assert texts(mode="dense") == texts(weights={"dense": 1.0, "words": 0.0}) == dense
    assert texts(mode="words") == texts(weights={"dense": 0.0, "words": 1.0}) == words
    assert texts(weights={"dense": 0.1, "words": 1.0}) == words + dense[:1]


def test_what_only_words_find_has_its_cosine_too(ask, catalog, put):
    put(catalog, "/d/a.md", *(f"alpha n{n} " for n in range(80)), "4471jumped")
    (hit,) = ask("4471", mode="words")
    assert hit.chunk.text == "4471jumped"
    assert -1 <= hit.score <= 1 and "dense" not in hit.stages


def test_a_chunk_without_a_vector_is_found_by_its_words(ask, catalog, make):
    document, chunks = make("/d/a.md", "nan code 4471")
    catalog.put_document(document, chunks, [np.zeros((0, 64), np.float32)])
    (hit,) = ask("4471")
    assert hit.score == 0.0


@pytest.mark.parametrize("mode", ["hybrid", "dense", "words"])
def test_a_filter_holds_in_every_mode_and_finds_all_that_fit(ask, catalog, put, mode):
    for n in range(30):
        put(catalog, f"/docs/{n}.md", f"the code is n{n}")
    put(catalog, "/manual/a.md", "a code of the ship ")
    put(catalog, "/manual/b.md", "no code of that kind")
    hits = ask("the code is", k=6, mode=mode, filter=parse_filter('path~"manual/*"'))
    assert {hit.chunk.document for hit in hits} == {"/manual/a.md", "/manual/b.md"}


def test_a_filter_that_nothing_fits_finds_nothing(ask, catalog, put):
    put(catalog, "/d/a.md", "the code")
    assert ask("the code", filter=parse_filter("ext=pdf")) == []


def test_where_else_a_passage_stands_is_told_within_the_filter(ask, catalog, put):
    for path in ("/a/x.md", "/b/x.md", "/secret/x.md"):
        put(catalog, path, "the same words")
    (hit,) = ask("the same words", filter=parse_filter("not path~secret/*"))
    assert {hit.chunk.document, *hit.also} == {"/a/x.md", "/b/x.md"}


class Backwards:
    """A reranker that likes best what was found last."""

    depth = 3

    def __init__(self):
        self.read = []

    def scores(self, query, texts):
        self.read = list(texts)
        return [float(n) for n in range(len(texts))]


def test_a_reranker_reads_the_first_passages_and_has_the_last_word(ask, catalog, put):
    put(catalog, "/d/a.md", *(f"code {'ship ' * n}" for n in range(6)))
    plain, reranker = ask("code", k=6), Backwards()
    hits = ask("code", k=2, reranker=reranker)
    assert [hit.row for hit in hits] == [plain[2].row, plain[1].row]
    assert reranker.read == [hit.chunk.model_text for hit in plain[:3]]
    assert (hits[0].stages["rerank"].rank, hits[0].stages["rerank"].score) == (1, 2.0)
    assert hits[0].stages["fused"].rank == 3


def test_a_question_of_signs_is_answered_by_meaning_alone_or_not_at_all(ask, catalog, put):
    put(catalog, "/d/a.md", "text")
    assert ask("?", mode="words") == []
    assert len(ask("?")) == 1


def test_lengths_of_vectors_do_not_count(catalog, make, embedder, tmp_path, monkeypatch):
    """Inner product or distance in place of the cosine would turn this order round."""
    document, chunks = make("/d/a.md", "alpha ", "beta")
    arrays = [np.array([[10.0, 1.0]]), np.array([[1.0, 0.0]])]
    units = [(array / np.linalg.norm(array)).astype(np.float32) for array in arrays]
    catalog.put_document(document, chunks, units)
    monkeypatch.setattr(embedder, "query", lambda text: np.array([5.0, 0.0], np.float32))
    vectors = VectorIndex.open(catalog, tmp_path)
    hits = search(catalog, vectors, embedder, Request("gamma"))
    assert [hit.chunk.text for hit in hits] == ["beta", "alpha "]
    assert hits[0].score == pytest.approx(1.0)
    assert all(-1 <= hit.score <= 1 for hit in hits)
