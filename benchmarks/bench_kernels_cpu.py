"""The compiled kernels against torch's: products with narrow weights, and attention of few queries.

Each number is the best of many calls, on layers taken in turn so that weights and keys come from memory as they do
in a forward pass. GB/s counts the bytes of weights, or of keys and values, that one call must read.

    python benchmarks/bench_kernels_cpu.py [--threads 2] [--seconds 0.3] [--only linear attention]
"""

from __future__ import annotations

import argparse
import json
import platform
from itertools import cycle
from typing import Any

import torch
from timing import COLD, Call, Clock, show

from epicrag.kernels import cpu, native, ops

PRODUCTS = {"output": (49152, 576), "up": (1536, 576), "down": (576, 1536)}
GROUPS, REPEAT, DIM = 3, 3, 64
CHUNK = 500


def best(call: Call, seconds: float) -> float:
    return Clock(seconds).best(call)


def products(seconds: float) -> list[dict[str, Any]]:
    rows = []
    for name, (n, k) in PRODUCTS.items():
        copies = max(2, COLD // (n * k * 4) + 1)
        wide = [torch.randn(n, k) for _ in range(copies)]
        for kind in ("float32 (torch)", *native.KINDS):
            packed = [native.pack(w, kind) for w in wide] if kind in native.KINDS else []  # type: ignore[arg-type]
            for m in (1, 4, 8, 16, 32, 64):
                x, out = torch.randn(m, k), torch.empty(m, n)
                weights = cycle(packed or wide)

                def call(weights: Any = weights, x: Any = x, out: Any = out) -> None:
                    weight = next(weights)
                    if isinstance(weight, native.Packed):
                        native.linear(x, weight, out)
                    else:
                        torch.mm(x, weight.T, out=out)

                taken = best(call, seconds)
                n_bytes = packed[0].n_bytes if packed else n * k * 4
                rows.append(
                    {
                        "what": f"{name} {n}x{k}",
                        "kind": kind,
                        "m": m,
                        "us": round(taken * 1e6, 1),
                        "GB/s": round(n_bytes / taken / 1e9, 1),
                        "GFLOPS": round(2 * m * n * k / taken / 1e9, 1),
                    }
                )
    return rows


def attention(seconds: float) -> list[dict[str, Any]]:
    rows = []
    rotary = ops.Rotary(1.0 / (10000 ** (torch.arange(0, DIM, 2) / DIM)), DIM)
    kind = ops.LayerKind(rotary)
    for n in (3000, 8000):
        n_bytes = GROUPS * n * DIM * 4 * 2
        layers = COLD // n_bytes + 1
        keys = torch.randn(layers, GROUPS, n + 200, DIM)
        values = torch.randn(layers, GROUPS, n + 200, DIM)
        for change in (-1, n + 199):
            for t in (1, 8, 32):
                positions = torch.arange(n, n + t)
                spans = [ops.Span(i, CHUNK, i, i, change=change) for i in range(0, n, CHUNK)]
                spans.append(ops.Span(n, t, 0, n, explicit=positions))
                queries = torch.randn(t, GROUPS * REPEAT, DIM)
                requests = [ops.Rows(0, t, positions, spans)]
                table = native.prepare_native(requests, kind)
                calls = cpu.prepare(positions, spans, kind, torch.float32)
                layer = cycle(range(layers))

                def ours(layer: Any = layer, queries: Any = queries, table: Any = table) -> None:
                    i = next(layer)
                    native.attend(queries, keys[i], values[i], table, 0.125)  # noqa: B023

                def torchs(layer: Any = layer, queries: Any = queries, calls: Any = calls) -> None:
                    i = next(layer)
                    cpu.segment_attention(queries, keys[i], values[i], calls, 0.125)  # noqa: B023

                taken, other = best(ours, seconds), best(torchs, seconds)
                prepared = best(lambda r=requests: native.prepare_native(r, kind), seconds / 4)  # type: ignore[misc]
                rows.append(
                    {
                        "what": f"{n} rows, {'changed' if change >= 0 else 'as they are'}",
                        "queries": t,
                        "us": round(taken * 1e6),
                        "GB/s": round(n_bytes / taken / 1e9, 1),
                        "torch us": round(other * 1e6),
                        "prepare us": round(prepared * 1e6, 1),
                    }
                )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.3, help="for each number")
    parts = {"linear": products, "attention": attention}
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    args = parser.parse_args()
    if why := native.why_not():
        raise SystemExit(why)
    torch.set_num_threads(args.threads)
    result: dict[str, Any] = {
        "machine": f"{platform.machine()}, {args.threads} threads",
        "torch": torch.__version__,
    }
    for name in args.only:
        result[name] = parts[name](args.seconds)
        show(result[name])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
