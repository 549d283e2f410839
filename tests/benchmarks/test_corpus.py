"""The benchmark over messy files judges rightly; and, where such files are at hand, each is read as expected."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from epicrag.connectors.read import read
from epicrag.types import Unread

corpus = SimpleNamespace(
    **runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "corpus.py"), run_name="corpus")
)


def test_an_answer_counts_whatever_its_spaces_quotes_and_marks_are():
    assert corpus.answers_in("say **“so”** –\n now", 'say "so" - now')
    assert corpus.answers_in("Oak, then Elm; Maple last", "Oak, Elm, Maple")
    assert not corpus.answers_in("Oak and Elm", "Oak, Elm, Maple")


def test_the_manifest_is_read_as_it_stands(tmp_path):
    path = tmp_path / "manifest.tsv"
    path.write_text('file\texpect\tquestion\tanswer\na/b.TXT\tok\tWhat is "x"?\t"1\n')
    (case,) = corpus.cases_of(path)
    assert (case.format, case.question, case.answer) == (".txt", 'What is "x"?', '"1')


def test_what_became_of_a_file_is_judged():
    case = corpus.Case("a.pdf", "ocr", "", "")
    assert corpus.Found(case, "failed", "needs OCR").is_expected
    assert not corpus.Found(case, "empty", None).is_expected


def _cases():
    manifest = os.environ.get("EPICRAG_CORPUS")
    return (
        [(Path(manifest).parent, case) for case in corpus.cases_of(Path(manifest))]
        if manifest
        else []
    )


@pytest.mark.skipif("EPICRAG_CORPUS" not in os.environ, reason="EPICRAG_CORPUS names no manifest")
@pytest.mark.parametrize(("folder", "case"), _cases(), ids=lambda value: getattr(value, "file", ""))
def test_real_files_are_read_as_the_manifest_expects(folder, case):
    document = read(str(folder / case.file))
    status = document.status if isinstance(document, Unread) else "added"
    assert status in corpus.EXPECTED[case.expect], document.reason if status != "added" else ""
    if case.question and case.expect == "ok":
        words = " ".join([document.title or "", *(a.heading or "" for a in document.anchors)])
        assert corpus.answers_in(document.text + words, case.answer)
