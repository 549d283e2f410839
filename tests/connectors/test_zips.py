"""An archive is opened within its limits, and whatever is wrong with it is said."""

import io
import struct
import zipfile
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epicrag.connectors.base import Limits, RefusedError
from epicrag.connectors.zips import open_zip
from epicrag.types import Unread


def zipped(members: dict[str, bytes], packing: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", packing) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def opened(data: bytes, limits: Limits | None = None) -> zipfile.ZipFile:
    archive = open_zip(data, limits or Limits())
    assert isinstance(archive, zipfile.ZipFile), archive
    return archive


def refused(data: bytes, limits: Limits | None = None) -> str:
    answer = open_zip(data, limits or Limits())
    assert isinstance(answer, Unread), answer
    return f"{answer.status}: {answer.reason}"


def lying(size: int) -> bytes:
    """An archive whose one member says that it unpacks to one byte."""
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = packed.compress(bytes(size)) + packed.flush()
    crc = zlib.crc32(bytes(size))
    fields = struct.pack("<HHHHHIII", 20, 0, 8, 0, 0, crc, len(body), 1)
    local = b"PK\x03\x04" + fields + struct.pack("<HH", 1, 0) + b"a" + body
    central = b"PK\x01\x02" + struct.pack("<H", 20) + fields
    central += struct.pack("<HHHHHII", 1, 0, 0, 0, 0, 0, 0) + b"a"
    end = struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)
    return local + central + b"PK\x05\x06" + end


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.binary(max_size=500), max_size=5))
def test_members_are_read_as_they_were_written(members: dict[str, bytes]):
    names = {name: f"{at}" for at, name in enumerate(members)}
    archive = opened(zipped({names[name]: data for name, data in members.items()}))
    assert {name: archive.read(names[name]) for name in members} == members


@given(st.data())
def test_damage_never_raises_anything_but_what_readers_expect(data: st.DataObject):
    whole = bytearray(zipped({"a": b"some text " * 50, "b/c": b"x"}))
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    archive = open_zip(bytes(whole[:cut]), Limits())
    if isinstance(archive, Unread):
        assert archive.reason
        return
    for member in archive.infolist():
        try:
            archive.read(member)
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RuntimeError):
            pass
        except (ValueError, OverflowError, OSError):
            pass


def test_reading_in_pieces_and_from_anywhere_equals_reading_at_once():
    content = bytes(range(256)) * 20_000
    archive = opened(zipped({"a": content}))
    with archive.open("a") as member:
        assert member.read(3) == content[:3]
        member.seek(1_000_000)
        assert member.tell() == 1_000_000
        buffer = bytearray(500)
        assert member.readinto(buffer) == 500  # type: ignore[attr-defined]
        assert bytes(buffer) == content[1_000_000:1_000_500]
        assert member.read(2_000_000) == content[1_000_500:3_000_500]
        assert member.read() == content[3_000_500:]


def test_what_is_no_archive_says_so():
    assert refused(b"") == "failed: 0 bytes: an empty file, not a ZIP archive"
    assert "not a ZIP archive" in refused(b"plain text")
    whole = zipped({"a": b"text" * 100})
    assert "cut off" in refused(whole[:-30])
    assert "damaged" in refused(whole[:20] + whole[-22:])


def test_limits_are_checked_before_anything_is_unpacked():
    many = zipped({f"{at}": b"" for at in range(30)})
    assert "30 members" in refused(many, Limits(max_archive_members=20))
    assert "--max-archive-members" in refused(many, Limits(max_archive_members=20))
    big = zipped({"a": bytes(3 << 20), "b": bytes(3 << 20)})
    assert "--max-inflated-mb" in refused(big, Limits(max_inflated_bytes=4 << 20))
    dense = zipped({"a": bytes(20 << 20)})
    assert "--max-inflation-ratio" in refused(dense)
    opened(zipped({"blank sheet": bytes(2 << 20)}))


def test_a_directory_of_no_entries_is_damage():
    end = struct.pack("<HHHHIIH", 0, 0, 0xFFFF, 0xFFFF, 90_000_000, 0, 0)
    hollow = b"PK\x03\x04" + bytes(90_000_000) + b"PK\x05\x06" + end
    assert "damaged" in refused(hollow)


def test_a_member_that_unpacks_to_more_than_it_says_gives_no_more():
    archive = opened(lying(50 << 20))
    with pytest.raises(zipfile.BadZipFile):
        archive.read("a")


def test_what_really_comes_out_is_counted_once_for_each_member():
    archive = opened(zipped({"a": bytes(600), "b": bytes(600)}), Limits(max_inflated_bytes=1_200))
    for _ in range(5):
        archive.read("a")
    archive.read("b")
    archive._limits = Limits(max_inflated_bytes=1_000)  # type: ignore[attr-defined]
    with pytest.raises(RefusedError, match="--max-inflated-mb"):
        archive.read("b")


def test_time_is_watched_while_members_are_read():
    archive = opened(zipped({"a": b"text"}), Limits(max_file_seconds=-1))
    with pytest.raises(RefusedError, match="--max-file-seconds"):
        archive.read("a")


def test_locked_members_are_refused():
    locked = bytearray(zipped({"a": b"text"}))
    locked[locked.index(b"PK\x01\x02") + 8] |= 1
    assert "locked" in refused(bytes(locked))


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_packings_that_cannot_be_counted_are_refused(packing: int):
    assert "ordinary ZIP compression" in refused(zipped({"a": b"text"}, packing))


def test_hostile_names_are_only_names():
    names = ["../../etc/passwd", "/abs", "C:\\x", "a/../../b"]
    archive = opened(zipped({name: name.encode() for name in names}))
    assert sorted(archive.read(name).decode() for name in archive.namelist()) == sorted(names)


@pytest.mark.parametrize("comment", [b"", b"a comment"])
def test_a_directory_that_lies_about_its_members_is_not_parsed(monkeypatch, comment):
    data = bytearray(zipped({f"{n}.txt": b"" for n in range(50)}))
    at = data.rfind(b"PK\x05\x06")
    data[at + 8 : at + 12] = struct.pack("<HH", 1, 1)
    data[at + 20 :] = struct.pack("<H", len(comment)) + comment
    monkeypatch.setattr(zipfile.ZipFile, "__init__", None)
    assert "50 members" in refused(bytes(data), Limits(max_archive_members=10))


def test_members_of_a_wide_directory_are_counted(monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 20)
    data = zipped({f"{n}.txt": b"" for n in range(50)})
    assert b"PK\x06\x06" in data
    assert len(opened(data).infolist()) == 50
    monkeypatch.setattr(zipfile.ZipFile, "__init__", None)
    assert "50 members" in refused(data, Limits(max_archive_members=10))


def test_a_list_of_an_archive_within_is_not_the_list_of_the_archive():
    """Cut off behind an inner archive: its list would be taken for the whole, and the first member be lost."""
    inner = zipped({"inner.md": b"inner words"})
    whole = zipped(
        {"first.md": b"first words", "inner.zip": inner, "last.md": b"last"}, zipfile.ZIP_STORED
    )
    cut = whole[: whole.index(inner) + len(inner)]
    assert zipfile.ZipFile(io.BytesIO(cut)).namelist() == ["inner.md"]  # as zipfile has it
    assert refused(cut).startswith("failed: cut off: its own member list is missing")
    assert refused(whole[: whole.index(inner) + len(inner) + 10]).startswith("failed: cut off")
    assert opened(whole).namelist() == ["first.md", "inner.zip", "last.md"]
    assert opened(b"MZ a program" + whole).read("first.md") == b"first words"
