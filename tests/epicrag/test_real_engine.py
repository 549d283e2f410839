"""The pipeline over the real engine, with a tiny random model: what stubs cannot promise."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from epicrag.errors import UsageError
from epicrag.evaluate import evaluate
from epicrag.pipeline import Pipeline
from epicrag.questions import Item
from epicrag.serving.policies import parse_policy


@pytest.fixture
def opened(bench, checkpoint):
    """A function that opens the bench's index with a real engine, as a new process would."""

    def open_pipeline(**changes) -> Pipeline:
        config = replace(
            bench.config,
            model=str(checkpoint("llama")),
            kv_memory=32 << 20,
            chunk_tokens=64,
            max_tokens=4,
            device="cpu",
            **changes,
        )
        return Pipeline(config, create=True, embedder=bench.embedder)

    bench.write(
        "museum.txt",
        "The harbour museum opens at ten. Its door code is 4471. "
        "Tickets are sold at the gate on the quay, where dogs have to wait outside.\n",
    )
    bench.write("ferry.txt", "The ferry leaves every hour from pier three.\n")
    return open_pipeline


def test_what_ingest_compiled_is_reused_by_a_later_process(opened, bench):
    with opened() as pipeline:
        result = pipeline.ingest(bench.docs)
        assert result.kv_tokens > 0
        again = pipeline.ingest(bench.docs)
        assert (again.counts, again.kv_tokens) == ({"unchanged": 2}, 0)
    with opened() as pipeline:
        pipeline.ask(
            "door code of the museum?"
        )  # compiles the system prompt, which ingest does not
        answer = pipeline.ask("door code of the museum?", shuffle_seed=1)
        receipt = answer.receipt
        assert receipt.fallback is None
        assert receipt.exact + receipt.stitched + receipt.recomputed == receipt.context_tokens
        assert receipt.stitched > 0


def test_an_unchanged_index_opens_no_engine(opened, bench):
    with opened() as pipeline:
        pipeline.ingest(bench.docs)
    with opened() as pipeline:
        pipeline.ingest(bench.docs)
        assert "engine" not in vars(pipeline)
        assert "counter" not in vars(pipeline)


def test_another_compile_mode_gives_other_kv(opened, bench):
    with opened(compile="isolated") as pipeline:
        pipeline.ingest(bench.docs)
        before = pipeline.catalog.kv_keys()
    with opened(compile="neighbour") as pipeline:
        assert pipeline.ingest(bench.docs).kv_chunks == pipeline.status().chunks
        assert not before & pipeline.kv_store.keys()


def test_what_an_answer_computes_first_is_foretold(opened, bench):
    with opened() as pipeline:
        pipeline.ingest(bench.docs, kv=False)
        said: list[str] = []
        pipeline._say = said.append
        stream = pipeline.stream("museum door code", policy="full")
        stream.finish()
        assert (said, any("KV" in note for note in stream.notes)) == ([], False)
        stream = pipeline.stream("museum door code")
        recomputed = stream.finish().receipt.fallback
        assert re.fullmatch(r"computing the KV of \d passages first \(\d+ tokens\)", said[0])
        assert recomputed.endswith("were compiled during the request")
        assert any("is kept: the next question" in note for note in stream.notes)
        pipeline.ask("door code of the museum")
        assert len(said) == 1


def test_a_policy_that_needs_a_compile_mode_gets_it(opened, bench):
    with opened(link_policy="legolink-0", compile="isolated") as pipeline:
        pipeline.ingest(bench.docs)
        mode = parse_policy("legolink-0").compile_mode
        assert mode != "isolated"
        assert pipeline.status().compile == mode
        assert pipeline.ask("door code?").receipt.compile == mode


def test_a_long_question_leaves_room_for_what_fits(opened, bench):
    with opened() as pipeline:
        pipeline.ingest(bench.docs)
        stream = pipeline.stream("museum door code " * 44, k=50)
        answer = stream.finish()
    assert 0 < len(answer.sources) < len(stream.hits)
    assert answer.receipt.dropped_chunks == len(stream.hits) - len(answer.sources)


def test_a_question_longer_than_the_window_is_refused(opened, bench):
    with opened() as pipeline:
        pipeline.ingest(bench.docs)
        with pytest.raises(UsageError, match="window"):
            pipeline.ask("museum door code " * 500)


def test_answers_are_scored_with_reuse_and_without(opened, bench):
    with opened() as pipeline:
        pipeline.ingest(bench.docs)
        result = evaluate(pipeline, [Item("door code of the museum?", ("4471",))])
    (pair,) = result.pairs
    assert pair.reuse.scores["source"] == pair.full.scores["source"] == 1
    assert pair.reuse.first_token_ms and pair.full.first_token_ms
    assert (result.policy, result.compile) == (bench.config.link_policy, "neighbour")
    assert result.setup["device"] == "cpu"


@pytest.mark.parametrize("mode", ["isolated", "neighbour"])
def test_whose_kv_is_on_disk_is_derived_without_the_weights(opened, monkeypatch, mode):
    """Where the catalog has lost its notes, gc keeps what belongs to passages, and drops the rest."""
    from epicrag.gc import collect, orphans
    from epicrag.serving.model import ServedModel

    with opened(compile=mode) as pipeline:
        pipeline.ingest([pipeline.config.index.parent / "docs"])
        noted, there = pipeline.catalog.kv_rows(), pipeline.kv_store.keys()
        assert len(noted) == 3  # one document has two chunks
    monkeypatch.setattr(ServedModel, "load", None)
    with opened(compile=mode) as pipeline:
        pipeline.catalog.clear_kv()
        assert orphans(pipeline) == {}
        assert collect(pipeline) == []
        assert (pipeline.catalog.kv_rows(), pipeline.kv_store.keys()) == (noted, there)
        pipeline.catalog.delete_document(noted[0][0])
        (freed,) = (one for one in collect(pipeline) if one.files)
        assert freed.files == sum(path == noted[0][0] for path, _, _ in noted)


def test_tokens_of_kv_are_those_of_the_text_and_bytes_are_told_for_them(opened, bench):
    with opened() as pipeline:
        result = pipeline.ingest([bench.docs])
        status = pipeline.status()
        assert result.kv_tokens == result.tokens == status.tokens
        sizes, own = pipeline.kv_store.sizes(), pipeline.engine.own_keys()
    of_text = sum(size for key, size in sizes.items() if key not in own)
    assert status.kv_bytes_per_text_token == pytest.approx(of_text / status.tokens)
    assert status.kv_bytes_per_text_token > status.kv_bytes_per_token
