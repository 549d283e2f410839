"""The comparison's own logic: orders, the talk with a peer, medians, and what a peer that fails leaves."""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("against_peers")


@pytest.fixture
def worker(bench):
    made = bench.Worker("pretended", sys.executable, threads=1, timeout=60)
    yield made
    made.close()


def questions(bench, **ids):
    return {scene: bench.Question(None, ids[scene]) for scene in bench.SCENES}


def test_orders_are_the_ones_that_are_promised(bench):
    for seed in range(20):
        orders = bench.scenes(list("abcd"), random.Random(seed))
        assert orders["again"] == orders["cold"] == list("abcd")
        assert sorted(orders["shuffled"]) == list("abcd")
        assert orders["shuffled"][0] != "a"
        assert orders["swapped"][:2] == orders["shuffled"][:2]
        assert orders["swapped"][2:] == orders["shuffled"][:1:-1]


def test_peer_answers_over_its_pipe_and_its_cache_shows(bench, worker):
    assert worker.load("model", None, 1) == "pretended 1.0"
    row = bench.Row("pretended")
    first, other = list(range(3000)), list(range(1, 3001))
    asked = questions(bench, cold=first, again=first, shuffled=other, swapped=other)
    bench.run_round([(worker, row)], asked, 8)
    took = {scene: seconds[0] for scene, seconds in row.seconds.items()}
    assert row.failure is None
    assert took["cold"] > 0.3
    assert took["shuffled"] > 0.3
    assert max(took["again"], took["swapped"]) < 0.15
    assert row.rates[0] > 0


def test_failure_of_a_peer_is_its_reason(bench, worker):
    with pytest.raises(bench.PeerError, match="ValueError: it is broken"):
        worker.load("broken", None, 1)
    assert worker.load("model", None, 1)  # and it goes on answering


def test_peer_that_dies_or_is_silent_is_reported(bench, worker):
    worker._process.kill()
    with pytest.raises(bench.PeerError, match="ended with code"):
        worker.load("model", None, 1)
    with pytest.raises(bench.PeerError, match="no interpreter"):
        bench.Worker("pretended", "/nowhere/python", threads=1)
    silent = bench.Worker("pretended", sys.executable, threads=1, timeout=0.0)
    with pytest.raises(bench.PeerError, match="no reply"):
        silent.load("model", None, 1)
    silent.close()


def test_failed_peer_is_a_row_and_is_not_asked_again(bench):
    class Failing:
        name = "failing"
        asked = 0

        def first(self, question):
            self.asked += 1
            raise bench.PeerError("out of memory")

    failing, row = Failing(), bench.Row("failing", "1.0")
    asked = questions(bench, cold=[1], again=[1], shuffled=[1], swapped=[1])
    for _ in range(2):
        bench.run_round([(failing, row)], asked, 1)
    assert failing.asked == 1
    lines = bench.table(bench.summary([row]))
    assert lines[-1].startswith("| failing (1.0) | not run: out of memory |")


def test_ratios_are_medians_of_pairs(bench):
    base, other = bench.Row("base"), bench.Row("other", "2.0")
    for scene in bench.SCENES:
        base.seconds[scene], other.seconds[scene] = [1.0, 2.0, 4.0], [3.0, 4.0, 4.0]
    base.rates, other.rates = [10.0, 12.0, 11.0], [5.0, 6.0, 7.0]
    first, second = bench.summary([base, other])
    assert second["times_first_row"]["cold"] == 2.0
    assert (first["seconds"]["cold"], second["seconds"]["cold"]) == (2.0, 4.0)
    assert (first["decode"], second["decode"]) == (11.0, 6.0)
    assert (
        "| other (2.0) | 4.00 (2.0x) | 4.00 (2.0x) | 4.00 (2.0x) | 4.00 (2.0x) | 6.0 |"
        in bench.table([first, second])
    )


def test_the_whole_runs_with_the_tiny_model_and_a_pretended_peer(
    bench, checkpoint, capsys, monkeypatch
):
    import json

    given = f"--model {checkpoint('llama')} --rounds 1 --chunk-tokens 20 --decode 4 --threads 1"
    peers = f"--peer pretended={sys.executable} --peer nobody=/nowhere/python"
    monkeypatch.setattr(sys, "argv", ["against_peers.py", *given.split(), *peers.split()])
    bench.main()
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    names = [row["name"] for row in report["rows"]]
    assert names[1:] == ["epicrag full", "epicrag prefix", "pretended", "nobody"]
    assert all(row["seconds"]["cold"] > 0 for row in report["rows"][:4])
    assert "no interpreter" in report["rows"][4]["failure"]


def test_cold_start_table_has_a_row_for_each_stage(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    cold = importlib.import_module("cold_start")
    runs = [{"a": (1.0, 0.5)}, {"a": (3.0, 0.7)}, {"a": (2.0, 0.6)}]
    medians = cold.of_runs(runs)
    assert medians == {"a": {"wall": 2.0, "cpu": 0.6}}
    assert len(cold.table([medians, medians])) == 2
    whole, first = cold.timed_process([sys.executable, "-c", "print('x')"], {})
    assert 0 < first <= whole[0]
    with pytest.raises(SystemExit, match="exit code 3"):
        cold.timed_process([sys.executable, "-c", "raise SystemExit(3)"], {})
