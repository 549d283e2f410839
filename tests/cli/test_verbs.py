"""What `search`, `status` and `models` print."""

from __future__ import annotations

import json
from dataclasses import replace

from epicrag.cli.output import clean, duration, size
from epicrag.cli.search import snippet
from epicrag.types import Stage


def test_search_lists_hits_on_stdout(cli, pipeline):
    run = cli("search", "fee", "-k", "2")
    assert run.code == 0
    assert run.out.splitlines() == [
        " 1. 0.830  docs/fees.md:3-9 · Fees > Entry",
        "    The fee is 5 euros. Pay at the door.",
        " 2. 0.310  docs/dogs.pdf, p. 2",
        "    Dogs stay outside.",
    ]
    assert pipeline.calls[0][2] == {"k": 2, "filter": None}


def test_the_shape_of_search_json(cli, pipeline, tmp_path):
    found = cli("search", "fee", "--json").json
    assert (found["schema_version"], found["query"], len(found["hits"])) == (1, "fee", 2)
    assert found["hits"][0] == {
        "rank": 1,
        "score": 0.83,
        "path": str(tmp_path / "docs/fees.md"),
        "page": None,
        "lines": [3, 9],
        "heading": "Fees > Entry",
        "part": None,
        "cells": None,
        "chunk": pipeline.hits[0].chunk.id,
        "title": None,
        "table": None,
        "tokens": 6,
        "text": "The fee is 5 euros.\nPay at the door.",
        "stages": {},
        "also": [],
    }
    assert found["relevance"]["relevant"] is True


def test_search_explains_each_hit_and_names_where_else_it_stands(cli, pipeline, tmp_path):
    stages = {"dense": Stage(2, 0.83), "words": Stage(1, 7.5), "fused": Stage(1, 0.0325)}
    pipeline.hits[0] = replace(pipeline.hits[0], stages=stages, also=("/a/copy.md",))
    run = cli("search", "fee", "--explain")
    lines = run.out.splitlines()
    assert lines[2] == "    cosine 0.830 · dense #2 (0.83) · words #1 (7.5) · fused #1 (0.0325)"
    assert lines[3] == "    the same in 1 other document: /a/copy.md"
    assert "relevant: 0.900" in run.err
    hit = cli("search", "fee", "--json").json["hits"][0]
    assert hit["stages"]["words"] == {"rank": 1, "score": 7.5}
    assert hit["also"] == ["/a/copy.md"]


def test_a_reranker_is_named_or_left_out(cli, pipeline):
    cli("search", "fee", "--rerank", "some/model")
    assert pipeline.config.rerank_model == "some/model"
    cli("search", "fee", "--no-rerank")
    assert pipeline.config.rerank_model is None
    assert cli("search", "fee", "--rerank", "some/model", "--no-rerank").code == 2


def test_search_jsonl_has_a_line_a_hit(cli, pipeline):
    lines = [json.loads(line) for line in cli("search", "fee", "--jsonl").out.splitlines()]
    assert [(line["schema_version"], line["rank"]) for line in lines] == [(1, 1), (1, 2)]


def test_a_snippet_is_one_short_line():
    assert snippet("a  b\n\n c") == "a b c"
    long = snippet("word " * 1000)
    assert len(long) <= 242
    assert long.endswith("word …")


def test_status_tells_what_is_in_the_index(cli, pipeline):
    lines = dict(line.split(maxsplit=1) for line in cli("status").out.splitlines())
    assert lines["documents"] == "3"
    assert lines["KV"] == "13 entries, 2.0 MiB, 2.0 KiB a token of text in float16"
    assert lines["covered"] == "12 of 12 chunks have KV"
    assert "budget" not in lines and "retrieved" not in lines
    assert "3 of them, 4.0 KiB: of other models" in lines["other"]
    assert lines["model"] == "stub-lm (0123456789ab), float32, compile prefix"


def test_status_tells_of_the_budget_and_of_how_often_kv_was_there(cli, pipeline, monkeypatch):
    full = pipeline.status()
    told = replace(
        full,
        chunks_with_kv=5,
        kv_dtype="int8",
        kv_bytes_per_text_token=2150.4,
        kv_budget=4 << 20,
        retrievals=200,
        retrievals_with_kv=150,
    )
    monkeypatch.setattr(type(pipeline), "status", lambda self: told)
    lines = dict(line.split(maxsplit=1) for line in cli("status").out.splitlines())
    assert lines["KV"].endswith("2.1 KiB a token of text in int8")
    assert lines["covered"] == "5 of 12 chunks have KV"
    assert lines["budget"] == "4.0 MiB for KV, 50% used"
    assert lines["retrieved"] == "200 passages, 75% with KV"


def test_the_shape_of_status_json(cli, pipeline):
    assert cli("status", "--json").json == {
        "schema_version": 1,
        "index": "/data/index",
        "generation": 7,
        "last_ingest": "2026-01-02T03:04:05+00:00",
        "documents": 3,
        "chunks": 12,
        "tokens": 1024,
        "vectors": 13,
        "kv": {"entries": 13, "bytes": 2097152, "bytes_per_token": 2048, "chunks": 12}
        | {"other_entries": 3, "other_bytes": 4096, "dtype": "float16", "budget": None}
        | {"retrievals": 0, "retrievals_with_kv": 0, "bytes_per_text_token": None},
        "model": {
            "name": "stub-lm",
            "fingerprint": "0123456789abcdef",
            "dtype": "float32",
            "compile": "prefix",
            "configured": "stub-lm",
        },
        "embedder": {
            "name": "stub",
            "fingerprint": "fedcba9876543210",
            "configured": "stub",
        },
    }


def test_models_list_names_each_model(cli):
    assert "smollm2-135m" in cli("models", "list").out
    found = cli("models", "list", "--json").json
    assert {"name", "kind", "repo", "present", "path"} <= set(found["models"][0])


def test_models_path_prints_a_folder(cli, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    assert cli("models", "path", str(tmp_path)).out == f"{tmp_path}\n"
    assert cli("models", "pull", str(tmp_path), "--json").json["path"] == str(tmp_path)


def test_an_unknown_model_is_told_with_near_names(cli):
    run = cli("models", "path", "smolm2")
    assert run.code == 2
    assert "smollm2" in run.err


def test_a_model_that_is_not_here_needs_the_network(cli):
    run = cli("models", "path", "qwen2.5-7b", "--offline", "--json")
    assert (run.code, run.json["error"]["code"]) == (10, "offline")


def test_sizes_and_times_read_well():
    assert [size(n) for n in (5, 2048, 3 * 1024**3)] == ["5 B", "2.0 KiB", "3.0 GiB"]
    assert [duration(s) for s in (0.44, 12.3, 200, 7500)] == [
        "0.4 s",
        "12 s",
        "3 min 20 s",
        "2 h 5 min",
    ]


def test_control_characters_are_shown_and_line_breaks_kept():
    assert clean("a\x1b[0m\tb\nc\x9b") == "a\\x1b[0m\tb\nc\\x9b"
