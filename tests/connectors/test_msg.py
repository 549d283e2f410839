"""Outlook e-mails say who wrote what to whom and when."""

import datetime
import struct

from epicrag.connectors.base import Limits, Parsed
from epicrag.connectors.msg import parse_msg, unpacked
from epicrag.types import Unread


def message(
    texts: dict[str, str], *, folder: tuple[str, ...] = (), sent: str = "", page: int = 0
) -> dict[tuple[str, ...], bytes]:
    """The streams of a message: texts by the tags of their properties."""
    streams = {
        (*folder, f"__substg1.0_{tag}001F"): text.encode("utf-16-le") for tag, text in texts.items()
    }
    table = bytes(24 if folder else 32)
    if sent:
        since = datetime.datetime.fromisoformat(sent) - datetime.datetime(1601, 1, 1)
        table += struct.pack(
            "<IIQ", 0x00390040, 6, since // datetime.timedelta(microseconds=1) * 10
        )
    if page:
        table += struct.pack("<IIQ", 0x3FFD0003, 6, page)
    return {**streams, (*folder, "__properties_version1.0"): table}


HEAD = {"0037": "Lunch", "0C1A": "Ann", "5D01": "ann@example.org", "0E04": "Bob; Cem"}


def parsed(data: bytes) -> Parsed:
    answer = parse_msg(data, Limits())
    assert isinstance(answer, Parsed), answer
    return answer


def test_a_message_says_who_what_and_when(make_ole):
    streams = message({**HEAD, "1000": "At noon?\r\n\r\nAnn"}, sent="2023-03-28T17:00:00")
    content = parsed(make_ole(streams))
    assert content.text == (
        "From: Ann <ann@example.org>\nTo: Bob; Cem\nDate: 2023-03-28 17:00 UTC\nSubject: Lunch\n\n"
        "At noon?\n\nAnn"
    )
    assert content.title == "Lunch"
    assert content.meta == {
        "subject": "Lunch",
        "from": "Ann <ann@example.org>",
        "to": ("Bob", "Cem"),
        "date": "2023-03-28",
        "year": 2023,
    }
    assert content.anchors[0].heading == "Lunch"


def test_a_web_page_is_read_where_there_is_no_plain_text(make_ole):
    streams = message(HEAD)
    streams["__substg1.0_10130102",] = (
        b"<html><body><p>At <b>noon</b>?</p><script>x</script></body>"
    )
    assert parsed(make_ole(streams)).text.endswith("At noon?")


def test_packed_rich_text_is_read_where_there_is_nothing_else(make_ole):
    rich = (
        b"{\\rtf1\\ansi {\\*\\htmltag <b>}At noon?\\htmlrtf {\\b \\htmlrtf0 {\\*\\htmltag </b>}}}"
    )
    streams = message(HEAD)
    streams["__substg1.0_10090102",] = packed(rich)
    assert parsed(make_ole(streams)).text.endswith("At noon?")


def packed(data: bytes) -> bytes:
    """Rich Text as Outlook packs it, without finding what repeats."""
    body = b"".join(b"\0" + data[at : at + 8] for at in range(0, len(data), 8))
    return struct.pack("<IIII", len(body) + 12, len(data), 0x75465A4C, 0) + body


def test_rich_text_is_unpacked():
    # The examples of the format's own description.
    simple = bytes.fromhex(
        "2d0000002b0000004c5a4675f1c5c7a703000a00726370673132354232"
        "0af32068656c090020627705b06c647d0a800fa0"
    )
    assert unpacked(simple) == b"{\\rtf1\\ansi\\ansicpg1252\\pard hello world}\r\n"
    crossing = bytes.fromhex("1a0000001c0000004c5a4675e2d44b51410004205758595a0d6e7d010eb0")
    assert unpacked(crossing) == b"{\\rtf1 WXYZWXYZWXYZWXYZWXYZ}"
    assert unpacked(packed(b"abcdefghijk")) == b"abcdefghijk"


def test_attachments_are_named_and_read_and_attached_messages_too(make_ole):
    outer = message({**HEAD, "1000": "See below."})
    for at, (name, data) in enumerate([("menu.txt", b"Soup."), ("a.png", b"x"), ("b.msg", b"x")]):
        folder = (f"__attach_version1.0_#0000000{at}",)
        outer[(*folder, "__substg1.0_3707001F")] = name.encode("utf-16-le")
        outer[(*folder, "__substg1.0_37010102")] = data
    inner = message(
        {"0037": "Inner", "1000": "Beans."},
        folder=("__attach_version1.0_#00000009", "__substg1.0_3701000D"),
    )
    content = parsed(make_ole({**outer, **inner}))
    assert content.text.endswith(
        "See below.\n\nAttachment: menu.txt\n\nSoup.\n\nAttachment: a.png\n\nAttachment: b.msg\n\n"
        "Subject: Inner\n\nBeans."
    )
    assert content.anchors[-1].heading == "Lunch > Inner"


def test_old_messages_are_read_by_their_code_page(make_ole):
    streams = message({}, page=1251)
    streams["__substg1.0_0037001E",] = "Привет".encode("cp1251")
    streams["__substg1.0_1000001E",] = "Обед".encode("cp1251")
    assert parsed(make_ole(streams)).text == "Subject: Привет\n\nОбед"


def failure(data: bytes) -> str:
    answer = parse_msg(data, Limits())
    assert isinstance(answer, Unread), answer
    return f"{answer.status}: {answer.reason}"


def test_what_is_no_message_says_so(make_ole):
    assert "Word 97" in failure(make_ole({("WordDocument",): b"x"}))
    assert "first bytes" in failure(b"From: Ann")
