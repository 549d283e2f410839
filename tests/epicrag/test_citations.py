"""Markers in answers: valid ones stay, false ones go, missing ones are added."""

from __future__ import annotations

import pytest

from epicrag.citations import Attributor, Citer, words_of

PASSAGES = [
    "Returns are accepted within 45 days of purchase with the receipt.",
    "Standard shipping costs 4.90 euros and takes three working days.",
    "The museum opens at ten o'clock and closes at six in the evening.",
]


def cite(text: str, size: int = 1, question: str = "What about it?") -> tuple[str, set[int]]:
    citer = Citer(PASSAGES, question)
    shown = "".join(citer.feed(text[i : i + size]) for i in range(0, len(text), size))
    return shown + citer.finish(), citer.cited


def test_a_sentence_without_a_marker_gets_that_of_its_passage():
    assert cite("Returns are accepted within 45 days.") == (
        "Returns are accepted within 45 days. [1]",
        {1},
    )


def test_each_sentence_gets_its_own_marker_where_it_ends():
    text, cited = cite("Shipping costs 4.90 euros today. The museum closes at six o'clock.")
    assert text == ("Shipping costs 4.90 euros today. [2] The museum closes at six o'clock. [3]")
    assert cited == {2, 3}


def test_a_short_answer_is_attributed_as_a_whole():
    assert cite("45 days") == ("45 days [1]", {1})


def test_an_answer_that_no_passage_holds_gets_no_marker():
    assert cite("Paris is the capital of France.") == ("Paris is the capital of France.", set())


def test_the_question_s_own_words_are_weak_evidence():
    question = "What does the museum charge for standard shipping?"
    assert cite("The museum charges Gustav Eiffel.", question=question)[1] == set()


def test_a_bare_yes_is_attributed_by_the_question():
    assert cite("Yes.", question="Are returns accepted within 45 days?") == ("Yes. [1]", {1})


def test_the_model_s_valid_markers_are_kept_and_none_added():
    text = "Returns take 45 days [1]. Shipping costs 4.90 euros."
    assert cite(text) == (text, {1})


def test_a_marker_after_the_sentence_end_counts_as_its_marker():
    text = "Shipping costs 4.90 euros altogether. [2] Bye."
    assert cite(text) == (text, {2})


@pytest.mark.parametrize(
    "given, shown",
    [
        ("Forty five [9].", "Forty five."),
        ("Forty [9] five", "Forty five"),
        ("[9] Forty five", "Forty five"),
        ("Forty five[7].", "Forty five."),
        ("Forty five [0].", "Forty five."),
        ("Forty five [1, 9].", "Forty five [1]."),
        ("Forty five [1][8].", "Forty five [1]."),
        ("Forty five [1-3].", "Forty five [1-3]."),
        ("Forty five [1-4].", "Forty five [1, 2, 3]."),
    ],
)
def test_numbers_that_point_to_no_source_are_removed(given: str, shown: str):
    assert cite(given)[0] == shown


@pytest.mark.parametrize(
    "text", ["Use items[0] or `x[7]` there", "See [1](page.html)", "In [2024]"]
)
def test_brackets_that_are_no_markers_are_left_alone(text: str):
    shown, cited = cite(text)
    assert shown == text
    assert cited == set()


def test_code_is_left_alone():
    text = "```\nreturns accepted within 45 days. x [9] y\n```"
    assert cite(text) == (text, set())


def test_an_abbreviation_does_not_end_a_sentence():
    assert (
        cite("Dr. Smith said returns are accepted within 45 days of purchase.")[0].count("[1]") == 1
    )


def test_a_heading_and_a_lead_in_get_no_marker():
    text = "# Returns accepted within 45 days\nShipping costs 4.90 euros:\n- three working days"
    assert cite(text)[0] == text + " [2]"


def test_two_passages_are_cited_when_only_both_hold_the_sentence():
    text = "Returns are accepted with receipt and shipping takes three working days."
    assert cite(text)[0] == text + " [1][2]"


def test_cjk_sentences_end_without_a_space():
    citer = Citer(["退货期限为45天。", "博物馆十点开门。"], "几点?")
    text = citer.feed("博物馆十点开门。退货期限为45天。") + citer.finish()
    assert text == "博物馆十点开门。 [2]退货期限为45天。 [1]"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 100])
def test_how_the_text_is_cut_into_deltas_changes_nothing(size: int):
    text = "A [9] b. Returns are accepted within 45 days.\n\n```py\na[0] [1]\n```\nEnd [2] and [12](x) `q`."
    assert cite(text, size) == cite(text, len(text))


def test_text_is_shown_as_it_comes():
    citer = Citer(PASSAGES, "?")
    assert citer.feed("Returns are") == "Returns are"
    assert citer.feed(" accepted") == " accepted"


def test_without_passages_every_marker_goes():
    citer = Citer([], "?")
    assert citer.feed("So it is [1].") + citer.finish() == "So it is."


def test_numbers_and_words_are_normalised():
    assert words_of("The fees: 4,471 EUR, state-of-the-art!") == [
        "fee",
        "4471",
        "eur",
        "state",
        "art",
    ]


def test_ties_go_to_the_better_ranked_passage():
    assert Attributor(["same words here", "same words here"], "?").sources_of("same words") == (1,)


def test_a_marker_of_the_model_is_no_proof_that_a_passage_says_so():
    citer = Citer(["the museum opens at ten"], "when?")
    text = citer.feed("The moon is made of green cheese [1].") + citer.finish()
    assert text == "The moon is made of green cheese [1]."
    assert citer.cited == {1}
    assert not citer.supported


def test_a_sentence_the_model_cites_rightly_is_supported():
    citer = Citer(["the museum opens at ten"], "when?")
    _ = citer.feed("The museum opens at ten [1].") + citer.finish()
    assert citer.supported


def test_an_answer_of_stop_words_is_supported_by_nothing():
    citer = Citer(["the warranty is five years"], "How long is the warranty?")
    _ = citer.feed("The [1]") + citer.finish()
    assert not citer.supported


@pytest.mark.parametrize(
    ("passage", "answer"),
    [
        ("The radio range is 800 metres in the open.", "The radio range is 800 meters."),
        ("Radio range in the open: 800 metres.", "It has an 800-meter range."),
        ("The colour of the housing is grey.", "The color of it."),
        ("It keeps working for about nine days.", "About 9 days."),
        ("The harbour licence is analysed and labelled.", "harbors license analyzed labeled"),
        ("Organise the catalogue by fibre.", "organize catalog fiber"),
    ],
)
def test_spelling_and_small_numbers_do_not_hide_a_source(passage, answer):
    passages = [passage, *PASSAGES]
    assert Attributor(passages, "What is the radio range?").sources_of(answer) == (1,)


def test_another_number_is_another_answer():
    passages = ["The radio range is 800 metres in the open.", *PASSAGES]
    attributor = Attributor(passages, "What is the radio range?")
    assert attributor.sources_of("The radio range is 900 feet.") == ()


def test_words_are_spelt_one_way():
    assert words_of("four hours, your 7xk9 2024-05-01 4,471") == words_of(
        "4 hours, your 7xk9 2024-05-01 4471"
    )
