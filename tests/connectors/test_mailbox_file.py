"""Mailboxes: each message a page."""

from __future__ import annotations

from typing import Any

from epicrag.connectors.base import Limits, Parsed
from epicrag.connectors.mailbox_file import parse_mailbox
from epicrag.connectors.split import split
from epicrag.types import Unread

START = b"From a@b Mon Jun 01 04:28:28 2009\n"


def parse(data: bytes) -> Parsed:
    parsed = parse_mailbox(data, Limits())
    assert isinstance(parsed, Parsed), parsed
    return parsed


def test_messages_are_pages_under_their_subjects(words: Any, read_bytes: Any):
    data = b"".join(
        START + b"Subject: s%d\nFrom: p%d@x\n\ntext %d\n\n" % (n, n, n) for n in (1, 2, 3)
    )
    document = read_bytes("a.mbox", data)
    chunks = split(document, words, chunk_tokens=200)
    assert [(chunk.place.page, chunk.place.part, chunk.place.heading) for chunk in chunks] == [
        (n, f"message {n}", f"s{n}") for n in (1, 2, 3)
    ]
    assert "text 2" in chunks[1].text and "text 1" not in chunks[1].text


def test_quoted_from_lines_are_as_they_were_written():
    parsed = parse(START + b"Subject: s\n\n>From here on\n>>From there\nFrom now on it works\n")
    assert parsed.text == "Subject: s\n\nFrom here on\n>From there\nFrom now on it works"
    assert {anchor.page for anchor in parsed.anchors} == {1}


def test_mailbox_with_windows_line_ends_is_read():
    data = (START + b"Subject: a\n\none\n\n" + START + b"Subject: b\n\ntwo\n").replace(
        b"\n", b"\r\n"
    )
    assert [anchor.page for anchor in parse(data).anchors] == [1, 2]


def test_start_lines_without_a_date_are_taken_where_there_are_no_others():
    parsed = parse(b"From a\nSubject: a\n\none\n\nFrom b\nSubject: b\n\ntwo\n")
    assert [anchor.part for anchor in parsed.anchors] == ["message 1", "message 2"]


def test_a_bomb_costs_its_own_message_only():
    bomb = b"".join(
        b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(300)
    )
    data = START + b"Subject: bad\n" + bomb + b"\n\n" + START + b"Subject: good\n\nx\n"
    parsed = parse(data)
    assert (parsed.text, parsed.anchors[0].page) == ("Subject: good\n\nx", 2)
    assert isinstance(parse_mailbox(START + bomb, Limits()), Unread)


def test_empty_mailbox_is_empty():
    assert parse(b"").text == ""


def test_mailbox_over_the_limit_is_skipped():
    data = b"".join(START + b"Subject: s\n\n%s\n\n" % (b"word " * 100) for _ in range(100))
    refused = parse_mailbox(data, Limits(max_chars=5_000))
    assert isinstance(refused, Unread)
    assert refused.reason.startswith("the text has")
