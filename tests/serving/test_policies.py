"""Link policies: their names round-trip and bad ones are refused with what is possible."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epicrag.errors import UsageError
from epicrag.serving.policies import (
    Alpha,
    Correct,
    Correction,
    Damp,
    Depth,
    Deviation,
    Focus,
    LegoLink,
    Naive,
    Reconnect,
    Spread,
    Union,
    count_of,
    parse_policy,
)

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
    "legolink(2%)",
    "legolink(8,2%)",
    "spread(4,12)",
    "focus(5%,4)",
    "focus(5%,0,tokens=8,layers=25%-50%,heads=mean)",
    "reconnect(8)",
    "reconnect(8,edge=2)",
    "deviation(15%)",
    "legolink-0+focus(10%,0)",
    "legolink(16)+spread(4,12)+focus(5%,4)+reconnect(2)+deviation(1%)",
    "spread(4,12)+correct(auto)",
    "damp(4,15)+legolink(8)+focus(5%,4)+correct(1,values=0.75,fade=0.66/0.75,depth=1/0.5/0)",
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
        ("legolink(2%)", LegoLink(0, 0.02)),
        ("legolink(2%, 8)", LegoLink(8, 0.02)),
        ("legolink(8, share=2%)", LegoLink(8, 0.02)),
        ("spread", Spread(4, 12)),
        ("focus", Focus(0.05, 4)),
        ("focus(0.1)", Focus(0.1, 4)),
        ("focus(10%, layers=25%-50%)", Focus(0.1, layers=Depth(0.25, 0.5))),
        ("focus(7%)+legolink(8)", Union((LegoLink(8), Focus(0.07)))),
        ("reconnect", Reconnect(8)),
        ("deviation+correct(1)", Correct(1.0, Deviation(0.15))),
        ("correct(1,fade=0.66)+legolink(16)", Correct(1, LegoLink(16), fade=(0.66,))),
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
        "legolink(16)+legolink(8)",
        "legolink(0)+correct",
        "none+focus(5%)",
        "full+focus",
        "focus(5)",
        "focus(-1%)",
        "focus(5%,4,3)",
        "focus(5%,layers=3)",
        "focus(5%,layers=50%-20%)",
        "focus(5%,heads=min)",
        "focus(share=5%,share=6%)",
        "reconnect(5%)",
        "correct(0.5,0.1)",
        "correct(0.5,depth=1/x)",
        "correct(0.5,fade=1/1/1)",
        "full(1)",
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


@given(st.integers(0, 60), st.integers(0, 40), st.integers(0, 40))
def test_spread_rows_ascend_inside_the_chunk(length, first, probes):
    rows = list(Spread(first, probes).recompute(length))
    assert rows == sorted(set(rows))
    assert len(rows) == min(length, first) + min(probes, length - min(length, first))
    assert all(0 <= row < length for row in rows)


def test_a_share_of_a_chunk_grows_with_it():
    assert len(LegoLink(0, 0.02).recompute(1000)) == 20
    assert len(LegoLink(8, 0.02).recompute(100)) == 8
    assert len(LegoLink(0, 0.02).recompute(10)) == 1


@given(st.floats(0, 1), st.integers(0, 1000))
def test_a_share_is_rounded_up_and_never_more_than_all(share, whole):
    n = count_of(share, whole)
    assert 0 <= n <= whole
    assert n >= share * whole - 1e-5
    assert count_of(1.0, whole) == whole


@given(st.floats(0, 1), st.floats(0, 2), st.floats(0, 2))
def test_any_number_survives_the_name(share, alpha, values):
    policy = Correct(alpha, Focus(share), values, (alpha, values), (values,))
    assert parse_policy(policy.name) == policy


@given(st.integers(1, 2000), st.floats(0, 2), st.floats(0, 2))
def test_the_pieces_of_a_correction_tile_the_chunk_and_fall(length, fade, other):
    pieces = Correction(Alpha(1.0, 0.5), Alpha(fade, other)).pieces(length)
    assert [row for low, high, _ in pieces for row in range(low, high)] == list(range(length))
    alphas = [alpha for _, _, alpha in pieces]
    assert alphas == sorted(alphas, reverse=True)
    assert alphas[0] == (1.0, 0.5)


def test_a_fade_is_the_power_law_at_the_middle_of_each_step():
    pieces = Correction(Alpha(1.0, 0.75), Alpha(0.66, 0.75)).pieces(100)
    assert [(low, high) for low, high, _ in pieces] == [(0, 16), (16, 32), (32, 64), (64, 100)]
    assert pieces[2][2] == pytest.approx((4.525**-0.66, 0.75 * 4.525**-0.75), rel=1e-3)


def test_depth_scales_alpha_by_equal_parts_of_the_layers():
    correction = Correction(Alpha(0.5, 0.5), depth=(1.0, 0.5, 0.0))
    assert [correction.factor(layer, 6) for layer in range(6)] == [1, 1, 0.5, 0.5, 0, 0]
    assert Correction(Alpha(0.5, 0.5)).factor(3, 6) == 1


@pytest.mark.parametrize("n_layers", [1, 2, 3, 30])
def test_a_depth_always_names_a_layer(n_layers):
    for depth in (Depth(1 / 3, 2 / 3), Depth(0, 1), Depth(0.99, 1), Depth(0, 0.01)):
        layers = depth.layers(n_layers)
        assert len(layers) >= 1
        assert 0 <= layers.start < layers.stop <= n_layers
    assert Depth(1 / 3, 2 / 3).layers(30) == range(10, 20)
