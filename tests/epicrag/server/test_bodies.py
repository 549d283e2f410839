"""Bodies that are too big, too deep, too slow, or no JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epicrag.server.bodies import excess


def test_a_body_over_the_limit_is_refused(make_server: Any):
    server = make_server(max_body_bytes=1000)
    answer = server.post("/v1/search", {"query": "x" * 2000})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert server.post("/v1/search", {"query": "harbour"}).status_code == 200


def test_a_body_in_pieces_is_refused_while_it_comes(make_server: Any):
    """Chunked: no length is declared. What is left is never asked for."""
    server = make_server(max_body_bytes=1000)
    asked = []

    def pieces() -> Iterator[bytes]:
        for n in range(100):
            asked.append(n)
            yield b" " * 300

    answer = server.client.post("/v1/search", content=pieces())
    assert answer.status_code == 413


def test_a_false_length_does_not_help(make_live: Any):
    import socket
    from urllib.parse import urlsplit

    live = make_live(max_body_bytes=1000, body_timeout_s=0.3)
    address = urlsplit(live.url)
    head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    for rest, status in (
        (b"Content-Length: 99999999999\r\n\r\n{", b"413"),
        (b"Transfer-Encoding: chunked\r\n\r\n" + b"400\r\n" + b" " * 1024 + b"\r\n", b"413"),
        (b"Content-Length: 100\r\n\r\n{", b"408"),
        (b"Content-Length: -1\r\n\r\n{", b"400"),
    ):
        with socket.create_connection((address.hostname, address.port), timeout=10) as wire:
            wire.sendall(head + rest)
            assert wire.recv(1000).split(b" ")[1] == status


@pytest.mark.parametrize("opens", ["[", '{"a":', '[{"a":'])
def test_a_depth_bomb_is_refused(server: Any, opens: str):
    answer = server.client.post(
        "/v1/search", content=opens * 100_000, headers={"content-type": "application/json"}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "too_deep")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nonsense", b"\xff\xfe", b'"text"', b"[]", b"null", b'{"query": 1e999}', b"9" * 5000,
     b'{"query": "\\ud800"}', b'{"query": NaN}', b'{"query": ""}', b'{"query": "x", "other": 1}'],
)  # fmt: skip
def test_what_is_no_request_is_a_bad_one(server: Any, body: bytes):
    answer = server.client.post(
        "/v1/search", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400, answer.text
    assert set(answer.json()["error"]) >= {"message", "type", "param", "code"}


def test_a_compressed_body_is_not_inflated(server: Any):
    answer = server.client.post("/v1/search", content=b"x", headers={"content-encoding": "gzip"})
    assert answer.status_code == 415


MANY = 10**9

json_values = st.recursive(
    st.none() | st.text(alphabet='[]{}"\\a', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


def depth(value: Any) -> int:
    inner = (
        value
        if isinstance(value, list)
        else list(value.values())
        if isinstance(value, dict)
        else None
    )
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(json_values, st.integers(0, 6))
def test_depth_is_that_of_the_value(value: Any, most: int):
    over = excess(json.dumps(value).encode(), most, MANY)
    assert over == ("depth" if depth(value) > most else None)


def items(value: Any) -> int:
    """Strings, lists, objects, and what commas part."""
    if isinstance(value, dict):
        inner = sum(1 + items(one) for one in value.values())
    elif isinstance(value, list):
        inner = sum(map(items, value))
    else:
        return int(isinstance(value, str))
    return 1 + inner + max(len(value) - 1, 0)


@given(json_values, st.integers(0, 12))
def test_items_are_those_of_the_value(value: Any, most: int):
    over = excess(json.dumps(value).encode(), MANY, most)
    assert over == ("items" if items(value) > most else None)


@pytest.mark.parametrize("unit", [b"[],", b'{"role":"user","content":"a"},', b"1e5,", b'"",'])
def test_millions_of_small_items_are_refused_while_others_are_answered(live: Any, unit: bytes):
    body = b'{"model":"x","messages":[],"zz":[' + unit * (14_000_000 // len(unit)) + b"1]}"
    headers = {"content-type": "application/json"}
    url, longest = live.url, 0.0
    with ThreadPoolExecutor(3) as pool:
        send = partial(httpx.post, content=body, headers=headers, timeout=60)
        asked = [pool.submit(send, url + "/v1/chat/completions") for _ in range(3)]
        while not all(one.done() for one in asked):
            began = time.perf_counter()
            assert httpx.get(url + "/healthz").status_code == 200
            longest = max(longest, time.perf_counter() - began)
    for one in asked:
        error = one.result().json()["error"]
        assert (one.result().status_code, error["code"]) == (400, "too_many_items")
    assert longest < 2


def test_prose_has_few_items_whatever_its_punctuation(server: Any):
    text = 'one, two; {three} [four] "five", ' * 20_000
    answer = server.post("/v1/embeddings", {"input": text})
    assert answer.status_code == 200, answer.text


@given(st.binary(max_size=200), st.integers(0, 3))
def test_any_bytes_have_a_depth(body: bytes, most: int):
    excess(body, most, MANY)
    excess(body, MANY, most)


@pytest.mark.parametrize("unit", [b'\\"', b'"', b"\\", b'"\\', b"[]", b'{"":'])
def test_hostile_bodies_are_looked_through_in_one_go(unit: bytes):
    body = b"[[" + b'"' + unit * (1_000_000 // len(unit))
    began = time.perf_counter()
    excess(body, 1, MANY)
    assert time.perf_counter() - began < 2
