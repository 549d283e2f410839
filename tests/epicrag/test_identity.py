"""A cheap identity changes with whatever may change the numbers of a model."""

from __future__ import annotations

import os

import pytest

from epicrag.identity import identity_of
from epicrag.quiet import hush


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "weights").write_text("abc")
    os.utime(tmp_path / "sub" / "weights", (1000, 1000))
    return tmp_path


def test_the_same_files_have_the_same_identity(folder):
    assert identity_of("m", folder, "cpu", None) == identity_of("m", folder, "cpu", None)


@pytest.mark.parametrize("change", ["name", "setting", "size", "time", "file", "gpu"])
def test_every_change_gives_another_identity(folder, monkeypatch, change):
    before = identity_of("m", folder, "cpu")
    weights = folder / "sub" / "weights"
    if change == "size":
        weights.write_text("abcd")
        os.utime(weights, (1000, 1000))
    elif change == "time":
        os.utime(weights, (1000, 1001))
    elif change == "file":
        weights.rename(folder / "sub" / "other")
    elif change == "gpu":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "changed")
    name, setting = ("n" if change == "name" else "m"), ("cuda" if change == "setting" else "cpu")
    assert identity_of(name, folder, setting) != before


def test_hushing_leaves_the_user_s_own_switches(monkeypatch):
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "debug")
    monkeypatch.delenv("HF_HUB_DISABLE_TELEMETRY", raising=False)
    hush()
    assert os.environ["TRANSFORMERS_VERBOSITY"] == "debug"
    assert os.environ.pop("HF_HUB_DISABLE_TELEMETRY") == "1"
