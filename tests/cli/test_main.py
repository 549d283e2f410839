"""Every way a command line can end has its code and its words."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from epicrag import errors

ROOT = Path(__file__).parents[2]
ENTRY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["epicrag"]
ENTRY = ENTRY.partition(":")[0]
CODES = {
    errors.EpicragError: 1,
    errors.UsageError: 2,
    errors.IndexEmptyError: 3,
    errors.AbstainedError: 4,
    errors.PartialIngestError: 5,
    errors.MismatchError: 6,
    errors.LockedError: 7,
    errors.DamagedError: 8,
    errors.DeviceError: 9,
    errors.OfflineError: 10,
    errors.BelowError: 11,
}


def python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("args", [["--help"], ["ask", "--help"], ["models", "list", "--help"], []])
def test_help_imports_nothing_heavy(args):
    script = (
        "import sys, json; from epicrag.cli.main import main; code = main(sys.argv[1:] or "
        f"{args!r}); print(json.dumps(sorted(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    done = python(script)
    assert done.returncode == 0, done.stderr
    assert "Usage: epicrag" in done.stdout
    heavy = "torch transformers faiss numpy llama_index sentence_transformers lxml rich"
    assert not set(heavy.split()) & set(json.loads(done.stderr))


@pytest.mark.parametrize(("kind", "code"), CODES.items())
def test_each_error_has_its_exit_code(cli, pipeline, kind, code):
    pipeline.error = kind("what happened", "what to do")
    run = cli("search", "words")
    assert (run.code, run.out) == (code, "")
    assert run.err == "error: what happened\nhint: what to do\n"


def test_an_error_under_json_is_json_on_stdout(cli, pipeline):
    pipeline.error = errors.LockedError("somebody writes", "wait")
    run = cli("search", "words", "--json")
    assert (run.code, run.err) == (7, "")
    assert run.json == {
        "schema_version": 1,
        "error": {"code": "locked", "message": "somebody writes", "hint": "wait"},
    }


@pytest.mark.parametrize(
    "args",
    [["ask"], ["nonsense"], ["ask", "q", "--nonsense"], ["ask", "q", "-k", "many"], ["models"]],
)
def test_a_bad_command_line_is_a_usage_error(cli, args):
    run = cli(*args)
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith("error: ")
    assert "--help" in run.err
    assert "Traceback" not in run.err


def test_a_bad_command_line_under_json_is_json(cli):
    run = cli("ask", "--json")
    assert run.code == 2
    assert run.json["error"]["code"] == "usage"


def test_a_bad_setting_is_a_usage_error(cli, pipeline):
    run = cli("ask", "q", "--compile", "sideways")
    assert run.code == 2
    assert "sideways" in run.err


def test_a_fault_of_ours_is_one_line(cli, pipeline):
    pipeline.error = ZeroDivisionError("division by zero\nmore")
    run = cli("search", "words")
    assert run.code == 1
    assert run.err.splitlines() == [
        "error: ZeroDivisionError: division by zero",
        "hint: run with -v for the traceback",
    ]


def test_with_v_a_fault_shows_its_traceback(cli, pipeline):
    pipeline.error = ZeroDivisionError("division by zero")
    run = cli("search", "words", "-v")
    assert run.code == 1
    assert "Traceback" in run.err


def test_ctrl_c_exits_with_130(cli, pipeline):
    pipeline.error = KeyboardInterrupt()
    run = cli("search", "words")
    assert run.code == 130
    assert "Traceback" not in run.err


@pytest.mark.parametrize("name", ["epicrag.cli.main", "typer", "epicrag.errors"])
def test_ctrl_c_before_the_command_is_there_is_no_traceback(name):
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {name!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        f"from {ENTRY} import run\n"
        "run()\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "error: interrupted\n")


def test_without_an_index_it_says_what_to_do(cli):
    run = cli("ask", "anything?")
    assert run.code == 3
    assert "epicrag ingest PATH" in run.err


def test_the_version(cli):
    from epicrag import __version__

    assert cli("--version").out == f"epicrag {__version__}\n"


def test_common_flags_may_stand_before_the_verb(cli, pipeline, tmp_path):
    run = cli("--json", "--index", str(tmp_path / "here"), "--model=some", "search", "words")
    assert run.json["query"] == "words"
    assert (pipeline.config.index, pipeline.config.model) == (tmp_path / "here", "some")


def test_common_flags_reach_the_configuration(cli, pipeline, tmp_path):
    cli(
        "search", "w", "--home", str(tmp_path), "--embed-model", "e", "--device", "cpu", "--offline"
    )
    config = pipeline.config
    assert (config.home, config.embed_model, config.device, config.offline) == (
        tmp_path,
        "e",
        "cpu",
        True,
    )
    assert config.origins["device"] == "flag"


def test_a_reader_that_goes_away_is_no_error():
    script = (
        "import os, sys; from epicrag.cli.main import main; "
        "r, w = os.pipe(); os.dup2(w, 1); os.close(r); os.close(w); "
        "sys.exit(main(['models', 'list']))"
    )
    done = python(script)
    assert done.returncode == 141
    assert done.stderr == ""


def test_printing_never_raises_on_a_narrow_encoding():
    script = (
        "import sys; from epicrag.cli.output import Output, make_printable; make_printable(); "
        "Output().text('caf\\u00e9 \\u4eca bad\\udcff.txt'); Output(json=True).object({'a': '\\u4eca\\udcff'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        check=False,
        env={"PYTHONIOENCODING": "ascii", "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    first, _, rest = done.stdout.partition(b"\n")
    assert first == b"caf\\xe9 \\u4eca bad\\udcff.txt"
    assert json.loads(rest)["a"] == "\u4eca\udcff"


@pytest.mark.parametrize("verb", ["search", "ask", "ingest"])
def test_an_interrupt_inside_a_verb_is_said_as_json_too(cli, pipeline, verb):
    pipeline.error = KeyboardInterrupt()
    run = cli(verb, "words", "--json")
    assert run.code == 130
    assert run.json["error"]["code"] == "interrupted"


@pytest.mark.parametrize(
    "args", [("ingest", ""), ("status", "--index", ""), ("search", "x", "--home", " ")]
)
def test_an_empty_path_is_refused_and_not_taken_for_the_working_folder(cli, pipeline, args):
    run = cli(*args)
    assert run.code == 2
    assert "must not be empty" in run.err
