"""The plain modules give transformers' very logits, stand in only once that is proven, and only where plain."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest
import torch

from epicrag.serving import assure, lean
from epicrag.serving.attention import Causal
from epicrag.serving.engine import Engine
from epicrag.serving.model import ServedModel
from epicrag.serving.prompt import Piece, Prompt

CPU = torch.device("cpu")
IDS = list(range(5, 45))


def load(folder, cache=None) -> Engine:
    return Engine.load(
        folder,
        name="tiny",
        device="cpu",
        dtype="float32",
        kv_dtype="float32",
        kv_memory_bytes=32 << 20,
        cache_folder=cache,
    )


@pytest.fixture
def changed(checkpoint, tmp_path):
    """A family's checkpoint with changed keys in its configuration; a key that is None is left out."""

    def change(family: str, **keys: Any):
        folder = tmp_path / "changed"
        shutil.copytree(checkpoint(family), folder)
        spec = json.loads((folder / "config.json").read_text()) | keys
        spec = {key: value for key, value in spec.items() if value is not None or key not in keys}
        (folder / "config.json").write_text(json.dumps(spec))
        return folder

    return change


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_logits_are_those_of_transformers(checkpoint, family):
    folder = checkpoint(family)
    theirs = ServedModel.load(folder, device="cpu", dtype="float32")
    module = lean.read_lean(folder, torch.float32, CPU)
    assert module is not None
    ours = ServedModel(module, theirs.fingerprint, theirs.context_window)
    rows, places = [3, 39], torch.arange(40)
    got = ours.forward(IDS, places, Causal(), rows)
    torch.testing.assert_close(got, theirs.plain_logits(IDS, rows), rtol=1e-5, atol=1e-5)
    assert module.model.rotary_emb.inv_freq.equal(theirs.kinds().kinds[0].rotary.inv_freq)
    assert (ours.eos_ids, ours.context_window) == (theirs.eos_ids, theirs.context_window)


@pytest.mark.parametrize(
    "keys",
    [
        {"model_type": "gemma"},
        {"architectures": ["LlamaForSequenceClassification"]},
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"quantization_config": {"bits": 4}},
        {"auto_map": {"AutoModel": "own.Code"}},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        {"rope_parameters": None, "rope_theta": 1e4, "rope_scaling": {"type": "linear"}},
        {"rope_parameters": None},
        {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        {"num_key_value_heads": 3},
        {"num_hidden_layers": 4},  # of which the last has no weights
        {"intermediate_size": 95},
    ],
)
def test_what_is_not_plain_is_left_to_transformers(changed, keys):
    assert lean.read_lean(changed("llama", **keys), torch.float32, CPU) is None


def test_a_window_that_mistral_takes_for_granted_is_not_overlooked(checkpoint):
    spec = json.loads((checkpoint("llama") / "config.json").read_text())
    spec |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    assert lean.lean_config(spec) is None
    assert lean.lean_config(spec | {"sliding_window": 64}) is None
    assert lean.lean_config(spec | {"sliding_window": None}) is not None


def test_only_a_proven_model_is_run_by_the_plain_modules(checkpoint, tmp_path):
    prompt = Prompt("Where is the cat?", (Piece("The cat sat on the mat. " * 3),))
    first, second = load(checkpoint("llama"), tmp_path), load(checkpoint("llama"), tmp_path)
    assert not isinstance(first.model.module, lean.LeanForCausalLM)
    assert isinstance(second.model.module, lean.LeanForCausalLM)
    assert first.profile == second.profile
    assert first.model.seen.packed() == second.model.seen.packed()
    from epicrag.serving.policies import parse_policy

    answers = [
        engine.generate(prompt, policy=parse_policy("legolink(4)")) for engine in (first, second)
    ]
    assert list(answers[0]) == list(answers[1])
    assert not isinstance(load(checkpoint("llama")).model.module, lean.LeanForCausalLM)


def test_modules_that_differ_from_transformers_are_not_proven(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(lean, "_turned", lambda x, angles: x)
    engine = load(checkpoint("llama"), tmp_path)
    assert engine.refusal is None
    assert engine.model.proofs.holds("reuse")
    assert not engine.model.proofs.holds("lean")


def test_a_refused_model_is_checked_again_every_time(checkpoint, tmp_path):
    assert load(checkpoint("stablelm"), tmp_path).refusal
    assert not (tmp_path / "proofs.json").exists()
    assert load(checkpoint("stablelm"), tmp_path).refusal


def test_a_proven_model_whose_keys_do_not_turn_is_refused(checkpoint, tmp_path, monkeypatch):
    from epicrag.serving.attention import RefusedModel

    load(checkpoint("llama"), tmp_path)

    def fail(*_: object) -> None:
        raise RefusedModel("its keys do not turn")

    monkeypatch.setattr(assure, "check_relocation", fail)
    assert "do not turn" in str(load(checkpoint("llama"), tmp_path).refusal)


def test_a_proven_model_is_loaded_without_transformers(checkpoint, tmp_path):
    code = f"""
import sys
from pathlib import Path
from epicrag.serving.engine import Engine
engine = Engine.load(Path({str(checkpoint("llama"))!r}), name="tiny", device="cpu", dtype="float32",
    cache_folder=Path({str(tmp_path)!r}), kv_memory_bytes=32 << 20)
print(type(engine.model.module).__name__, "transformers" in sys.modules)
"""
    said = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
        ).stdout.split()
        for _ in range(2)
    ]
    assert said == [["LlamaForCausalLM", "True"], ["LeanForCausalLM", "False"]]
