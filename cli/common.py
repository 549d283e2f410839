"""The flags that every verb takes, and those of several, declared once."""

from __future__ import annotations

import inspect
import logging
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epicrag.cli.hold import INTERRUPTED
from epicrag.cli.output import Output
from epicrag.errors import EpicragError

if TYPE_CHECKING:
    from epicrag.config import Config
    from epicrag.pipeline import Pipeline


CompileMode = Annotated[
    str | None, typer.Option("--compile", help="isolated, sink, prefix or neighbour.")
]
Quantize = Annotated[
    str | None, typer.Option("--quantize", help="none, or int8: fewer bits, faster on a CPU.")
]
"""Both decide what KV is computed."""
LinkPolicy = Annotated[
    str | None, typer.Option("--link-policy", help="full, prefix, none, legolink(16), damp …")
]
TopK = Annotated[
    int | None, typer.Option("--top-k", "-k", min=1, help="Passages to put before the model.")
]
ShowTiming = Annotated[
    bool, typer.Option("--show-timing", help="Print the receipt: what was reused, and the time.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit 4 if the documents do not answer it.")]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", min=1, help="Longest answer, in tokens.")
]
Temperature = Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Makes sampling repeatable.")]
"""What an answer is made from, and how."""


def path(text: str) -> Path:
    """Read a path from the command line. An empty one, an unset variable as a rule, is not "here"."""
    if not text.strip():
        raise typer.BadParameter("a path must not be empty")
    return Path(text)


@dataclass(frozen=True, slots=True)
class Common:
    """The flags of every verb, as given; None means "as configured"."""

    index: Annotated[
        Path | None,
        typer.Option("--index", help="Folder of the index.", metavar="DIR", parser=path),
    ] = None
    home: Annotated[
        Path | None,
        typer.Option(
            "--home", help="Where epicrag keeps indexes and models.", metavar="DIR", parser=path
        ),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", help="Read this instead of epicrag.toml.", metavar="FILE", parser=path
        ),
    ] = None
    model: Annotated[
        str | None, typer.Option("--model", help="Serving model: a name or a path.")
    ] = None
    embed_model: Annotated[
        str | None, typer.Option("--embed-model", help="Embedding model: a name or a path.")
    ] = None
    device: Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda, cuda:N.")] = None
    kv_dtype: Annotated[
        str | None,
        typer.Option("--kv-dtype", help="KV on disk and in memory: auto (16 bits), or int8."),
    ] = None
    offline: Annotated[bool, typer.Option("--offline", help="Never use the network.")] = False
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Print a JSON object a line.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the answer.")] = False
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more; show tracebacks.")] = (
        False
    )
    no_color: Annotated[bool, typer.Option("--no-color", help="No colour, no links.")] = False

    @property
    def output(self) -> Output:
        return Output(
            self.json, self.jsonl, self.quiet, self.verbose, self.no_color, self._index_flags()
        )

    def _index_flags(self) -> str:
        """Those of the flags given that say which index is meant."""
        names = ("index", "home", "config")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return shlex.join(
            word for name, value in given.items() for word in (f"--{name}", str(value))
        )

    @property
    def flags(self) -> dict[str, object]:
        """The flags that are settings, as `load_config` takes them."""
        names = ("index", "home", "config", "model", "embed_model", "device", "kv_dtype")
        return {name: getattr(self, name) for name in names} | {"offline": self.offline or None}

    def load(self, **more: object) -> Config:
        from epicrag.config import load_config

        return load_config({**self.flags, **more})

    def open(
        self, *, create: bool = False, kv_folder: Path | None = None, **more: object
    ) -> Pipeline:
        """Open the index that these flags, and those of the verb, point to."""
        from epicrag.pipeline import Pipeline

        config = self.load(**more)
        self.log(config.log)
        return Pipeline.open(config, create=create, say=self.output.note, kv_folder=kv_folder)

    def log(self, level: str) -> None:
        """Send epicrag's own log to stderr: what the configured level, -q or -v let through."""
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        logger = logging.getLogger("epicrag")
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel("ERROR" if self.quiet else "DEBUG" if self.verbose else level.upper())


def verb(app: typer.Typer, name: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Register a function `f(common, own flags…) -> exit code` as a verb that takes all common flags."""

    def register(function: Callable[..., int]) -> Callable[..., int]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        hints = inspect.get_annotations(Common, eval_str=True)
        shared = [
            inspect.Parameter(f.name, _KEYWORD, default=f.default, annotation=hints[f.name])
            for f in fields(Common)
        ]

        def command(**values: Any) -> int:
            common = Common(**{f.name: values.pop(f.name) for f in fields(Common)})
            try:
                return function(common, **values)
            except KeyboardInterrupt:  # typer would make a silent exit code of it
                common.output.error("interrupted", "interrupted", None)
                return INTERRUPTED
            except EpicragError as error:
                error.hint = common.output.advice(error.hint) if error.hint else None
                raise

        parameters = [parameter.replace(kind=_KEYWORD) for parameter in own]
        command.__signature__ = inspect.Signature([*parameters, *shared])  # type: ignore[attr-defined]
        command.__annotations__ = {}
        command.__doc__ = function.__doc__
        app.command(name)(command)
        return function

    return register


_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def verb_first(args: Sequence[str]) -> list[str]:
    """Move common flags that stand before the verb behind it: `epicrag --json ask …` is meant well."""
    options = {
        name: str(f.type).startswith("Annotated[bool")
        for f in fields(Common)
        for name in _names(f.name)
    }
    at = 0
    while at < len(args) and args[at].split("=")[0] in options:
        is_switch = options[args[at].split("=")[0]] or "=" in args[at]
        at += 1 if is_switch else 2
    return [*args[at : at + 1], *args[:at], *args[at + 1 :]]


def _names(field: str) -> tuple[str, ...]:
    short = {"quiet": "-q", "verbose": "-v"}
    return (f"--{field.replace('_', '-')}", *([short[field]] if field in short else []))
