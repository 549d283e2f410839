"""The `epicrag` command: wires the verbs, and turns whatever goes wrong into a message and a code."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Annotated

import typer

from epicrag import __version__
from epicrag.cli.ask import ask
from epicrag.cli.bench import bench
from epicrag.cli.chat import chat
from epicrag.cli.common import verb, verb_first
from epicrag.cli.config import config
from epicrag.cli.delete import delete
from epicrag.cli.doctor import doctor
from epicrag.cli.eval import evaluate
from epicrag.cli.export import export
from epicrag.cli.gc import gc
from epicrag.cli.hold import INTERRUPTED
from epicrag.cli.ingest import ingest
from epicrag.cli.init import init
from epicrag.cli.list import list_documents
from epicrag.cli.models import models
from epicrag.cli.output import Output, make_printable
from epicrag.cli.rebuild import rebuild
from epicrag.cli.restore import restore
from epicrag.cli.search import search
from epicrag.cli.serve import serve
from epicrag.cli.show import show
from epicrag.cli.status import status
from epicrag.cli.warm import warm
from epicrag.errors import EpicragError

UNEXPECTED, USAGE = 1, 2

app = typer.Typer(
    name="epicrag",
    help="Ask your documents. Every passage is read by the model once, and reused from then on.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
verb(app, "init")(init)
verb(app, "ingest")(ingest)
verb(app, "ask")(ask)
verb(app, "chat")(chat)
verb(app, "serve")(serve)
verb(app, "search")(search)
verb(app, "list")(list_documents)
verb(app, "show")(show)
verb(app, "delete")(delete)
verb(app, "status")(status)
verb(app, "doctor")(doctor)
verb(app, "warm")(warm)
verb(app, "gc")(gc)
verb(app, "rebuild")(rebuild)
verb(app, "export")(export)
verb(app, "import")(restore)
verb(app, "bench")(bench)
verb(app, "eval")(evaluate)
app.add_typer(config, name="config")
app.add_typer(models, name="models")


def _version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"epicrag {__version__}")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Ask your documents. Every passage is read by the model once, and reused from then on."""


def run() -> None:
    """Run the command line of this process, and end it."""
    sys.exit(main(sys.argv[1:]))


def main(args: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    make_printable()
    out = Output(
        json="--json" in args,
        jsonl="--jsonl" in args,
        verbose="-v" in args or "--verbose" in args,
    )
    if not out.verbose:
        warnings.filterwarnings("ignore")  # of libraries, about themselves
    try:
        code = typer.main.get_command(app).main(
            verb_first(args) or ["--help"], prog_name="epicrag", standalone_mode=False
        )
        return code or 0
    except (KeyboardInterrupt, typer.Abort):
        out.error("interrupted", "interrupted", None)
        return INTERRUPTED
    except EpicragError as error:
        out.failure(error)
        if out.verbose:
            traceback.print_exc()
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the last resort: one line, not a traceback
        return _unexpected(out, error)


def _unexpected(out: Output, error: Exception) -> int:
    """A bad command line, as typer words it; or a fault of ours."""
    if hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        hint = f"try: {context.command_path} --help" if context else "try: epicrag --help"
        out.error("usage", error.format_message(), hint)
        return USAGE
    out.unexpected(error)
    return UNEXPECTED
