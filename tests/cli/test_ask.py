"""What `epicrag ask` prints, and where."""

from __future__ import annotations

import json

import pytest

ANSWER = "The fee is 5 euros. [1]"


def test_the_answer_goes_to_stdout_and_the_sources_to_stderr(cli, pipeline):
    run = cli("ask", "What is the fee?")
    assert (run.code, run.out) == (0, ANSWER + "\n")
    assert run.err == "\nSources:\n[1] docs/fees.md:3-9 · Fees > Entry\n"


def test_with_v_all_that_was_read_is_listed(cli, pipeline):
    assert "[2] docs/dogs.pdf, p. 2\n" in cli("ask", "What is the fee?", "-v").err


def test_quiet_leaves_only_the_answer(cli, pipeline):
    run = cli("ask", "What is the fee?", "--quiet", "--show-timing", "--show-chunks")
    assert (run.out, run.err) == (ANSWER + "\n", "")


def test_the_shape_of_json(cli, pipeline, tmp_path):
    run = cli("ask", "What is the fee?", "--json")
    assert (run.code, run.err) == (0, "")
    first, second = pipeline.hits
    assert run.json == {
        "schema_version": 1,
        "question": "What is the fee?",
        "answer": ANSWER,
        "answered": True,
        "grounded": True,
        "sources": [
            {
                "n": 1,
                "path": str(tmp_path / "docs/fees.md"),
                "page": None,
                "lines": [3, 9],
                "heading": "Fees > Entry",
                "part": None,
                "cells": None,
                "chunk": first.chunk.id,
                "score": 0.83,
                "cited": True,
            },
            {
                "n": 2,
                "path": str(tmp_path / "docs/dogs.pdf"),
                "page": 2,
                "lines": None,
                "heading": None,
                "part": None,
                "cells": None,
                "chunk": second.chunk.id,
                "score": 0.31,
                "cited": False,
            },
        ],
        "receipt": {
            "policy": "legolink(16)",
            "compile": "isolated",
            "context_tokens": 4180,
            "exact": 212,
            "stitched": 3700,
            "recomputed": 268,
            "fresh": 31,
            "dropped_chunks": 0,
            "fallback": None,
            "charged": 0.0,
            "ms": {
                "retrieve": 8.0,
                "wait": 0.0,
                "load": 3.2,
                "stitch": 0.4,
                "select": 0.0,
                "link": 61,
                "first_token": 74.0,
                "total": 908.0,
            },
        },
        "usage": {"prompt_tokens": 4211, "completion_tokens": 7},
        "model": "stub-lm",
        "notes": [],
        "relevance": {
            "relevant": True,
            "score": 0.9,
            "threshold": 0.5,
            "rule": "auto",
            "features": {"cosine": 0.83},
            "reason": "it is near",
        },
    }


def test_jsonl_streams_and_ends_with_the_whole_answer(cli, pipeline):
    lines = [
        json.loads(line) for line in cli("ask", "What is the fee?", "--jsonl").out.splitlines()
    ]
    assert len(lines) > 2
    assert "".join(line["delta"] for line in lines[:-1]) == lines[-1]["answer"] == ANSWER
    assert all(line["schema_version"] == 1 for line in lines)


def test_the_receipt_on_one_line(cli, pipeline):
    assert cli("ask", "What is the fee?", "--show-timing").err.splitlines()[-1] == (
        "reused 3,912 of 4,180 context tokens (exact 212, stitched 3,700), recomputed 268, fresh 31"
        " · retrieve 8 ms, load 3 ms, stitch 0.4 ms, link 61 ms, first token 74 ms"
        " · policy legolink(16)"
    )


def test_show_chunks_prints_what_the_model_reads(cli, pipeline):
    err = cli("ask", "What is the fee?", "--show-chunks").err
    assert "--- [1] docs/fees.md:3-9 · score 0.830 · 6 tokens\nFees > Entry\nThe fee is" in err


def test_an_answer_from_nowhere_says_so(cli, pipeline):
    pipeline.generation.deltas = ["Paris, croissant."]
    run = cli("ask", "What is the fee?")
    assert (run.code, run.out) == (0, "Paris, croissant.\n")
    assert "note: no passage was cited, and the answer's words were not found in them" in run.err
    assert "Read, but not cited:\n[1] docs/fees.md" in run.err


