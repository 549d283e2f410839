"""Attention of many queries on the CPU: the link pass over cached chunks, and full prefill, against two other ways.

`ours` is what the face chooses, `torch` torch's blocked kernel span by span, merged (what runs where numba does not).
`copy+sdpa` is the way without kernels of one's own: gather the keys and values of all spans, rotate the keys to their
places, and call torch's attention with an explicit mask. `matmul` is the arithmetic alone: as many multiplications
as there are between queries and rows that they see, done by torch's matrix product on blocks in the cache. All ways take turns within a run, and each number is the best of its turns.

    python benchmarks/bench_attention_cpu.py [--threads 2] [--turns 12] [--only link prefill] [--models ...]
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
from timing import show
from torch import Tensor
from torch.nn import functional as F

from epicrag.kernels import cpu, native, ops

MODELS = {"135M": (3, 3, 64), "1B": (8, 4, 64), "8B": (8, 4, 128)}
"""Key heads, query heads of each, entries of a head."""
CHUNK, QUESTION = 500, 32
LAYERS = 3
Case = tuple[Tensor, list[ops.Span], int]
"""Positions of the queries, what they read, and the rows of the pool."""


def link(n: int, again: int, scattered: bool = False) -> Case:
    """A link pass over n cached rows: `again` tokens of each chunk, its first or every n-th, and the question."""
    spans, own, row = [], [], 0
    chunks = -(-n // CHUNK)
    order = torch.randperm(chunks, generator=torch.Generator().manual_seed(1)).tolist()
    for index in range(chunks):
        place, start = index * CHUNK, order[index] * CHUNK
        if scattered:
            holes = torch.arange(0, CHUNK, CHUNK // again)[:again]
            own += (holes + place).tolist()
            spans.append(ops.Span(start, CHUNK, place, place, holes=holes))
        else:
            own += range(place, place + again)
            spans.append(ops.Span(start + again, CHUNK - again, place, place + again))
        row += CHUNK
    own += range(row, row + QUESTION)
    positions = torch.tensor(own)
    spans.append(ops.Span(row, len(own), 0, own[0], explicit=positions))
    return positions, spans, row + len(own)


def prefill(n: int) -> Case:
    """All of a prompt of n tokens."""
    positions = torch.arange(n)
    return positions, [ops.Span(0, n, 0, 0, explicit=positions)], n


def copied(
    queries: Tensor, keys: Tensor, values: Tensor, spans: list[ops.Span], mask: Tensor, rotary: Any
) -> Tensor:
    """Gather, rotate, and one call of torch's attention with a mask (S, N)."""
    key = torch.cat(
        [
            ops.rotate(keys[:, s.start : s.start + s.length], s.delta, rotary)
            if s.delta
            else keys[:, s.start : s.start + s.length]
            for s in spans
        ],
        1,
    )
    value = torch.cat([values[:, s.start : s.start + s.length] for s in spans], 1)
    attend = F.scaled_dot_product_attention
    out = attend(queries.transpose(0, 1)[None], key[None], value[None], mask, scale=0.125, enable_gqa=True)  # fmt: skip
    return out[0].transpose(0, 1)


def mask_of(positions: Tensor, spans: list[ops.Span]) -> Tensor:
    """What each query sees of all rows, as numbers to add, (S, N)."""
    places = torch.cat([s.positions(positions.device) for s in spans])
    seen = places[None, :] <= positions[:, None]
    at = 0
    for s in spans:
        if s.holes is not None:
            seen[:, at + s.holes] = False
        at += s.length
    return torch.zeros(seen.shape).masked_fill_(~seen, float("-inf"))


