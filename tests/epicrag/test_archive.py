"""An archive is taken for one only if every byte and every line of it is what was written."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import zipfile

import numpy as np
import pytest

from epicrag.archive import CHUNKS, DOCUMENTS, MANIFEST, VECTORS, Archive
from epicrag.errors import DamagedError, EpicragError, MismatchError, UsageError
from epicrag.export import export
from epicrag.restore import restore


@pytest.fixture
def archive(museum, tmp_path):
    path = tmp_path / "museum.zip"
    with museum.open() as pipeline:
        export(pipeline, path, kv=True)
    return path


def rewritten(path, change, *, seal=True):
    """Write the archive again with `change(files)`; `seal` makes its checksums fit what is now in it."""
    with zipfile.ZipFile(path) as file:
        files = {name: file.read(name) for name in file.namelist()}
    files = change(files) or files
    if seal:
        manifest = json.loads(files[MANIFEST])
        manifest["files"] = {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in files.items()
            if name != MANIFEST
        }
        files[MANIFEST] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as file:
        for name, data in files.items():
            file.writestr(name, data)
    return path


def first_line(**changes):
    def change(files):
        first, _, rest = files[CHUNKS].partition(b"\n")
        line = {**json.loads(first), **changes}
        files[CHUNKS] = json.dumps(line).encode() + b"\n" + rest

    return change


def in_manifest(**changes):
    def change(files):
        files[MANIFEST] = json.dumps({**json.loads(files[MANIFEST]), **changes}).encode()

    return change


def matrix(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def replaced(name, data):
    return lambda files: files.update({name: data})


def refused(bench, path, kind, index):
    with bench.open(index=index) as pipeline, pytest.raises(kind) as told:
        restore(pipeline, path)
    with bench.open(index=index) as pipeline:
        assert pipeline.catalog.counts().documents == 0
        assert not pipeline.kv_store.keys()
    return told.value


def test_what_was_written_is_read(archive):
    with Archive.open(archive) as opened:
        for name in opened.manifest.files:
            opened.verify(name)
        assert [line.chunk.document for line in opened.chunks()] == [
            document.path for document in opened.documents()
        ]
        assert opened.vectors().shape == (3, 256)
        assert len(opened.keys) == opened.manifest.kv == 4


@pytest.mark.parametrize(
    "change",
    [
        first_line(text="The door code is 1234."),
        first_line(ordinal=5),
        first_line(n_tokens="many"),
        first_line(text=7),
        first_line(windows=2),
        first_line(windows=-1),
        first_line(document="/nowhere"),
        first_line(kv="../../../etc/passwd"),
        first_line(place=None),
        first_line(start=1 << 64),
        first_line(title="\ud800"),
        *(
            first_line(
                place={**dict.fromkeys(("page", "lines", "cells", "heading", "part")), **place}
            )
            for place in (
                {"page": "3"},
                {"page": []},
                {"lines": [1]},
                {"lines": ["a", "b"]},
                {"cells": [1, 2]},
            )
        ),
        replaced(CHUNKS, b"[1]\n"),
        replaced(CHUNKS, b"{\n"),
        replaced(CHUNKS, b"\xff\n"),
        replaced(CHUNKS, b""),
        replaced(DOCUMENTS, b'{"path": 1}\n'),
        replaced(VECTORS, b"nonsense"),
        replaced(VECTORS, matrix(np.full((3, 256), np.nan, np.float32))),
        replaced(VECTORS, matrix(np.ones((3, 256), np.float32))),
        replaced(
            VECTORS, matrix(np.eye(3, 256, dtype=np.float32)).replace(b"(3, 256)", b"(3e9999,")
        ),
        replaced("kv/../../evil.safetensors", b"x"),
        replaced("/etc/evil", b"x"),
        replaced("kv/abc.safetensors", b"x"),
        in_manifest(chunks=9),
        in_manifest(documents="three"),
        in_manifest(embedder={}),
        in_manifest(embedder={"name": "stub", "fingerprint": "stub-1", "dim": 256, "more": 1}),
        in_manifest(embedder={"name": ["stub"], "fingerprint": "stub-1", "dim": 256}),
        in_manifest(settings={"a": 1}),
        in_manifest(surprise=1),
        lambda files: {name: data for name, data in files.items() if name != VECTORS},
    ],
)
def test_whatever_does_not_fit_is_damage_and_nothing_comes_in(museum, archive, change, tmp_path):
    refused(museum, rewritten(archive, change), DamagedError, tmp_path / "new")


@pytest.mark.parametrize("name", [DOCUMENTS, CHUNKS, VECTORS])
def test_a_changed_byte_does_not_pass_its_checksum(museum, archive, name, tmp_path):
    def change(files):
        data = bytearray(files[name])
        data[len(data) // 2] ^= 1
        files[name] = bytes(data)

    error = refused(museum, rewritten(archive, change, seal=False), DamagedError, tmp_path / "new")
    assert name in error.message


def test_a_pickle_among_the_vectors_is_not_run(museum, archive, tmp_path):
    buffer = io.BytesIO()
    np.save(buffer, np.array([print], dtype=object), allow_pickle=True)
    change = replaced(VECTORS, buffer.getvalue())
    refused(museum, rewritten(archive, change), DamagedError, tmp_path / "new")


def test_a_cut_or_torn_file_is_damage(museum, archive, tmp_path):
    whole = archive.read_bytes()
    for n in (0, 100, len(whole) // 2, len(whole) - 1):
        archive.write_bytes(whole[:n])
        refused(museum, archive, DamagedError, tmp_path / "new")
    for at in range(200, len(whole), len(whole) // 23):
        torn = bytearray(whole)
        torn[at : at + 4] = b"\0\xff\0\xff"
        archive.write_bytes(bytes(torn))
        with museum.open(index=tmp_path / "new") as pipeline:
            try:  # a byte that means nothing, a date for one, may change
                restore(pipeline, archive, merge=True)
            except EpicragError:
                continue


def test_a_name_that_is_in_it_twice_is_damage(museum, archive, tmp_path):
    with zipfile.ZipFile(archive, "a") as file, pytest.warns(UserWarning):
        file.writestr(CHUNKS, b"")
    refused(museum, archive, DamagedError, tmp_path / "new")


def test_an_archive_of_a_newer_version_is_a_mismatch(museum, archive, tmp_path):
    path = rewritten(archive, in_manifest(schema_version=2))
    assert "update epicrag" in refused(museum, path, MismatchError, tmp_path / "new").hint


def test_another_zip_and_a_file_that_is_not_there_are_usage_errors(museum, tmp_path):
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(other, "w") as file:
        file.writestr("a.txt", "hello")
    refused(museum, other, UsageError, tmp_path / "new")
    refused(museum, tmp_path / "nowhere.zip", UsageError, tmp_path / "new")


def test_damaged_kv_is_left_out_and_said(museum, archive, tmp_path):
    def change(files):
        name = next(name for name in files if name.startswith("kv/"))
        files[name] = files[name][:-1] + b"\x7f"

    with museum.open(index=tmp_path / "new") as pipeline:
        done = restore(pipeline, rewritten(archive, change))
        assert done.kv == 3
        assert "not whole" in done.notes[0]
        assert len(pipeline.kv_store.keys()) == 3


def test_what_a_killed_export_left_is_replaced_and_two_do_not_write_at_once(museum, tmp_path):
    left = tmp_path / ".a.zip.tmp"
    left.write_bytes(b"half an archive" * 10_000)
    with museum.open() as pipeline:
        export(pipeline, tmp_path / "a.zip")
        assert not left.exists()
        with (
            left.open("wb") as other,
            pytest.raises(UsageError, match=r"another .* writing a\.zip"),
        ):
            fcntl.flock(other, fcntl.LOCK_EX)
            export(pipeline, tmp_path / "a.zip", force=True)
        left.unlink()
        with pytest.raises(ZeroDivisionError):
            export(pipeline, tmp_path / "b.zip", progress=lambda event: 1 / 0, kv=True)
    assert [path.name for path in tmp_path.glob("*.zip")] == ["a.zip"]
    assert not list(tmp_path.glob(".*.tmp"))
    with zipfile.ZipFile(tmp_path / "a.zip") as file:
        assert file.testzip() is None
