"""What `epicrag eval` prints, and when it fails; answering is replaced by a stub."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from epicrag.config import DEFAULT_LINK_POLICY

PLACE = {"dtype": "float32", "device": "cpu"}
GOLD = (
    '{"question": "What is the fee?", "answers": ["5 euros"], "path": "fees.md"}\n'
    '{"question": "May dogs come in?", "answers": ["outside", "no"]}\n'
)


@pytest.fixture
def gold(pipeline, tmp_path, monkeypatch):
    """A file of two questions, over a pipeline that says under any policy that the fee is 5 euros."""
    monkeypatch.setattr("epicrag.evaluate.describe", lambda engine: {"model": "stub-lm", **PLACE})
    answering, kind = pipeline.stream, type(pipeline.generation)

    def stream(question, *, policy, chunks):
        pipeline.generation = kind(["The fee ", "is 5 euros."])
        return answering(question, policy=policy, chunks=chunks, strict=False)

    monkeypatch.setattr(pipeline, "stream", stream)
    known = [SimpleNamespace(path="/docs/fees.md")]
    pipeline.catalog = SimpleNamespace(documents=lambda: known)
    pipeline.counter, pipeline.engine = None, SimpleNamespace(compile_mode="neighbour")
    path = tmp_path / "gold.jsonl"
    path.write_text(GOLD)
    return path


def test_the_table_goes_to_stdout(cli, gold):
    run = cli("eval", "gold.jsonl")
    assert run.code == 0
    assert "loading the model" in run.err and "question 1 of 2" in run.err
    assert "2 questions: with fewer than 20, the intervals say little" in run.err
    assert "names no document" not in run.err
    lines = run.out.splitlines()
    assert lines[0].startswith("gold.jsonl: 2 questions; stub-lm, float32 on cpu, 4 passages")
    rows = {line.split("|")[1].strip(): line for line in lines if line.startswith("| ")}
    assert list(rows) == ["", "EM", "F1", "ROUGE-L", "contains", "citation", "source", "abstention"]
    assert DEFAULT_LINK_POLICY in rows[""]
    # "The fee is 5 euros" against "5 euros": 2 of 4 words, all of 2; the dogs' answer is wrong.
    assert "0.333" in rows["F1"]
    assert "0.000" in rows["EM"]
    assert "0.500" in rows["contains"]


def test_the_shape_of_json(cli, gold):
    found = cli("eval", "gold.jsonl", "--json").json
    assert (found["schema_version"], found["questions"], found["compile"]) == (1, 2, "neighbour")
    assert found["scores"]["f1"]["reuse"]["mean"] == pytest.approx(1 / 3)
    assert found["scores"]["f1"]["difference"] == {"mean": 0, "low": 0, "high": 0, "n": 2}


def test_jsonl_has_a_line_a_question_and_ends_with_the_scores(cli, gold):
    lines = [json.loads(line) for line in cli("eval", "gold.jsonl", "--jsonl").out.splitlines()]
    assert [line.get("line") for line in lines] == [1, 2, None]
    assert lines[0]["reuse"]["scores"]["citation"] == 1
    assert lines[-1]["questions"] == 2


def test_fail_under_exits_with_a_code_of_its_own(cli, gold):
    assert cli("eval", "gold.jsonl", "--fail-under", "F1=0.3,source=0.5").code == 0
    run = cli("eval", "gold.jsonl", "--fail-under", "F1=0.4")
    assert run.code == 11
    assert "F1 is 0.333 with reuse, and should be at least 0.4" in run.err
    assert "| F1" in run.out


def test_an_empty_gate_is_no_gate_that_passes(cli, gold):
    assert cli("eval", "gold.jsonl", "--fail-under", "").code == 2


def test_limit_takes_the_first(cli, gold):
    assert cli("eval", "gold.jsonl", "--limit", "1", "--json").json["questions"] == 1


def test_the_worst_are_shown(cli, gold):
    err = cli("eval", "gold.jsonl", "--show-worst", "1").err
    assert "line 2: May dogs come in?" in err
    assert "right: outside | no" in err
    assert "line 1:" not in err


def test_flags_reach_the_configuration(cli, gold, pipeline):
    cli("eval", "gold.jsonl", "--policy", "none", "-k", "3", "--max-tokens", "9")
    config = pipeline.config
    assert (config.link_policy, config.top_k, config.max_tokens) == ("none", 3, 9)


def test_a_bad_line_is_said_with_its_number_and_nothing_runs(cli, gold, pipeline):
    gold.write_text(GOLD + '{"question": "Who?"}\n')
    run = cli("eval", "gold.jsonl")
    assert (run.code, pipeline.calls) == (2, [])
    assert "gold.jsonl, line 3: no answers" in run.err


def test_a_path_that_no_document_has_is_said_and_counted_apart(cli, gold):
    gold.write_text(GOLD.replace("fees.md", "nosuch.md"))
    run = cli("eval", "gold.jsonl")
    assert "gold.jsonl, line 1: no document of the index is called nosuch.md" in run.err
    assert "1 line names no document that is there: left out of citation and source" in run.err
    found = cli("eval", "gold.jsonl", "--json").json
    assert [each["paths"] for each in found["unknown_paths"]] == [["nosuch.md"]]
    scores = found["scores"]
    assert (scores["source"]["reuse"]["n"], scores["f1"]["reuse"]["n"]) == (1, 2)
