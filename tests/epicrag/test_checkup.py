"""What doctor sees of the machine."""

from __future__ import annotations

import sys
import types

import pytest
import torch

import epicrag.kernels
from epicrag import checkup
from epicrag.config import load_config
from epicrag.kernels import choice, native


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


KERNELS = ("kernel", "kernels")
OPERATIONS = ("segment_attention", "column_sums", "rotate", "move_rows", "append")


def kernels(settings, **flags):
    return {
        c.name: c for c in checkup.machine(settings(**flags)) if c.name.partition(" ")[0] in KERNELS
    }


def test_the_back_end_of_each_operation_is_named_and_why(settings, monkeypatch):
    monkeypatch.delenv("EPICRAG_KERNELS", raising=False)
    found = kernels(settings, device="cpu")
    names = (*OPERATIONS, "products", "decoder")
    assert tuple(found) == tuple(f"kernel {name}" for name in names)
    assert all(check.state == "ok" for check in found.values())
    assert "torch" in found["kernel rotate"].what
    for name, chosen in choice.choices(torch.device("cpu")).items():
        assert found[f"kernel {name}"].what == f"{chosen.name}: {chosen.why}"


def test_a_back_end_that_was_asked_for_is_said_to_be(settings, monkeypatch):
    monkeypatch.setenv("EPICRAG_KERNELS", "reference")
    found = kernels(settings, device="cpu")
    assert "EPICRAG_KERNELS" in found["kernel append"].what
    assert "kernels" not in found


def test_triton_asked_for_where_it_cannot_be_is_a_warning(settings, monkeypatch):
    monkeypatch.setenv("EPICRAG_KERNELS", "triton")
    monkeypatch.setattr(choice, "triton_lacks", lambda device: "no kernels for cpu")
    check = kernels(settings, device="cpu")["kernels"]
    assert (check.state, check.fix) == ("warn", "unset EPICRAG_KERNELS")
    assert "no kernels for cpu" in check.what


def test_compiled_products_that_cannot_be_say_why(settings, monkeypatch):
    monkeypatch.setattr(native, "why_not", lambda: "the processor lacks avx2")
    found = kernels(settings, device="cpu")
    assert found["kernel products"].what == "torch: the processor lacks avx2"
    assert "lacks avx2" in found["kernel decoder"].what


@pytest.fixture
def gpu(monkeypatch):
    """A GPU as far as doctor sees, on which Triton's first kernel ends as it is told."""
    monkeypatch.delenv("EPICRAG_KERNELS", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (8 << 30, 16 << 30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index=None: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index=None: (8, 0))
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)

    def first_kernel(result):
        def check(device):
            if isinstance(result, Exception):
                raise result
            return result

        rows = types.ModuleType("epicrag.kernels.triton_rows")
        rows.check = check
        monkeypatch.setitem(sys.modules, "epicrag.kernels.triton_rows", rows)
        monkeypatch.setattr(epicrag.kernels, "triton_rows", rows, raising=False)
        choice._triton_lacks.cache_clear()

    yield first_kernel
    choice._triton_lacks.cache_clear()


def test_on_a_gpu_triton_runs_them(settings, gpu):
    gpu(True)
    found = kernels(settings)
    assert "kernels" not in found
    assert all(found[f"kernel {name}"].what.startswith("triton: ") for name in OPERATIONS)
    assert found["kernel products"].what.startswith("torch: ")


def test_a_gpu_without_a_c_compiler_is_a_warning_that_says_what_mends_it(settings, gpu):
    gpu(RuntimeError("Failed to find C compiler. Please specify via CC environment variable"))
    found = kernels(settings)
    assert found["kernels"].state == "warn"
    assert "Failed to find C compiler" in found["kernels"].what
    assert "gcc" in found["kernels"].fix
    assert "C compiler" in found["kernel rotate"].what


def test_a_gpu_without_triton_is_a_warning(settings, gpu, monkeypatch):
    gpu(True)
    monkeypatch.setitem(sys.modules, "triton", None)
    check = kernels(settings)["kernels"]
    assert (check.state, check.fix) == ("warn", "pip install triton")


def test_an_old_gpu_is_a_warning_that_nothing_mends(settings, gpu, monkeypatch):
    gpu(True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index=None: (7, 5))
    check = kernels(settings, device="cuda:0")["kernels"]
    assert (check.state, check.fix) == ("warn", None)
    assert "7.5" in check.what


def test_no_kernels_are_told_of_for_a_device_that_is_not_there(settings):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert kernels(settings, device="cuda") == {}
