"""No text takes a reader much longer than its size: doubling it does not square the work, and time is limited."""

from __future__ import annotations

import time

import pytest

from epicrag.connectors.base import Limits
from epicrag.connectors.read import read_bytes
from epicrag.types import Unread

# A reader that looks anew from each of these pieces to the end would take minutes or hours.
PIECES = {
    "org: drawers without an end": ("a.org", "", ":a:\n", ""),
    "org: blocks without an end": ("a.org", "", "#+begin_src\n", ""),
    "org: one long heading": ("a.org", "* a", " ", "b"),
    "tex: code without an end": ("a.tex", "", "\\begin{verbatim}\n", ""),
    "tex: tables without an end": ("a.tex", "", "\\begin{tabular}\n", ""),
    "tex: one long row": ("a.tex", "\\begin{tabular}\n", "\\\\[", "\n\\end{tabular}"),
    "md: one long heading": ("a.md", "# a", " ", "b"),
    "md: one long line below a bar": ("a.md", "a|b\n", " ", "x-|"),
    "adoc: one long heading": ("a.adoc", "= a", " ", "b"),
    "adoc: one long author": ("a.adoc", "= a\na", " ", "$"),
    "vtt: voices without an end": ("a.vtt", "WEBVTT\n\n00:01.000 --> 00:02.000\n", "<v a ", "\n"),
    "json: one value after the other": ("a.json", "", "[1]\n", ""),
    "csv: one wide row": ("a.csv", "a", ",", "\nb,c\n"),
    "xml: attributes of one element": ("a.xml", "<a", None, "/>"),
    "xml: one long word": ("a.xml", '<a b="', "x", '"><c>d</c></a>'),
    "xml: comments without an end": ("a.xml", "<!DOCTYPE a [", "<!-- ", ""),
}


@pytest.mark.parametrize("case", PIECES)
def test_text_of_many_pieces_is_read_in_good_time(case: str):
    name, head, piece, tail = PIECES[case]
    many = (
        piece * (200_000 // len(piece))
        if piece
        else "".join(f' a{at}="v{at} w"' for at in range(60_000))
    )
    start = time.thread_time()
    read_bytes(name, (head + many + tail).encode(), limits=Limits(max_file_seconds=1_000))
    assert time.thread_time() - start < 20


@pytest.mark.parametrize(
    "name", ["a.txt", "a.md", "a.rst", "a.org", "a.csv", "a.json", "a.xml", "a.py", "a.vtt"]
)
def test_every_text_is_stopped_at_the_limit_of_seconds(name: str):
    source = {
        "a.json": '{"a": "b"}\n' * 200,
        "a.xml": "<r>" + "<p>a b</p>\n" * 200 + "</r>",
        "a.vtt": "WEBVTT\n\n" + "00:01.000 --> 00:02.000\nHello.\n\n" * 200,
    }.get(name, "one, two\n\n" * 200)
    answer = read_bytes(name, source.encode(), limits=Limits(max_file_seconds=0.0))
    assert isinstance(answer, Unread)
    assert "--max-file-seconds" in answer.reason
