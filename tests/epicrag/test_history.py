"""What of a conversation goes into a prompt: whole turns, the oldest out first, and what stays is found again."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from epicrag.errors import UsageError
from epicrag.history import STEP, Kept, fitted, messages_of
from epicrag.pipeline import Pipeline
from epicrag.serving.prompt import Piece, Prompt, Turn
from epicrag.sessions import Exchange


def talk(n: int, words: int = 8) -> tuple[Turn, ...]:
    return tuple(
        turn
        for index in range(n)
        for turn in (
            Turn("user", f"question {index} " + "cat " * words),
            Turn("assistant", f"answer {index} " + "mat " * words),
        )
    )


def size(engine, prompt) -> int:
    return engine.lay_out(prompt, 1).n_tokens


@pytest.fixture
def engine(tiny_engine):
    return tiny_engine("llama")


PROMPT = Prompt(
    "the question", (Piece("the cat sat on the mat"), Piece("the other cat said hello"))
)


def test_what_fits_stays_whole(engine):
    prompt = replace(PROMPT, history=talk(3))
    kept, facts = fitted(engine, prompt, 16)
    assert kept == prompt
    assert (facts.turns, facts.dropped) == (3, 0)
    # The template opens a conversation's first message and a later one with about as much.
    assert abs(size(engine, prompt) - size(engine, PROMPT) - facts.tokens) < 8


def test_the_oldest_go_first_and_no_turn_is_cut(engine):
    prompt = replace(PROMPT, history=talk(60))
    kept, facts = fitted(engine, prompt, 16)
    assert kept.history == prompt.history[2 * facts.dropped :]
    assert kept.history[0].role == "user"
    assert facts.dropped % STEP == 0
    assert 0 < facts.turns < 60
    assert engine.lay_out(kept, 16).dropped == 0


def test_what_is_left_begins_with_the_same_turn_for_a_while(engine):
    firsts = []
    for n in range(30, 38):
        kept, _ = fitted(engine, replace(PROMPT, history=talk(n)), 16)
        firsts.append(kept.history[0])
    changes = sum(a != b for a, b in itertools.pairwise(firsts))
    assert changes <= 8 // STEP


def test_a_turn_that_is_too_large_goes_and_takes_the_older_ones_along(engine):
    large = (Turn("user", "cat " * 3000), Turn("assistant", "yes"))
    kept, facts = fitted(engine, replace(PROMPT, history=(*talk(2), *large)), 16)
    assert (kept.history, facts.dropped, facts.tokens) == ((), 3, 0)


def test_turns_that_no_window_holds_go_before_they_are_tokenised(engine, monkeypatch):
    large = (Turn("user", "cat " * 100_000), Turn("assistant", "yes"))
    prompt = replace(PROMPT, history=(*talk(1), *large, *talk(2)))
    seen = []
    chat = type(engine.chat)
    units = chat.units
    monkeypatch.setattr(chat, "units", lambda self, one: seen.append(one) or units(self, one))
    kept, facts = fitted(engine, prompt, 16)
    assert kept.history == talk(2)
    assert (facts.turns, facts.dropped) == (2, 2)
    assert all(one.history == talk(2) for one in seen)
    _, facts = fitted(engine, replace(PROMPT, history=large), 16)
    assert (facts.turns, facts.dropped) == (0, 1)


def test_the_latest_turn_stays_before_the_last_passage(engine):
    pieces = tuple(Piece(f"{n} " + "cat sat " * 60) for n in range(20))
    kept, facts = fitted(engine, Prompt("q", pieces, history=talk(4)), 16)
    assert (kept.history, facts.turns) == (talk(4)[-2:], 1)
    assert 0 < engine.lay_out(kept, 16).dropped < 20


def test_a_question_that_does_not_fit_alone_says_so(engine):
    with pytest.raises(UsageError, match="the question alone needs"):
        fitted(engine, replace(PROMPT, question="cat " * 3000, history=talk(2)), 16)


def test_history_holds_questions_and_answers_without_numbers_of_passages():
    turns = [
        Exchange("How long?", "14 months [1], or 4 [12][3].", True),
        Exchange("Who?", "I found nothing about this.", False),
    ]
    assert [(one.role, one.text) for one in messages_of(turns)] == [
        ("user", "How long?"),
        ("assistant", "14 months, or 4."),
    ]


def test_nothing_was_found_again_where_there_was_nothing():
    assert Kept().reused(None) == 0


def test_an_earlier_turn_costs_nothing(bench, checkpoint):
    """The third turn finds the first one as the second one computed it."""
    config = replace(
        bench.config,
        model=str(checkpoint("llama")),
        kv_memory=32 << 20,
        chunk_tokens=64,
        max_tokens=4,
        device="cpu",
    )
    bench.write("museum.txt", "The harbour museum opens at ten. Its door code is 4471.\n")
    with Pipeline(config, create=True, embedder=bench.embedder) as pipeline:
        pipeline.ingest(bench.docs)
        said = []
        found = []
        for question in ("museum door code?", "when does the museum open?", "harbour museum code?"):
            stream = pipeline.stream(question, history=messages_of(said))
            answer = stream.finish()
            said.append(Exchange(question, "It is 4471, and opens at ten.", True))
            facts = stream.conversation()
            found.append((facts["history_tokens"], facts["history_reused"]))
            receipt = answer.receipt
            assert receipt.exact + receipt.stitched + receipt.recomputed == receipt.context_tokens
    (none, _), (first, first_reused), (both, reused) = found
    assert none == first_reused == 0
    # The second turn computed the first one; the third finds it, and what every later turn begins with.
    assert both > reused >= first > 0
