"""What `epicrag bench` prints, and where; the measuring itself is replaced."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from epicrag.bench import Report, Row, Spread
from epicrag.cli.bench import pays_at
from epicrag.cli.scratch import scratch
from epicrag.errors import UsageError
from epicrag.plot import draw, frontier

FULL = Row(
    policy="full",
    compile="",
    points=4,
    non_prefix_hit_rate=0.0,
    ttft_ms=Spread(9832.4, 10001.0),
    speedup=1.0,
    load_ms=None,
    recomputed_tokens=2012.0,
    charged_share=1.0,
    decode_tokens_per_s=9.6,
    requests_per_s=0.1,
    loaded_ttft_ms=Spread(30000.0, 60000.0),
    refused_requests=0,
    kl=0.0,
    kl_median=0.0,
    kl_worst_decile=0.0,
    top1=1.0,
    compile_ms=None,
    break_even=None,
)
STITCHED = replace(
    FULL,
    policy="legolink(16)",
    compile="neighbour",
    non_prefix_hit_rate=0.965,
    ttft_ms=Spread(758.0, 800.0),
    speedup=12.97,
    load_ms=3.21,
    recomputed_tokens=64.0,
    charged_share=0.032,
    requests_per_s=0.91,
    kl=0.0731,
    kl_median=0.04,
    kl_worst_decile=0.49,
    top1=0.92,
    compile_ms=14000.0,
    break_even=1.54,
)
SETUP = {
    "model": "stub-lm",
    "fingerprint": "0123456789ab",
    "dtype": "float32",
    "device": "cpu",
    "processor": "Abacus 3",
    "cores": 2,
    "threads": 1,
    "system": "Linux x86_64",
    "python": "3.11.1",
    "epicrag": "0.1.0",
    "torch": "2.13.0",
    "transformers": "5.17.0",
    "index": "/data/index",
    "questions": None,
    "prompts": 4,
    "runs": 1,
    "planned_prompts": 4,
    "planned_runs": 1,
    "planned_policies": 2,
    "chunks_per_prompt": 5.0,
    "chunk_tokens": 401,
    "answer_tokens": 24,
    "forced": "what full prefill writes",
    "concurrency": 8,
    "seed": 0,
}
REPORT = Report((FULL, STITCHED), SETUP, 2080)


@pytest.fixture
def measured(pipeline, monkeypatch):
    """The calls of a `run` that returns `REPORT`, or what is put into "result"."""
    calls = {"result": REPORT}

    def run(pipeline, items, options, progress):
        calls.update(items=items, options=options)
        return calls["result"]

    monkeypatch.setattr("epicrag.bench.run", run)
    return calls


def test_the_tables_go_to_stdout_with_what_they_were_measured_on(cli, measured):
    run = cli("bench")
    assert run.code == 0
    out = run.out.splitlines()
    assert out[0] == (
        "stub-lm (0123456789ab), float32 on cpu: Abacus 3, 2 cores, 1 threads, Linux x86_64"
    )
    assert (
        "index /data/index, random passages; 4 prompts x 1 order, 2,080 tokens: 5 passages"
        in out[1]
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in out if "|" in line]
    speed = ["legolink(16)", "neighbour", "4", "758", "800", "13.0x", "3.2", "9.6", "0.91"]
    cost = [
        "legolink(16)",
        "neighbour",
        "4",
        "96.5%",
        "64",
        "3.2%",
        "0.0731",
        "0.0400",
        "0.490",
        "92.0%",
    ]
    assert [*speed, "2nd use"] in rows and cost in rows
    assert ["full", "-", "4", "9,832", "10,001", "1.0x", "-", "9.6", "0.10", "-"] in rows
    assert len({len(line) for line in out if line.startswith("| legolink")}) <= 2
    assert "KL to full prefill" in run.err


def test_the_shape_of_json(cli, measured):
    found = cli("bench", "--json").json
    assert (found["schema_version"], found["model"], found["device"]) == (1, "stub-lm", "cpu")
    assert (found["prompt_tokens"], found["interrupted"]) == (2080, False)
    row = found["rows"][1]
    assert (row["policy"], row["compile"]) == ("legolink(16)", "neighbour")
    assert row["ttft_ms"] == {"median": 758.0, "p95": 800.0}
    names = ["non_prefix_hit_rate", "charged_share", "requests_per_s", "kl", "top1", "break_even"]
    assert [row[name] for name in names] == [0.965, 0.032, 0.91, 0.0731, 0.92, 1.54]
    assert found["setup"]["torch"] == "2.13.0"


def test_flags_reach_the_run(cli, measured, tmp_path):
    (tmp_path / "q.txt").write_text("What is the fee?\n")
    flags = "--prompts 3 --chunks 4 --prompt-tokens 512 --runs 2 --concurrency 0 --seed 9"
    more = ("--policies", "none,damp(4,15)@sink", "--questions", "q.txt", "--answer-tokens", "7")
    assert cli("bench", *flags.split(), *more).code == 0
    options = measured["options"]
    assert (options.prompts, options.runs, options.concurrency, options.seed) == (3, 2, 0, 9)
    assert (options.size.tokens, options.size.chunks, options.answer_tokens) == (512, 4, 7)
    assert options.policies == ("none", "damp(4,15)@sink")
    assert [item.question for item in measured["items"]] == ["What is the fee?"]


def test_quick_is_smaller_and_a_flag_beats_it(cli, measured):
    cli("bench", "--quick", "--prompts", "7")
    quick = measured["options"]
    cli("bench")
    usual = measured["options"]
    assert quick.prompts == 7
    assert quick.size.tokens < usual.size.tokens
    assert (quick.size.chunks, quick.concurrency) == (3, 0)
    assert quick.usual == ("none", "legolink(16)")
    cli("bench", "--quick", "--chunks", "2")
    assert measured["options"].size.chunks == 2


def test_an_interrupt_prints_what_was_measured(cli, measured):
    measured["result"] = replace(REPORT, interrupted=True)
    run = cli("bench")
    assert run.code == 130
    assert "legolink(16)" in run.out
    assert "interrupted" in run.err


def test_an_interrupted_run_says_what_it_measured_and_what_not(cli, measured):
    setup = {**SETUP, "prompts": 1, "planned_policies": 3}
    one = replace(FULL, points=1)
    measured["result"] = Report((one,), setup, 2080, True, ("prefix", "none@sink"))
    run = cli("bench")
    assert "; 1 of 4 prompts x 1 order, 2,080 tokens" in run.out
    assert "not reached, of 3 policies: prefix, none@sink" in run.err
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in run.out.splitlines()]
    (speed, cost) = [row for row in rows if row[:1] == ["full"]]
    assert speed[2:5] == ["1", "9,832", "-"]  # of one measurement there is no 95th percentile
    assert (cost[2], cost[8]) == ("1", "-")


def test_before_the_first_measurement_there_are_no_tables(cli, measured):
    none = dict.fromkeys(("chunks_per_prompt", "chunk_tokens"))
    setup = {**SETUP, **none, "prompts": 0, "runs": 0}
    measured["result"] = Report((), setup, None, True, ("full", "prefix"))
    run = cli("bench")
    assert "0 of 4 prompts" in run.out and "|" not in run.out
    found = cli("bench", "--json").json
    assert (found["rows"], found["prompt_tokens"]) == ([], None)
    assert (found["setup"]["prompts"], found["not_reached"]) == (0, ["full", "prefix"])


@pytest.mark.parametrize(
    ("uses", "said"),
    [
        (None, "-"),
        (0.2, "1st use"),
        (1.0, "1st use"),
        (1.01, "2nd use"),
        (3, "3rd use"),
        (11, "11th use"),
        (1021.5, "1,022nd use"),
    ],
)
def test_it_pays_at_a_whole_use(uses, said):
    assert pays_at(uses) == said


def test_save_keeps_the_json(cli, measured, tmp_path):
    run = cli("bench", "--save", "out.json")
    assert "legolink(16)" in run.out
    saved = json.loads((tmp_path / "out.json").read_text())
    assert saved == cli("bench", "--json").json


def test_a_folder_that_is_not_there_is_said_before_anything_runs(cli, measured):
    run = cli("bench", "--save", "no/where.json")
    assert (run.code, "options" in measured) == (2, False)
    assert "there is no folder" in run.err


def test_without_matplotlib_a_plot_is_refused_at_once_naming_the_extra(cli, measured, monkeypatch):
    monkeypatch.setattr("epicrag.plot.find_spec", lambda name: None)
    run = cli("bench", "--plot", "out.png")
    assert (run.code, "options" in measured) == (2, False)
    assert "epicrag[bench]" in run.err


def test_no_scratch_is_left_behind(cli, measured, tmp_path):
    cli("bench")
    assert not list((tmp_path / "home" / "cache").iterdir())


def test_what_a_killed_run_left_is_removed_by_a_later_one_and_not_by_the_next(tmp_path):
    left = tmp_path / "cache" / "scratch-old"
    left.mkdir(parents=True)
    with scratch(tmp_path) as folder:
        assert folder.is_dir() and left.is_dir()
    os.utime(left, (0, 0))
    with scratch(tmp_path) as folder:
        assert folder.is_dir() and not left.exists()
    assert not folder.exists()


def test_the_frontier_holds_what_nothing_beats():
    assert frontier([(3, 0.1), (0, 0.5), (2, 0.6), (5, 0.1), (1, 0.2)]) == [
        (0, 0.5),
        (1, 0.2),
        (3, 0.1),
    ]


def test_a_plot_is_a_picture_of_every_policy_that_reuses(cli, measured, tmp_path):
    pytest.importorskip("matplotlib")
    others = [
        replace(STITCHED, policy="none", charged_share=0.0, kl=0.5),
        replace(STITCHED, policy="legolink(16)", compile="isolated", kl=0.02),
    ]
    measured["result"] = replace(REPORT, rows=(*REPORT.rows, *others))
    assert cli("bench", "--plot", "out.png").code == 0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    draw(measured["result"], tmp_path / "out.svg")
    with pytest.raises(UsageError, match="cannot be written"):
        draw(measured["result"], tmp_path / "out.docx")
