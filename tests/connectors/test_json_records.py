"""JSON: records as blocks, each value findable, each line right; what is no JSON stays text."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epicrag.connectors.json_records import parse_json, parse_json_lines
from epicrag.types import Document, place_of


def line_at(parsed: Any, needle: str) -> int:
    """The source line that a piece of the text is cited with."""
    at = parsed.text.index(needle)
    starts = [anchor.start for anchor in parsed.anchors]
    lines = place_of(parsed.anchors, starts, at, at + 1).lines
    assert lines is not None
    return lines[0]


def test_records_of_an_array_are_blocks_with_their_lines():
    people = [{"name": "Ada", "born": {"year": 1815}}, {"name": "Grace", "tags": ["navy", "cobol"]}]
    parsed = parse_json(json.dumps(people, indent=1))
    assert parsed.text == "name: Ada\nborn.year: 1815\n\nname: Grace\ntags: navy, cobol"
    assert [parsed.text[block.start : block.end] for block in parsed.blocks] == parsed.text.split(
        "\n\n"
    )
    assert line_at(parsed, "name: Grace") == 9
    assert line_at(parsed, "born.year") == 4


def test_escapes_become_characters():
    assert (
        parse_json(r'{"caf\u00e9": "\u4f60\u597d \ud83d\ude00 \"x\"\n2"}').text
        == 'café: 你好 😀 "x"\n2'
    )


def test_lone_surrogates_are_replaced():
    assert parse_json(r'{"a": "x\ud800y"}').text == "a: x\ufffdy"


def test_records_of_a_nested_array_stand_under_its_path():
    data = {"title": "Staff", "shop": {"employees": [{"id": 7, "n": [{"b": 1}, {"b": "z"}]}]}}
    parsed = parse_json(json.dumps(data))
    assert parsed.text == "title: Staff\n\nid: 7\nn[0].b: 1\nn[1].b: z"
    assert parsed.title == "Staff"
    assert parsed.anchors[-1].heading == "shop.employees"


def test_long_record_is_cut_between_lines_and_keeps_its_name():
    records = [
        {"name": f"Land {n}", **{f"key{k}": "word " * 9 for k in range(40)}} for n in range(3)
    ]
    parsed = parse_json(json.dumps(records))
    assert {block.kind for block in parsed.blocks} == {"row"}
    assert {anchor.heading for anchor in parsed.anchors} == {"Land 0", "Land 1", "Land 2"}


def test_values_of_an_object_are_not_lost_behind_its_records():
    parsed = parse_json('{"rows": [{"a": "x"}], "note": "last", "by": {"who": "me"}}')
    assert parsed.text == "a: x\n\nnote: last\n\nby.who: me"


def test_outlines_do_not_drown_names():
    outline = [[n / 7, -n / 3] for n in range(50_000)]
    data = {
        "features": [{"geometry": {"arcs": outline}, "properties": {"name": "Fiji", "id": 242}}]
    }
    parsed = parse_json(json.dumps(data))
    assert len(parsed.text) < 200
    assert "geometry.arcs: 100,000 numbers from" in parsed.text
    assert "properties.name: Fiji" in parsed.text


def test_bytes_in_base64_are_told_by_their_size():
    blob = "data:image/png;base64," + "iVBORw0KGgo" * 100
    assert parse_json(json.dumps({"image": blob})).text == "image: (image/png, 1,122 characters)"


def test_texts_are_never_condensed():
    dna = "ACGT" * 1_000
    assert dna in parse_json(json.dumps({"dna": dna, "words": "Word " * 500})).text


def test_json_that_breaks_off_is_read_as_far_as_it_goes_and_then_as_text():
    whole = json.dumps([{"name": f"n{k}"} for k in range(3)], indent=1)
    parsed = parse_json(whole[:-10])
    assert parsed.text.startswith('name: n0\n\nname: n1\n\n{\n  "name":')
    assert line_at(parsed, '"name"') == 9


@pytest.mark.parametrize(
    "text", ['{\n  "a": "b",\n  "c": ["d"', "// settings\n{}", "no JSON at all", "{'a': 1}"]
)
def test_what_is_no_json_is_the_text_it_is(text: str):
    parsed = parse_json(text)
    assert parsed.text == text
    assert parsed.media == "application/json"
    assert parsed.anchors[-1].line == text.count("\n") + 1


def test_json_lines_are_records_and_a_bad_line_is_text():
    parsed = parse_json_lines('{"a": "one"}\n\n{"a": broken\n{"a": "three"}\n[1, "two"]\n"four"\n')
    assert parsed.text == 'a: one\n\n{"a": broken\n\na: three\n\n1 | two\n\nfour'
    assert [anchor.line for anchor in parsed.anchors] == [1, 3, 4, 5, 6]


def test_a_string_that_is_not_closed_costs_its_own_line_only():
    assert parse_json_lines('{"a": "x\n{"a": "y"}').text == '{"a": "x\n\na: y'


def test_json_lines_are_known_whatever_they_are_called():
    assert parse_json('{"a": "x"}\n{"a": "y"}\n').media == "application/x-ndjson"
    assert parse_json_lines('{\n "a": "x"\n}').text == "a: x"


def test_nesting_of_any_depth_is_read():
    n = 50_000
    parsed = parse_json('[{"a":' * n + '"deep"' + "}]" * n)
    assert parsed.text.endswith(": deep")
    assert len(parsed.text) < 1_000


def test_one_huge_line_is_quick():
    text = json.dumps([{"id": n, "name": f"name {n}", "tags": ["x", "y"]} for n in range(5_000)])
    began = time.monotonic()
    parsed = parse_json(text)
    assert time.monotonic() - began < 20
    assert "name: name 4999" in parsed.text


def test_json_and_its_lines_are_read_by_name(read_bytes: Any):
    document: Document = read_bytes("a.json", '\ufeff{"städte": ["Köln"]}'.encode("utf-16"))
    assert document.text == "städte: Köln"
    assert read_bytes("a.ndjson", b'{"a": "x"}\n').media == "application/x-ndjson"


scalars = st.one_of(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20),
    st.integers(),
    st.booleans(),
    st.none(),
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc.[ü", max_size=4), inner, max_size=4), max_leaves=20)  # fmt: skip


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in leaves(inner)]
    return [value]


def n_in(text: str) -> list[str]:
    return " ".join(text.split()).split()


@settings(max_examples=150, deadline=None)
@given(values, st.sampled_from([None, 1]))
def test_every_value_is_in_the_text(value: Any, indent: int | None):
    parsed = parse_json(json.dumps(value, indent=indent, ensure_ascii=indent is None))
    found = " ".join(n_in(parsed.text))
    for leaf in leaves(value):
        shown = leaf if isinstance(leaf, str) else json.dumps(leaf)
        assert " ".join(n_in(shown)) in found


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abc"), scalars, min_size=1, max_size=3), min_size=1, max_size=8), st.booleans())  # fmt: skip
def test_records_are_cited_with_their_lines(records: list[dict[str, Any]], as_lines: bool):
    marked = [{"mark": f"<{n}>", **record} for n, record in enumerate(records)]
    if as_lines:
        parsed = parse_json_lines("\n".join(json.dumps(record) for record in marked))
        expected = [n + 1 for n in range(len(marked))]
    else:
        text = json.dumps(marked, indent=2)
        parsed = parse_json(text)
        expected = [text[: text.index(f"<{n}>")].count("\n") + 1 for n in range(len(marked))]
    assert [line_at(parsed, f"mark: <{n}>") for n in range(len(marked))] == expected


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from('[]{}",:\\n1 tx\n'), max_size=60))
def test_nothing_raises_and_nothing_readable_is_dropped(text: str):
    for parse in (parse_json, parse_json_lines):
        parsed = parse(text)
        assert all(
            before.end <= after.start
            for before, after in zip(parsed.blocks, parsed.blocks[1:], strict=False)
        )
        if "x" in text:
            assert "x" in parsed.text


def test_key_above_its_value_and_every_line_of_a_list_are_cited():
    source = '[{"key":\n  "value", "list": [\n "one",\n "two"], "empty":\n {}}]'
    parsed = parse_json(source)
    assert parsed.text == "key: value\nlist: one, two\nempty: {}"
    document = Document("/d", parsed.text, "", anchors=parsed.anchors)
    for word, line in (("key", 1), ("value", 2), ("list", 2), ("one", 3), ("two", 4), ("empty", 4)):
        at = parsed.text.index(word)
        assert document.place(at, at + len(word)).lines == (line, line), word
