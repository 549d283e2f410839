"""What `epicrag ingest` prints, and its exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from epicrag.cli.output import Output
from epicrag.cli.progress import Lines, file_line
from epicrag.pipeline import Event, MassDeleteError
from epicrag.types import FileReport


def test_what_changed_has_a_line_and_all_a_summary(cli, pipeline):
    run = cli("ingest", "docs")
    assert (run.code, run.out) == (0, "")
    assert run.err.splitlines() == [
        "added       docs/a.md (2 chunks)",
        "1 added, 1 unchanged",
        "3 chunks, 100 tokens in these files",
        "KV on disk 2.0 KiB · 1.5 s",
    ]


def test_with_v_unchanged_files_have_a_line_too(cli, pipeline):
    assert "unchanged   docs/b.md (1 chunk)\n" in cli("ingest", "docs", "-v").err


def test_the_shape_of_json(cli, pipeline, tmp_path):
    run = cli("ingest", "docs", "--json")
    assert json.loads(run.out) == {
        "schema_version": 1,
        "files": [
            {
                "path": str(tmp_path / "docs/a.md"),
                "status": "added",
                "reason": None,
                "chunks": 2,
                "tokens": 90,
            },
            {
                "path": str(tmp_path / "docs/b.md"),
                "status": "unchanged",
                "reason": None,
                "chunks": 1,
                "tokens": 10,
            },
        ],
        "totals": {
            "added": 1,
            "unchanged": 1,
            "chunks": 3,
            "tokens": 100,
            "kv_bytes": 2048,
            "kv_chunks": 0,
            "kv_tokens": 0,
        },
        "ms": 1500.0,
        "dry_run": False,
        "interrupted": False,
        "notes": [],
        "ignored": 0,
    }


def test_jsonl_has_a_line_a_file_and_the_totals_last(cli, pipeline):
    lines = [json.loads(line) for line in cli("ingest", "docs", "--jsonl").out.splitlines()]
    assert [line.get("status") for line in lines] == ["added", "unchanged", None]
    assert lines[-1]["totals"]["added"] == 1


@pytest.mark.parametrize(
    ("status", "code"), [("failed", 5), ("unsupported", 0), ("skipped", 0), ("empty", 0)]
)
def test_only_failed_files_make_it_partial(cli, pipeline, status, code):
    report = FileReport("/x/y.pdf", status, "why")
    pipeline.result = replace(pipeline.result, files=(*pipeline.result.files, report))
    run = cli("ingest", "docs")
    assert run.code == code
    assert f"{status:<11} /x/y.pdf: why" in run.err


def test_an_interrupted_run_exits_with_130_after_its_report(cli, pipeline):
    pipeline.result = replace(pipeline.result, interrupted=True)
    run = cli("ingest", "docs", "--json")
    assert (run.code, run.json["interrupted"]) == (130, True)


def test_flags_reach_the_pipeline(cli, pipeline):
    cli("ingest", "a", "b", "--no-kv", "--dry-run", "--yes", "--chunk-size", "128")
    verb, paths, options = pipeline.calls[0]
    assert (verb, paths) == ("ingest", [Path("a"), Path("b")])
    assert (options["kv"], options["dry_run"], options["yes"]) == (False, True, True)
    assert pipeline.config.chunk_tokens == 128


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_mass_delete_is_refused_where_nobody_can_be_asked(cli, pipeline, flags):
    pipeline.error = MassDeleteError(4, 5)
    run = cli("ingest", "docs", *flags, stdin=b"y\n")
    assert run.code == 2
    assert "delete 4 of the 5" in run.out + run.err
    assert "--yes" in run.out + run.err


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 2), (b"y\n", 0)])
def test_a_mass_delete_is_asked_of_a_person(cli, pipeline, monkeypatch, answer, code):
    def refuse(verb, subject, options):
        if not options.get("yes"):
            raise MassDeleteError(4, 5)

    monkeypatch.setattr(pipeline, "_called", refuse)
    monkeypatch.setattr("epicrag.cli.ingest.is_person", lambda: True)
    assert cli("ingest", "docs", stdin=answer).code == code


def test_a_file_name_cannot_forge_a_line():
    assert (
        file_line(FileReport("/x/a\nadded b", "failed", "why")) == "failed      /x/a\\nadded b: why"
    )


def test_long_work_has_a_line_now_and_then_with_its_pace(capsys):
    lines = Lines(Output())
    lines(Event("kv", 500, 1000, None, 250, 5.0))
    lines(Event("kv", 1000, 1000, None, 750, 10.0))
    assert capsys.readouterr().err == "KV tokens: 1,000 of 1,000, 75 tokens/s\n"
    lines = Lines(Output())
    lines._said -= 60
    lines(Event("kv", 250, 1000, None, 250, 5.0))
    assert capsys.readouterr().err == "KV tokens: 250 of 1,000, 50 tokens/s, 15 s left\n"


def test_addresses_reach_the_pipeline_whole_and_lists_of_them_too(cli, pipeline, tmp_path):
    listed = tmp_path / "urls.txt"
    listed.write_text("# pages\n\nhttps://a.example/x?y=1\n", "utf-8")
    cli("ingest", "https://a.example/sitemap.xml", "docs", "--urls", str(listed), "--wait", "3")
    _, paths, options = pipeline.calls[0]
    assert paths == ["https://a.example/sitemap.xml", Path("docs"), "https://a.example/x?y=1"]
    assert options["wait"] == 3


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "nothing to ingest"),
        (["-"], "needs a name"),
        (["-", "docs", "--name", "a.md"], "one document"),
        (["docs", "--name", "a.md"], "--name"),
        (["docs", "--reader", "a:B"], "takes no paths"),
        (["docs", "--watch", "--dry-run"], "--watch"),
        (["docs", "--watch", "--json"], "--jsonl"),
        (["--urls", "nowhere.txt"], "cannot be read"),
        (["--reader", "a:B", "--reader-args", "{no json"], "no JSON"),
        (["--reader", "a:B", "--reader-args", "[]"], "no JSON object"),
    ],
)
def test_flags_that_mean_nothing_together_are_refused(cli, pipeline, args, said):
    run = cli("ingest", *args, stdin=b"")
    assert run.code == 2
    assert said in run.out + run.err
    assert pipeline.calls == []


def test_a_list_of_addresses_that_holds_something_else_is_refused(cli, pipeline, tmp_path):
    (tmp_path / "urls.txt").write_text("docs/a.md\n", "utf-8")
    run = cli("ingest", "--urls", "urls.txt")
    assert run.code == 2 and "docs/a.md" in run.err


def test_standard_input_is_handed_over_as_bytes(cli, pipeline, monkeypatch):
    given = []

    def ingest_bytes(name, data, manner, progress):
        given.append((name, data, manner.kv))
        return pipeline.result

    monkeypatch.setattr(pipeline, "ingest_bytes", ingest_bytes, raising=False)
    assert cli("ingest", "-", "--name", "a.md", "--no-kv", stdin=b"caf\xe9\0").code == 0
    assert given == [("a.md", b"caf\xe9\0", False)]


def test_a_reader_gets_its_arguments_and_a_name(cli, pipeline, monkeypatch):
    given = []

    def ingest_reader(reader, arguments, root, manner, progress):
        given.append((reader, arguments, root))
        return pipeline.result

    monkeypatch.setattr(pipeline, "ingest_reader", ingest_reader, raising=False)
    cli("ingest", "--reader", "a.b:C", "--reader-args", '{"x": [1]}')
    cli("ingest", "--reader", "a.b:C", "--name", "wiki")
    assert given == [("a.b:C", {"x": [1]}, "C"), ("a.b:C", {}, "wiki")]


def test_a_watch_ends_with_130_and_says_that_nothing_is_lost(cli, pipeline, monkeypatch):
    def watch(paths, manner, progress):
        assert (paths, manner.yes) == ([Path("docs")], True)
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "watch", watch, raising=False)
    run = cli("ingest", "docs", "--watch", "--yes")
    assert run.code == 130 and "consistent" in run.err


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 2), (b"y\n", 130)])
def test_a_watch_that_begins_with_a_mass_delete_asks(cli, pipeline, monkeypatch, answer, code):
    def watch(paths, manner, progress):
        if not pipeline.calls:
            raise MassDeleteError(4, 5)
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "watch", watch, raising=False)
    monkeypatch.setattr("epicrag.cli.ingest.is_person", lambda: True)
    assert cli("ingest", "docs", "--watch", stdin=answer).code == code
    assert [call[2]["yes"] for call in pipeline.calls] == ([True] if code == 130 else [])


def test_what_was_ignored_is_counted(cli, pipeline):
    pipeline.result = replace(pipeline.result, ignored=7)
    run = cli("ingest", "docs")
    assert "1 added, 1 unchanged · 7 hidden or ignored" in run.err
    assert cli("ingest", "docs", "--json").json["ignored"] == 7
