"""Members of archives are found, read and bounded, and nothing is ever written."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import re
import tarfile
import zipfile
from pathlib import Path

import pytest

from epicrag.connectors.archive import is_archive
from epicrag.connectors.base import Limits
from epicrag.connectors.folder import Rules, walk
from epicrag.types import Document, Unread


def make_zip(files, *, packing=zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", packing) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def make_tar(files, mode="w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


FILES = {"b.md": b"# Title\n\nsecond", "inner/a.txt": b"first", "inner/x.bin": b"\0\1"}
KINDS = {
    "a.zip": make_zip(FILES),
    "a.tar": make_tar(FILES),
    "a.tar.gz": make_tar(FILES, "w:gz"),
    "a.tgz": make_tar(FILES, "w:gz"),
    "a.tar.bz2": make_tar(FILES, "w:bz2"),
    "a.tar.xz": make_tar(FILES, "w:xz"),
}


def found(folder: Path, name: str, data: bytes, **limits):
    (folder / name).write_bytes(data)
    return walk([folder], limits=Limits(**limits))


def names(walked, folder: Path) -> list[str]:
    return [entry.path.removeprefix(f"{folder.resolve().as_posix()}/") for entry in walked.entries]


def reasons(walked) -> dict[str, tuple[str, str | None]]:
    return {r.path.rpartition("!/")[2]: (r.status, r.reason) for r in walked.reports}


@pytest.mark.parametrize("name", KINDS)
def test_members_are_documents_of_their_own(tmp_path, name):
    walked = found(tmp_path, name, KINDS[name])
    assert names(walked, tmp_path) == [f"{name}!/{member}" for member in FILES]
    documents = [entry.read() for entry in reversed(walked.entries)]  # not in the archive's order
    assert isinstance(documents[0], Unread) and documents[0].status == "unsupported"
    assert [d.text for d in documents[1:] if isinstance(d, Document)] == [
        "first",
        "# Title\n\nsecond",
    ]
    for entry, data in zip(walked.entries, FILES.values(), strict=True):
        assert entry.digest() == hashlib.sha256(data).hexdigest()
    document = walked.entries[0].read()
    assert isinstance(document, Document)
    assert (document.path, document.digest) == (walked.entries[0].path, walked.entries[0].digest())
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


@pytest.mark.parametrize(
    ("ending", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)]
)
def test_one_packed_file_is_an_archive_of_one(tmp_path, ending, pack):
    walked = found(tmp_path, f"notes.md.{ending}", pack(b"# Notes"))
    assert names(walked, tmp_path) == [f"notes.md.{ending}!/notes.md"]
    document = walked.entries[0].read()
    assert isinstance(document, Document) and document.media == "text/markdown"


@pytest.mark.parametrize(
    "name", ["a.docx", "a.xlsx", "a.epub", "a.jar", "a.odt", "zip", "a.gz.txt"]
)
def test_office_files_and_programs_are_no_archives(name):
    assert not is_archive(name)


def test_members_are_hidden_and_ignored_as_files_are(tmp_path):
    (tmp_path / ".gitignore").write_text("*.log\nbuild/\n")
    files = ["ok.txt", "x.log", ".secret/a.txt", ".git/config", "__MACOSX/._ok.txt", "build/b.txt"]
    data = make_zip({name: b"text" for name in files})
    assert names(found(tmp_path, "a.zip", data), tmp_path) == ["a.zip!/ok.txt"]
    walked = walk([tmp_path], rules=Rules(hidden=True, ignore_files=False))
    left = [name.rpartition("!/")[2] for name in names(walked, tmp_path)]
    assert left == [".gitignore", "ok.txt", "x.log", ".secret/a.txt", "build/b.txt"]


def test_hostile_names_are_said_and_never_read(tmp_path):
    files = {"/etc/x.txt": b"1", "../up.txt": b"2", "a/../../b.txt": b"3", "C:\\w.txt": b"4"}
    walked = found(tmp_path, "a.zip", make_zip({**files, "sub\\ok.txt": b"5", "./y.txt": b"6"}))
    assert names(walked, tmp_path) == ["a.zip!/sub/ok.txt", "a.zip!/y.txt"]
    assert {reason for _, reason in reasons(walked).values()} == {
        "its name leads out of the archive"
    }
    assert len(walked.reports) == 4


def test_links_and_devices_in_archives_are_not_followed(tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind in (("link.txt", tarfile.SYMTYPE), ("hard.txt", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
        device = tarfile.TarInfo("null.txt")
        device.type = tarfile.CHRTYPE
        archive.addfile(device)
    walked = found(tmp_path, "a.tar", buffer.getvalue())
    assert walked.entries == () and set(reasons(walked)) == {"link.txt", "hard.txt", "null.txt"}
    info = zipfile.ZipInfo("link.txt")
    info.external_attr = 0o120777 << 16
    walked = found(tmp_path, "b.zip", make_zip({info: b"/etc/passwd"}))
    assert "link or device" in (reasons(walked)["link.txt"][1] or "")


def test_archives_in_archives_are_read_as_deep_as_allowed(tmp_path):
    two = make_zip({"deep.txt": b"two down"})
    one = make_tar({"one.txt": b"one down", "two.zip": two}, "w:gz")
    data = make_zip({"one.tgz": one, "top.txt": b"top"})
    walked = found(tmp_path, "a.zip", data)
    assert names(walked, tmp_path) == ["a.zip!/top.txt", "a.zip!/one.tgz!/one.txt"]
    assert [e.read().text for e in walked.entries] == ["top", "one down"]
    assert "max_archive_depth" in (reasons(walked)["two.zip"][1] or "")
    walked = found(tmp_path, "a.zip", data, max_archive_depth=2)
    assert [e.read().text for e in walked.entries] == ["top", "one down", "two down"]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.zip", make_zip({"zeros.txt": bytes(40 << 20)})),
        ("a.tar.gz", make_tar({"zeros.txt": bytes(40 << 20)}, "w:gz")),
        ("a.tar.xz", make_tar({"zeros.txt": bytes(40 << 20)}, "w:xz")),
    ],
)
def test_what_unpacks_to_too_much_is_refused(tmp_path, name, data):
    walked = found(tmp_path, name, data, max_inflated_bytes=20 << 20, max_inflation_ratio=10**6)
    assert walked.entries == () and "--max-inflated-mb" in (walked.reports[0].reason or "")
    walked = found(tmp_path, name, data)
    assert walked.entries == () and "--max-inflation-ratio" in (walked.reports[0].reason or "")


def test_a_packed_file_that_unpacks_to_too_much_is_refused_when_it_is_read(tmp_path):
    walked = found(tmp_path, "zeros.txt.gz", gzip.compress(bytes(40 << 20)))
    unread = walked.entries[0].read()
    assert isinstance(unread, Unread) and "--max-inflation-ratio" in unread.reason
    with pytest.raises(OSError):
        walked.entries[0].digest()


def test_a_member_larger_than_a_file_may_be_is_skipped(tmp_path):
    data = make_zip({"big.txt": b"word " * 500_000, "ok.txt": b"1"})
    walked = found(tmp_path, "a.zip", data, max_file_bytes=1 << 20)
    assert names(walked, tmp_path) == ["a.zip!/ok.txt"]
    assert "--max-file-mb" in (reasons(walked)["big.txt"][1] or "")


@pytest.mark.parametrize("pack", [make_zip, make_tar])
def test_too_many_members_are_refused(tmp_path, pack):
    name = "a.zip" if pack is make_zip else "a.tar"
    data = pack({f"{n}.txt": b"1" for n in range(20)})
    walked = found(tmp_path, name, data, max_archive_members=10)
    assert walked.entries == () and "--max-archive-members" in (walked.reports[0].reason or "")


def test_reading_an_archive_takes_no_longer_than_allowed(tmp_path):
    walked = found(tmp_path, "a.tar.gz", KINDS["a.tar.gz"], max_file_seconds=0.0)
    assert walked.entries == () and "--max-file-seconds" in (walked.reports[0].reason or "")


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tar.xz"])
@pytest.mark.parametrize("cut", [0, 1, 40, 100])
def test_a_damaged_archive_fails_and_what_it_held_is_not_taken_for_gone(tmp_path, name, cut):
    walked = found(tmp_path, name, KINDS[name][:cut])
    assert walked.entries == ()
    (report,) = walked.reports
    assert report.status == "failed" and report.path in walked.spare


def test_a_zip_that_needs_a_password_says_so(tmp_path):
    data = bytearray(make_zip({"a.txt": b"secret"}))
    at = data.find(b"PK\x01\x02")
    data[at + 8] |= 1
    data[6] |= 1
    walked = found(tmp_path, "a.zip", bytes(data))
    assert "password" in (walked.reports[0].reason or "")


def test_names_that_are_utf8_and_do_not_say_so_are_readable(tmp_path):
    data = make_zip({"caf\u00e9.txt": b"1"})
    plain = bytearray(data)
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        plain[data.find(mark) + at + 1] &= ~0x08
    assert names(found(tmp_path, "a.zip", bytes(plain)), tmp_path) == ["a.zip!/caf\u00e9.txt"]


def test_a_member_without_a_name_costs_nothing_else(tmp_path):
    data = make_zip({"Qzzz": b"1", "Qyy": b"2", "b.md": b"3"}).replace(b"Q", b"\0")
    walked = found(tmp_path, "a.zip", data)
    assert names(walked, tmp_path) == ["a.zip!/b.md"]
    assert [r.reason for r in walked.reports if "no name" in (r.reason or "")]


@pytest.mark.parametrize("name", ["a.zip", "a.tar"])
def test_whatever_a_library_raises_costs_its_archive(tmp_path, monkeypatch, name):
    def fault(*args, **more):
        raise AssertionError("a fault in a library")

    walked = found(tmp_path, name, KINDS[name])
    monkeypatch.setattr(zipfile.ZipFile, "infolist", fault)
    monkeypatch.setattr(tarfile, "open", fault)
    (report,) = walk([tmp_path]).reports
    assert report.status == "failed" and "a fault in a library" in (report.reason or "")
    walked.entries[0].shelf._opened.clear()
    unread = walked.entries[0].read()
    assert isinstance(unread, Unread) and "a fault in a library" in unread.reason


MANY = make_tar({f"m{n}.md": b"words " * 100 for n in range(10)})


@pytest.mark.parametrize("packing", ["", ".gz"])
@pytest.mark.parametrize(
    "damaged",
    [
        MANY[: 4 * 1536],  # cut where a member ends
        MANY[: 4 * 1536 + 100],
        MANY[: 4 * 1536 + 700],
        MANY[: 4 * 1536] + b"\xff" + MANY[4 * 1536 + 1 :],
        MANY[: 4 * 1536] + bytes(512) + MANY[4 * 1536 + 512 :],  # an empty head
        MANY[: 4 * 1536] + bytes(512),
    ],
)
def test_a_tar_that_cannot_be_listed_whole_is_taken_not_at_all(tmp_path, damaged, packing):
    data = gzip.compress(damaged) if packing else damaged
    walked = found(tmp_path, "a.tar" + packing, data)
    (report,) = walked.reports
    assert walked.entries == () and report.status == "failed" and report.path in walked.spare
    assert re.search("after its member 'm[34].md'", report.reason or "")


def test_an_empty_tar_is_no_damage(tmp_path):
    walked = found(tmp_path, "a.tar", make_tar({}))
    assert (walked.entries, walked.reports) == ((), ())
