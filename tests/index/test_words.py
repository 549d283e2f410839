"""A text is found by the words people type for it, in whatever script."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epicrag.index.words import LONGEST, joined, query_words, words_of


def is_found(query: str, text: str) -> bool:
    wanted = query_words(query)
    return bool(wanted) and set(wanted) <= set(words_of(text))


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("明天", "今天天气很好。明天下雨。"),
        ("明", "今天天气很好。明天下雨。"),
        ("東京タワー", "私は東京タワーに行った"),
        ("สวัสดี", "เขาพูดว่าสวัสดีครับ"),
        ("한국", "한국어를 공부합니다"),
        ("ភាសា", "ខ្ញុំរៀនភាសាខ្មែរ"),
        ("ລາວ", "ພາສາລາວ"),
        ("हिन्दी", "यह हिन्दी में लिखा है"),
        ("cafe", "Le Café est fermé"),
        ("Größe", "GROSSE"),
        ("العربية", "اللغة العَرَبِيَّة"),
        ("running", "He runs"),
        ("url_for", "Call url_for() to build it"),
        ("urlFor", "Call url_for() to build it"),
        ("url", "Call url_for() to build it"),
        ("HTTP response", "def parseHTTPResponse(self)"),
        ("parsehttpresponse", "def parseHTTPResponse(self)"),
        ("snake case", "a snake_case name"),
        ("28 U.S.C. § 586(b)", "under 28 USC 586(b), the trustee"),
        ("586(b)", "28 U.S.C. § 586(b)(1)"),
        ("1.2.3", "released in v1.2.3 today"),
        ("1234.56", "a sum of $1,234.56 in all"),
        ("2020-01-02", "on 2020-01-02 it"),
        ("ann.lee@example.org", "write to <ann.lee@example.org>."),
        ("example org", "see www.example.org"),
        ("email", "by e-mail only"),
        ("Scott", "Scott's house"),
        ("don't", "they don’t"),
        ("eau", "l'eau"),
        ("covid 19", "COVID-19"),
        ("ﬁne", "fine"),
        ("👍", "All tests pass👍🏽 today"),
        ("☀ 🇫🇷", "Paris 🇫🇷: ☀️ all day"),
        ("IT department", "Ask the IT department."),
        ("What does the WHO say?", "The WHO says so."),
    ],
)
def test_a_query_finds_the_text(query: str, text: str):
    assert is_found(query, text)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("12", "version 1.2"),
        ("明后", "明天下雨。后天"),
        ("か", "がぎぐ"),
        ("car", "carpet"),
        ("👍", "👎"),
        ("🇫🇷", "🇩🇪"),
        ("IT department", "It is a department."),
    ],
)
def test_a_query_does_not_find_another_text(query: str, text: str):
    assert not is_found(query, text)


@pytest.mark.parametrize(
    "query",
    ["", "?", "…", "what is the", "The AND of it", "WHO IS IT", "© ®", "\x00", "\u200b", "*"],
)
def test_stop_words_and_signs_are_no_words(query: str):
    assert query_words(query) == []


def test_a_question_looks_for_pairs_and_not_for_each_character():
    assert query_words("明天下雨") == ["明天", "天下", "下雨"]


def test_a_path_is_found_by_its_parts():
    assert "site" in words_of("/usr/local/lib/python3.11/site-packages/foo/bar/baz.py")


@given(st.text())
def test_any_text_gives_words_that_fts5_cuts_at_spaces(text: str):
    words = words_of(text)
    assert all(word and " " not in word and len(word) <= LONGEST for word in words)
    assert joined(text).split() == words
    signs = {sign for word in words for sign in word if sign.isascii()}
    assert all(sign.isalnum() for sign in signs)


@given(st.text(alphabet="abcXYZ09_.-'() 明天ก", max_size=40))
def test_every_text_is_found_by_itself(text: str):
    assert set(query_words(text)) <= set(words_of(text))