def in_turns(
    ways: dict[str, Callable[[], Any]], turns: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The shortest of the calls of each way, in seconds."""
    shortest = dict.fromkeys(ways, float("inf"))
    for turn in range(turns + 1):
        for name, call in ways.items():
            start = clock()
            call()
            if turn:
                shortest[name] = min(shortest[name], clock() - start)
    return shortest


def measure(
    what: str, model: str, case: Case, dtype: torch.dtype, turns: int, clock: Callable[[], float]
) -> dict[str, Any]:
    groups, repeat, dim = MODELS[model]
    positions, spans, n = case
    rotary = ops.Rotary(1.0 / (10000 ** (torch.arange(0, dim, 2) / dim)), dim)
    kind = ops.LayerKind(rotary)
    keys = torch.randn(LAYERS, groups, n, dim).to(dtype)
    values = torch.randn(LAYERS, groups, n, dim).to(dtype)
    queries = torch.randn(len(positions), groups * repeat, dim).to(dtype)
    rows = [ops.Rows(0, len(positions), positions, spans)]
    face = ops.prepare(rows, kind, torch.float32, dtype)
    calls = cpu.prepare(positions, spans, kind, torch.float32)
    layer = cycle(range(LAYERS))
    ways: dict[str, Callable[[], Any]] = {}

    def way(name: str, attend: Callable[[Tensor, Tensor], Any]) -> None:
        def call() -> None:
            i = next(layer)
            attend(keys[i], values[i])

        ways[name] = call

    way("ours", lambda k, v: ops.segment_attention(queries, k, v, face, 0.125))
    way("torch", lambda k, v: cpu.segment_attention(queries, k, v, calls, 0.125)[0])
    seen = 0
    if len(positions) * n <= 40_000_000:
        mask = mask_of(positions, spans)
        seen = int((mask == 0).sum())
        mask = mask.to(dtype)
        way("copy+sdpa", lambda k, v: copied(queries, k, v, spans, mask, rotary))
    else:
        way("copy+sdpa", lambda k, v: F.scaled_dot_product_attention(
            queries.transpose(0, 1)[None], k[None], v[None], is_causal=True, scale=0.125,
            enable_gqa=True))  # fmt: skip
        seen = n * (n + 1) // 2
    # A block of products whose numbers stay in the cache, over and over: what the processor can do.
    left, right = torch.randn(420, dim), torch.randn(dim, 512)
    scores, out = torch.empty(420, 512), torch.empty(420, dim)
    back = torch.randn(512, dim)

    def products() -> None:
        for _ in range(2):
            torch.mm(left, right, out=scores)
            torch.mm(scores, back, out=out)

    ways["matmul"] = products
    taken = in_turns(ways, turns, clock)
    work = 4 * seen * groups * repeat * dim
    rate = 2 * 4 * 420 * 512 * dim / taken["matmul"]
    taken["matmul"] = work / rate
    row: dict[str, Any] = {
        "what": what,
        "model": model,
        "pool": str(dtype).removeprefix("torch."),
        "queries": len(positions),
        "rows": n,
    }
    row |= {f"{name} ms": round(t * 1e3, 2) for name, t in taken.items()}
    row["GFLOP/s"] = round(work / taken["ours"] / 1e9, 1)
    row["of ceiling"] = round(taken["matmul"] / taken["ours"], 2)
    row["x torch"] = round(taken["torch"] / taken["ours"], 2)
    row["x copy"] = round(taken["copy+sdpa"] / taken["ours"], 2)
    row["prepare ms"] = round(in_turns({"p": lambda: ready(rows, kind, dtype)}, 3)["p"] * 1e3, 2)
    return row


def ready(rows: list[ops.Rows], kind: ops.LayerKind, dtype: torch.dtype) -> None:
    """All that a forward pass works out once."""
    prepared = ops.prepare(rows, kind, torch.float32, dtype)
    prepared.tiles() if prepared.in_tiles else prepared.wide(0)


def cases(parts: list[str], sizes: list[int]) -> dict[str, Case]:
    made: dict[str, Case] = {}
    for n in sizes:
        if "link" in parts:
            made[f"link 8 of {n}"] = link(n, 8)
            made[f"link 32 of {n}"] = link(n, 32)
        if "spread" in parts:
            made[f"spread 16 of {n}"] = link(n, 16, scattered=True)
        if "prefill" in parts:
            made[f"prefill {n}"] = prefill(n)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--only", nargs="+", default=["link", "spread", "prefill"])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--sizes", nargs="+", type=int, default=[2000, 4000, 8000])
    parser.add_argument("--pools", nargs="+", default=["float32"])
    parser.add_argument("--cpu-time", action="store_true", help="of one thread, on a busy machine")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.thread_time if args.cpu_time else time.perf_counter
    torch.set_grad_enabled(False)
    rows = []
    for model in args.models:
        own = [
            measure(what, model, case, getattr(torch, pool), args.turns, clock)
            for what, case in cases(args.only, args.sizes).items()
            for pool in args.pools
        ]
        show(own)
        rows += own
    about = {"machine": platform.machine(), "threads": args.threads, "torch": torch.__version__}
    print(json.dumps({**about, "why not compiled": native.why_not(), "rows": rows}))


if __name__ == "__main__":
    main()
