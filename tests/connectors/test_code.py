"""Source code is cut at what its author set apart."""

from epicrag.connectors.code import parse_code
from epicrag.types import Document

PYTHON = '''"""Decoding of things."""

import re

LIMIT = 3


# Why this class is here.
@decorated
class Decoder:
    """Doc."""

    size = 1

    def decode(self, text):
        def inner():
            return 1

        return inner()

    async def raw(self):
        pass

    after = 2


def main():
    return Decoder()


if __name__ == "__main__":
    main()
'''


def units(source: str, media: str = "text/x-python") -> list[tuple[str | None, str]]:
    parsed = parse_code(source, media)
    document = Document("/a", source, "", anchors=parsed.anchors)
    return [
        (document.place(b.start, b.end).heading, source[b.start : b.end].split("\n")[0].strip())
        for b in parsed.blocks
    ]


def test_python_is_cut_at_functions_and_classes_with_their_qualified_names():
    assert units(PYTHON) == [
        (None, '"""Decoding of things."""'),
        ("Decoder", "# Why this class is here."),
        ("Decoder.decode", "def decode(self, text):"),
        ("Decoder.raw", "async def raw(self):"),
        ("Decoder", "after = 2"),
        ("main", "def main():"),
        (None, 'if __name__ == "__main__":'),
    ]


def test_python_title_is_the_first_line_of_its_docstring():
    assert parse_code(PYTHON, "text/x-python").title == "Decoding of things"
    assert parse_code("x = 1\n", "text/x-python").title is None


def test_all_lines_that_hold_something_are_in_a_block():
    parsed = parse_code(PYTHON, "text/x-python")
    covered = "\n".join(PYTHON[b.start : b.end] for b in parsed.blocks)
    assert covered.split() == PYTHON.split()


def test_code_that_is_no_valid_python_is_still_read():
    assert units("print 'old'\n\ndef f():\n    pass\n") == [
        (None, "print 'old'"),
        (None, "def f():"),
    ]
    assert units("x = '\\d'\n") == [(None, "x = '\\d'")]  # an invalid escape warns nobody


def test_other_languages_are_cut_before_what_is_not_indented():
    source = "#include <a.h>\n\nint f() {\n  a();\n\n  b();\n}\n\nint g() {\n}\n"
    assert units(source, "text/x-c") == [
        (None, "#include <a.h>"),
        (None, "int f() {"),
        (None, "int g() {"),
    ]
