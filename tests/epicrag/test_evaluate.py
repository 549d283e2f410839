"""Scored answers over a stub engine: what is judged, against what, and when it fails."""

from __future__ import annotations

from typing import Any

import pytest

from epicrag.errors import UsageError
from epicrag.evaluate import METRICS, check_items, evaluate, parse_least
from epicrag.questions import Item, Passage

DOOR = Item("What is the door code of the museum?", ("4471",), paths=("museum.txt",), line=1)
NOWHERE = Item("Zebra xylophone quux?", answerable=False, line=2)


@pytest.fixture
def ask(museum, monkeypatch):
    """Evaluate items over the museum; the engine answers as `answers` says for each policy."""
    monkeypatch.setattr("epicrag.evaluate.describe", lambda engine: {"model": engine.name})

    def run(*items: Item, reuse: str | None = None, full: str | None = None, **options: Any):
        with museum.open(min_score=0.3) as pipeline:
            engine = museum.engine
            inner = engine.generate

            def generate(prompt, *, policy, sampling):
                engine.answer = full if policy.name == "full" else reuse
                return inner(prompt, policy=policy, sampling=sampling)

            monkeypatch.setattr(engine, "generate", generate)
            return evaluate(pipeline, items, **options)

    return run


def test_both_columns_are_scored_over_the_same_passages(ask):
    result = ask(DOOR, reuse="Its door code is 4471.", full="4471")
    (pair,) = result.pairs
    assert (pair.reuse.scores["em"], pair.full.scores["em"]) == (0, 1)
    assert pair.reuse.scores["f1"] == pytest.approx(2 / 6)
    assert pair.reuse.scores["source"] == pair.full.scores["source"] == 1
    assert pair.reuse.scores["citation"] == 1
    assert not pair.reuse.abstained
    em = result.columns["em"]
    assert em and (em.reuse.mean, em.full.mean, em.difference.mean) == (0, 1, -1)


def test_it_is_right_to_abstain_where_there_is_no_answer_and_only_there(ask):
    result = ask(NOWHERE, DOOR, reuse="Giraffes like saxophones greatly.", full="4471")
    nowhere, door = result.pairs
    assert nowhere.reuse.abstained and nowhere.full.abstained
    assert nowhere.reuse.scores == {**dict.fromkeys(METRICS), "abstention": 1}
    # An answer that no passage says is an abstention, too: `--strict` would refuse it.
    assert (door.reuse.scores["abstention"], door.full.scores["abstention"]) == (0, 1)
    assert result.columns["f1"].reuse.n == 1
    assert result.columns["abstention"].reuse.n == 2


def test_a_citation_hits_by_the_end_of_its_path_or_by_its_words(ask):
    answer = "The ferry to the island leaves every hour from pier three."
    question = "When does the ferry leave?"
    for item, hit in (
        (Item(question, ("hourly",), paths=("sub/ferry.txt",)), 1),
        (Item(question, ("hourly",), paths=("rry.txt",)), None),  # no document is called so
        (Item(question, ("every hour",)), 1),
        (Item(question, ("hourly",)), 0),
    ):
        (pair,) = ask(item, reuse=answer, full=answer).pairs
        assert (pair.reuse.scores["citation"], pair.reuse.scores["source"]) == (hit, hit)


def test_documents_of_an_item_are_read_in_place_of_the_index(ask):
    item = Item("How high is the mast?", ("nine",), (Passage("Mast", "The mast is nine high."),))
    (pair,) = ask(item, reuse="The mast is nine high.", full="The mast is nine high.").pairs
    assert (pair.reuse.scores["citation"], pair.reuse.abstained) == (1, False)


def test_a_path_is_known_by_its_parts_and_a_line_of_none_is_not_scored_for_it(ask):
    events = []
    half = Item("Door code?", ("4471",), paths=("gone.txt", "museum.txt"), line=3, file="g.jsonl")
    none = Item("Door code?", ("4471",), paths=("seum.txt",), line=4)
    own = Item("How high?", ("nine",), (Passage("Mast", "It is nine high."),), ("Mast",), line=5)
    result = ask(half, none, own, reuse="4471", full="4471", progress=events.append)
    notes = [event.message for event in events if event.stage == "note"]
    assert notes[:2] == [
        "g.jsonl, line 3: no document of the index is called gone.txt",
        "line 4: no document of the index is called seum.txt",
    ]
    assert result.unknown == (none,)
    sources = [pair.reuse.scores["source"] for pair in result.pairs]
    assert (sources[0], sources[1], sources[2] is None) == (1, None, False)


def test_it_says_what_it_does_from_the_start_and_how_long_after_the_first(ask):
    events = []
    ask(DOOR, DOOR, reuse="4471", full="4471", progress=events.append)
    stages = [(event.stage, event.done) for event in events]
    assert stages == [("doing", 0), ("doing", 0), ("note", 0), ("eval", 1), ("eval", 2)]
    assert "1 more take about" in events[2].message


def test_an_error_about_a_question_names_its_line(ask, monkeypatch):
    def refuse(*args, **options):
        raise UsageError("the question alone needs 9 tokens", "ask a shorter question")

    monkeypatch.setattr("epicrag.evaluate._scored", refuse)
    with pytest.raises(UsageError, match="line 1: the question alone"):
        ask(DOOR, reuse="", full="")


def test_an_interrupt_leaves_the_answers_so_far(ask):
    def each(pair):
        raise KeyboardInterrupt

    result = ask(DOOR, DOOR, reuse="4471", full="4471", each=each)
    assert (result.interrupted, len(result.pairs)) == (True, 1)


def test_below_is_judged_with_reuse_and_where_nothing_was_judged_it_fails(ask):
    result = ask(DOOR, reuse="Its door code is 4471.", full="4471")
    assert result.below({"f1": 0.3, "citation": 1}) == {}
    assert list(result.below({"f1": 0.4, "em": 0.5})) == ["f1", "em"]
    assert list(ask(NOWHERE, reuse="x", full="x").below({"em": 0.0})) == ["em"]


def test_least_is_read_whatever_its_case():
    assert parse_least("F1=0.4, EM=0,rouge-l=1") == {"f1": 0.4, "em": 0, "rouge_l": 1}


@pytest.mark.parametrize("text", ["F2=0.4", "F1", "F1=x", "F1=40", "F1=nan", "", "F1=0.4,f1=0.1"])
def test_a_least_that_cannot_be_is_refused(text):
    with pytest.raises(UsageError, match="cannot fail under"):
        parse_least(text)


def test_a_line_without_answers_is_refused_before_anything_is_asked():
    with pytest.raises(UsageError, match="line 7: no answers"):
        check_items([DOOR, Item("Who?", line=7)])
    check_items([NOWHERE])


def test_an_answer_of_which_nothing_is_scored_is_refused():
    with pytest.raises(UsageError, match=r"line 3: the answer 'The...' has no word that counts"):
        check_items([Item("Which band?", answers=("The The band", "The..."), line=3)])
