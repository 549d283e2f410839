"""The bench of whole engines, on a toy model on the CPU."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch


@pytest.fixture
def bench() -> Any:
    import bench_gpu

    return bench_gpu


def test_a_toy_model_goes_through_all_of_it(bench: Any):
    plan = replace(bench.tiny("cpu"), tokens=(128,), runs=1, answer=3, beside=2, seconds=0.001)
    with torch.no_grad():
        (result,) = bench.run(plan)
    rows = {row["policy"]: row for row in result["results"]}
    assert list(rows) == ["full", "prefix", "legolink(16)"]
    assert rows["full"]["full /"] == rows["prefix"]["prefix /"] == 1.0
    # Of four chunks of 32, half of each is computed again; prefix caching knows no more than the system prompt.
    full, prefix, link = (row["computed"] for row in rows.values())
    assert full > prefix > link
    assert prefix - link in (64, 65)
    assert rows["legolink(16)"]["rotate"] > 0
    assert rows["legolink(16)"]["decode x2"] > 0
    assert result["forward"]
    assert "segment_attention" in result["back_ends"]


def test_no_order_begins_as_another(bench: Any):
    pieces = bench.pieces_of(512, 64)
    assert all(len(piece.text) == 64 for piece in pieces)
    orders = bench.shuffled(pieces, 4, random.Random(0))
    assert len({prompt.pieces[0] for prompt in orders}) == 4
    assert all(set(prompt.pieces) == set(pieces) for prompt in orders)


@pytest.mark.parametrize("name", ["1B", "8B"])
def test_models_are_of_the_size_that_their_name_says(bench: Any, name: str):
    from transformers import AutoModelForCausalLM, LlamaConfig

    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(LlamaConfig(**bench.MODELS[name]))
    n = sum(parameter.numel() for parameter in module.parameters()) / 1e9
    assert {"1B": 1.2, "8B": 8.0}[name] == pytest.approx(n, abs=0.05)


def test_without_a_gpu_the_bench_says_so(bench: Any, monkeypatch: pytest.MonkeyPatch):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    monkeypatch.setattr(sys, "argv", ["bench_gpu.py"])
    with pytest.raises(SystemExit, match="nothing was measured"):
        bench.main()
    monkeypatch.setattr(sys, "argv", ["bench_gpu.py", "--device", "cpu"])
    with pytest.raises(SystemExit, match="--tiny"):
        bench.main()
