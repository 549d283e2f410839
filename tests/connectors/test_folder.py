"""The walk finds what is there, and says what it left out."""

import os
import socket
import zipfile
from pathlib import Path

import pytest

from epicrag.connectors.base import Limits
from epicrag.connectors.folder import Rules, walk
from epicrag.connectors.found import Found
from epicrag.types import Document, Unread


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name, "utf-8")


def names(found: Found, folder: Path) -> list[str]:
    return [os.path.relpath(entry.path, folder.resolve()) for entry in found.entries]


def reasons(found: Found, folder: Path) -> dict[str, str | None]:
    return {os.path.relpath(r.path, folder.resolve()): r.reason for r in found.reports}


def test_files_are_sorted_absolute_and_sized(tmp_path: Path):
    make(tmp_path, "b.txt", "a/z.txt", "a.txt")
    found = walk([tmp_path])
    assert names(found, tmp_path) == ["a.txt", "a/z.txt", "b.txt"]
    assert found.roots == (tmp_path.resolve().as_posix(),)
    assert found.entries[0].size == len("a.txt")


def test_hidden_is_judged_below_the_given_folder_only(tmp_path: Path):
    inside = tmp_path / ".hid" / "d"
    make(inside, "a.txt", ".secret.txt", ".git/config", "sub/b.txt")
    assert names(walk([inside]), inside) == ["a.txt", "sub/b.txt"]
    assert names(walk([inside], rules=Rules(hidden=True)), inside) == [
        ".secret.txt",
        "a.txt",
        "sub/b.txt",
    ]
    assert names(walk([tmp_path]), tmp_path) == []


def test_what_never_holds_documents_is_never_entered(tmp_path: Path):
    make(tmp_path, "node_modules/a.md", "x/__pycache__/b.py", ".venv/c.py", "ok.md")
    assert names(walk([tmp_path], rules=Rules(hidden=True)), tmp_path) == ["ok.md"]


def test_ignore_files_are_honoured_at_every_depth(tmp_path: Path):
    make(tmp_path, "a.log", "keep.log", "build/x.txt", "sub/a.log", "sub/b.tmp", "sub/deep/c.tmp")
    make(tmp_path, "sub/build/y.txt", "odd.txt", "private.txt")
    (tmp_path / ".gitignore").write_text("*.log\n!keep.log\n/build/\n# note\n")
    (tmp_path / "sub" / ".gitignore").write_text("*.tmp\n!a.log\n")
    (tmp_path / "sub" / "deep" / ".epicragignore").write_text("!c.tmp\n")
    (tmp_path / ".epicragignore").write_text("private.*\n")
    found = walk([tmp_path])
    assert names(found, tmp_path) == [
        "keep.log",
        "odd.txt",
        "sub/a.log",
        "sub/build/y.txt",
        "sub/deep/c.tmp",
    ]
    assert found.reports == () and found.ignored > 0


def test_a_rule_that_is_nonsense_is_passed_over(tmp_path: Path):
    make(tmp_path, "a.txt", "b.txt")
    (tmp_path / ".gitignore").write_bytes(b"!\n\\\n[\nb.txt\n\xff\xfe\n")
    assert names(walk([tmp_path]), tmp_path) == ["a.txt"]


