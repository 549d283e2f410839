"""What the Triton kernels take of a GPU, compiled ahead of time without one: a table, then a line of JSON.

Ends with status 1 where a kernel spills, takes more than a GPU has, or has no specimen; with 0 and a reason where
Triton or its assembler is not there.

    python benchmarks/aot_report.py [--only triton_rows] [--match append] [--arch 80 90] [--jobs 2]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # functions of the interpreter cannot be compiled

from epicrag.kernels import triton_aot

Task = tuple[str, int, int]
"""A file with kernels, the number of one of its specimens, and a compute capability."""


@cache
def specimens(module: str) -> Sequence[triton_aot.Specimen]:
    return triton_aot.specimens_of(module)


def compiled(task: Task) -> triton_aot.Compiled | str:
    """One specimen compiled; what Triton said where it does not compile."""
    module, index, capability = task
    specimen = specimens(module)[index]
    try:
        return triton_aot.compile_specimen(specimen, capability)
    except Exception as error:  # noqa: BLE001 - whatever Triton says belongs in the report
        lines = str(error).strip().splitlines() or [""]
        return (
            f"{specimen.name} on sm_{capability}: {type(error).__name__}: {' '.join(lines)[:600]}"
        )


def report(modules: Sequence[str], match: str, arches: Sequence[int], jobs: int) -> dict[str, Any]:
    """All rows, and all that is wrong. `jobs`: how many processes compile."""
    start = time.perf_counter()
    tasks = [
        (module, index, arch)
        for module in modules
        for index, specimen in enumerate(specimens(module))
        if match in specimen.name
        for arch in arches
    ]
    if jobs > 1 and len(tasks) > 1:
        with multiprocessing.get_context("fork").Pool(jobs) as pool:
            found = pool.map(compiled, tasks, chunksize=1)
    else:
        found = [compiled(task) for task in tasks]
    rows = [x for x in found if not isinstance(x, str)]
    faults = [x for x in found if isinstance(x, str)]
    faults += [fault for row in rows for fault in row.faults]
    if not match:
        faults += [fault for module in modules for fault in unseen(module)]
    return {
        "modules": list(modules),
        "rows": [asdict(row) for row in rows],
        "faults": faults,
        "seconds": round(time.perf_counter() - start, 2),
        **versions(),
    }


def unseen(module: str) -> list[str]:
    """Kernels of a file that no specimen is of, and names that two specimens have."""
    seen = {specimen.kernel.__name__ for specimen in specimens(module)}
    names = [specimen.name for specimen in specimens(module)]
    return [
        f"{module}: no specimen of {k}" for k in triton_aot.kernels_of(module) if k not in seen
    ] + [
        f"{module}: two specimens are named {name}"
        for name in sorted({n for n in names if names.count(n) > 1})
    ]


def versions() -> dict[str, str]:
    import triton

    return {"triton": triton.__version__, "ptxas": triton.knobs.nvidia.ptxas.version}


def table(rows: Sequence[dict[str, Any]]) -> str:
    heads = {
        "name": "specimen",
        "capability": "sm",
        "num_warps": "warps",
        "num_stages": "stages",
        "registers": "registers",
        "shared_bytes": "shared",
        "spill_stores": "spilled",
        "spill_loads": "read back",
        "barriers": "barriers",
        "seconds": "seconds",
    }
    lines = [list(heads.values())] + [[str(row[key]) for key in heads] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    out = [
        " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) for line in lines
    ]
    out.insert(1, " | ".join("-" * w for w in widths))
    return "\n".join(f"| {line} |" for line in out)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="*", default=None, help="files with kernels; all if not said"
    )
    parser.add_argument("--match", default="", help="only specimens with this in their name")
    parser.add_argument("--arch", nargs="*", type=int, default=list(triton_aot.CAPABILITIES))
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    asked = parser.parse_args(arguments)
    why = triton_aot.lacking()
    if why is not None:
        print(json.dumps({"skipped": why}))
        return 0
    found = report(asked.only or triton_aot.modules(), asked.match, asked.arch, asked.jobs)
    print(table(found["rows"]))
    for fault in found["faults"]:
        print(f"wrong: {fault}", file=sys.stderr)
    print(json.dumps(found))
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
