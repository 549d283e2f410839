"""Files of questions: what is read, and that a bad line is said and not left out."""

from __future__ import annotations

import pytest

from epicrag.errors import UsageError
from epicrag.questions import Item, Passage, read_items


@pytest.fixture
def write(tmp_path):
    def put(name: str, text: str | bytes):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return put


def test_a_text_is_one_question_a_line(write):
    found = read_items(write("q.txt", "What is it?\r\n\nWho  is it?\u2028really\n"))
    assert [(i.question, i.line) for i in found] == [
        ("What is it?", 1),
        ("Who  is it?\u2028really", 3),
    ]


def test_an_item_says_where_it_was_read(write):
    path = write("q.jsonl", '{"question": "Q?", "answer": "a"}\n')
    (item,) = read_items(path)
    assert (item.answers, item.where) == (("a",), f"{path}, line 1")
    assert Item("Q?", line=2).where == "line 2"


def test_a_table_is_read_by_its_column_names(write):
    path = write("q.tsv", 'file\tquestion\tanswer\na.md\tWhat "is" it?\tten\nb.md\tWho?\t\n')
    assert read_items(path) == [
        Item('What "is" it?', ("ten",), line=2),
        Item("Who?", line=3),
    ]


def test_json_lines_bring_answers_and_documents(write):
    path = write(
        "q.jsonl",
        '\ufeff{"question": "Q?", "answers": ["a", "b"], "path": "x.md", "meta": {},'
        ' "documents": [{"title": "T", "text": "t"}, "bare"]}\n'
        '{"question": "R?", "answerable": false}\n',
    )
    assert read_items(path) == [
        Item("Q?", ("a", "b"), (Passage("T", "t"), Passage("", "bare")), ("x.md",), True, 1),
        Item("R?", answerable=False, line=2),
    ]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("q.jsonl", '{"question": "Q?"}\n{"question"\n', "line 2: not JSON"),
        ("q.jsonl", "[1]\n", "line 1: not a JSON object"),
        ("q.jsonl", '{"question": "Q?"}\n\n{"answers": ["a"]}\n', "line 3: no question"),
        ("q.jsonl", '{"question": "Q?", "answers": [1]}\n', "line 1: answers must be texts"),
        ("q.jsonl", '{"question": "Q?", "documents": "d"}\n', "line 1: documents"),
        ("q.jsonl", '{"question": "Q?", "documents": [{"title": "t"}]}\n', "line 1: a document"),
        ("q.jsonl", '{"question": "Q?", "answerable": "no"}\n', "line 1: answerable"),
        ("q.tsv", "a\tb\n1\t2\n", "line 1: the columns"),
        ("q.tsv", "question\tb\nq\t1\t2\n", "line 2: 3 cells"),
        ("q.tsv", "question\tb\n\t1\n", "line 2: no question"),
        ("q.txt", "\n \n", "holds no question"),
        ("q.txt", b"caf\xe9\n", "not UTF-8"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_line(write, name, text, said):
    with pytest.raises(UsageError, match=said):
        read_items(write(name, text))


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(UsageError, match=r"gone\.txt cannot be read"):
        read_items(tmp_path / "gone.txt")


@pytest.mark.parametrize("line", ["[" * 100_000, '{"question": ' + "[" * 100_000])
def test_a_line_nested_without_end_is_refused_with_its_number(tmp_path, line):
    path = tmp_path / "gold.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(UsageError, match="line 1: not JSON"):
        read_items(path)
