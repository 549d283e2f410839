"""Every operation of the kernels on the geometry of a 1B and an 8B model, against the machine's ceilings and torch.

Bytes and operations are counted as what the operation cannot do without; `copy` and `matrix` are the shares of the
two ceilings that it reaches by them, a large copy and a large product of matrices in the same run. Chunks of 512
tokens lie in the pool in another order than they are read in. `torch`: its scaled_dot_product_attention (elsewhere
its plain operations) on keys that stand side by side and are turned already; `+ pool`: with the gathering and
turning that it takes to get there. `first`: ours with the tables made anew, as in the first layer of a pass.
Times are the shortest of many calls. Prints a table, and a line of JSON.

    python benchmarks/bench_kernels.py [--device cpu|cuda] [--quick] [--tokens 4096 16384] [--only attention rotate]
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from kernel_cases import GEOMETRIES, OPERATIONS, Case, Geometry, Place, cases
from timing import COLD, Call, Ceilings, Clock, ceilings, show

from epicrag.kernels import ops

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def row_of(case: Case, clock: Clock) -> dict[str, Any]:
    def ms(call: Call | None) -> float | None:
        return None if call is None else figures(clock.best(call) * 1e3)

    return {
        "operation": case.op,
        "model": case.geometry,
        "what": case.what,
        "MB": figures(case.n_bytes / 1e6),
        "GFLOP": figures(case.n_operations / 1e9),
        "ms": ms(case.ours),
        "copy": None,
        "matrix": None,
        "first": ms(case.first),
        "torch": ms(case.torchs),
        "+ pool": ms(case.torchs_whole),
    }


def shares(n_bytes: int, n_operations: int, ms: float, limits: Ceilings) -> dict[str, str]:
    """Of the ceilings that so much in so long a time reaches."""
    return {
        "copy": f"{n_bytes / ms * 1e3 / limits.bytes_per_s:.0%}",
        "matrix": f"{n_operations / ms * 1e3 / limits.operations_per_s:.0%}",
    }


def figures(number: float) -> float:
    """Three of them: more were never measured."""
    return float(f"{number:.3g}")


def measure(
    place: Place,
    geometries: Sequence[Geometry],
    tokens: Sequence[int],
    only: Sequence[str],
    clock: Clock,
) -> dict[str, Any]:
    limits = ceilings(replace(clock, seconds=4 * clock.seconds), place.dtype)
    rows = []
    for case in cases(place, geometries, tokens, only):
        rows.append((case.n_bytes, case.n_operations, row_of(case, clock)))
        del case  # before the next one is made
        gc.collect()
    limits = limits.or_better(
        ceilings(clock, place.dtype)
    )  # a machine that is shared has better moments
    return {
        "machine": machine(place.device),
        "clock": "processor" if clock.by_processor else "wall",
        "dtype": str(place.dtype).removeprefix("torch."),
        "copy_gb_per_s": round(limits.bytes_per_s / 1e9, 1),
        "matrix_gflops": round(limits.operations_per_s / 1e9, 1),
        "back_ends": {op: one.name for op, one in ops.choices(torch.device(place.device)).items()},
        "torch": torch.__version__,
        "results": [row | shares(*counted, row["ms"], limits) for *counted, row in rows],
    }


def machine(device: str) -> str:
    if device == "cpu":
        return f"{platform.machine()}, {torch.get_num_threads()} threads"
    return torch.cuda.get_device_name(torch.device(device))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    there = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=there)
    parser.add_argument("--dtype", choices=DTYPES, help="float32 on a CPU, else bfloat16")
    parser.add_argument("--models", nargs="+", choices=GEOMETRIES, default=list(GEOMETRIES))
    parser.add_argument("--tokens", nargs="+", type=int, help="cached; multiples of 512")
    parser.add_argument("--only", nargs="+", choices=OPERATIONS, default=list(OPERATIONS))
    parser.add_argument("--seconds", type=float, help="for each number")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--processor", action="store_true", help="its time and not the wall's: with one thread"
    )
    parser.add_argument("--quick", action="store_true", help="small, to see that it works")
    args = parser.parse_args()
    if args.device != "cpu" and not torch.cuda.is_available():
        raise SystemExit(f"there is no {args.device} here: torch {torch.__version__} finds no GPU")
    if args.processor and (args.device != "cpu" or args.threads != 1):
        raise SystemExit(
            "--processor counts the time of all threads: it is for --device cpu --threads 1"
        )
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    on_cpu = args.device == "cpu"
    dtype = DTYPES[args.dtype or ("float32" if on_cpu else "bfloat16")]
    tokens = args.tokens or ([1024] if args.quick else [4096] if on_cpu else [4096, 16384, 32768])
    seconds = args.seconds or (0.05 if args.quick else 0.3)
    clock = Clock(seconds, args.device, args.processor)
    place = Place(args.device, dtype, cold=COLD // 10 if args.quick else COLD)
    if any(n % place.chunk or n < place.chunk for n in tokens):
        raise SystemExit(f"--tokens are multiples of {place.chunk}")
    chosen = [GEOMETRIES[name] for name in args.models]
    result = measure(place, chosen, tokens, args.only, clock)
    print(
        f"{result['machine']}, {result['dtype']}: copies {result['copy_gb_per_s']} GB/s, "
        f"multiplies {result['matrix_gflops']} GFLOP/s"
    )
    show(result["results"])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
