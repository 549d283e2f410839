"""A bench with a tiny random model: what must hold of the figures, whatever they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epicrag.bench import (
    QUICK,
    Options,
    _Clock,
    _shuffled,
    percentile,
    run,
    split_names,
    variants_of,
)
from epicrag.draw import Size, draw, topic
from epicrag.errors import UsageError
from epicrag.pipeline import Pipeline
from epicrag.questions import Item, Passage
from epicrag.types import Chunk, Place

SMALL = Options(
    policies=("none", "legolink(1000)", "none@isolated"),
    prompts=2,
    size=Size(tokens=200, chunks=3),
    answer_tokens=4,
    concurrency=3,
)


@pytest.fixture
def opened(bench, checkpoint):
    """A pipeline with a real engine over four documents, its KV kept apart."""
    for number, word in enumerate(("museum", "ferry", "market", "garden")):
        bench.write(
            f"{word}.md", f"# The {word}\n\nThe {word} opens at {number}. Ask at the gate.\n"
        )
    config = replace(
        bench.config,
        model=str(checkpoint("llama")),
        kv_memory=32 << 20,
        chunk_tokens=64,
        device="cpu",
    )
    with Pipeline(config, create=True, embedder=bench.embedder) as pipeline:
        pipeline.ingest(bench.docs, kv=False)
    apart = bench.config.home / "apart"
    with Pipeline(config, embedder=bench.embedder, kv_folder=apart) as pipeline:
        yield pipeline


def rows_of(report):
    return {(row.policy, row.compile): row for row in report.rows}


def test_every_policy_is_measured_on_the_same_prompts(opened):
    report = run(opened, options=SMALL)
    rows = rows_of(report)
    assert list(rows) == [
        ("full", ""),
        ("prefix", ""),
        ("none", "neighbour"),
        ("legolink(1000)", "neighbour"),
        ("none", "isolated"),
    ]
    assert {row.points for row in rows.values()} == {2}
    full, naive = rows["full", ""], rows["none", "neighbour"]
    everything = rows["legolink(1000)", "neighbour"]
    # Full prefill is its own measure, and computing all again over stitched pages is no other thing.
    assert (full.kl, full.top1, full.speedup) == (0, 1, 1)
    assert everything.kl == pytest.approx(0, abs=1e-5)
    assert rows["prefix", ""].kl == pytest.approx(0, abs=1e-5)
    assert naive.kl is not None and naive.kl > 1e-4
    assert full.non_prefix_hit_rate == rows["prefix", ""].non_prefix_hit_rate == 0
    assert naive.non_prefix_hit_rate == 1
    assert (full.charged_share, naive.recomputed_tokens) == (1, 0)
    assert 0 < everything.charged_share < 1
    for row in rows.values():
        assert 0 < row.ttft_ms.median <= row.ttft_ms.p95
        assert row.requests_per_s and row.requests_per_s > 0
        assert row.kl_worst_decile >= row.kl >= 0
        assert (row.compile_ms is None) == (row.compile == "")
    assert report.setup["index"] == str(opened.config.index)
    assert report.prompt_tokens > 0
    assert not report.interrupted


def test_nothing_of_the_index_is_changed(opened):
    def state():
        with opened.catalog.snapshot():
            return (
                opened.catalog.stamp,
                opened.catalog.kv_keys(),
                opened.catalog.setting("kv_profile"),
            )

    before = state()
    run(opened, options=replace(SMALL, policies=("none",), prompts=1, concurrency=0))
    assert state() == before
    assert not list(opened.config.index.glob("kv/**/*.kv*"))


def test_documents_of_a_file_need_no_index(opened, tmp_path):
    config = replace(opened.config, index=tmp_path / "none")
    documents = (Passage("Pier", "The pier is long."), Passage("", "The boat is short. " * 30))
    items = [Item("How long is the boat?", ("short",), documents)]
    with Pipeline(config, create=True, kv_folder=tmp_path / "kv") as pipeline:
        report = run(pipeline, items, replace(SMALL, policies=("none",)))
    assert report.setup["index"] is None
    assert report.setup["forced"] == "the right answer"
    assert rows_of(report)["none", "neighbour"].kl is not None
    assert not (tmp_path / "none").exists()


def test_questions_are_asked_of_what_the_search_finds(opened):
    (drawn,) = draw(opened, [Item("ferry opens?")], 4, Size(200, 2), 0)
    assert len(drawn.hits) == 2
    assert "ferry" in drawn.hits[0].chunk.text


def test_the_same_seed_draws_the_same(opened):
    size = Size(100)
    assert draw(opened, [], 3, size, 5) == draw(opened, [], 3, size, 5)
    assert draw(opened, [], 3, size, 5) != draw(opened, [], 3, size, 6)
    assert all(drawn.tokens <= 100 for drawn in draw(opened, [], 3, size, 5))


def test_an_interrupt_leaves_what_was_measured(opened):
    events = []

    def progress(event):
        events.append(event)
        if "measuring none@neighbour" in event.message:
            raise KeyboardInterrupt

    report = run(opened, options=SMALL, progress=progress)
    assert report.interrupted
    assert [(row.policy, row.points, row.requests_per_s) for row in report.rows] == [
        ("full", 1, None),
        ("prefix", 1, None),
    ]
    assert report.not_reached == ("none@neighbour", "legolink(1000)@neighbour", "none@isolated")
    assert (report.setup["prompts"], report.setup["planned_prompts"]) == (1, 2)
    said = [event.message for event in events]
    assert [event.stage for event in events[:4]] == ["doing", "doing", "doing", "note"]
    assert "Ctrl-C" in said[3]
    # The first compile comes when a policy needs it: exact rows are there before.
    assert said.index("prompt 1 of 2: measuring prefix") < said.index(
        "prompt 1 of 2: compiling chunk 1 of 3, neighbour"
    )
    assert all(event.left is not None for event in events if event.stage == "bench")


def test_an_interrupt_before_the_first_measurement_reports_none(opened):
    def progress(event):
        if event.stage == "bench":
            raise KeyboardInterrupt

    report = run(opened, options=SMALL, progress=progress)
    assert (report.rows, report.prompt_tokens, len(report.not_reached)) == ((), None, 5)
    assert (report.setup["prompts"], report.setup["chunk_tokens"]) == (0, None)


def test_the_configured_policy_comes_first_after_full_and_prefix(opened):
    report = run(opened, options=replace(QUICK, runs=1, size=SMALL.size))
    names = ["full", "prefix", opened.config.link_policy, "none", "legolink(16)"]
    assert [row.policy for row in report.rows] == names


def test_what_is_left_is_corrected_by_how_long_it_takes(monkeypatch):
    now = 100.0
    monkeypatch.setattr("epicrag.bench.time.monotonic", lambda: now)
    clock = _Clock(lambda event: None, 10)
    clock.plan(100)
    assert clock.left == 100
    now += (
        80  # for what was to take 20: four times as long, and a tenth of the plan weighs against it
    )
    clock.end(20)
    assert clock.left == pytest.approx(80 * 90 / 30)


def test_an_interrupt_under_load_cancels_every_request(opened, monkeypatch):
    def interrupted(self, timeout=None):
        raise KeyboardInterrupt

    _ = opened.engine  # is loaded with futures, too
    monkeypatch.setattr("concurrent.futures.Future.result", interrupted)
    report = run(opened, options=replace(SMALL, policies=("none",), prompts=1))
    assert report.interrupted
    assert [row.requests_per_s for row in report.rows] == [None] * 3
    monkeypatch.undo()
    opened.engine.pool.check()


def test_prompts_longer_than_the_window_are_refused(opened):
    items = [Item("q?", documents=tuple(Passage(str(n), f"{n} words " * 40) for n in range(30)))]
    with pytest.raises(UsageError, match="window"):
        run(opened, items, replace(SMALL, size=Size(tokens=5000)))


def test_no_order_of_a_prompt_comes_twice_while_there_are_others(opened):
    draws = draw(opened, [], 2, Size(200, 2), 0)
    for seed in range(4):
        prompts = _shuffled(opened, draws, 4, seed)
        for first in (0, 1):
            orders = [prompt.pieces for prompt in prompts[first::2]]
            assert len(set(orders[:2])) == len(set(orders[2:])) == 2


def test_a_prompt_that_holds_no_passage_is_refused(opened):
    with pytest.raises(UsageError, match="has 3 tokens or fewer"):
        run(opened, options=replace(SMALL, size=Size(tokens=3)))


def test_policies_are_listed_once_and_always_after_the_reference():
    names = [(v.name, v.mode) for v in variants_of(("none", "full@sink", "legolink-0"), "prefix")]
    assert names == [
        ("full", "prefix"),
        ("prefix", "prefix"),
        ("none", "prefix"),
        ("legolink-0", "sink"),
    ]
    with pytest.raises(UsageError, match="sideways"):
        variants_of(("none@sideways",), "prefix")
    with pytest.raises(UsageError, match="is defined with the compile mode sink"):
        variants_of(("legolink-0@isolated",), "prefix")


@pytest.mark.parametrize("text", ["", " ", ",", "none,,full"])
def test_a_list_that_names_nothing_is_refused(text):
    with pytest.raises(UsageError, match="is no list of policies"):
        split_names(text)


def test_commas_inside_of_brackets_part_no_names():
    assert split_names("none, damp(4,15)+legolink(8),full") == (
        "none",
        "damp(4,15)+legolink(8)",
        "full",
    )


def test_percentiles_lie_between_neighbours():
    assert percentile([4, 1, 3, 2], 0.5) == 2.5
    assert percentile([7.0], 0.95) == 7
    assert percentile(range(101), 0.95) == 95


def test_a_topic_is_a_heading_or_how_the_text_begins():
    chunk = Chunk("a", 0, 0, 5, "Dogs wait outside. " * 9, place=Place(heading="Fees > Dogs"))
    assert topic(chunk) == "Dogs"
    assert topic(replace(chunk, place=Place())) == "Dogs wait outside. Dogs wait outside. Dogs wait"
