"""Link policies: their names round-trip and bad ones are refused with what is possible."""

import pytest

from epicrag.errors import UsageError
from epicrag.serving.policies import Correct, Damp, LegoLink, Naive, parse_policy

NAMES = [
    "full",
    "prefix",
    "none",
    "legolink(16)",
    "legolink(0)",
    "legolink-0",
    "damp(4,15)",
    "damp(4,15)+legolink(8)",
    "legolink(16)+correct(0.5)",
    "damp(2,5)+legolink(8)+correct(0.25)",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_round_trips(name):
    assert parse_policy(name).name == name


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("legolink", LegoLink(16)),
        ("damp", Damp(4, 15.0, Naive())),
        ("correct", Correct(0.5, LegoLink(16))),
        ("damp+correct(1)", Correct(1.0, Damp(4, 15.0, LegoLink(16)))),
        (" LegoLink(8) + Correct(0.5) ", Correct(0.5, LegoLink(8))),
        ("legolink(8)+damp(1,2)", Damp(1, 2.0, LegoLink(8))),
    ],
)
def test_short_and_reordered_forms_are_understood(text, policy):
    assert parse_policy(text) == policy


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lego",
        "legolink(a)",
        "legolink(-1)",
        "legolink(1.5)",
        "legolink(1,2)",
        "full+damp",
        "prefix+correct(0.5)",
        "none+correct(0.5)",
        "legolink+none",
        "damp+damp",
        "legolink(16",
        "legolink(nan)",
        "legolink(16)+correct(3)",
    ],
)
def test_what_means_nothing_is_refused_with_what_is_possible(text):
    with pytest.raises(UsageError) as caught:
        parse_policy(text)
    assert "legolink(16)" in (caught.value.hint or "")


def test_legolink_recomputes_at_most_the_chunk():
    assert list(LegoLink(4).recompute(10)) == [0, 1, 2, 3]
    assert list(LegoLink(4).recompute(2)) == [0, 1]


def test_policies_are_frozen():
    with pytest.raises(AttributeError):
        LegoLink(4).tokens = 5  # type: ignore[misc]


def test_legolink_0_brings_its_compile_mode():
    assert parse_policy("legolink-0").compile_mode == "sink"
    assert parse_policy("damp(4,15)+legolink-0").compile_mode == "sink"
    assert parse_policy("legolink(16)").compile_mode is None
