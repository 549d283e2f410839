"""A file is read by what it is called and by what it holds; what cannot be read says why."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from epicrag.connectors import text as text_reader
from epicrag.connectors.read import Limits, read, refusal
from epicrag.types import Document, Unread

MakePdf = Callable[..., bytes]
ReadBytes = Callable[[str, bytes], Document]


def unread(path: Path, data: bytes | None = None, limits: Limits | None = None) -> Unread:
    if data is not None:
        path.write_bytes(data)
    answer = read(str(path), limits=limits or Limits())
    assert isinstance(answer, Unread), answer
    return answer


def test_path_digest_and_encoding_are_the_files_own(tmp_path: Path, read_bytes: ReadBytes):
    document = read_bytes("a.txt", b"caf\xe9 au lait")
    assert document.path == str(tmp_path / "a.txt")
    assert document.digest == hashlib.sha256(b"caf\xe9 au lait").hexdigest()
    assert document.encoding == "cp1252" and document.media == "text/plain"
    assert document.title is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a.bib", "BibTeX (.bib)"),
        ("a.gif", "image"),
        ("a.mp4", "video (.mp4)"),
        ("a.mobi", "e-book (.mobi)"),
        ("README.parquet", "Parquet"),
        ("a.mp3", "sound"),
        ("a.weird", ".weird"),
        ("package-lock.json", "lock file"),
        ("noextension", "without an extension"),
    ],
)
def test_other_formats_are_named_and_not_even_opened(tmp_path: Path, name: str, words: str):
    assert refusal(name)
    answer = unread(tmp_path / name)  # there is no such file
    assert answer.status == "unsupported" and words in answer.reason


@pytest.mark.parametrize(
    "name", ["README", "a.LOG", "x.Markdown", "a.htm", "b.PDF", "Makefile", "README.Debian"]
)
def test_known_names_are_supported(name: str):
    assert refusal(f"/some/where/{name}") is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"%PDF-1.4\n1 0 obj", "PDF"),
        (b"PK\x03\x04rest of it", "ZIP"),
        (b"{\\rtf1 hello}", "Rich Text"),
        (b"\x89PNG\r\n\x1a\nxx", "PNG"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "Office"),
        (bytes(range(256)) * 8, "binary"),
    ],
)
def test_a_text_file_that_is_something_else_is_refused(tmp_path: Path, data: bytes, words: str):
    answer = unread(tmp_path / "a.txt", data)
    assert answer.status == "unsupported" and words in answer.reason


def test_text_that_spells_special_tokens_is_kept_as_it_is(read_bytes: ReadBytes):
    text = "before <|endoftext|> after <|im_end|>\n<s>[INST]"
    assert read_bytes("a.txt", text.encode()).text == text


def test_web_page_under_a_text_name_is_text(read_bytes: ReadBytes):
    assert read_bytes("a.txt", b"<p>hi</p>").text == "<p>hi</p>"


@pytest.mark.parametrize("data", [b"", b" \n", "\u200b\u200b".encode(), b"\xef\xbb\xbf"])
@pytest.mark.parametrize("name", ["e.txt", "e.md", "e.html", "e.py"])
def test_a_file_without_visible_text_is_empty(tmp_path: Path, name: str, data: bytes):
    assert unread(tmp_path / name, data).status == "empty"


def test_a_page_whose_text_is_all_hidden_is_empty(tmp_path: Path):
    assert unread(tmp_path / "e.html", b"<script>x</script><!-- y -->").status == "empty"


def test_one_bad_file_name_can_be_read(tmp_path: Path):
    path = os.path.join(os.fsencode(tmp_path), b"bad\xff.txt")
    with open(path, "wb") as file:
        file.write(b"hello")
    document = read(os.fsdecode(path))
    assert isinstance(document, Document) and os.fsencode(document.path) == path


def test_a_missing_file_and_a_folder_are_reported(tmp_path: Path):
    assert unread(tmp_path / "gone.txt").status == "failed"
    (tmp_path / "d.txt").mkdir()
    assert "regular" in unread(tmp_path / "d.txt").reason
    assert unread(tmp_path / "nul\0.txt").status == "failed"


def test_a_pipe_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "p.txt")
    assert unread(tmp_path / "p.txt").status == "skipped"


@pytest.mark.parametrize(
    ("limits", "flag", "value"),
    [
        (Limits(max_file_bytes=1 << 20), "--max-file-mb", "1 MB"),
        (Limits(max_chars=1000), "--max-chars", "1,000"),
    ],
)
def test_each_limit_names_itself_its_value_and_its_flag(
    tmp_path: Path, limits: Limits, flag: str, value: str
):
    answer = unread(tmp_path / "a.txt", b"word " * 300_000, limits)
    assert answer.status == "skipped"
    assert flag in answer.reason and value in answer.reason


def test_a_fault_in_a_reader_fails_the_file_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def burst(text: str, encoding: str | None = None) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(text_reader, "parse_text", burst)
    answer = unread(tmp_path / "a.txt", b"hello")
    assert answer.status == "failed" and "RecursionError: too deep" in answer.reason


def test_line_ends_change_neither_text_nor_line_numbers(read_bytes: ReadBytes):
    source = "# Top\n\none\ntwo\n\n## Next\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    unix = read_bytes("a.md", source.encode())
    dos = read_bytes("b.md", source.replace("\n", "\r\n").encode())
    mac = read_bytes("c.md", source.replace("\n", "\r").encode())
    assert unix.text == dos.text == mac.text
    assert unix.anchors == dos.anchors == mac.anchors
    assert unix.blocks == dos.blocks == mac.blocks
    assert unix.place(unix.text.index("two"), unix.text.index("two") + 3).lines == (4, 4)


@pytest.mark.parametrize(
    "name", ["a.txt", "a.md", "a.html", "a.py", "a.toml", "a.rst", "a.adoc", "a.org", "a.tex"]
)
def test_blocks_and_anchors_keep_their_promises(read_bytes: ReadBytes, name: str):
    source = "\n\n# One\n\n- a\n- b\n\n```\ncode\n```\n\ntext\n" * 3
    document = read_bytes(name, source.encode())
    starts = [anchor.start for anchor in document.anchors]
    assert starts == sorted(set(starts)) and starts[0] == 0
    edges = [edge for block in document.blocks for edge in (block.start, block.end)]
    assert edges == sorted(edges) and edges[-1] <= len(document.text)
    assert all(document.text[b.start : b.end].strip() for b in document.blocks)
