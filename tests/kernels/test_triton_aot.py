"""The Triton kernels compile for the GPUs they are meant for, and none of them spills.

All in processes of their own: this one has Triton's interpreter, in which there is nothing to compile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from epicrag.kernels import triton_aot

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(
    900
)  # the compiler takes a minute of one core, and others may want it too


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command,
        check=False,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


def last_line(ran: subprocess.CompletedProcess[str]) -> Any:
    """The JSON that a process ends with; skips where there is nothing to compile with."""
    lines = ran.stdout.strip().splitlines()
    assert lines, ran.stderr
    found = json.loads(lines[-1])
    if "skipped" in found:
        pytest.skip(found["skipped"])
    return found


@pytest.fixture(scope="module")
def report() -> Any:
    ran = run("benchmarks/aot_report.py")
    return last_line(ran) | {"status": ran.returncode}


def test_no_kernel_spills_and_each_has_a_specimen(report: Any):
    assert not report["faults"], "\n".join(report["faults"])
    assert report["status"] == 0


def test_all_is_compiled_for_both_gpus(report: Any):
    assert report["modules"] == triton_aot.modules()
    names = {
        arch: sorted(r["name"] for r in report["rows"] if r["capability"] == arch)
        for arch in (80, 90)
    }
    assert names[80] == names[90]
    assert set(triton_aot.CAPABILITIES) == {80, 90} == set(triton_aot.SHARED_LIMIT)


def test_what_a_kernel_takes_is_within_what_there_is(report: Any):
    for row in report["rows"]:
        assert 0 < row["registers"] <= 255, row
        assert row["shared_bytes"] <= triton_aot.SHARED_LIMIT[row["capability"]], row
        assert row["spill_stores"] == row["spill_loads"] == row["stack"] == 0, row


HOARDER = '''
import json
import triton
import triton.language as tl
from epicrag.kernels import triton_aot

@triton.jit
def hoarder_kernel(x, out, N: tl.constexpr):
    """Holds a large block in one warp while it is read twice, and so has more than it has registers for."""
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(x + N + i)
    c, d = tl.load(x + 2 * N + i), tl.load(x + 3 * N + i)
    for step in range(2):
        s = tl.sum(a, 0) + tl.sum(b, 0) + tl.sum(c, 0) + tl.sum(d, 0)
        a, b, c, d = b * s + step, c - s, d + a * s, a + s
    tl.store(out + i, a + b + c + d)

why = triton_aot.lacking()
if why is not None:
    print(json.dumps({"skipped": why}))
    raise SystemExit
signature = {"x": "*fp32", "out": "*fp32", "N": "constexpr"}
found = {}
for n in (32, 2048):
    specimen = triton_aot.Specimen(f"hoarder-{n}", hoarder_kernel, signature, {"N": n}, num_warps=1)
    made = triton_aot.compile_specimen(specimen, 80)
    found[n] = [made.spill_stores, made.spill_loads, list(made.faults)]
refused = []
for wrong in ({"signature": {"x": "*fp32", "N": "constexpr"}}, {"constexprs": {}},
              {"divisible": frozenset({"y"})}):
    given = {"signature": signature, "constexprs": {"N": 32}} | wrong
    try:
        triton_aot.compile_specimen(triton_aot.Specimen("bad", hoarder_kernel, **given), 80)
    except ValueError as error:
        refused.append(str(error))
print(json.dumps({"found": found, "refused": refused}))
'''


def test_a_kernel_that_spills_is_found_out(tmp_path: Path):
    script = tmp_path / "hoarder.py"
    script.write_text(HOARDER, encoding="utf-8")
    ran = run(str(script))
    said = last_line(ran)
    assert said["found"]["32"] == [0, 0, []]
    stores, loads, faults = said["found"]["2048"]
    assert stores > 0 and loads > 0
    assert len(faults) == 1 and "hoarder-2048 on sm_80 spills" in faults[0]
    assert len(said["refused"]) == 3
    assert "the kernel ['x', 'out', 'N']" in said["refused"][0]


def test_what_takes_too_much_is_named():
    common: dict[str, Any] = {
        "name": "big",
        "kernel": "big_kernel",
        "spill_stores": 0,
        "spill_loads": 0,
        "barriers": 1,
        "num_warps": 4,
        "num_stages": 2,
        "seconds": 0.1,
    }
    big = triton_aot.Compiled(
        **common, capability=80, registers=256, stack=0, shared_bytes=164 * 1024
    )
    assert len(big.faults) == 2
    fits = triton_aot.Compiled(
        **common, capability=90, registers=255, stack=0, shared_bytes=164 * 1024
    )
    assert not fits.faults
    stacked = triton_aot.Compiled(**common, capability=90, registers=9, stack=8, shared_bytes=0)
    assert "stack" in stacked.faults[0]


def test_an_account_that_is_none_is_an_error():
    with pytest.raises(ValueError, match="does not say"):
        triton_aot.read_account("ptxas info : nothing of use")


def test_the_worst_function_of_an_account_counts():
    log = """
    ptxas info    : Function properties for f
        0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
    ptxas info    : Function properties for g
        16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
    ptxas info    : Used 42 registers, used 1 barriers, 400 bytes cmem[0]
    """
    assert triton_aot.read_account(log) == {
        "registers": 42,
        "stack": 16,
        "spill_stores": 12,
        "spill_loads": 20,
        "barriers": 1,
    }
