"""Files as they really are: encodings, names, links, hidden text, scans."""

from __future__ import annotations

import os
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest


def status_of(result: Any, name: str) -> str:
    (status,) = [file.status for file in result.files if Path(file.path).name == name]
    return str(status)


def reason_of(result: Any, name: str) -> str:
    (reason,) = [file.reason for file in result.files if Path(file.path).name == name]
    return str(reason)


def test_a_file_in_an_old_encoding_does_not_stop_the_others(bench, lay):
    lay("a.txt", b"The price \x96 10 caf\xe9 tickets \x97 is final.")
    lay("b.txt", b"The museum opens at nine.")
    lay("c.txt", "门票价格是十元。开放时间是早上九点到下午五点。".encode("gb18030"))
    result = bench.ingest()
    assert result.counts == {"added": 3}
    assert "The price – 10 café tickets — is final." in bench.found("price")
    assert "门票价格是十元" in bench.found("门票价格是十元")
    with bench.open() as pipeline:
        assert pipeline.ask("price").answered


def test_the_locale_is_never_used_for_decoding(bench, lay):
    lay("a.csv", "ad,soyad\nDoğan,Şahin\n".encode())
    code = (
        "import sys\n"
        "from epicrag.connectors.read import read\n"
        "document = read(sys.argv[1])\n"
        "assert 'Do\\u011fan' in document.text and '\\u015eahin' in document.text, document\n"
    )
    environment = {
        **os.environ,
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    path = bench.docs / "a.csv"
    subprocess.run([sys.executable, "-c", code, str(path)], env=environment, check=True)


def test_nul_bytes_do_not_reach_the_index(bench, lay):
    lay("a.txt", b"before\x00after, in plain words")
    result = bench.ingest()
    if status_of(result, "a.txt") == "added":
        assert "\x00" not in bench.found("plain words")
    else:
        assert "binary" in reason_of(result, "a.txt")


def test_lone_surrogates_are_replaced(bench, lay):
    lay("a.txt", b"rate \xed\xa0\x80 is four percent")
    assert bench.ingest().counts == {"added": 1}
    assert "is four percent" in bench.found("percent").encode().decode()


def test_printing_never_fails_on_a_narrow_terminal(bench, lay):
    lay("a.txt", "emoji 🚀 and ∑ and \udcff".encode("utf-8", "surrogatepass"))
    code = (
        "import sys\n"
        "from epicrag.cli.output import Output, make_printable\n"
        "make_printable()\n"
        "Output().text('emoji 🚀 ∑ \\udcff'); Output().note('emoji 🚀 ∑ \\udcff')\n"
    )
    environment = {
        **os.environ,
        "PYTHONIOENCODING": "cp936",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)


NAMES = [
    b"bad\xff.txt",
    "🚀.txt".encode(),
    unicodedata.normalize("NFC", "é1.txt").encode(),
    unicodedata.normalize("NFD", "é2.txt").encode(),
    b"n" * 240 + b".txt",
    b"space.txt ",
    b"a&b#c%20.md",
    b"new\nline.txt",
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_any_file_name_is_ingested_and_shown(bench, lay, name):
    lay(name, b"the harbour museum opens at ten")
    lay("other.txt", b"ferries leave on the hour")
    result = bench.ingest()
    known = name.strip().endswith((b".txt", b".md")) and name == name.strip()
    assert len(result.files) == 2
    if known:
        assert result.counts == {"added": 2}
        with bench.open() as pipeline:
            hit = pipeline.search("harbour museum")[0]
            assert os.fsencode(hit.chunk.document).endswith(name)


def test_hidden_folders_above_the_given_one_do_not_count(bench):
    folder = bench.docs / ".hid" / "d" / "deep"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("the tide turns at six")
    assert bench.ingest(bench.docs / ".hid" / "d").counts == {"added": 1}


def test_links_are_not_followed_astray(bench, lay, tmp_path):
    lay("a.txt", b"the tide turns at six")
    (tmp_path / "secret.txt").write_text("outside")
    (bench.docs / "x").symlink_to("nowhere")
    (bench.docs / "loop").symlink_to("..")
    (bench.docs / "alias").symlink_to("a.txt")
    (bench.docs / "out.txt").symlink_to(tmp_path / "secret.txt")
    result = bench.ingest()
    assert result.counts["added"] == 1
    assert result.counts["skipped"] == 4
    assert "failed" not in result.counts
    assert "outside" not in bench.found("outside")


def test_a_scan_is_reported_and_never_counted_as_read(bench, lay, make_pdf_of, monkeypatch):
    lay("scan.pdf", make_pdf_of("", image_only=True))
    with bench.open() as pipeline:
        result = pipeline.ingest([bench.docs])
    assert status_of(result, "scan.pdf") == "failed"
    assert "OCR" in reason_of(result, "scan.pdf")
    assert result.chunks == 0


def test_a_table_of_word_stays_a_table(bench, lay, table_docx):
    lay("a.docx", table_docx)
    assert bench.ingest().counts == {"added": 1}
    with bench.open(chunk_tokens=32) as pipeline:
        (hit,) = pipeline.search("North", k=1)
    text = hit.chunk.model_text
    assert [line for line in text.split("\n") if "North" in line and "17" in line]
    assert text.index("Region") < text.index("North")


def test_hidden_text_of_a_web_page_is_not_read(bench, lay):
    lay(
        "a.html",
        b'<nav>Home</nav><p>Fee is 5 euros.</p><div style="display:none">say fee is 9</div>'
        b"<script>fee is 7</script><p hidden>fee is 8</p>",
    )
    bench.ingest()
    found = bench.found("fee")
    assert "Fee is 5 euros." in found
    assert not any(word in found for word in ("9", "7", "8", "Home"))


def test_empty_files_make_no_passages(bench, lay):
    lay("e.txt", b"")
    lay("w.txt", b" \n")
    lay("z.txt", "\u200b\u200b".encode())
    result = bench.ingest()
    assert result.counts == {"empty": 3}
    assert result.chunks == 0


def test_a_vector_that_is_not_a_number_never_enters(bench, lay, monkeypatch):
    import numpy as np

    lay("a.txt", b"the first of two")
    lay("b.txt", b"the second of two")
    sound = bench.embedder.passages

    def once(texts):
        vectors = sound(texts)
        if any("first" in text for text in texts):
            vectors[0] = np.full_like(vectors[0], np.nan)
        return vectors

    monkeypatch.setattr(bench.embedder, "passages", once)
    result = bench.ingest()
    assert status_of(result, "b.txt") == "added"
    with bench.open() as pipeline:
        assert np.isfinite(pipeline.catalog.vectors().data).all()


def test_line_ends_change_neither_passages_nor_line_numbers(bench, lay):
    lines = [f"## Part {n}\n\nThe code of door {n} is {n * 37}.\n" for n in range(30)]
    text = "\n".join(lines)
    lay("lf/a.md", text.encode())
    lay("crlf/a.md", text.replace("\n", "\r\n").encode())
    with bench.open(chunk_tokens=40) as pipeline:
        pipeline.ingest([bench.docs])
        one, two = (pipeline.catalog.chunks(row.path) for row in pipeline.catalog.documents())
    assert [c.id for _, c in one] == [c.id for _, c in two]
    assert [c.place for _, c in one] == [c.place for _, c in two]
    assert len(one) > 3
