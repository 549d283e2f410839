"""A question gets an answer from the documents, or is told that there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from epicrag.errors import AbstainedError, IndexEmptyError, MismatchError, UsageError
from epicrag.history import Kept
from epicrag.pipeline import Pipeline
from epicrag.serving.prompt import Turn

CODE = "What is the door code of the museum?"


def test_an_answer_cites_the_passage_it_comes_from(museum):
    museum.engine.answer = "The door code is 4471."
    answer = museum.ask(CODE)
    assert answer.text == "The door code is 4471. [1]"
    assert (answer.answered, answer.grounded, answer.model) == (True, True, "smollm2-135m")
    source = answer.sources[0]
    assert source.path == (museum.docs / "museum.txt").as_posix()
    assert (source.n, source.lines, source.cited) == (1, (1, 1), True)
    assert [s.cited for s in answer.sources[1:]] == [False, False]


def test_the_answer_streams_and_stands_at_the_end(museum):
    museum.engine.answer = "The door code is 4471."
    with museum.open() as pipeline:
        stream = pipeline.stream(CODE)
        assert len(stream.sources) == 3
        deltas = [next(stream)]
        with pytest.raises(RuntimeError):
            _ = stream.answer
        deltas += stream
    assert len(deltas) > 3
    assert "".join(deltas) == stream.answer.text


def test_an_answer_that_streams_while_the_pipeline_is_closed_is_written_to_its_end(museum):
    museum.engine.answer = "The door code is 4471."
    pipeline = museum.open()
    stream = pipeline.stream(CODE)
    next(stream)
    pipeline.close()
    assert stream.finish().text == "The door code is 4471. [1]"
    for use in (pipeline.find, pipeline.search, pipeline.stream):
        with pytest.raises(UsageError, match="closed"):
            use(CODE)
    with pytest.raises(UsageError, match="closed"):
        pipeline.status()
    pipeline.close()


def test_no_fault_of_the_books_takes_an_answer_back(museum, monkeypatch, caplog):
    museum.engine.answer = "The door code is 4471."
    with museum.open() as pipeline:
        stream = pipeline.stream(CODE)
        monkeypatch.setattr(pipeline, "_note_kv", None)
        assert stream.finish().text == "The door code is 4471. [1]"
    assert "could not be noted" in caplog.text


def test_the_prompt_holds_the_passages_by_rank_and_the_configured_system_text(museum):
    museum.ask(CODE)
    prompt = museum.engine.prompts[0]
    assert prompt.pieces[0].text.startswith("The harbour museum")
    assert (prompt.question, prompt.system) == (CODE, museum.config.system_prompt)


def test_braces_in_question_and_documents_stay_as_they_are(museum):
    museum.write("braces.txt", "The {context_str} of {0} is {door}.")
    museum.ingest()
    museum.ask("What is the {context_str} of {0}?", k=1)
    prompt = museum.engine.prompts[0]
    assert prompt.pieces[0].text == "The {context_str} of {0} is {door}."
    assert "{0}" in prompt.question


def test_k_limits_the_passages(museum):
    assert len(museum.ask(CODE, k=2).sources) == 2
    with museum.open() as pipeline:
        assert len(pipeline.search(CODE, k=1)) == 1


def test_the_receipt_counts_the_time_of_retrieval(museum):
    ms = museum.ask(CODE).receipt.ms
    assert ms.retrieve > 0
    assert ms.first_token == 5.0 + ms.retrieve
    assert ms.total == 9.0 + ms.retrieve


def test_nothing_relevant_means_no_answer_and_no_model(museum):
    answer = museum.ask("Zebra xylophone quantum?")
    assert (answer.answered, answer.sources, answer.receipt) == (False, (), None)
    assert "nothing" in answer.text
    assert museum.engine.prompts == []


def test_nothing_relevant_is_an_error_under_strict(museum):
    with pytest.raises(AbstainedError):
        museum.ask("Zebra xylophone quantum?", strict=True)


def test_an_answer_from_nowhere_is_marked(museum):
    museum.engine.answer = "Paris, Eiffel, croissant."
    with museum.open() as pipeline:
        stream = pipeline.stream(CODE)
        answer = stream.finish()
    assert answer.answered
    assert not answer.grounded
    assert any("words were not found in them" in note for note in stream.notes)


def test_an_answer_from_nowhere_is_an_error_under_strict(museum):
    museum.engine.answer = "Paris, Eiffel, croissant."
    with pytest.raises(AbstainedError):
        museum.ask(CODE, strict=True)


def test_passages_that_do_not_fit_are_dropped_from_the_tail_and_told(museum):
    museum.engine.fits = 1
    with museum.open() as pipeline:
        stream = pipeline.stream(CODE)
        answer = stream.finish()
    assert [source.n for source in answer.sources] == [1]
    assert answer.receipt.dropped_chunks == 2
    assert any("2 of 3 passages" in note for note in stream.notes)


def test_markers_of_dropped_passages_are_removed(museum):
    museum.engine.fits = 1
    museum.engine.answer = "The code is 4471 [3]."
    assert museum.ask(CODE).text == "The code is 4471. [1]"


def test_if_no_passage_fits_it_abstains_with_the_reason(museum):
    museum.engine.fits = 0
    answer = museum.ask(CODE)
    assert not answer.answered
    assert "window" in answer.text
    with pytest.raises(AbstainedError, match="window"):
        museum.ask(CODE, strict=True)


def test_an_answer_without_a_word_is_no_answer(museum):
    museum.engine.answer = ""
    assert not museum.ask(CODE).answered


def test_an_empty_index_is_told_with_the_next_command(bench):
    bench.write("empty.txt", "")
    bench.ingest()
    with pytest.raises(IndexEmptyError) as error:
        bench.ask("anything")
    assert "epicrag ingest" in error.value.hint


def test_without_an_index_opening_says_so(bench):
    with pytest.raises(IndexEmptyError) as error:
        Pipeline.open(bench.config)
    assert "epicrag ingest" in error.value.hint
    assert not bench.config.index.exists()


def test_another_embedder_is_refused(museum):
    museum.embedder.fingerprint = "stub-2"
    with pytest.raises(MismatchError, match="stub"):
        museum.ask(CODE)


def test_a_blank_question_is_refused(museum):
    with pytest.raises(UsageError):
        museum.ask("  \n")


def test_a_bad_policy_is_refused_before_anything_is_loaded(museum):
    museum.embedder.query = None
    with pytest.raises(UsageError):
        museum.ask(CODE, policy="no such policy")


def test_shuffling_changes_the_order_only_and_repeatably(museum):
    orders = set()
    for seed in (1, 1, 2, 3, 4):
        museum.ask(CODE, shuffle_seed=seed)
        orders.add(tuple(piece.text for piece in museum.engine.prompts[-1].pieces))
    museum.ask(CODE)
    ranked = tuple(piece.text for piece in museum.engine.prompts[-1].pieces)
    assert 1 < len(orders) <= 4
    assert {frozenset(order) for order in orders} == {frozenset(ranked)}


def test_given_chunks_take_the_place_of_retrieval_each_text_once(museum):
    with museum.open() as pipeline:
        first, second, _ = pipeline.search("ferry pier", k=3)
        low = replace(second, score=-1.0)
        answer = pipeline.ask("Zebra?", chunks=[low, first, low])
    assert [source.chunk for source in answer.sources] == [second.chunk.id, first.chunk.id]


def test_given_no_chunks_there_is_no_answer(museum):
    with museum.open() as pipeline:
        assert not pipeline.ask(CODE, chunks=[]).answered


def test_equal_texts_go_before_the_model_once(museum):
    for name in ("x/readme.md", "y/readme.md"):
        museum.write(name, "The same readme text about gondolas.")
    museum.ingest()
    museum.ask("gondolas readme")
    texts = [piece.text for piece in museum.engine.prompts[0].pieces]
    assert len(texts) == len(set(texts))


def test_closing_a_stream_stops_the_model(museum):
    with museum.open() as pipeline:
        stream = pipeline.stream(CODE)
        next(stream)
        stream.close()
        assert list(stream) == []


def test_search_takes_over_what_another_process_has_ingested(museum):
    with museum.open() as reader:
        assert "zoo" not in reader.search("zoo tigers", k=1)[0].chunk.text
        museum.write("zoo.txt", "The zoo has two tigers.")
        museum.ingest()
        assert "zoo" in reader.search("zoo tigers", k=1)[0].chunk.text


def test_status_tells_what_ingest_left(museum):
    with museum.open() as pipeline:
        status = pipeline.status()
    assert (status.documents, status.chunks, status.vectors) == (3, 3, 3)
    assert (status.chunks_with_kv, status.kv_entries) == (3, 4)
    assert (status.model, status.embedder, status.dtype) == ("stub-lm", "stub", "float32")
    assert status.kv_bytes_per_token == museum.engine.kv_bytes_per_token
    assert status.last_ingest.endswith("+00:00")


def test_status_of_an_index_without_kv(bench):
    bench.write("a.txt", "some words")
    bench.ingest(kv=False)
    with bench.open() as pipeline:
        status = pipeline.status()
    assert (status.model, status.kv_bytes_per_token, status.kv_entries) == (None, None, 0)


def test_opening_with_flags_overrules_the_configuration(museum):
    with Pipeline.open(museum.config, top_k=2, index=museum.config.index) as pipeline:
        assert (pipeline.config.top_k, pipeline.config.home) == (2, museum.config.home)
    with pytest.raises(UsageError):
        Pipeline.open(museum.config, top_k=0)


def test_importing_the_pipeline_imports_nothing_heavy():
    script = "import epicrag.pipeline, sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    heavy = {"torch", "transformers", "faiss", "numpy", "llama_index", "sentence_transformers"}
    assert not heavy & set(json.loads(done.stdout))


@pytest.mark.parametrize("text", ["naïve café", "今天天气很好", "\u200b", "emoji 🚀"])
def test_any_text_is_ingested_or_reported(bench, text):
    bench.write("a.txt", text)
    assert bench.ingest().counts in ({"added": 1}, {"empty": 1})


def test_kv_that_is_computed_first_is_told_before_and_after(bench):
    bench.write("a.txt", "The door code is 4471.")
    bench.ingest(kv=False)
    said: list[str] = []
    with bench.open() as pipeline:
        pipeline._say = said.append
        stream = pipeline.stream(CODE)
        assert said == ["computing the KV of 1 passage first (7 tokens)"]
        bench.engine.put(bench.engine.key_of(bench_piece(pipeline)))  # as the engine does
        stream.finish()
        (note,) = stream.notes
        assert "KV of 1 passage was computed for this answer and is kept: " in note
        stream = pipeline.stream(CODE)
        stream.finish()
        assert (len(said), stream.notes) == (1, [])
        assert pipeline.status().kv_other_entries == 0


def test_kv_of_another_kind_is_kept_until_the_next_ingest_and_shown_by_status(museum):
    with museum.open() as pipeline:
        museum.engine.profile = "profile-2"
        stream = pipeline.stream(CODE)
        museum.engine.put(museum.engine.key_of(bench_piece(pipeline)))
        stream.finish()
        assert "is kept until the next ingest" in stream.notes[0]
        status = pipeline.status()
        assert status.kv_other_entries == 1
        assert 0 < status.kv_other_bytes < status.kv_bytes
    museum.engine.profile = "profile-1"
    museum.ingest(kv=False)
    with museum.open() as pipeline:
        assert pipeline.status().kv_other_entries == 0


def bench_piece(pipeline):
    return pipeline.prompt(CODE, pipeline.search(CODE, k=1)).pieces[0]


def test_a_citation_alone_does_not_make_an_answer_grounded(museum):
    museum.engine.answer = "Paris, Eiffel, croissant [1]."
    with museum.open() as pipeline:
        stream = pipeline.stream(CODE)
        answer = stream.finish()
    assert (answer.grounded, answer.sources[0].cited) == (False, True)
    assert any("cites passages, but its words were not found in any" in n for n in stream.notes)


def test_a_filter_limits_what_is_found_and_answered_from(museum):
    with museum.open() as pipeline:
        hits = pipeline.search(CODE, filter='path~"sub/*"')
        assert [hit.chunk.document for hit in hits] == [(museum.docs / "sub/ferry.txt").as_posix()]
        answer = pipeline.ask("ferry pier", filter="name=ferry.txt")
        assert len(answer.sources) == 1
        assert not pipeline.ask(CODE, filter="ext=pdf").answered
        with pytest.raises(UsageError, match="at character 6"):
            pipeline.search(CODE, filter="name=")
        with pytest.raises(UsageError, match="no document has a field"):
            pipeline.search(CODE, filter="nmae=x")


def test_relevance_is_judged_when_no_score_is_set(museum):
    with museum.open(min_score=None) as pipeline:
        answer = pipeline.ask("the door code of the harbour museum")
        assert answer.answered and answer.relevance.rule == "auto"
        assert answer.relevance.features["words"] == 1.0
        stranger = pipeline.ask("Zebra xylophone quantum?")
        assert (stranger.answered, stranger.relevance.is_relevant) == (False, False)
        assert "0%" in stranger.relevance.reason
    assert len(museum.engine.prompts) == 1


def test_modes_and_weights_of_the_configuration_are_those_of_the_search(museum):
    with museum.open(search_mode="words") as pipeline:
        assert {name for hit in pipeline.search(CODE) for name in hit.stages} == {"words", "fused"}
    with museum.open(hybrid_weights={"dense": 1.0, "words": 0.0}) as pipeline:
        assert {name for hit in pipeline.search(CODE) for name in hit.stages} == {"dense", "fused"}


def test_given_chunks_are_not_judged(museum):
    with museum.open() as pipeline:
        answer = pipeline.ask("Zebra?", chunks=pipeline.search(CODE, k=1))
    assert answer.relevance is None and answer.answered


def test_one_search_may_differ_from_the_configuration(museum, monkeypatch):
    class Backwards:
        depth = 3

        def scores(self, query, texts):
            return [float(n) for n in range(len(texts))]

    with museum.open() as pipeline:
        plain = pipeline.search(CODE)
        assert {n for hit in pipeline.search(CODE, mode="words") for n in hit.stages} == {
            "words",
            "fused",
        }
        assert {n for h in pipeline.search(CODE, weights=(1, 0)) for n in h.stages} == {
            "dense",
            "fused",
        }
        with pytest.raises(UsageError, match="search_mode"):
            pipeline.search(CODE, mode="no such mode")
        with pytest.raises(UsageError, match="hybrid_weights"):
            pipeline.search(CODE, weights=(0, 0))
        loaded = []
        monkeypatch.setattr(pipeline, "_load_reranker", lambda n: loaded.append(n) or Backwards())
        turned = [pipeline.search(CODE, rerank="tiny") for _ in range(2)]
        assert [hit.row for hit in turned[1]] == [hit.row for hit in reversed(plain)]
        assert pipeline.search(CODE, rerank=False) == plain == pipeline.search(CODE)
        assert loaded == ["tiny"]


def test_a_follow_up_is_searched_for_with_what_was_asked_before(museum, monkeypatch):
    monkeypatch.setattr("epicrag.pipeline.fitted", lambda _, prompt, n_new: (prompt, Kept()))
    talk = [Turn("user", "When does the ferry to the island leave?"), Turn("assistant", "Hourly.")]
    with museum.open() as pipeline:
        alone = pipeline.stream("And where from?")
        behind = pipeline.stream("And where from?", history=talk)
        given = pipeline.stream("And where from?", history=talk, query="door code museum")
    assert behind.hits[0].chunk.document.endswith("ferry.txt")
    assert behind.hits[0].score > max((hit.score for hit in alone.hits), default=0.0)
    assert given.hits[0].chunk.document.endswith("museum.txt")
