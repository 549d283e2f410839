"""Bytes become text by what they are, never by the machine's locale."""

import os
import subprocess
import sys

import pytest

from epicrag.connectors.decode import Decoded, decode, is_blank
from epicrag.types import Unread


def text_of(data: bytes, declared: str | None = None) -> str:
    decoded = decode(data, declared)
    assert isinstance(decoded, Decoded), decoded
    return decoded.text


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("utf-8", "naïve café 今天 🚀"),
        ("utf-8-sig", "naïve café"),
        ("cp1252", "price – 10 café"),
        ("cp1252", "Sibeliuksen elämään ehtii perehtyä Ateneumissa, Åbo"),
        ("cp1250", "Zażółć gęślą jaźń. Dziękuję bardzo, proszę o pomoc."),
        ("cp1251", "Привет мир, как дела? Сегодня хорошая погода."),
        ("koi8_r", "Привет мир, как дела? Сегодня хорошая погода."),
        ("cp866", "Привет мир, как дела? Сегодня хорошая погода."),
        ("cp1253", "Καλημέρα κόσμε, πώς είστε σήμερα;"),
        ("cp1254", "Türkiye'nin başkenti Ankara'dır. Güneş ışığı çok güzel, İstanbul."),
        ("cp1255", "שלום עולם, מה שלומך היום"),
        ("cp1256", "مرحبا بالعالم كيف حالك اليوم"),
        ("cp874", "สวัสดีชาวโลก วันนี้อากาศดี"),
        ("gb18030", "今天天气很好。明天下雨。"),
        ("big5", "今天天氣很好。明天下雨。我們去圖書館看書。"),
        ("cp932", "今日はとてもいい天気です。明日は雨が降るでしょう。"),
        ("euc_jp", "今日はとてもいい天気です。明日は雨が降るでしょう。"),
        ("iso2022_jp", "今日はとてもいい天気です。"),
        ("cp949", "오늘은 날씨가 매우 좋습니다. 내일은 비가 옵니다."),
        ("cp500", "This is a file from a mainframe with some text in it"),
        ("utf-16", "hello world"),
        ("utf-16-le", "hello world\nfoo"),
        ("utf-16-be", "今天天气很好。明天下雨。"),
        ("utf-16-le", "Привет, как дела?"),
        ("utf-32", "hello world"),
        ("utf-32-be", "Привет, как дела?"),
    ],
)
def test_text_in_any_common_encoding_is_found_out(encoding: str, text: str):
    assert text_of(text.encode(encoding)) == text


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", "# können\n\nÜbung"),
        ("cp1252", "The recogniser takes “smart quotes” and a dash – no more."),
        ("koi8_r", "Был сильный мороз"),
        ("cp866", "Был сильный мороз"),
        ("iso8859_5", "Был сильный мороз"),
        ("cp1251", "Был сильный мороз"),
        ("cp1253", "Ο καιρός είναι καλός"),
        ("cp1255", "מזג האוויר נאה"),
        ("cp1256", "الطقس جميل اليوم"),
        ("gb18030", "今天天气很好"),
        ("big5", "今天天氣很好"),
        ("cp932", "今日はいい天気です"),
        ("euc_jp", "今日はいい天気です"),
        ("cp949", "오늘은 날씨가 좋습니다"),
        ("cp1258", "Ng\u00ea\u0300 n\u00e2\u0301u \u0111\u00f4\u0300 u\u00f4\u0301ng"),
        ("cp500", "The price of the book"),
        ("utf-16-le", "今天天气很好，我们去看书"),
        ("utf-16-be", "Был сильный мороз"),
    ],
)
def test_a_few_words_are_enough(encoding: str, text: str):
    assert text_of(text.encode(encoding)) == text


def test_box_drawings_of_old_systems_do_not_hide_the_words():
    text = "╔══════════╗\n║ Привет, мир ║\n╚══════════╝\nВсё хорошо"
    assert text_of(text.encode("cp866")) == text


def test_broken_bytes_do_not_hide_the_encoding_of_the_rest():
    data = "今天天气很好。明天下雨。".encode("gb18030") * 20
    assert text_of(data[:30] + b"\xff" + data[30:]).count("天气很好") >= 19


def test_base64_is_left_as_it_is():
    assert text_of(b"8uns7SDs6fDl5w==\n") == "8uns7SDs6fDl5w==\n"


def test_encoding_is_reported():
    decoded = decode(b"price \x96 10 caf\xe9")
    assert decoded == Decoded("price – 10 café", "cp1252")


def test_an_english_preface_does_not_hide_the_encoding_of_what_follows():
    data = b"Copyright laws are changing all over the world.\r" * 3000
    data += "羅生門 芥川龍之介 ある日の暮方の事である。\r".encode("cp932")
    assert "芥川龍之介" in text_of(data)


def test_what_a_page_declares_is_believed_after_utf8_only():
    assert text_of("naïve".encode(), "iso-8859-1") == "naïve"
    assert text_of("Größe".encode("cp1252"), "iso-8859-1") == "Größe"
    assert text_of("Größe".encode("cp1252"), "base64") == "Größe"
    assert text_of("Größe".encode("cp1252"), "no-such-charset") == "Größe"


def test_nuls_are_replaced():
    assert text_of(b"a\x00b") == "a\ufffdb"


def test_lone_surrogates_are_replaced_and_pairs_are_joined():
    assert text_of(b"\xed\xa0\x80") == "\ufffd"
    assert text_of(b"x \xed\xa0\xbd\xed\xb8\x80 y") == "x \U0001f600 y"
    text_of(b"a\xed\xa0\x80b").encode("utf-8")


def test_a_few_broken_bytes_do_not_make_utf8_something_else():
    whole = "naïve café déjà vu, élan, été".encode()
    assert text_of(whole + b"\xc3") == "naïve café déjà vu, élan, été\ufffd"


def test_all_line_ends_become_line_feeds():
    assert text_of(b"a\r\nb\rc\n\rd") == "a\nb\nc\n\nd"


@pytest.mark.parametrize(
    "data", [bytes(range(256)) * 10, b"\x00" * 500, b"\x7fELF" + bytes(range(1, 32)) * 20]
)
def test_binary_content_is_refused(data: bytes):
    assert isinstance(decode(data), Unread)


@pytest.mark.parametrize("text", ["", " \n", "\u200b\u200b", "\ufeff \u2060\u00ad", "\u3000\u00a0"])
def test_text_of_nothing_visible_is_blank(text: str):
    assert is_blank(text)


@pytest.mark.parametrize("text", ["a", "\u200ba", "\ufffd", "。"])
def test_text_of_something_visible_is_not_blank(text: str):
    assert not is_blank(text)


def test_locale_plays_no_part():
    code = (
        "from epicrag.connectors.decode import decode;"
        "assert decode('a\\u011f \\u015f \\u0131'.encode()).text == 'a\\u011f \\u015f \\u0131';"
        "assert decode('caf\\xe9'.encode('cp1252')).encoding == 'cp1252'"
    )
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **locale})


@pytest.mark.parametrize("declared", ["idna", "punycode", "undefined", "unicode_escape"])
def test_what_is_declared_and_is_no_charset_costs_nothing(declared):
    found = decode(b"caf\xe9 au lait, s'il vous pla\xeet \\u0041", declared)
    assert isinstance(found, Decoded)
    assert "caf\u00e9 au lait" in found.text and "\\u0041" in found.text
