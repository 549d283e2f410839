"""What has nothing to do with an index is told from what has."""

from __future__ import annotations

import json

import pytest

from epicrag.index import relevance
from epicrag.index.relevance import USUAL, background_of, by_score, judged
from epicrag.index.retrieve import Request, find
from epicrag.index.vectors import VectorIndex
from epicrag.types import Chunk, Hit


def hit(score: float, text: str = "the door code is 4471") -> Hit:
    return Hit(1, Chunk("/a", 0, 0, len(text), text), score)


def test_a_number_is_compared_with_the_best_cosine():
    assert by_score([hit(0.1), hit(0.4)], 0.3).is_relevant
    assert not by_score([hit(0.1), hit(0.2)], 0.3).is_relevant
    assert not by_score([], -1.0).is_relevant


def test_shared_words_and_nearness_count_together(catalog, put):
    put(catalog, "/a", "the door code is 4471", "the ship sails at nine")

    def score(query: str, cosine: float) -> float:
        return judged(catalog, query, [hit(cosine)]).score

    assert score("door code", 0.5) > score("door code", 0.2) > score("door zebra", 0.2)
    assert score("door zebra", 0.2) > score("zebra xylophone", 0.2)
    assert judged(catalog, "door code", [hit(0.4)]).is_relevant
    assert not judged(catalog, "zebra xylophone", [hit(0.3)]).is_relevant
    assert judged(catalog, "zebra xylophone", [hit(0.8)]).is_relevant
    assert not judged(catalog, "?", [hit(0.1)]).is_relevant


def test_it_says_why(catalog, put):
    put(catalog, "/a", "the door code is 4471")
    verdict = judged(catalog, "zebra", [hit(0.25)])
    assert verdict.features == {"cosine": 0.25, "words": 0.0}
    assert "0.25" in verdict.reason and "0%" in verdict.reason
    assert judged(catalog, "zebra", []).reason == "no passage was found"


def test_another_embedders_cosines_are_laid_over_those_of_strangers_questions(catalog, put):
    put(catalog, "/a", "the door code is 4471")
    high = relevance.Background(0.8, 0.02)  # as of E5, whose cosines all lie between 0.7 and 1
    assert not judged(catalog, "zebra", [hit(0.80)], high).is_relevant
    assert judged(catalog, "zebra", [hit(0.95)], high).is_relevant
    same = judged(catalog, "door", [hit(0.84)], high)
    assert same.score == pytest.approx(judged(catalog, "door", [hit(0.36)]).score)


def test_the_background_is_measured_once_for_an_embedder_and_an_index(
    catalog, put, embedder, tmp_path, monkeypatch
):
    put(catalog, "/a", "the door code is 4471", "how do i bake bread")
    vectors = VectorIndex.open(catalog, tmp_path)
    found = background_of(catalog, vectors, embedder)
    assert -1 < found.mean < 1 and found.spread > 0
    asked = []
    monkeypatch.setattr(embedder, "query", asked.append)
    assert background_of(catalog, vectors, embedder) == found
    assert asked == []
    stored = json.loads(catalog.setting("background"))
    assert stored["fingerprint"] == embedder.fingerprint
    monkeypatch.undo()
    embedder.fingerprint = "other"
    background_of(catalog, vectors, embedder)
    assert json.loads(catalog.setting("background"))["fingerprint"] == "other"


def test_the_known_embedder_needs_no_background(catalog, tmp_path, new_embedder):
    embedder = new_embedder("all-MiniLM-L6-v2")
    embedder.query = None
    assert background_of(catalog, VectorIndex.open(catalog, tmp_path), embedder) == USUAL


def test_found_passages_are_judged_whatever_is_asked_for(catalog, put, embedder, tmp_path):
    put(catalog, "/a", "the door code is 4471", "the ship sails at nine")
    vectors = VectorIndex.open(catalog, tmp_path)
    found = find(catalog, vectors, embedder, Request("the door code is 4471", 1))
    assert (len(found.hits), found.relevance.is_relevant, found.relevance.rule) == (1, True, "auto")
    fixed = find(catalog, vectors, embedder, Request("the door code", 1, min_score=1.0))
    assert (fixed.relevance.is_relevant, fixed.relevance.rule) == (False, "min_score")
    assert find(catalog, vectors, embedder, Request("the door code", 0)).hits == ()
