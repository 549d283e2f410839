"""What doctor sees of the machine."""

from __future__ import annotations

import pytest

from epicrag import checkup
from epicrag.config import load_config


@pytest.fixture
def settings(tmp_path):
    def load(**flags):
        return load_config({"home": str(tmp_path), **flags}, environ={}, cwd=tmp_path)

    return load


def state(checks, name):
    return next(check for check in checks if check.name == name)


def test_this_machine_can_run_it(settings):
    found = list(checkup.machine(settings()))
    assert {check.name for check in found} >= {"python", "packages", "faiss", "device", "memory"}
    assert all(check.state != "fail" for check in found)
    assert "torch" in state(found, "packages").what


def test_a_device_that_is_not_there_is_a_failure(settings):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    check = state(checkup.machine(settings(device="cuda")), "device")
    assert (check.state, check.exit_code) == ("fail", 9)


def test_a_package_that_is_not_installed_is_named(settings, monkeypatch):
    monkeypatch.setattr(checkup, "_version", lambda name: None if name == "numba" else "1")
    check = state(checkup.machine(settings()), "packages")
    assert (check.state, check.what) == ("fail", "numba not installed")


def test_a_model_that_is_not_here_is_a_failure_only_offline(settings):
    assert state(checkup.machine(settings(model="qwen2.5-7b")), "model").state == "warn"
    check = state(checkup.machine(settings(model="qwen2.5-7b", offline=True)), "model")
    assert (check.state, check.exit_code) == ("fail", 10)
    assert "epicrag models pull" in check.fix


def test_more_memory_than_there_is_is_a_warning(settings):
    check = state(checkup.machine(settings(kv_memory="900 TiB")), "memory")
    assert (check.state, "kv_memory" in check.fix) == ("warn", True)


def test_a_policy_that_cannot_be_read_is_a_failure(settings):
    check = state(checkup.machine(settings(link_policy="sideways(3)")), "settings")
    assert (check.state, check.exit_code) == ("fail", 2)


def test_a_full_disk_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(
        checkup.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1000})
    )
    assert [check.state for check in checkup.folder(tmp_path)] == ["ok", "warn"]
