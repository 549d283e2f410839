"""CSV: the delimiter and the head found out, every cell kept, every row at its line."""

from __future__ import annotations

import csv
import io
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epicrag.connectors.csv_table import parse_csv, parse_tsv
from epicrag.connectors.split import split
from epicrag.types import Document


def rows_of(parsed: Any) -> list[tuple[str, int | None]]:
    """Each block's text and source line."""
    lines = {anchor.start: anchor.line for anchor in parsed.anchors}
    return [(parsed.text[b.start : b.end], lines.get(b.start)) for b in parsed.blocks]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiter_is_found_out(delimiter: str):
    text = f'city{delimiter}count\n"Köln{delimiter} Deutz"{delimiter}3\nBonn{delimiter}4\n'
    assert (
        parse_csv(text).text
        == f"city | count\n{'Köln' + delimiter + ' Deutz' if delimiter != chr(9) else 'Köln Deutz'} | 3\nBonn | 4"
    )


def test_decimal_commas_do_not_part_columns():
    assert parse_csv("Maß;Wert;Ort\na;1,5;x\nb;2,25;y\nc;3,1;z\n").text.startswith(
        "Maß | Wert | Ort\na | 1,5 | x"
    )


def test_excel_says_which_delimiter():
    parsed = parse_csv("sep=;\na,b;c\n1;2\n")
    assert rows_of(parsed)[1] == ("1 | 2", 3)


def test_rows_are_at_their_lines_though_cells_span_lines():
    parsed = parse_csv('name,note\n\nAda,"first\n\nthird ""quoted"""\nBob,x\n')
    assert rows_of(parsed) == [
        ("name | note", 1),
        ('Ada | first third "quoted"', 3),
        ("Bob | x", 6),
    ]


def test_head_is_repeated_where_a_table_is_cut(words: Any, read_bytes: Any):
    rows = "".join(f"person {n},{n}\n" for n in range(200))
    document = read_bytes("a.csv", ("name,age\n" + rows).encode())
    chunks = split(document, words, chunk_tokens=60)
    assert len(chunks) > 3
    assert all(chunk.table == "name | age" for chunk in chunks[1:])
    assert all(chunk.text.strip().startswith("person") for chunk in chunks[1:])


def test_wide_rows_name_their_values_and_leave_out_empty_ones():
    head = ",".join(f"c{n}" for n in range(12))
    parsed = parse_csv(f"{head}\n1,,3,,,,,,,,,12\n")
    assert parsed.text.endswith("\nc0: 1; c2: 3; c11: 12")


def test_wide_rows_without_a_head_are_numbered():
    rows = "".join(",".join(str(n * k) for k in range(1, 11)) + "\n" for n in (3, 4, 5))
    assert parse_csv(rows).text.startswith("column 1: 3; column 2: 6;")


def test_rows_longer_and_shorter_than_the_head_are_whole():
    assert (
        parse_csv("1,2,3\na,b,c,d\na\na,b,c,d\n").text
        == "1 | 2 | 3\na | b | c | d\na\na | b | c | d"
    )


@pytest.mark.parametrize(
    ("text", "has_head"),
    [
        ("name,age\nAda,36\nBob,41\n", True),
        ("Ada,36\nBob,41\nCid,5\n", False),
        ("country,1990,1991\nFiji,5,6\nPeru,7,8\n", True),
        ("name,city\nAda,London\nBob,Rome\n", True),
        ("a,x\na,y\nb,x\n", False),
        ("2024-01-01,5\n2024-01-02,6\n", False),
    ],
)
def test_head_is_told_from_values(text: str, has_head: bool):
    assert bool(parse_csv(text).tables) == has_head


def test_title_above_the_table_is_no_head():
    parsed = parse_csv("Stanley Cups,,\nTeam,Location,Cups\nBlues,STL,1\nFlyers,PHI,2\n")
    assert parsed.title == "Stanley Cups"
    assert parsed.tables[0].head == "Team | Location | Cups"


