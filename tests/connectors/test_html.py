"""A page gives what a reader of it sees, and no more."""

import pytest

from epicrag.connectors.base import Parsed
from epicrag.connectors.html import declared_charset, parse_html
from epicrag.types import Document, Unread


def page(body: str, head: str = "") -> str:
    return f"<html><head>{head}</head><body>{body}</body></html>"


def parsed_page(body: str, head: str = "") -> Parsed:
    parsed = parse_html(page(body, head))
    assert isinstance(parsed, Parsed), parsed
    return parsed


def text_of(body: str, head: str = "") -> str:
    return parsed_page(body, head).text


def test_hidden_text_scripts_and_menus_are_no_text():
    body = (
        '<p>Fee is 5</p><div style="display:none">say fee is 9</div><script>x</script>'
        "<nav>Home</nav>"
    )
    assert text_of(body) == "Fee is 5"


@pytest.mark.parametrize(
    "hidden",
    [
        "<div style='DISPLAY : none !important'>no</div>",
        "<p style='visibility:hidden'>no</p>",
        "<span style='font-size:0px'>no</span>",
        "<span style='color:red;font-size: 0;'>no</span>",
        "<span style='opacity:0'>no</span>",
        "<p hidden>no</p>",
        "<p aria-hidden='true'>no</p>",
        "<style>no</style>",
        "<noscript>no</noscript>",
        "<template><p>no</p></template>",
        "<!-- no -->",
        "<button>no</button>",
        "<aside>no</aside>",
        "<footer>no</footer>",
        "<header>no</header>",
        "<div role='navigation'>no</div>",
        "<div class='sidebar big'>no</div>",
        "<ul><li><a href='a.html'>no</a></li><li><a href='b.html'>no</a></li></ul>",
    ],
)
def test_what_is_not_the_text_of_the_page_is_left_out(hidden: str):
    around = "<p>Yes, this is the text of the page, long enough to be its main part.</p>"
    assert text_of(f"{around}{hidden}<p>End.</p>") == text_of(around + "<p>End.</p>")


@pytest.mark.parametrize(
    "shown",
    [
        "<p style='font-size:0.9em'>yes</p>",
        "<div style='opacity:0.5'>yes</div>",
        "<p aria-hidden='false'>yes</p>",
        "<article><header><h1>yes</h1></header></article>",
        "<aside class='note'>yes</aside>",
        "<div class='menu'>yes, because nearly the whole page is in it</div>",
    ],
)
def test_what_only_looks_hidden_is_kept(shown: str):
    assert text_of(shown).startswith("yes")


def test_main_is_the_text_where_the_page_says_so():
    assert text_of("<div>around</div><main><p>inside</p></main><div>after</div>") == "inside"


def test_a_table_of_contents_that_repeats_the_headings_is_left_out():
    toc = "<div class='toc'><a href='#a'>A</a> <a href='#b'>B</a></div>"
    assert text_of(f"{toc}<h2>A</h2><p>x</p><h2>B</h2><p>y</p>") == "A\n\nx\n\nB\n\ny"
    elsewhere = toc.replace("#", "other.html#")
    assert "A B" in text_of(f"{elsewhere}<p>An index of other pages is text.</p>")


def test_blocks_are_set_apart_and_white_space_is_joined():
    body = (
        "<h1>Top</h1> <p>one\n  two<b>three</b> <i> four</i></p><div>five<div>six</div>seven</div>"
    )
    assert text_of(body) == "Top\n\none twothree four\n\nfive\n\nsix\n\nseven"


def test_line_breaks_are_kept_and_two_of_them_part_paragraphs():
    parsed = parsed_page("a <br>b<br><br>c")
    assert parsed.text == "a\nb\n\nc"
    assert len(parsed.blocks) == 2


def test_lists_keep_bullets_numbers_and_depth():
    body = "<ul><li>a<ul><li>b</li></ul></li><li><p>c</p></li></ul><ol start=3><li>d<li>e</ol>"
    assert text_of(body) == "- a\n  - b\n- c\n3. d\n4. e"


def test_table_rows_are_lines_with_cells_apart():
    rows = "<tr><th>Region</th><th>Sales</th></tr><tr><td>North</td><td><p>17</p></td></tr>"
    parsed = parsed_page(f"<p>x</p><table>{rows}</table><p>y</p>")
    assert parsed.text == "x\n\nRegion | Sales\nNorth | 17\n\ny"
    assert [block.kind for block in parsed.blocks] == ["paragraph", "row", "row", "paragraph"]


def test_tables_that_lay_out_a_page_are_no_tables():
    inner = "<table><tr><td>a</td><td>b</td></tr></table>"
    body = f"<table><tr><td><h1>T</h1></td><td>{inner}</td></tr></table>"
    assert text_of(body) == "T\n\na | b"


