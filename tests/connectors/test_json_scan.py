"""JSON as events: offsets exact, any depth, arrays of numbers told in short."""

from __future__ import annotations

import json
import time

import pytest

from epicrag.connectors.json_scan import BrokenJsonError, essence, scan


def kinds(text: str) -> list[str]:
    return [event.kind for event in scan(text)]


def test_events_stand_at_their_offsets():
    text = '{"a": ["x", true],\n "b": null}'
    events = list(scan(text))
    assert [(event.kind, event.text) for event in events] == [
        ("{", ""), ("key", "a"), ("[", ""), ("value", "x"), ("value", "true"), ("]", ""),
        ("key", "b"), ("value", "null"), ("}", ""), ("end", ""),
    ]  # fmt: skip
    assert text[events[6].at :].startswith('"b"')
    assert events[-1].at == len(text)


def test_keys_that_stand_twice_come_twice():
    assert [event.text for event in scan('{"a": 1, "a": 2}') if event.kind == "value"] == ["1", "2"]


def test_no_numbers_and_a_last_comma_are_taken():
    assert [event.text for event in scan('[NaN, "x", -Infinity,]') if event.text] == [
        "NaN",
        "x",
        "-Infinity",
    ]


def test_numbers_stay_as_they_are_written():
    text = '{"a": 1.10, "b": ' + "9" * 6_000 + "}"
    assert [event.text for event in scan(text) if event.kind == "value"] == ["1.10", "9" * 6_000]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"a"',
        '{"a": ',
        '{"a": 1',
        '["a" "b"]',
        "{a: 1}",
        '"open',
        "[tru]",
        "nonsense",
        "[1.2.3x]",
    ],
)
def test_broken_json_says_where(text: str):
    with pytest.raises(BrokenJsonError) as broken:
        list(scan(text))
    assert 0 <= broken.value.at <= len(text)


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":', '["x",'])
def test_no_depth_is_too_deep(opening: str):
    n = 100_000
    closing = {"[": "]", "{": "}"}
    ends = "".join(closing[sign] for sign in reversed(opening) if sign in closing)
    text = opening * n + '"x"' + ends * n
    began = time.monotonic()
    assert kinds(text)[-1] == "end"
    assert time.monotonic() - began < 20


def test_deep_arrays_that_never_close_are_broken_at_once():
    began = time.monotonic()
    with pytest.raises(BrokenJsonError):
        list(scan("[" * 200_000))
    assert time.monotonic() - began < 20


def test_array_of_numbers_is_one_event_even_beside_others():
    events = list(scan('{"a": [[1, 2], [3]], "b": [[4], "x"]}'))
    assert [event.text for event in events if event.kind == "numbers"] == ["[[1, 2], [3]]", "4"]


def test_long_arrays_of_numbers_are_told_by_count_and_range():
    assert essence(json.dumps(list(range(-5, 1_000)))) == "1,005 numbers from -5 to 999"
    assert essence("[1, 2.50, -3e2]") == "1, 2.50, -3e2"
    assert essence("[[], []]") == ""
