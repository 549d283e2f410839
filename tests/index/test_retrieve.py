"""A question finds the passages that are in the index now, each content once."""

from __future__ import annotations

import threading

import pytest

from epicrag.errors import MismatchError
from epicrag.index.catalog import Catalog
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
    catalog.rename_document("/d/a.md", "/d/b.md")
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
