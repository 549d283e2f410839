"""Of all code pages the bytes are read in the one in which they read most like a text."""

from __future__ import annotations

from epicrag.connectors.guess import PAGES, WIDE, best_guess, likelihood


def test_a_text_is_likelier_than_the_same_bytes_in_another_page():
    data = "Был сильный мороз".encode("koi8_r")
    scores = {page: likelihood(data.decode(page, "replace")) for page in PAGES}
    assert max(scores, key=lambda page: scores[page]) == "koi8_r"


def test_what_no_writer_does_costs():
    assert likelihood("приВет") < likelihood("Привет")
    assert likelihood("wоrd") < likelihood("слово")  # the second letter is Cyrillic
    assert likelihood("tra£ez") < likelihood("trafez")
    assert likelihood("a\x01b") < likelihood("a b")


def test_two_pages_that_read_the_same_give_the_likelier_one():
    assert best_guess("können".encode("cp1250"), PAGES).encoding == "cp1252"


def test_a_sample_may_end_within_a_character():
    data = "今天天气很好".encode("gb18030")[:-1]
    assert best_guess(data, PAGES, whole=False).text == "今天天气很"


def test_text_in_utf16_beats_all_code_pages():
    data = "今天天气很好，我们去看书".encode("utf-16-be")
    wide = best_guess(data, WIDE)
    assert wide.encoding == "utf-16-be" and wide.score > best_guess(data, PAGES).score