def test_an_answer_from_nowhere_is_marked_in_json(cli, pipeline):
    pipeline.generation.deltas = ["Paris, croissant."]
    found = cli("ask", "What is the fee?", "--json").json
    assert (found["answered"], found["grounded"]) == (True, False)


def test_strict_shows_no_text_that_the_documents_do_not_hold(cli, pipeline):
    pipeline.generation.deltas = ["Paris, croissant."]
    run = cli("ask", "What is the fee?", "--strict")
    assert (run.code, run.out) == (4, "")


def test_abstaining_is_an_answer(cli, pipeline):
    pipeline.generation = None
    run = cli("ask", "What is the fee?", "--json")
    assert (run.code, run.json["answered"], run.json["receipt"]) == (0, False, None)
    run = cli("ask", "What is the fee?")
    assert (run.code, "found nothing" in run.out) == (0, True)


def test_abstaining_fails_under_strict(cli, pipeline):
    pipeline.generation = None
    run = cli("ask", "What is the fee?", "--strict", "--json")
    assert (run.code, run.json["error"]["code"]) == (4, "abstained")


def test_a_dash_reads_the_question_from_stdin(cli, pipeline):
    cli("ask", "-", stdin="Wie hoch ist die Gebühr?\n".encode())
    assert pipeline.calls[0][1] == "Wie hoch ist die Gebühr?"


def test_flags_reach_the_pipeline(cli, pipeline):
    flags = "--top-k 3 --temperature 0.5 --top-p 0.9 --top-k-tokens 40 --seed 7 --stop END --stop X"
    more = "--link-policy full --compile sink --max-tokens 9 --min-score 0.4 --shuffle-seed 5"
    assert cli("ask", "q", *flags.split(), *more.split()).code == 0
    _, _, options = pipeline.calls[0]
    assert (options["k"], options["shuffle_seed"]) == (3, 5)
    assert options["sampling"] == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "seed": 7,
        "stop": ("END", "X"),
    }
    config = pipeline.config
    assert (config.link_policy, config.compile) == ("full", "sink")
    assert (config.max_tokens, config.min_score) == (9, 0.4)


@pytest.mark.parametrize("flag", ["--no-stream", "--strict"])
def test_the_answer_is_the_same_when_it_is_printed_whole(cli, pipeline, flag):
    assert cli("ask", "What is the fee?", flag).out == ANSWER + "\n"


def test_ctrl_c_while_it_streams_ends_the_line(cli, pipeline):
    pipeline.generation.error = KeyboardInterrupt()
    run = cli("ask", "What is the fee?")
    assert run.code == 130
    assert run.out == "The fee is 5 euros.\n"


def test_control_characters_in_an_answer_do_not_reach_the_terminal(cli, pipeline):
    pipeline.generation.deltas = ["The fee\x1b[2J is 5\x07 euros."]
    assert cli("ask", "What is the fee?").out.startswith("The fee\\x1b[2J is 5\\x07 euros.")


def test_flags_of_retrieval_are_settings_and_the_filter_goes_to_the_search(cli, pipeline):
    cli("ask", "q", "--filter", "year>=2020", "--mode", "dense", "--weights", "dense=1,words=0.5")
    assert pipeline.calls[0][2]["filter"] == "year>=2020"
    assert pipeline.config.search_mode == "dense"
    assert pipeline.config.hybrid_weights == {"dense": 1.0, "words": 0.5}


def test_min_score_is_auto_or_a_number(cli, pipeline):
    cli("ask", "q", "--min-score", "auto")
    assert pipeline.config.min_score is None
    assert cli("ask", "q", "--min-score", "high").code == 2


def test_explain_tells_on_stderr_how_hits_were_ranked_and_judged(cli, pipeline):
    run = cli("ask", "q", "--explain")
    assert "1. cosine 0.830" in run.err
    assert "relevant: 0.900 against 0.500 (auto: cosine 0.83); it is near" in run.err
    assert "cosine" not in run.out
