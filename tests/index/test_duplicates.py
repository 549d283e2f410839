"""No passage repeats a better one."""

from __future__ import annotations

from epicrag.index.duplicates import gathered
from epicrag.types import Chunk, Hit

LONG = " ".join(f"word{n}" for n in range(100))


def hit(path: str, text: str, title: str | None = None) -> Hit:
    return Hit(1, Chunk(path, 0, 0, len(text), text, title), 0.5)


def kept(*hits: Hit, k: int = 10) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.chunk.document, one.also) for one in gathered(hits, k)]


def test_the_same_content_is_kept_once_and_names_the_others():
    assert kept(hit("a", LONG), hit("b", LONG), hit("c", "else")) == [("a", ("b",)), ("c", ())]


def test_the_same_text_under_another_header_is_kept_once():
    assert kept(hit("a", LONG, "One"), hit("b", LONG, "Two")) == [("a", ("b",))]


def test_a_long_text_in_other_letters_and_spaces_is_kept_once():
    assert kept(hit("a", LONG), hit("b", LONG.upper().replace(" ", "\n"))) == [("a", ("b",))]


def test_one_word_or_number_that_differs_is_enough_to_keep_both():
    for word in ("word51", "not word50"):
        assert len(kept(hit("a", LONG), hit("b", LONG.replace("word50", word)))) == 2
        assert len(kept(hit("a", LONG.replace("word50", word)), hit("b", LONG))) == 2


def test_a_short_text_under_another_heading_says_something_else():
    museum, pool = (
        hit("a", "Open from ten to four.", "Museum"),
        hit("b", "Open from ten to four.", "Pool"),
    )
    assert len(kept(museum, pool)) == 2


def test_a_part_of_a_better_passage_is_left_out():
    assert kept(hit("a", LONG), hit("b", LONG[:200])) == [("a", ("b",))]


def test_a_much_longer_passage_is_kept_beside_the_part_it_holds():
    assert len(kept(hit("a", LONG[:200]), hit("b", LONG))) == 2


def test_texts_that_share_much_and_differ_are_both_kept():
    assert len(kept(hit("a", LONG), hit("b", LONG[:400] + LONG[::-1]))) == 2


def test_signs_and_vowel_marks_tell_texts_apart():
    for one, other in (
        ("-5 degrees", "5 degrees"),
        ("a < b", "a > b"),
        ("यह बड़ा घर है", "यह बड़े घर हो"),
    ):
        assert len(kept(hit("a", f"{LONG} {one}"), hit("b", f"{LONG} {other}"))) == 2


def test_texts_without_words_are_equal_only_if_they_are():
    assert len(kept(hit("a", "!!"), hit("b", "??"))) == 2


def test_two_passages_of_one_document_do_not_name_it():
    assert kept(hit("a", LONG), hit("a", LONG + " ")) == [("a", ())]


def test_no_more_than_k_are_kept():
    assert len(kept(*(hit(f"{n}", f"text number n{n}") for n in range(9)), k=4)) == 4
