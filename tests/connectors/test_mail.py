"""Mail: heads, one form of each text, attachments, and whatever is wrong with a message."""

from __future__ import annotations

import base64
import time
from email.message import EmailMessage
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epicrag.connectors.base import Limits, Parsed
from epicrag.connectors.mail import parse_mail
from epicrag.types import Unread


def parse(data: bytes) -> Parsed:
    parsed = parse_mail(data, Limits())
    assert isinstance(parsed, Parsed), parsed
    return parsed


def message(text: str = "Hello", **headers: str) -> EmailMessage:
    mail = EmailMessage()
    for name, value in {"From": "Ann <ann@x.org>", "Subject": "Tea", **headers}.items():
        mail[name] = value
    mail.set_content(text)
    return mail


HEAD = "From: Ann <ann@x.org>\nSubject: Tea"


def test_head_and_text_are_read_and_told():
    parsed = parse(
        message(
            "Bring cups.\n\nAnn",
            To="Bob <b@x.org>, c@x.org",
            Date="Tue, 01 Oct 2024 12:34:56 -0500",
        ).as_bytes()
    )
    assert parsed.text == (
        "From: Ann <ann@x.org>\nTo: Bob <b@x.org>, c@x.org\nDate: Tue, 01 Oct 2024 12:34:56 -0500\n"
        "Subject: Tea\n\nBring cups.\n\nAnn"
    )
    assert parsed.title == "Tea"
    assert parsed.anchors[0].heading == "Tea"
    assert parsed.meta == {"subject": "Tea", "from": "Ann <ann@x.org>", "to": ("Bob <b@x.org>", "c@x.org"), "date": "2024-10-01", "year": 2024}  # fmt: skip


def test_the_same_text_twice_is_read_once():
    mail = message("There will be a petting zoo for all of you.")
    mail.add_alternative(
        "<p>There will be a <b>petting</b> zoo for all of you.</p>", subtype="html"
    )
    assert parse(mail.as_bytes()).text == f"{HEAD}\n\nThere will be a petting zoo for all of you."


def test_page_is_read_where_the_plain_form_says_less():
    mail = message("Please look at the page.")
    mail.add_alternative(
        "<p>Please look at the page.</p><p>" + " ".join(f"word{n}" for n in range(30)) + "</p>",
        subtype="html",
    )
    assert parse(mail.as_bytes()).text.endswith("word28 word29")
    assert parse(mail.as_bytes()).text.count("Please") == 1


def test_both_are_read_where_each_says_what_the_other_does_not():
    mail = message("Entirely other words stand here, nothing alike.")
    mail.add_alternative("<p>Completely different sentences within this page.</p>", subtype="html")
    text = parse(mail.as_bytes()).text
    assert "Entirely other" in text and "Completely different" in text


def test_page_is_read_where_the_plain_form_is_made_of_trackers():
    mail = message("Read more https://t.example/" + "a1b2" * 60 + "\n\nabout tea")
    mail.add_alternative("<p>Read <a href='x'>more</a> about tea</p>", subtype="html")
    assert parse(mail.as_bytes()).text.endswith("Read more about tea")
    alone = message("Read more https://t.example/" + "a1b2" * 60 + " here")
    assert parse(alone.as_bytes()).text.endswith("Read more https://t.example/… here")


def test_attachments_are_named_and_texts_among_them_read():
    mail = message()
    mail.add_attachment("name,age\nAda,36\n", filename="people.csv")
    mail.add_attachment(b"\x89PNG\r\n", maintype="image", subtype="png", filename="Grüße.png")
    mail.add_attachment(b"%PDF-1.4", maintype="application", subtype="pdf", filename="a/b.pdf")
    parsed = parse(mail.as_bytes())
    assert parsed.text == (
        f"{HEAD}\n\nHello\n\nAttachment: people.csv\n\nname | age\nAda | 36\n\n"
        "Attachment: Grüße.png\n\nAttachment: b.pdf"
    )
    assert parsed.tables[0].head == "name | age"
    assert parsed.anchors[1].heading == "Tea > people.csv"


def test_attached_mail_and_documents_are_read():
    mail = message()
    mail.add_attachment(
        message("inner", Subject="In").as_bytes(),
        maintype="application",
        subtype="octet-stream",
        filename="in.eml",
    )
    mail.add_attachment("<p>a page</p>", subtype="html", filename="p.html")
    mail.add_attachment("no known name", filename="x.odd")
    parsed = parse(mail.as_bytes())
    assert parsed.text.endswith(
        "Attachment: in.eml\n\nFrom: Ann <ann@x.org>\nSubject: In\n\ninner\n\nAttachment: p.html\n\na page\n\nAttachment: x.odd\n\nno known name"
    )


def test_attached_text_over_the_limit_is_only_named():
    mail = message()
    mail.add_attachment("x" * 1_100_000, filename="long.txt")
    assert parse(mail.as_bytes()).text == f"{HEAD}\n\nHello\n\nAttachment: long.txt"


def test_pictures_of_a_page_are_not_named():
    mail = message("x")
    mail.add_alternative("<p>Look at this fine picture</p><img src='cid:a'>", subtype="html")
    page: Any = mail.get_payload()[1]  # type: ignore[index]
    page.add_related(b"GIF89a", "image", "gif", cid="<a>")
    assert parse(mail.as_bytes()).text == f"{HEAD}\n\nLook at this fine picture"


