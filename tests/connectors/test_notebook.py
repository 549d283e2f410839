"""Notebooks: cells in order, what they printed, no pictures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from epicrag.connectors.base import Parsed
from epicrag.connectors.notebook import parse_notebook
from epicrag.types import Unread


def markdown(*source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "source": list(source)}


def code(source: str, *outputs: dict[str, Any]) -> dict[str, Any]:
    return {"cell_type": "code", "source": source, "outputs": list(outputs)}


def result(**data: Any) -> dict[str, Any]:
    return {
        "output_type": "execute_result",
        "data": {k.replace("_", "/"): v for k, v in data.items()},
    }


def parse(*cells: Any, **metadata: Any) -> Parsed:
    parsed = parse_notebook(json.dumps({"nbformat": 4, "cells": cells, "metadata": metadata}))
    assert isinstance(parsed, Parsed), parsed
    return parsed


def test_cells_come_in_order_with_what_they_printed():
    parsed = parse(
        markdown("# Tea\n", "Hot ![x](data:image/png;base64,aGVsbG8=)"),
        code("    print(42)\n", {"output_type": "stream", "text": ["42\n", "ok\n"]}),
        markdown("## Cups"),
        {"cell_type": "raw", "source": "as is"},
        code(
            "1/0",
            {
                "output_type": "error",
                "ename": "ZeroDivisionError",
                "evalue": "\x1b[31mno\x1b[0m",
                "traceback": ["long"],
            },
        ),
    )
    assert parsed.text == (
        "# Tea\nHot ![x]((data))\n\n    print(42)\n\n42\nok\n\n## Cups\n\nas is\n\n1/0\n\nZeroDivisionError: no"
    )
    assert parsed.title == "Tea"
    assert [anchor.part for anchor in parsed.anchors] == [f"cell {n}" for n in range(1, 6)]
    assert parsed.anchors[-1].heading == "Tea > Cups"
    assert all(anchor.line is None for anchor in parsed.anchors)
    assert [block.kind for block in parsed.blocks].count("code") == 4


def test_result_is_written_in_one_form_and_pictures_in_none():
    parsed = parse(
        code("df", result(text_plain=["   a\n", "0  1"], text_html="<table><tr><td>a</td></tr></table>")),
        code("plot", result(text_plain="<Figure size 640x480 with 1 Axes>", image_png="iVBOR")),
        code("show", result(text_plain="<IPython.core.display.HTML object>", text_html="<p>Hello <b>you</b></p>")),
        code("say", result(text_markdown="*hi*")),
    )  # fmt: skip
    assert parsed.text == "df\n\n   a\n0  1\n\nplot\n\nshow\n\nHello you\n\nsay\n\n*hi*"


def test_progress_bars_are_what_they_end_as():
    parsed = parse(code("run", {"output_type": "stream", "text": "  1%\r 50%\r100%\r\ndone\r\n"}))
    assert parsed.text == "run\n\n100%\ndone"


def test_format_3_is_read():
    cells = [
        {"cell_type": "heading", "level": 2, "source": "Old"},
        {"cell_type": "code", "input": ["x = 1"], "outputs": [{"output_type": "pyout", "text": "1"}, {"output_type": "pyerr", "ename": "E", "evalue": "v"}]},
    ]  # fmt: skip
    parsed = parse_notebook(json.dumps({"nbformat": 3, "worksheets": [{"cells": cells}]}))
    assert isinstance(parsed, Parsed)
    assert parsed.text == "## Old\n\nx = 1\n\n1\n\nE: v"


def test_authors_and_title_of_the_notebook_are_told():
    parsed = parse(markdown("x"), title="T", authors=[{"name": "Ann"}, 3])
    assert (parsed.title, dict(parsed.meta)) == ("T", {"author": ("Ann",)})


@pytest.mark.parametrize("text", ['{"cells": [', "[" * 100_000, "[1]", '{"a": 1}', "9" * 5_000])
def test_what_is_no_notebook_is_said_to_be_none(text: str):
    refused = parse_notebook(text)
    assert isinstance(refused, Unread)
    assert refused.status == "failed"
    assert refused.reason.startswith("not a notebook")


@pytest.mark.parametrize(
    "cell",
    [3, None, {}, {"cell_type": "code"}, {"cell_type": "code", "source": 5, "outputs": 7},
     {"cell_type": "code", "source": [1, "x"], "outputs": [None, {"output_type": "execute_result", "data": 3}]},
     {"cell_type": "heading", "level": "a", "source": "x"}],
)  # fmt: skip
def test_odd_cells_do_no_harm(cell: Any):
    assert parse(cell, markdown("good")).text.endswith("good")
