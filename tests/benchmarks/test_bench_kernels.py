"""What the kernel bench compares does the same work, and what it counts is right."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import torch

CHUNK, TOKENS = 48, 144


@pytest.fixture
def bench() -> Any:
    import kernel_cases

    return kernel_cases


@pytest.fixture
def place(bench: Any) -> Any:
    return bench.Place(chunk=CHUNK, cold=0)


@pytest.fixture
def geometry(bench: Any) -> Any:
    return bench.Geometry("tiny", heads=4, groups=2, dim=16, layers=2)


def same(left: Any, right: Any) -> bool:
    pairs = zip(left, right, strict=True) if isinstance(left, list) else [(left, right)]
    return all(torch.allclose(one, other, atol=2e-5, rtol=1e-4) for one, other in pairs)


def test_all_ways_of_a_case_come_to_the_same(bench: Any, place: Any, geometry: Any):
    seen = set()
    for case in bench.cases(place, [geometry], [TOKENS], bench.OPERATIONS):
        seen.add(case.op.partition(",")[0])
        if "in place" in case.what:  # turned twice it is another
            continue
        ours = case.ours()
        ours = [x.clone() for x in ours] if isinstance(ours, list) else ours.clone()
        assert same(ours, case.torchs()), case
        for other in (case.torchs_whole, case.first):
            assert other is None or same(ours, other()), case
    assert seen == set(bench.OPERATIONS)


@pytest.mark.parametrize("positions", [[TOKENS], [0, 1, 48, 49, 144, 145]])
def test_pairs_and_rows_are_counted_right(
    bench: Any, place: Any, geometry: Any, positions: list[int]
):
    laid = bench.Laid.random(place, geometry, TOKENS, positions, 3)
    visible = sum(p + 1 for p in positions)
    assert laid.n_pairs == 3 * visible
    numbers = laid.row_numbers()
    assert numbers.shape == (3, laid.n_read)
    assert numbers.flatten().unique().numel() == numbers.numel()  # nobody reads another's rows
    seen = 0
    for rows in laid.rows():
        for span in rows.spans:
            hidden = 0 if span.holes is None else len(span.holes)
            seen += span.length - hidden
    assert seen == 3 * laid.n_read


def test_bytes_of_a_decode_step_are_those_of_its_keys_and_values(
    bench: Any, place: Any, geometry: Any
):
    case = bench.decode(place, geometry, TOKENS, 2)
    rows, entry = 2 * (TOKENS + 1), 4
    queries_and_out = 2 * 2 * geometry.heads * geometry.dim * entry
    assert case.n_bytes == rows * 2 * geometry.groups * geometry.dim * entry + queries_and_out
    assert case.n_operations == 4 * geometry.heads * geometry.dim * rows


def test_chunks_are_read_in_another_order_than_they_lie_in(bench: Any, place: Any, geometry: Any):
    laid = bench.Laid.random(place, geometry, CHUNK * 8, [CHUNK * 8], 1)
    assert sorted(laid.starts[0]) == [CHUNK * n for n in range(8)]
    assert list(laid.starts[0]) != sorted(laid.starts[0])


def test_the_bench_prints_a_table_and_a_line_of_json(
    bench: Any, geometry: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    import bench_kernels
    from timing import Ceilings

    monkeypatch.setitem(bench_kernels.GEOMETRIES, "tiny", geometry)
    monkeypatch.setattr(bench_kernels, "ceilings", lambda *given: Ceilings(1e10, 1e11))
    flags = "--device cpu --quick --models tiny --tokens 512 --seconds 0.001 --only rotate append"
    monkeypatch.setattr(sys, "argv", ["bench_kernels.py", *flags.split()])
    threads = torch.get_num_threads()
    with torch.no_grad():
        bench_kernels.main()
    assert torch.get_num_threads() == threads
    *table, last = capsys.readouterr().out.strip().splitlines()
    result = json.loads(last)
    assert {row["operation"] for row in result["results"]} == {"rotate", "append"}
    assert all(row["MB"] > 0 and row["ms"] >= 0 for row in result["results"])
    assert set(result["back_ends"]) >= {"segment_attention", "rotate"}
    assert table[1].split()[:3] == ["operation", "model", "what"]


def test_without_a_gpu_the_bench_says_so(monkeypatch: pytest.MonkeyPatch):
    import bench_kernels

    if torch.cuda.is_available():
        pytest.skip("there is one")
    monkeypatch.setattr(sys, "argv", ["bench_kernels.py", "--device", "cuda"])
    with pytest.raises(SystemExit, match="finds no GPU"):
        bench_kernels.main()


def test_the_processors_time_is_asked_for_one_thread_only(monkeypatch: pytest.MonkeyPatch):
    import bench_kernels

    monkeypatch.setattr(sys, "argv", ["bench_kernels.py", "--processor", "--threads", "2"])
    with pytest.raises(SystemExit, match="--threads 1"):
        bench_kernels.main()


def test_a_clock_counts_the_call_and_not_who_else_runs():
    import time

    from timing import Clock

    def sleeping() -> None:
        time.sleep(0.01)

    assert Clock(0.03).best(sleeping) >= 0.01
    assert Clock(0.03, by_processor=True).best(sleeping) < 0.01


def test_shares_are_of_the_better_ceilings():
    from bench_kernels import shares
    from timing import Ceilings

    limits = Ceilings(1e9, 1e11).or_better(Ceilings(2e9, 1e10))
    assert shares(10**6, 5 * 10**7, 1.0, limits) == {"copy": "50%", "matrix": "50%"}
