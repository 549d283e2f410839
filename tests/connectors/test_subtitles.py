"""What is said is found whole, whatever the time stamps cut it into."""

from __future__ import annotations

from epicrag.connectors.base import Parsed
from epicrag.connectors.subtitles import clock, parse_subtitles
from epicrag.types import Document

SRT = """1
00:00:01,000 --> 00:00:02,500
<i>The pump</i>
must be

2
00:00:02,500 --> 00:00:04,000
bled twice.

3
00:01:12,000 --> 00:01:13,000
- Why?
"""
VTT = """WEBVTT

NOTE not said

STYLE
::cue { color: red }

intro
00:01.000 --> 00:02.000 align:start
<v Ann>Fish &amp; <c.loud>chips</c>

01:00:02.000 --> 01:00:03.000
はじめ
まして。
"""


def parsed(text: str) -> Parsed:
    answer = parse_subtitles(text)
    assert isinstance(answer, Parsed)
    return answer


def place(text: str, word: str):
    answer = parsed(text)
    start = answer.text.index(word)
    document = Document("/a", answer.text, "", anchors=answer.anchors)
    return document.place(start, start + len(word))


def test_a_sentence_cut_by_time_stamps_is_whole():
    assert parsed(SRT).text == "The pump must be bled twice.\n- Why?"
    assert [block.kind for block in parsed(SRT).blocks] == ["paragraph", "paragraph"]


def test_times_and_source_lines_are_exact():
    assert place(SRT, "The pump").part == "0:00:01"
    assert place(SRT, "The pump must be bled").part == "0:00:01 – 0:00:02"
    assert place(SRT, "The pump must be bled twice").lines == (3, 8)
    assert place(SRT, "Why").part == "0:01:12"


def test_notes_styles_and_markup_of_webvtt_are_not_said():
    assert parsed(VTT).text == "Ann: Fish & chips\nはじめまして。"
    assert place(VTT, "まして").part == "1:00:02"
    assert parsed(VTT).media == "text/vtt"


def test_lines_that_scroll_are_said_once():
    text = (
        "WEBVTT\n\n00:01.000 --> 00:02.000\none two\n\n00:02.000 --> 00:03.000\none two\nthree\n\n"
        "00:03.000 --> 00:04.000\nthree\nfour.\n"
    )
    assert parsed(text).text == "one two three four."


def test_cues_without_a_blank_line_between_them_are_parted():
    text = "1\n00:00:01,000 --> 00:00:02,000\nOne.\n2\n00:00:03,000 --> 00:00:04,000\nTwo.\n"
    assert parsed(text).text == "One.\nTwo."


def test_a_file_without_times_is_plain_text():
    assert parsed("just words\n").media == "text/plain"
    assert clock(3725.9) == "1:02:05"
