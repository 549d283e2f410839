"""Scores against values worked out by hand, and against what they must obey."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epicrag.scores import (
    common_subsequence,
    contains,
    exact_match,
    f1,
    holds,
    mean_of,
    rouge_l,
    without_citations,
    words,
)

WORDS = st.lists(st.sampled_from("abcd"), max_size=8)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Eiffel Tower!", ["eiffel", "tower"]),
        ("a state-of-the-art U.S. plan, $3.50", ["stateoftheart", "us", "plan", "350"]),
        ("«Straße» — ÉCOLE…", ["strasse", "école"]),
        ("共有70席。", ["共", "有", "70", "席"]),
        ("２０１３年", ["2013", "年"]),
        ("the", []),
    ],
)
def test_words_are_those_of_squad_in_every_script(text, expected):
    assert words(text) == expected


def test_exact_match_takes_any_of_the_right_answers():
    assert exact_match("The 45 days.", ["a month", "45 days"]) == 1
    assert exact_match("within 45 days", ["45 days"]) == 0
    assert exact_match("anything", []) == 0


def test_f1_by_hand():
    # 2 of 4 words are right, and 2 of 2 right ones are there: 2 * 2 / (4 + 2)
    assert f1("returned within 45 days", ["45 days"]) == pytest.approx(2 / 3)
    assert f1("七十个", ["七十席"]) == pytest.approx(2 / 3)
    assert f1("", ["45 days"]) == 0
    assert f1("days days days", ["days"]) == pytest.approx(0.5)


def test_rouge_l_by_hand_heeds_the_order_where_f1_does_not():
    # Lin's own example: "the gunman kill police" shares only "the gunman" or "the police" in order.
    gold = ["police killed the gunman"]
    assert rouge_l("police kill the gunman", gold) == pytest.approx(0.75)
    assert rouge_l("the gunman kill police", gold) == pytest.approx(0.5)
    assert f1("gunman kill police", gold) == f1("police kill gunman", gold)


@given(WORDS, WORDS)
def test_the_common_subsequence_is_the_longest_of_all(one, other):
    from itertools import combinations

    def all_of(words):
        return {c for n in range(len(words) + 1) for c in combinations(words, n)}

    longest = max(len(found) for found in all_of(one) & all_of(other))
    assert common_subsequence(one, other) == longest


@given(st.text(max_size=30), st.text(max_size=30))
def test_scores_lie_between_nothing_and_all_and_a_text_agrees_with_itself(one, other):
    for score in (exact_match, f1, rouge_l):
        assert 0 <= score(one, [other]) <= 1
        assert score(one, [other]) == score(other, [one])
        assert score(one, [one]) == 1
    assert exact_match(one, [other]) <= f1(one, [other])
    assert exact_match(one, [other]) <= contains(one, [other])


def test_a_passage_holds_an_answer_by_whole_words():
    assert holds("It opens at TEN, every day.", ["opens at ten"])
    assert not holds("It opens attentively.", ["ten"])
    assert holds("全部共有70席。", ["70席"])
    assert not holds("anything", ["the"])


def test_citations_are_no_part_of_an_answer():
    assert without_citations("Ten [1][2], as items[0] says [1, 3].") == "Ten, as items says."
    assert without_citations("Ten [1] [2]") == without_citations("Ten [1][2") == "Ten"
    assert without_citations("ten[1]euros, [2026]") == "ten euros, [2026]"
    for score in (exact_match, f1, rouge_l, contains):
        assert score("Ten [1] euros [2, 3].", ["ten euros"]) == 1
        assert score("items[0]", ["items[0]"]) == 1


def test_an_answer_contains_a_right_one_by_whole_words():
    assert contains("You have to pay 5 Euros [1] at the door.", ["free", "5 euros"]) == 1
    assert contains("You have to pay 55 euros.", ["5 euros"]) == 0
    assert contains("全部共有70席。", ["70席"]) == 1
    assert (contains("", ["5 euros"]), contains("anything", [])) == (0, 0)


def test_the_interval_holds_the_mean_and_shrinks_with_more_values():
    few, many = mean_of([0.0, 1.0] * 5), mean_of([0.0, 1.0] * 200)
    assert few and many
    assert few.low < few.mean == 0.5 < few.high
    assert many.high - many.low < few.high - few.low
    assert (mean_of([]), mean_of([0.3])) == (None, type(few)(0.3, 0.3, 0.3, 1))
    assert mean_of([0.0, 1.0, 1.0]) == mean_of([0.0, 1.0, 1.0])
