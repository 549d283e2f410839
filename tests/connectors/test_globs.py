"""Rules that are bounded say of every name what they said before, and say it soon."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec

from epicrag.connectors.globs import bounded


def regex_of(rule: str) -> str:
    (pattern,) = GitIgnoreSpec.from_lines([rule]).patterns
    assert pattern.regex is not None
    return str(pattern.regex.pattern)


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("*a" * 25 + "b", "a" * 200),
        ("*[(]" * 3 + "b", "(" * 200),
        ("*\\(" * 25 + "b", "(" * 200),
        ("/x/" + "*a" * 25 + "/c", "x/" + "a" * 200 + "/d"),
        ("*" * 500 + "b", "a" * 200),
        ("*?" * 25 + "b", "a" * 200),
    ],
)
def test_a_rule_made_to_take_for_ever_does_not(rule, name):
    regex = bounded(regex_of(rule))
    assert regex is not None and re.search(regex, name) is None


@pytest.mark.parametrize("rule", ["**/a/" * 25 + "b", "*[(]" * 25 + "b"])
def test_a_rule_that_cannot_be_bounded_is_none(rule):
    assert bounded(regex_of(rule)) is None


_PIECE = st.sampled_from(["*", "a", "b", "?", "[ab]", "[!a]", "/", "/**/", "\\*", ".", "("])


@given(st.lists(_PIECE, min_size=1, max_size=9), st.text("ab/*.(", max_size=12))
def test_a_bounded_rule_matches_what_it_matched(pieces, name):
    rule = "".join(pieces)
    try:
        patterns = [p for p in GitIgnoreSpec.from_lines([rule]).patterns if p.regex is not None]
    except ValueError:
        return
    for pattern in patterns:
        regex = bounded(pattern.regex.pattern)
        if regex is not None:
            assert bool(re.search(regex, name)) == bool(pattern.regex.search(name))
