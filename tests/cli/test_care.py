"""What `init`, `list`, `show`, `delete`, `gc`, `warm`, `rebuild`, `export`, `import`, `doctor` and `config` print."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from epicrag.cli.main import app
from epicrag.pipeline import Pipeline

VERBS = ("init", "list", "show", "delete", "gc", "warm", "rebuild", "export", "import", "doctor")


def stubs():
    """The stub models of the pipeline's own tests."""
    file = Path(__file__).parents[1] / "epicrag" / "conftest.py"
    spec = importlib.util.spec_from_file_location("pipeline_stubs", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def museum(tmp_path, monkeypatch):
    """An index of three documents, which every command line opens."""
    bench = stubs().Bench(tmp_path)
    bench.write("returns.md", "# Returns\n\nGoods can be returned within 45 days.\n")
    bench.write("museum.txt", "The harbour museum opens at ten. Its door code is 4471.\n")
    bench.write("sub/ferry.txt", "The ferry to the island leaves every hour from pier three.\n")
    bench.ingest()

    def opened(config, **options):
        given = options.get("create") and config.index != bench.config.index
        index = config.index if given else bench.config.index
        return bench.open(index=index, kv_disk=config.kv_disk)

    monkeypatch.setattr(Pipeline, "open", opened)
    return bench


@pytest.mark.parametrize("verb", [*VERBS, "config"])
def test_every_verb_has_help_and_is_listed(cli, verb):
    assert f" {verb} " in cli("--help").out
    assert "Usage: epicrag" in cli(verb, "--help").out


def test_list_shows_documents_on_stdout_and_the_sum_on_stderr(cli, museum):
    run = cli("list")
    lines = run.out.splitlines()
    assert [line.rsplit("  ", 1)[1] for line in lines] == [
        "docs/museum.txt",
        "docs/returns.md",
        "docs/sub/ferry.txt",
    ]
    assert run.err == "3 documents, 3 chunks, 31 tokens\n"
    assert cli("list", "*.md", "--quiet").err == ""


def test_the_shape_of_list_json(cli, museum):
    found = cli("list", "docs/museum.txt", "--json").json
    assert found["schema_version"] == 1
    (document,) = found["documents"]
    assert set(document) == {
        *("id", "path", "title", "media", "chunks", "tokens", "meta", "kv"),
    }
    assert document["path"] == str(museum.docs / "museum.txt")
    assert document["kv"]["chunks"] == 1
    lines = cli("list", "--jsonl").out.splitlines()
    assert [json.loads(line)["schema_version"] for line in lines] == [1, 1, 1]


def test_show_prints_a_passage_with_its_place(cli, museum):
    run = cli("show", "docs/museum.txt:1")
    head, text = run.out.splitlines()
    assert head.startswith("--- docs/museum.txt:1 · passage 1 of 1 · ")
    assert "KV on disk" in head
    assert text == "The harbour museum opens at ten. Its door code is 4471."
    assert run.err == ""


def test_the_shape_of_show_json(cli, museum):
    found = cli("show", "returns.md", "--json").json
    assert (found["schema_version"], found["of"]) == (1, 1)
    (passage,) = found["passages"]
    assert set(passage) == {
        *("chunk", "document", "path", "ordinal", "page", "lines", "heading", "part", "cells"),
        *("tokens", "kv", "asked", "header", "text"),
    }


def test_a_name_that_means_nothing_says_what_to_do(cli, museum):
    run = cli("show", "musem.txt")
    assert (run.code, run.out) == (2, "")
    assert "did you mean museum.txt?" in run.err


def test_delete_says_that_the_file_stays_and_how_to_keep_it_out(cli, museum):
    run = cli("delete", "museum.txt")
    assert (run.code, run.out) == (0, "docs/museum.txt\n")
    assert "deleted: 1 document, 1 chunk" in run.err
    assert ".epicragignore" in run.err


def test_delete_of_several_needs_a_yes_or_a_person(cli, museum, monkeypatch):
    run = cli("delete", "*.txt")
    assert run.code == 2
    assert "2 of the 3 documents" in run.err
    assert "--yes" in run.err
    assert len(cli("delete", "*.txt", "--dry-run").out.splitlines()) == 2
    monkeypatch.setattr("epicrag.cli.delete.is_person", lambda: True)
    assert cli("delete", "*.txt", stdin=b"n\n").code == 2
    assert cli("delete", "*.txt", stdin=b"y\n").code == 0
    assert len(cli("list").out.splitlines()) == 1


def test_a_filter_that_fits_nothing_is_said(cli, museum):
    run = cli("search", "door code", "--filter", "ext=pdf")
    assert (run.code, run.out) == (0, "")
    assert run.err == "nothing was found: the filter fits no passage of the index\n"
    run = cli("ask", "What is the door code?", "--filter", "ext=pdf")
    assert run.out.endswith("documents: the filter fits no passage of the index.\n")
    run = cli("ask", "What is the door code?", "--filter", "ext=pdf", "--strict")
    assert run.code == 4 and "the filter fits no passage" in run.err
    assert "filter" not in cli("search", "door code", "--filter", "ext=txt").err


def test_gc_says_what_it_freed(cli, museum):
    assert cli("gc").err == "nothing to free\n"
    with museum.open():
        museum.engine.put("0" * 64)
    run = cli("gc", "--dry-run")
    assert "KV of no passage" in run.out
    assert "would be freed" in run.err
    found = cli("gc", "--json").json
    assert found["freed"][0]["files"] == 1
    assert found["bytes"] > 0


def test_warm_computes_what_is_missing_and_says_so(cli, museum):
    with museum.open() as pipeline:
        for key in pipeline.catalog.kv_keys():
            pipeline.kv_store.delete(key)
    run = cli("warm", "--top", "2")
    assert (run.code, run.out) == (0, "2 of 2 chunks with KV on disk\n")
    assert "KV computed for 2 chunks" in run.err
    assert cli("warm", "--json").json["ready"] == 3
    museum.engine.interrupt_at = 0
    museum.write("new.txt", "Something that nobody has read yet.\n")
    museum.ingest(kv=False)
    assert cli("warm").code == 130


def test_rebuild_embeds_again_and_says_how_to_keep_it(cli, museum):
    assert "3 vectors of 3 chunks" in cli("rebuild").out
    assert "nothing to embed" in cli("rebuild", "--embed-only").err
    museum.embedder = replace(museum.embedder, name="other", fingerprint="o", dim=16)
    run = cli("rebuild", "--embed-only")
    assert run.code == 0
    assert "stub before, other now" in run.out
    found = cli("rebuild", "--embed-only", "--json").json
    assert (found["chunks"], found["new"]) == (3, None)


def test_an_archive_goes_out_and_comes_in(cli, museum, tmp_path):
    run = cli("export", "museum.zip", "--kv")
    assert run.out == "museum.zip\n"
    assert "KV of 4 entries" in run.err
    assert cli("export", "museum.zip").code == 2
    new = ("--index", str(tmp_path / "new"))
    run = cli("import", "museum.zip", *new, "--map", f"{museum.docs}=/srv/docs")
    assert run.out.startswith("3 documents, 3 chunks, 3 vectors, KV of 4 · ")
    again = cli("import", "museum.zip", *new)
    assert again.code == 2
    assert "--merge" in again.err
    assert cli("import", "museum.zip", *new, "--merge", "--json").json["replaced"] == 0
    assert cli("import", "museum.zip", *new, "--map", "nonsense").code == 2


def test_doctor_tells_and_exits_with_what_is_gravest(cli, museum):
    run = cli("doctor")
    assert run.code == 0, run.out
    assert run.out.count("\nok ") > 10
    for file in (museum.config.index / "vectors").glob("*"):
        file.write_bytes(b"nonsense")
    run = cli("doctor", "-q")
    assert run.code == 8
    assert "fail  vector copy" in run.out
    assert "→ epicrag rebuild" in run.out
    found = cli("doctor", "--fix", "--json").json
    assert (found["exit_code"], len(found["fixed"])) == (0, 1)
    assert set(found["checks"][0]) == {"name", "state", "what", "fix"}


def test_what_is_advised_can_be_copied_for_the_index_in_use(cli, museum):
    for file in (museum.config.index / "vectors").glob("*"):
        file.write_bytes(b"nonsense")
    where = ("--index", str(museum.config.index))
    assert f"→ epicrag rebuild {' '.join(where)}\n" in cli("doctor", "-q", *where).out
    checks = cli("doctor", "--json", *where).json["checks"]
    assert f"epicrag rebuild {' '.join(where)}" in [check["fix"] for check in checks]
    run = cli("list", "nothing", "--index", "any where")
    assert run.err.endswith("see them with: epicrag list --index 'any where'\n")


def test_doctor_survives_settings_that_cannot_be_used(cli):
    Path("epicrag.toml").write_text("topk = 3\n")
    run = cli("doctor")
    assert run.code == 2
    assert "top_k" in run.out


@pytest.mark.parametrize("verb", [("doctor",), ("ask", "q"), ("serve",)])
def test_a_bad_choice_of_kernels_is_a_usage_error(cli, monkeypatch, verb):
    monkeypatch.setenv("EPICRAG_KERNELS", "tritn")
    run = cli(*verb)
    assert run.code == 2
    assert "EPICRAG_KERNELS is 'tritn'" in run.out + run.err
    assert "Traceback" not in run.err


def test_doctor_tells_the_kernels_to_programs_too(cli):
    told = {check["name"]: check["what"] for check in cli("doctor", "--json").json["checks"]}
    assert {"kernel segment_attention", "kernel rotate", "kernel decoder"} <= set(told)


def test_init_then_config(cli, tmp_path):
    run = cli("init", "--device", "cpu")
    assert run.out.splitlines() == ["epicrag.toml", ".epicragignore", ".epicrag/.gitignore"]
    assert run.err == "next: epicrag ingest .\n"
    assert cli("init").code == 2
    shown = cli("config", "show", "--origin").out.splitlines()
    (line,) = [line for line in shown if line.startswith("device")]
    assert line.split() == ["device", "=", '"cpu"', "#", str(tmp_path / "epicrag.toml")]
    found = cli("config", "show", "--json").json["settings"]
    assert found["index"] == {
        "value": str(tmp_path / ".epicrag" / "index"),
        "origin": str(tmp_path / "epicrag.toml"),
    }
    assert cli("config", "path").out.splitlines()[1] == str(tmp_path / "epicrag.toml")
    assert cli("config", "check").code == 0


def test_init_in_another_folder_says_where_to_go(cli, tmp_path):
    run = cli("init", "notes", "--json")
    assert run.json["folder"] == str(tmp_path / "notes")
    assert "cd " in cli("init", "other").err


@pytest.mark.parametrize(
    "line", ["topk = 3", "top_k = 0", "link_policy = 'sideways'", "model = 'smolm2'", "= 3"]
)
def test_config_check_refuses_what_cannot_be(cli, line):
    Path("epicrag.toml").write_text(line + "\n")
    run = cli("config", "check")
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith("error: ")


def test_the_shell_completes_verbs_and_documents(museum, tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "EPICRAG_INDEX": str(museum.config.index),
        "_EPICRAG_COMPLETE": "complete_bash",
    }
    code = "from epicrag.cli.main import run; run()"

    def completed(line, at):
        words = {"COMP_WORDS": line, "COMP_CWORD": str(at)}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**environment, **words},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.split()

    assert "doctor" in completed("epicrag do", 1)
    assert completed("epicrag show docs/m", 2) == ["docs/museum.txt"]


def test_completion_of_an_index_that_is_none_is_empty(tmp_path):
    import typer

    from epicrag.cli.complete import documents

    context = typer.Context(typer.main.get_command(app))
    context.params = {"index": str(tmp_path / "nowhere")}
    assert documents(context, "") == []


def test_an_answer_leaves_its_sources_to_be_shown(cli, museum):
    assert cli("show", "1").code == 2
    from epicrag.cli.ask import remember
    from epicrag.types import Source

    with museum.open() as pipeline:
        _, chunk = next(iter(pipeline.catalog.all_chunks()))
        remember(pipeline, [Source(1, chunk.document, None, None, None, chunk.id, None)])
    assert "4471" in cli("show", "[1]").out
