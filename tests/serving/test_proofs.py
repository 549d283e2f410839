"""A proof holds for what it was made for, is never made by damage, and costs nothing where nothing is writable."""

from __future__ import annotations

import pytest

from epicrag.serving.proofs import FILE_NAME, Proofs


def test_what_was_kept_holds_for_the_same_facts_alone(tmp_path):
    Proofs.of(tmp_path, "model", "float32").keep("reuse")
    assert Proofs.of(tmp_path, "model", "float32").holds("reuse")
    assert not Proofs.of(tmp_path, "model", "float32").holds("lean")
    assert not Proofs.of(tmp_path, "model", "bfloat16").holds("reuse")
    assert not Proofs.of(tmp_path, "another", "float32").holds("reuse")


def test_what_was_found_is_kept_with_the_proof(tmp_path):
    proofs = Proofs.of(tmp_path, "model")
    assert proofs.text("lean") is None
    proofs.keep("lean", "{}")
    proofs.keep("reuse")
    assert (proofs.text("lean"), proofs.text("reuse")) == ("{}", "")


def test_another_release_or_thread_count_proves_anew(tmp_path, monkeypatch):
    import torch

    Proofs.of(tmp_path, "model").keep("reuse")
    with monkeypatch.context() as patch:
        patch.setattr("importlib.metadata.version", lambda package: "99")
        assert not Proofs.of(tmp_path, "model").holds("reuse")
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 99)
        assert not Proofs.of(tmp_path, "model").holds("reuse")
    assert Proofs.of(tmp_path, "model").holds("reuse")


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 3}', '{"a": ["reuse"]}', "\x00", "null"])
def test_damaged_file_proves_nothing_and_is_replaced(tmp_path, text):
    proofs = Proofs.of(tmp_path, "model")
    (tmp_path / FILE_NAME).write_text(text)
    assert not proofs.holds("reuse")
    proofs.keep("reuse")
    assert proofs.holds("reuse")


def test_where_nothing_can_be_written_nothing_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    proofs = Proofs.of(tmp_path / "file", "model")
    proofs.keep("reuse")
    assert not proofs.holds("reuse")
    nowhere = Proofs.of(None, "model")
    nowhere.keep("reuse")
    assert not nowhere.holds("reuse")


def test_old_proofs_make_room(tmp_path):
    for n in range(100):
        Proofs(tmp_path, f"{n}").keep("reuse")
    assert Proofs(tmp_path, "99").holds("reuse")
    assert not Proofs(tmp_path, "0").holds("reuse")
