"""Whether the compiled kernels run, and what is said where they do not."""

import subprocess
import sys

import pytest

from epicrag.kernels import native

again = native.why_not.__wrapped__  # not the cached answer


def test_numba_is_not_imported_before_it_is_wanted():
    code = "import sys; from epicrag.kernels import native; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_torch_keeps_the_threads_that_it_was_given():
    """numba starts threads of its own when it is first used, and sets OpenMP's number, which is torch's, too."""
    code = (
        "import torch; torch.get_num_threads(); torch.set_num_threads(1); "
        "from epicrag.kernels import native; native.why_not(); print(torch.get_num_threads())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_without_numba_the_reason_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    assert "numba cannot be imported" in again()


def test_a_compiler_that_is_switched_off_is_a_reason(monkeypatch: pytest.MonkeyPatch):
    numba = pytest.importorskip("numba")
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert "switched off" in again()


def test_a_processor_that_lacks_instructions_is_a_reason(monkeypatch: pytest.MonkeyPatch):
    numba = pytest.importorskip("numba")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(numba.config, "CPU_NAME", "generic")
    assert again() == "the processor lacks avx2, fma, f16c"
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert "not riscv64" in again()


def test_a_compiler_that_fails_is_a_reason(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("numba")
    if native.why_not() is not None:
        pytest.skip(str(native.why_not()))
    from epicrag.kernels import native_jit

    def fail(bits: object) -> float:
        raise RuntimeError("no room\nfor code")

    monkeypatch.setattr(native_jit, "check", fail)
    assert again() == "numba cannot compile here: no room"