def test_messages_within_are_read_to_a_depth():
    mail = message("depth 0")
    for n in range(1, 9):
        outer = message(f"depth {n}", Subject=f"S{n}")
        outer.add_attachment(mail)
        mail = outer
    parsed = parse(mail.as_bytes())
    assert [f"depth {n}" in parsed.text for n in range(9)] == [False] * 3 + [True] * 6
    assert parsed.anchors[-1].heading == "S8 > S7 > S6 > S5 > S4 > S3"


def test_quoted_replies_are_blocks_of_their_own():
    parsed = parse(message("Yes.\n> Is it hot?\n> Or not?\nOr so.\n\n> x").as_bytes())
    blocks = [parsed.text[block.start : block.end] for block in parsed.blocks]
    assert blocks[1:] == ["Yes.", "> Is it hot?\n> Or not?", "Or so.", "> x"]


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"=?utf-8?B?R3LDvMOfZQ==?= =?iso-8859-1?q?aus_K=F6ln?=", "Grüßeaus Köln"),
        ("Grüße roh".encode(), "Grüße roh"),
        ("Größe für Käse und Brötchen".encode("cp1252"), "Größe für Käse und Brötchen"),
        ("Grüße".encode() + b" =?utf-8?q?und_mehr?=", "Grüße und mehr"),
        (b"=?utf-8?B?broken!?=", "=?utf-8?B?broken!?="),
        (b"=?no-such?q?abc?=", "abc"),
        (b"folded\r\n\tand long", "folded and long"),
        (b"=?iso-2022-jp?B?GyRCRnxLXBsoQg==?=", "日本"),
    ],
)
def test_headers_are_decoded_whatever_they_are(raw: bytes, shown: str):
    assert parse(b"Subject: " + raw + b"\r\n\r\ntext").title == shown


@pytest.mark.parametrize(
    ("charset", "body", "shown"),
    [
        ("koi8-r", "Привет, как дела сегодня".encode("koi8-r"), "Привет, как дела сегодня"),
        ("us-ascii", "Grüße".encode(), "Grüße"),
        ("nonsense", "Größe für alle Käse".encode("cp1252"), "Größe für alle Käse"),
        ("utf-8", "日本語".encode("iso-2022-jp"), "日本語"),
    ],
)
def test_texts_are_decoded_whatever_they_say(charset: str, body: bytes, shown: str):
    assert parse(f"Subject: x\nContent-Type: text/plain; charset={charset}\n\n".encode() + body).text.endswith(f"\n\n{shown}")  # fmt: skip


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-16-le"])
def test_whole_messages_in_utf_16_are_read(encoding: str):
    assert parse(message("Violets are blue").as_string().encode(encoding)).text.endswith(
        "Violets are blue"
    )


def test_message_from_a_file_that_begins_with_blank_lines_is_read():
    assert parse(b"\n\n" + message().as_bytes()).title == "Tea"


def test_text_without_headers_is_text():
    assert parse(b"no header here\n\nat all").text == "no header here\n\nat all"


def test_empty_messages_are_empty():
    assert parse(b"").text == parse(b" \n\n  ").text == ""
    assert parse(b"From: a@b\nDate: x\n\n \n").text == ""
    assert parse(b"Subject: only this\n\n").text == "Subject: only this"


@pytest.mark.parametrize(
    "raw",
    [
        b"Content-Type: multipart/mixed; boundary=x\n\n--x\n\ncut off",
        b"Content-Type: multipart/mixed\n\nno boundary",
        b"Content-Type: multipart/alternative; boundary=x\n\n--x--\n",
        b"Content-Type: text/plain\nContent-Transfer-Encoding: base64\n\n!!!not base64",
        b"Content-Type: ;;;=\nDate: yesterday\nTo: <<>>,,;\n\nbody",
        b"Content-Type: message/rfc822\n\n",
        b"Content-Disposition: attachment; filename*=no''%ZZ\n\nx",
        b"\0\xff\xfe\0" * 20,
    ],
)
def test_malformed_messages_never_raise(raw: bytes):
    parse(b"Subject: s\n" + raw)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([b"--x", b"\n", b"Content-Type: multipart/mixed; boundary=x\n", b"Content-Type: text/html\n", b"Content-Transfer-Encoding: base64\n", b"Subject: =?u", b"From \xff", b"<p>a", b"> ", b"\0"]), max_size=14))  # fmt: skip
def test_no_bytes_raise(pieces: list[bytes]):
    parse_mail(b"".join(pieces), Limits())


def test_bombs_are_refused_at_once():
    nested = b"".join(
        b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(5_000)
    )
    began = time.monotonic()
    refused = parse_mail(b"Subject: s\n" + nested, Limits())
    assert isinstance(refused, Unread)
    assert "MIME bomb" in refused.reason
    assert time.monotonic() - began < 5


def test_text_over_the_limit_is_skipped():
    body = base64.encodebytes(b"word " * 1_000)
    mail = b"Subject: s\nContent-Transfer-Encoding: base64\n\n" + body
    refused = parse_mail(mail, Limits(max_chars=1_000))
    assert isinstance(refused, Unread)
    assert refused.status == "skipped"


@pytest.mark.parametrize("charset", ["idna", "punycode", "unicode_escape", "undefined", "rot13"])
def test_a_charset_that_is_none_costs_nothing(charset):
    head = f"{HEAD}\nContent-Type: text/plain; charset={charset}\n\n"
    assert "caf\u00e9 is open" in parse(head.encode() + b"The caf\xe9 is open a\\nd closed").text
    subject = f"Subject: =?{charset}?q?The_caf=E9_is_open?=\n\nwords"
    assert "words" in parse(subject.encode()).text
