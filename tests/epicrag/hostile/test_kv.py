"""KV is found again by any process with the same model, and by none with another."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from epicrag.pipeline import Pipeline
from epicrag.types import Hit

SCRIPT = """
import json, sys
from pathlib import Path
from epicrag.config import load_config
from epicrag.pipeline import Pipeline
from epicrag.types import Hit

config = load_config(json.loads(sys.argv[1]), environ={})
with Pipeline(config) as pipeline:
    hits = [Hit(row, chunk, 1.0) for row, chunk in pipeline.catalog.all_chunks()]
    lacking = pipeline.engine.lacking(pipeline.prompt("what?", hits), pipeline._policy(None), n_new=1)
    keys = sorted(pipeline.engine.key_of(piece) for piece in pipeline.prompt("what?", hits).pieces)
    print(json.dumps([len(lacking), keys]))
"""


@pytest.fixture
def warmed(bench, checkpoint, tmp_path):
    """Settings of an index whose KV was computed with a tiny model."""
    settings = {
        "home": str(tmp_path / "home"),
        "index": str(tmp_path / "index"),
        "model": str(checkpoint("llama")),
        "device": "cpu",
        "kv_memory": "32 MiB",
    }
    for n in range(3):
        bench.write(f"{n}.txt", f"Note {n} of the harbour master on the tides and the ferry.\n")
    with opened(bench, settings) as pipeline:
        assert pipeline.ingest([bench.docs]).kv_chunks == 3
    return settings


def opened(bench, settings):
    from epicrag.config import load_config

    config = load_config(settings, environ={})
    return Pipeline(config, create=True, embedder=bench.embedder)


def prompt(pipeline):
    hits = [Hit(row, chunk, 1.0) for row, chunk in pipeline.catalog.all_chunks()]
    return pipeline.prompt("what?", hits)


def test_another_process_finds_all_kv_whatever_its_hash_seed(bench, warmed):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONHASHSEED": "12345",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(warmed)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lacking, keys = json.loads(done.stdout)
    assert lacking == 0
    with opened(bench, warmed) as pipeline:
        assert set(keys) == pipeline.catalog.kv_keys()


def test_a_model_of_equal_shapes_finds_nothing_and_doctor_says_so(bench, warmed, tmp_path):
    from safetensors.torch import load_file, save_file

    from epicrag.soundness import soundness

    other = tmp_path / "other"
    shutil.copytree(warmed["model"], other)
    weights = load_file(other / "model.safetensors")
    name = next(name for name in weights if name.endswith("k_proj.weight"))
    weights[name] = weights[name] + 0.01
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    with opened(bench, {**warmed, "model": str(other)}) as pipeline:
        asked = prompt(pipeline)
        assert len(pipeline.engine.lacking(asked, pipeline._policy(None), n_new=1)) == 3
        answer = pipeline.ask(
            "what?",
            chunks=[Hit(row, chunk, 1.0) for row, chunk in pipeline.catalog.all_chunks()],
            sampling=pipeline.sampling(max_tokens=2),
        )
        assert answer.receipt.context_tokens > 0
        checks = {check.name: check for check in soundness(pipeline, deep=False)}
    assert checks["model of the KV"].state == "warn"
    assert checks["foreign KV"].state == "warn"
    assert str(other) in checks["model of the KV"].what
    with opened(bench, warmed) as pipeline:
        assert not pipeline.engine.lacking(prompt(pipeline), pipeline._policy(None), n_new=1)
