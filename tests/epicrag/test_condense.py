"""Follow-up questions for the search: what leans on the question before takes its words, what stands alone does not."""

from __future__ import annotations

import pytest

from epicrag.condense import along, condense, is_faithful, leans_on
from epicrag.serving.prompt import Turn
from epicrag.sessions import Exchange

BATTERY = Exchange("How long does the battery last?", "It lasts 14 months. [1]")


@pytest.mark.parametrize(
    "question",
    [
        "And at the fast interval?",
        "What about humidity?",
        "What does it not cover?",
        "Who pays for that?",
        "Where can they be bought?",
        "Which of these is the best?",
        "Does this work for all of them?",
        "Why?",
        "Which colour?",
        "So how much is the other one?",
        "What happens then?",
        "ok, and the sensor?",
        "What’s its range?",
        "What is the weather there?",
        "How many are there?",
        "Do both have a battery and a gauge?",
        "Are there others?",
        "Does the same apply indoors?",
        "Is the price the same?",
        "WHAT DOES IT COST?",
        "How is the performance?",
    ],
)
def test_a_follow_up_is_known(question):
    assert leans_on(question)


@pytest.mark.parametrize(
    "question",
    [
        "How long is the warranty?",
        "Which library implements signals in Flask?",
        "Is there a way to export readings every night?",
        "Is it possible to export readings to a file?",
        "What should a config file that is read at start hold?",
        "How many alarms can the hub hold?",
        "Who is Halvard?",
        "How many docks are there?",
        "What ports are there?",
        "AND-gate wiring diagram",
        "AND gate wiring diagram",
        "Or-operator precedence in firmware 3",
        "So-called fast interval of Tern hub",
        "Both Tern and Plover have a battery: which lasts longer?",
        "What is the maximum temperature of the Tern these days?",
        "Which settings have the same default?",
        "Which others exist besides the Tern hub?",
        "What does IT stand for?",
        "Who wrote SHE, the novel?",
        "Where should the Tern be mounted so that the antenna points up there?",
    ],
)
def test_a_question_that_stands_alone_is_left_as_it_is(question):
    assert not leans_on(question)
    assert condense(question, [BATTERY]).query == question


def test_the_words_of_the_question_before_come_first():
    found = condense("And at the fast interval?", [BATTERY])
    assert found.query == "long battery last? And at the fast interval?"
    assert found.is_changed


def test_a_word_is_taken_over_unless_the_question_has_that_word():
    oven = Exchange("How hot can the oven get?", "x")
    assert condense("Is it a shot?", [oven]).query == "hot oven get? Is it a shot?"
    docks = Exchange("Which dock is free?", "x")
    assert condense("And the other docks?", [docks]).query == "free? And the other docks?"


def test_a_chain_of_follow_ups_keeps_its_subject():
    first = condense("And at the fast interval?", [BATTERY])
    turn = Exchange("And at the fast interval?", "4 months.", True, first.query)
    assert "battery" in condense("Why is that?", [BATTERY, turn]).query


def test_a_long_chain_does_not_grow_without_end():
    query = " ".join(f"word{n}" for n in range(500))
    turn = Exchange("q", "a", True, query)
    assert len(condense("And that?", [turn]).query.split()) < 30


def test_the_first_question_has_nothing_to_lean_on():
    assert not condense("And it?", []).is_changed


def test_off_leaves_everything_alone():
    assert condense("And it?", [BATTERY], "off").query == "And it?"


def test_a_rewriting_is_taken_where_it_kept_all_and_made_up_nothing():
    question, good = (
        "And at the fast interval?",
        "How long does the battery last at the fast interval?",
    )
    assert is_faithful(good, question, [BATTERY])
    assert condense(question, [BATTERY], "model", lambda *_: good).query == good


@pytest.mark.parametrize(
    "written",
    [
        "",
        "How long does the battery last?",  # lost what was asked
        "How long does the tower in Ulm last at the fast interval?",  # made something up
        "And at the fast interval?",  # added nothing
    ],
)
def test_a_rewriting_that_is_none_is_not_taken(written):
    found = condense("And at the fast interval?", [BATTERY], "model", lambda *_: written)
    assert found.query == "long battery last? And at the fast interval?"


def test_without_a_model_its_way_is_that_of_words():
    words = condense("And it?", [BATTERY], "words")
    assert condense("And it?", [BATTERY], "model") == words == condense("And it?", [BATTERY])


def test_the_served_model_is_asked_for_one_line(tiny_engine):
    from epicrag.condense import model_rewriter

    written = model_rewriter(tiny_engine("llama"))("And it?", [BATTERY])
    assert "\n" not in written


def test_messages_are_condensed_in_their_turn():
    turns = [
        Turn("user", "How long does the battery last?"),
        Turn("assistant", "14 months."),
        Turn("user", "And at the fast interval?"),
        Turn("assistant", "4 months."),
    ]
    assert "battery" in along("Why is that?", turns).query
    assert along("How many alarms can the hub hold?", turns).query == (
        "How many alarms can the hub hold?"
    )
    assert along("Why is that?", turns, "off").query == "Why is that?"
    assert along("Why is that?", [Turn("assistant", "hello")]).query == "Why is that?"
