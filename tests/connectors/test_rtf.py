"""Rich Text gives the text that was written into it, in whatever way it was escaped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epicrag.connectors.base import Limits, Parsed
from epicrag.connectors.rtf import parse_rtf
from epicrag.types import Unread


def parsed(body: str | bytes, head: str = r"\ansi\ansicpg1252") -> Parsed:
    raw = body if isinstance(body, bytes) else body.encode("latin-1")
    answer = parse_rtf(b"{\\rtf1" + head.encode() + b" " + raw + b"}", Limits())
    assert isinstance(answer, Parsed), answer
    return answer


def text_of(body: str | bytes, head: str = r"\ansi\ansicpg1252") -> str:
    return parsed(body, head).text


def escaped(text: str, skip: int) -> str:
    """Text as programs write it: characters beyond ASCII as UTF-16, with stand-ins for old readers."""
    out = f"\\uc{skip} "
    for character in text:
        if character in "\\{}":
            out += f"\\{character}"
        elif " " <= character <= "~":
            out += character
        else:
            wide = character.encode("utf-16-le")
            for at in range(0, len(wide), 2):
                code = int.from_bytes(wide[at : at + 2], "little")
                out += (
                    f"\\u{code - 0x10000 if code > 0x7FFF else code} " + ["", "?", "\\'3f?"][skip]
                )
    return out


@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp", "Cn"]), min_size=1),
    st.integers(0, 2),
)
def test_any_text_comes_back_from_its_escapes(text: str, skip: int):
    assert text_of(escaped(text, skip)) == text


@given(
    st.lists(
        st.sampled_from(
            [
                "{",
                "}",
                "\\par ",
                "\\'e9",
                "\\u233 ?",
                "text ",
                "\\*\\x ",
                "\\cell ",
                "\\row ",
                "\\intbl ",
                "\\footnote ",
                "\\fonttbl ",
                "\\f1\\fcharset128 ",
                "\\uc2 ",
                "\\v ",
                "\\upr",
                "\\bin3 abc",
                "\\",
                "\\stylesheet ",
                "\\s1 ",
                "\\info ",
                "\\title ",
                "\\listtext ",
                "\\pict ff",
                "\\u-10179 ?",
            ]
        ),
        max_size=40,
    )
)
def test_no_order_of_words_breaks_the_reader(words: list[str]):
    answer = parse_rtf(b"{\\rtf1 " + "".join(words).encode() + b"}", Limits())
    assert isinstance(answer, Parsed | Unread)


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(data: bytes):
    assert isinstance(parse_rtf(b"{\\rtf1 " + data, Limits()), Parsed | Unread)


@pytest.mark.parametrize(
    ("head", "body", "text"),
    [
        (r"\ansi\ansicpg1252", r"caf\'e9", "café"),
        (r"\ansi\ansicpg1251", r"\'cf\'f0\'e8\'e2\'e5\'f2", "Привет"),
        (r"\ansi\ansicpg932", r"\'93\'fa\'96\'7b", "日本"),
        (r"\ansi\ansicpg932", r"\'83e", "テ"),  # the second byte stands as it is
        (r"\mac", r"caf\'8e", "café"),
        (r"\ansi\ansicpg1252{\fonttbl{\f0 A;}{\f1\fcharset204 B;}}", r"{\f1 \'ff}\'ff", "яÿ"),
        (r"\ansi\ansicpg1252{\fonttbl{\f3\fcharset128 M;}}", r"\f3 \'82\'a0\plain x", "あx"),
        (r"\ansi\ansicpg1252\uc1", r"\u1055\'cf\u1088 p", "Пр"),
        (r"\ansi\ansicpg1252\uc2", r"\u26085\'93\'fa.", "日."),
        (r"\ansi", r"{\upr{\'e9}{\*\ud{\u233 e}}}", "é"),
        (r"\ansi", r"a\~b\_c\-d\emdash e\ldblquote f\rdblquote\lquote g\rquote", "a b-cd—e“f”‘g’"),
        (r"\ansi", r"\{x\\y\}", r"{x\y}"),
    ],
)
def test_code_pages_and_escapes(head: str, body: str, text: str):
    assert text_of(body, head) == text


def test_hidden_and_deleted_text_pictures_and_codes_are_left_out():
    body = r"a{\v secret}b{\pict\pngblip 89504e47}c{\*\unknown x}{\deleted gone}"
    body += r"{\field{\*\fldinst HYPERLINK x}{\fldrslt link}}{\xe index}\bin4 {{{{d"
    assert text_of(body) == "abclinkd"


def test_headings_are_those_of_the_styles():
    head = (
        r"\ansi{\stylesheet{\s0 Normal;}{\s1\outlinelevel0 heading 1;}{\s2 heading 2;}{\s9 Title;}"
    )
    head += r"{\s10 toc 1;}}"
    body = r"\pard\s9 The Title\par\pard\s10 One 1\par\pard\s1 One\par\pard text\par"
    content = parsed(body + r"\pard\s2 Two\par\pard more\par", head)
    assert content.text == "The Title\n\nOne\n\ntext\n\nTwo\n\nmore"
    assert content.title == "The Title"
    assert content.anchors[-1].heading == "The Title > One > Two"


def test_tables_are_rows_with_their_head():
    def row(*cells: str) -> str:
        return r"\trowd\cellx1\cellx2" + "".join(rf"\pard\intbl {c}\cell" for c in cells) + r"\row"

    content = parsed("before\\par" + row("Region", "Sales") + row("North", "17") + r"\pard after")
    assert content.text == "before\n\nRegion | Sales\nNorth | 17\n\nafter"
    assert content.tables[0].head == "Region | Sales"


def test_notes_comments_and_boxes_follow_their_paragraph():
    body = r"Said{\footnote\pard by whom}{\*\atnauthor Ann}{\*\annotation Why?}"
    body += r"{\shp{\*\shpinst{\sp{\sn x}{\sv 1}}{\shptxt box\par}}{\shprslt box}}\par next"
    assert text_of(body) == (
        "Said (footnote 1)\n\nFootnote 1: by whom\n\n[Comment by Ann: Why?]\n\nbox\n\nnext"
    )


def test_lists_have_their_marks():
    body = r"\pard{\listtext\'b7\tab}one\par{\listtext 2.\tab}two\par\pard three"
    assert text_of(body) == "- one\n2. two\n\nthree"


def test_headers_say_only_what_nobody_else_says():
    assert text_of(r"{\header Draft\par}{\footer Page \par}Body") == "Body\n\nPage header: Draft"


def test_properties_are_told():
    body = r"{\info{\title Microsoft Word - x.doc}{\author Ann}{\revtim\yr2021\mo3\dy4\hr1}}text"
    content = parsed(body)
    assert content.title is None
    assert content.meta == {"author": "Ann", "date": "2021-03-04", "year": 2021}


def failure(data: bytes, limits: Limits | None = None) -> str:
    answer = parse_rtf(data, limits or Limits())
    assert isinstance(answer, Unread)
    return f"{answer.status}: {answer.reason}"


def test_what_is_no_rich_text_says_so():
    assert "not Rich Text" in failure(b"plain")
    assert "0 bytes" in failure(b"")
    assert "cut off" in failure(b"{\\rtf1 half of a {\\b sent")
    assert "within each other" in failure(b"{\\rtf1 " + b"{" * 100_000)


def test_limits_of_length_and_time():
    body = b"{\\rtf1 " + b"some text\\par " * 20_000 + b"}"
    assert "--max-chars" in failure(body, Limits(max_chars=1_000))
    assert "--max-file-seconds" in failure(body, Limits(max_file_seconds=-1))