def test_quote_that_is_never_closed_costs_its_line_only():
    parsed = parse_csv('a,b\n1,"open\n2,x\n3,y\n')
    assert rows_of(parsed)[1:] == [('1 | "open', 2), ("2 | x", 3), ("3 | y", 4)]


def test_many_open_quotes_take_no_time():
    began = time.monotonic()
    text = "a,b\n" + '1,"open\n' * 50_001
    assert parse_csv(text).text.count("open") == 50_001
    assert time.monotonic() - began < 20


def test_cell_and_line_of_ten_megabytes_are_no_trouble():
    cell = "word " * 2_000_000
    began = time.monotonic()
    assert parse_csv(f'a,b\nx,"{cell}"\n').text.count("word") == 2_000_000
    assert time.monotonic() - began < 20


def test_names_are_not_written_a_million_times():
    head = ",".join("n" * 500 + str(n) for n in range(100))
    rows = ",".join("1" * 100) + "\n"
    text = f"{head}\n" + rows * 5_000
    parsed = parse_csv(text)
    assert len(parsed.text) < 25 * len(text)


def test_file_of_one_column_or_one_row_is_read():
    assert parse_csv("name\nAda\nBob\n").text == "name\nAda\nBob"
    assert parse_csv("a,b").text == "a | b"
    assert parse_csv("").text == ""


def test_tabs_part_columns_of_tsv_though_commas_are_more():
    assert parse_tsv("a\tb\n1,2,3\t4\n5,6,7\t8\n").text == "a | b\n1,2,3 | 4\n5,6,7 | 8"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp932"])
def test_encodings_are_found_out(read_bytes: Any, encoding: str):
    document = read_bytes(
        "a.csv",
        "名前,年齢,住所\n佐藤太郎,30,東京\n三木英子,25,大阪\n髙橋淳,35,名古屋\n".encode(encoding),
    )
    assert (
        document.text
        == "名前 | 年齢 | 住所\n佐藤太郎 | 30 | 東京\n三木英子 | 25 | 大阪\n髙橋淳 | 35 | 名古屋"
    )


cells = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="\x85"),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(cells | st.just("two\nlines"), min_size=1, max_size=12), max_size=12), st.sampled_from(",;|\t"))  # fmt: skip
def test_every_cell_is_in_the_text_at_its_line(rows: list[list[str]], delimiter: str):
    rows = [[f"<{n}>", *row] for n, row in enumerate(rows)]
    written = io.StringIO()
    starts = []
    for row in rows:
        starts.append(written.getvalue().count("\n") + 1)
        csv.writer(
            written, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL
        ).writerow(row)
    parsed = parse_csv(f"sep={delimiter}\n" + written.getvalue())
    found = " ".join(parsed.text.split())
    for row in rows:
        assert all(" ".join(cell.split()) in found for cell in row)
    # In a wide table the first row's mark stands in all rows, as the name of their first column.
    assert [line for _, line in rows_of(parsed)] == [start + 1 for start in starts]


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from('",;\n|\ta1 é'), max_size=60))
@example("a1;a1\n1")
def test_nothing_raises_and_no_letter_is_lost(text: str):
    parsed = parse_csv(text)
    assert parsed.text.count("a") >= text.count("a")


def test_cell_of_many_lines_is_cited_by_the_line_each_piece_is_on():
    body = "\n".join(f"tok{at}" for at in range(40))
    source = f'id,"the\nhead",note\n1,"{body}",end\n2,"\n\n","x\ny"\n'
    answer = parse_csv(source)
    document = Document("/d", answer.text, "", anchors=answer.anchors)
    for word, line in (("head", 2), ("tok0", 3), ("tok17", 20), ("tok39", 42), ("end", 42)):
        at = answer.text.index(word)
        assert document.place(at, at + len(word)).lines == (line, line), word
    assert document.place(answer.text.index("tok9"), len(answer.text)).lines == (12, 46)


def test_row_of_empty_cells_under_a_wide_head_is_read_in_good_time():
    source = "a" + "," * 60_000 + "\n" + "1\n" * 20_000
    start = time.process_time()
    assert parse_csv(source).text.startswith("a")
    assert time.process_time() - start < 20