def test_links_are_reported_and_never_lead_astray(tmp_path: Path):
    folder = tmp_path / "d"
    make(folder, "a.txt")
    make(tmp_path, "outside.txt")
    (folder / "x").symlink_to("nowhere")
    (folder / "loop").symlink_to("..")
    (folder / "here").symlink_to(".")
    (folder / "alias").symlink_to("a.txt")
    (folder / "out.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "ring").symlink_to("ring")
    found = walk([folder])
    assert names(found, folder) == ["a.txt"]
    assert {
        name: (reason or "").split(" to ")[0] for name, reason in reasons(found, folder).items()
    } == {
        "x": "broken link",
        "loop": "link out of the given folders,",
        "here": "link",
        "alias": "link",
        "out.txt": "link out of the given folders,",
        "ring": "link that loops",
    }
    assert {report.status for report in found.reports} == {"skipped"}


def test_a_link_given_by_name_is_followed(tmp_path: Path):
    make(tmp_path, "real/a.txt")
    (tmp_path / "link").symlink_to("real")
    assert names(walk([tmp_path / "link"]), tmp_path) == ["real/a.txt"]


def test_overlapping_paths_give_each_file_once(tmp_path: Path):
    make(tmp_path, "a/b/c.txt", "a/d.txt")
    found = walk([tmp_path, tmp_path / "a" / "b", tmp_path / "a" / "d.txt", tmp_path])
    assert names(found, tmp_path) == ["a/b/c.txt", "a/d.txt"]
    assert len(found.roots) == 3


def test_a_path_that_is_gone_is_a_root_without_entries(tmp_path: Path):
    found = walk([tmp_path / "gone", tmp_path / "gone" / "a.txt"])
    assert found.entries == () and found.reports == ()
    assert found.roots[0] == (tmp_path / "gone").resolve().as_posix()


def test_a_file_over_the_limit_is_reported_with_the_flag_that_raises_it(tmp_path: Path):
    (tmp_path / "big.txt").write_bytes(b"x" * 2_000_000)
    make(tmp_path, "ok.txt")
    found = walk([tmp_path], limits=Limits(max_file_bytes=1 << 20))
    assert names(found, tmp_path) == ["ok.txt"]
    reason = reasons(found, tmp_path)["big.txt"]
    assert reason is not None and "1.9 MB" in reason and "1 MB" in reason
    assert "--max-file-mb" in reason


def test_pipes_and_sockets_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    os.mkfifo("pipe.txt")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s.txt")
        found = walk([tmp_path])
    assert found.entries == ()
    assert set(reasons(found, tmp_path)) == {"pipe.txt", "s.txt"}


def test_a_folder_that_cannot_be_opened_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make(tmp_path, "a.txt", "locked/b.txt")
    scandir = os.scandir

    def refuse(path: str):
        if os.path.basename(path) == "locked":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = walk([tmp_path])
    assert names(found, tmp_path) == ["a.txt"]
    assert "Permission denied" in (reasons(found, tmp_path)["locked"] or "")


@pytest.mark.parametrize(
    "name",
    [
        b"bad\xff.txt",
        "🚀.txt".encode(),
        "caf\u00e9.txt".encode(),
        "cafe\u0301.txt".encode(),
        b"x" * 236 + b".txt",
        b"space.txt ",
        b"a&b#c%20.md",
        b"new\nline.txt",
        b"back\\slash.txt",
    ],
)
def test_any_file_name_is_found_and_kept_byte_for_byte(tmp_path: Path, name: bytes):
    with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
        file.write(b"hello")
    (entry,) = walk([tmp_path]).entries
    assert os.path.basename(os.fsencode(entry.path)) == name


def test_both_forms_of_an_accent_are_two_files(tmp_path: Path):
    make(tmp_path, "caf\u00e9.txt", "cafe\u0301.txt")
    assert len(walk([tmp_path]).entries) == len(os.listdir(tmp_path))


def test_a_walk_may_look_at_a_part_only_and_knows_the_rules_above_it(tmp_path: Path):
    make(tmp_path, "a/x.txt", "a/x.log", "a/b/y.txt", "c/z.txt", "top.txt", "ab.txt")
    (tmp_path / ".gitignore").write_text("*.log\n")
    folder = tmp_path.resolve().as_posix()
    found = walk([tmp_path], only=[f"{folder}/a", f"{folder}/top.txt", "/elsewhere"])
    assert names(found, tmp_path) == ["a/b/y.txt", "a/x.txt", "top.txt"]
    assert found.roots == (f"{folder}/a", f"{folder}/top.txt")
    assert found.passed == {f"{folder}/a/x.log": f"it matches an ignore rule in {folder}"}
    assert walk([tmp_path], only=[f"{folder}/a/b/gone.txt"]).entries == ()


def test_a_link_that_takes_the_place_of_what_was_found_is_not_followed(tmp_path: Path):
    make(tmp_path, "out/a.txt", "in/a.txt", "in/sub/a.txt", "in/p.txt", "in/same.txt")
    (tmp_path / "in/z.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    folder = tmp_path / "in"
    one, pipe, same, below = walk([folder]).entries
    (folder / "a.txt").unlink()
    (folder / "a.txt").symlink_to(tmp_path / "out/a.txt")
    (folder / "sub/a.txt").unlink()
    (folder / "sub").rmdir()
    (folder / "sub").symlink_to(tmp_path / "out")
    (folder / "p.txt").unlink()
    os.mkfifo(folder / "p.txt")
    (folder / "new.txt").write_text("saved by an editor")
    (folder / "new.txt").replace(folder / "same.txt")
    for entry in (one, pipe, below):
        document = entry.read()
        assert isinstance(document, Unread) and document.status == "skipped"
        with pytest.raises(OSError):
            entry.digest()
    document = same.read()
    assert isinstance(document, Document) and document.digest == same.digest()


def test_an_archive_that_became_a_link_is_not_opened(tmp_path: Path):
    make(tmp_path, "out/a.txt")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", "words")
    (tmp_path / "out/b.zip").write_bytes((tmp_path / "a.zip").read_bytes())
    (entry,) = walk([tmp_path / "a.zip"]).entries
    entry.shelf._opened.clear()  # type: ignore[attr-defined]
    (tmp_path / "a.zip").unlink()
    (tmp_path / "a.zip").symlink_to(tmp_path / "out/b.zip")
    document = entry.read()
    assert isinstance(document, Unread) and "link" in document.reason


def test_an_ignore_file_that_is_a_pipe_holds_nothing_up(tmp_path: Path):
    make(tmp_path, "a.txt")
    os.mkfifo(tmp_path / ".gitignore")
    assert names(walk([tmp_path]), tmp_path) == ["a.txt"]


def test_a_link_to_what_is_passed_over_is_not_said_to_be_read(tmp_path: Path):
    make(tmp_path, ".h/x.txt", "b.txt")
    (tmp_path / "to_hidden.txt").symlink_to(".h/x.txt")
    (tmp_path / "to_b.txt").symlink_to("b.txt")
    said = reasons(walk([tmp_path]), tmp_path)
    assert (said["to_hidden.txt"] or "").endswith("which is not read: it is hidden")
    assert (said["to_b.txt"] or "").endswith("which is read there and not twice")
    said = reasons(walk([tmp_path], rules=Rules(follow_links=True)), tmp_path)
    assert (said["to_hidden.txt"] or "").endswith("which is read there and not twice")


def test_a_rule_made_to_take_for_ever_holds_nothing_up(tmp_path: Path):
    make(tmp_path, "a" * 200, "a" * 200 + "b", "c.txt")
    rules = ["*a" * 25 + "b", "**/a/" * 30 + "b", "x" * 2_000, "c*"]
    (tmp_path / ".gitignore").write_text("\n".join(rules))
    found = walk([tmp_path])
    assert names(found, tmp_path) == ["a" * 200]
    assert "too many wildcards" in (reasons(found, tmp_path)[".gitignore"] or "")


def test_what_init_writes_is_no_document(tmp_path):
    for name in ("epicrag.toml", "other.toml", ".epicragignore"):
        (tmp_path / name).write_text("top_k = 3\n")
    found = walk([tmp_path], rules=Rules(hidden=True))
    assert [Path(entry.path).name for entry in found.entries] == ["other.toml"]
    assert len(walk([tmp_path / "epicrag.toml"]).entries) == 1  # asked for by name