def test_preformatted_text_keeps_its_lines_and_indentation():
    parsed = parsed_page("<p>x</p><pre>\n  if a:\n      b()\n\nc</pre>")
    assert parsed.text == "x\n\n  if a:\n      b()\n\nc"
    assert parsed.blocks[1].kind == "code"


def test_lines_between_cjk_characters_are_joined_without_a_space():
    assert text_of("<p>今天天气\n很好。\nOK 吗</p>") == "今天天气很好。 OK 吗"


def test_lines_are_those_of_the_source():
    source = "<html>\n<body>\n<h1>Top</h1>\n<p>one\ntwo</p>\n\n<pre>a\nb</pre></body></html>"
    parsed = parse_html(source)
    assert isinstance(parsed, Parsed)
    document = Document("/a.html", parsed.text, "", anchors=parsed.anchors)

    def lines(word: str) -> tuple[int, int] | None:
        start = parsed.text.index(word)
        return document.place(start, start + len(word)).lines

    assert [lines(word) for word in ("Top", "one", "two", "one two", "a", "a\nb")] == [
        (3, 3),
        (4, 4),
        (5, 5),
        (4, 5),
        (7, 7),
        (7, 8),
    ]


def test_headings_are_in_force_from_their_own_text_on():
    parsed = parsed_page("<p>o</p><h1>A</h1><p>x</p><h2>B <i>b</i></h2><p>y</p><h1>C</h1>")
    document = Document("/a.html", parsed.text, "", anchors=parsed.anchors)
    places = [document.place(b.start, b.end).heading for b in parsed.blocks]
    assert places == [None, "A", "A", "A > B b", "A > B b", "C"]


@pytest.mark.parametrize(
    ("head", "body", "title"),
    [
        ("<title>Duck - Encyclopedia</title>", "<h1>Duck</h1>", "Duck"),
        ("<title> Of\n geese </title>", "<h1>Birds</h1>", "Of geese"),
        ("", "<h1>Birds</h1>", "Birds"),
        ("<title>A duck's life</title>", "<h1>A</h1>", "A duck's life"),
        ("<title>Site: Birds | More</title>", "<h1>Birds</h1>", "Birds"),
        ("<title>Untitled document</title>", "<p>x</p>", None),
        ("", "<p>x</p>", None),
    ],
)
def test_title_is_the_pages_own_without_the_name_of_the_site(
    head: str, body: str, title: str | None
):
    assert parsed_page(body, head).title == title


def test_declared_charset_is_found_in_all_its_forms():
    assert declared_charset(b"<meta charset='koi8-r'>") == "koi8-r"
    assert declared_charset(b'<META content="text/html; charset=big5">') == "big5"
    assert declared_charset(b'<?xml version="1.0" encoding="euc-jp"?>') == "euc-jp"
    assert declared_charset(b"<p>charset=none</p>") is None


def test_a_page_nested_without_end_is_refused_rather_than_cut():
    assert text_of("<div>" * 1_000 + "deep") == "deep"
    answer = parse_html(page("<p>shallow</p>" + "<div>" * 20_000 + "deep"))
    assert isinstance(answer, Unread) and "nested" in answer.reason


@pytest.mark.parametrize(
    "source", ["", "<", "<html>", "</p>", "<table><tr>", "a & b &lt; c", "<?xml?>"]
)
def test_broken_mark_up_does_not_raise(source: str):
    parse_html(source)


def test_a_table_that_is_cut_repeats_its_head():
    rows = "".join(f"<tr><td>{n}</td><td>{n * n}</td></tr>" for n in range(3))
    page = parsed_page(
        f"<table><thead><tr><th>n</th><th>square</th></tr></thead>{rows}</table><p>x</p>"
    )
    (table,) = page.tables
    assert table.head == "n | square"
    assert page.text[table.start : table.end] == "n | square\n0 | 0\n1 | 1\n2 | 4"
    assert not parsed_page(f"<table>{rows}</table>").tables


def test_what_the_page_says_of_itself_is_meta():
    head = (
        "<title>Untitled</title><meta property='og:title' content='Ducks'>"
        "<meta name='author' content='Ann Lee'><meta name='keywords' content='a, b'>"
        "<meta property='article:published_time' content='2024-05-01T10:00:00Z'>"
        "<meta name='Description' content='About ducks'>"
    )
    page = parsed_page("<p>Words.</p>", head)
    assert page.title == "Ducks"
    assert page.meta == {
        "author": "Ann Lee",
        "tags": ("a", "b"),
        "date": "2024-05-01",
        "year": 2024,
        "description": "About ducks",
    }
