"""`epicrag serve`: the index and the model over HTTP, as OpenAI's clients and the page at / know it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epicrag.cli.common import Common, CompileMode, LinkPolicy, Quantize, path
from epicrag.errors import UsageError

if TYPE_CHECKING:
    from epicrag.config import Config
    from epicrag.server.settings import ServerSettings

TOKEN = "EPICRAG_TOKEN"


def serve(
    common: Common,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="0 takes any that is free.")
    ] = 8000,
    host: Annotated[
        str, typer.Option("--host", help="Another than this machine's own needs a token.")
    ] = "127.0.0.1",
    served_model_name: Annotated[
        str | None, typer.Option("--served-model-name", help="What clients call the model.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option("--max-model-len", min=64, help="Tokens of prompt and answer.")
    ] = None,
    gpu_memory_utilization: Annotated[
        float | None,
        typer.Option("--gpu-memory-utilization", help="Share of a GPU's free memory for KV."),
    ] = None,
    tensor_parallel_size: Annotated[
        int, typer.Option("--tensor-parallel-size", min=1, help="Only 1: one device serves.")
    ] = 1,
    pic: Annotated[
        bool | None,
        typer.Option(
            "--pic/--no-pic", help="Reuse chunks at any position, or exact prefixes only."
        ),
    ] = None,
    pic_chunk_size: Annotated[
        int | None,
        typer.Option("--pic-chunk-size", min=32, help="Tokens of a chunk of given documents."),
    ] = None,
    pic_legolink_sink_tokens: Annotated[
        int | None,
        typer.Option(
            "--pic-legolink-sink-tokens",
            min=0,
            help="Tokens at each chunk's start that are computed again: legolink(N).",
        ),
    ] = None,
    link_policy: LinkPolicy = None,
    compile_mode: CompileMode = None,
    quantize: Quantize = None,
    no_index: Annotated[
        bool, typer.Option("--no-index", help="Serve the model alone, without an index.")
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", help="Tenants and their tokens, in TOML.", metavar="FILE", parser=path
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="A name that this server answers to; may be repeated."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option("--allow-origin", help="A site whose pages may ask; may be repeated."),
    ] = None,
    max_running: Annotated[
        int, typer.Option("--max-running", min=1, help="Answers that are computed at once.")
    ] = 32,
    max_waiting: Annotated[
        int, typer.Option("--max-waiting", min=0, help="Answers that may wait; more get 429.")
    ] = 256,
    request_timeout: Annotated[
        float, typer.Option("--request-timeout", min=0.1, help="Seconds that an answer may take.")
    ] = 600.0,
    grace: Annotated[
        float, typer.Option("--grace", min=0.0, help="Seconds for open answers at the end.")
    ] = 30.0,
    max_body_mb: Annotated[
        float, typer.Option("--max-body-mb", min=0.001, help="Largest body of a request.")
    ] = 16.0,
    log_format: Annotated[
        str, typer.Option("--log-format", help="json, text, or auto: text on a terminal.")
    ] = "auto",
) -> int:
    """Serve the index and the model over HTTP: OpenAI's API, epicrag's own, and a page."""
    if tensor_parallel_size != 1:
        raise UsageError(
            f"--tensor-parallel-size is {tensor_parallel_size}, and one device serves",
            "leave it out; --device cuda:1 chooses another one, --quantize int8 a smaller model",
        )
    config = common.load(
        link_policy=_policy(link_policy, pic, pic_legolink_sink_tokens),
        compile=compile_mode,
        quantize=quantize,
        gpu_memory_utilization=gpu_memory_utilization,
    )
    from epicrag.server.settings import check_policy

    check_policy(config.link_policy)
    settings = _settings(
        config,
        token_file,
        allow_origin,
        host=host,
        port=port,
        allow_hosts=tuple(allow_host or ()),
        served_model_name=served_model_name,
        chunk_tokens=pic_chunk_size or config.chunk_tokens,
        max_running=max_running,
        max_waiting=max_waiting,
        request_timeout_s=request_timeout,
        grace_s=grace,
        max_body_bytes=int(max_body_mb * 1024**2),
    )
    say = _log(common, config, log_format)
    out = common.output

    def told(url: str) -> None:
        if out.is_machine:
            out.object({"url": url, "pid": os.getpid()})
        else:
            out.text(url)
        say(f"serving on {url}; the model {config.model} is being loaded")

    from epicrag.server.run import serve as run

    return run(
        config,
        settings,
        with_index=not no_index,
        context_limit=max_model_len,
        say=say,
        told=told,
    )


def _policy(policy: str | None, pic: bool | None, sinks: int | None) -> str | None:
    """The link policy that the flags come to; UsageError where two contradict each other."""
    given = [
        ("--link-policy", policy is not None, policy),
        ("--no-pic", pic is False, "prefix"),
        ("--pic-legolink-sink-tokens", sinks is not None, f"legolink({sinks})"),
    ]
    chosen = [(name, value) for name, is_given, value in given if is_given]
    if len({value for _, value in chosen}) > 1:
        names = " and ".join(name for name, _ in chosen)
        raise UsageError(f"{names} contradict each other", "give one of them")
    if pic and policy in ("full", "prefix"):
        raise UsageError(f"--pic and --link-policy {policy} contradict each other", "give one")
    return chosen[0][1] if chosen else None


def _settings(
    config: Config, token_file: Path | None, origins: list[str] | None, **more: Any
) -> ServerSettings:
    from epicrag.server.security import checked_names, checked_origins
    from epicrag.server.settings import ServerSettings
    from epicrag.server.tenants import load_tenants

    more["allow_hosts"] = checked_names(more["allow_hosts"])
    return ServerSettings(
        tenants=load_tenants(token_file, os.environ.get(TOKEN) or None),
        allow_origins=checked_origins(origins or ()),
        **more,
    )


def _log(common: Common, config: Config, kind: str) -> Any:
    """Set the log up, and return what says something in it."""
    from epicrag.server.logs import FORMATS, SERVER, configure

    if kind not in (*FORMATS, "auto"):
        raise UsageError(f"--log-format is {kind!r}", f"give one of auto, {', '.join(FORMATS)}")
    if kind == "auto":
        kind = "text" if sys.stderr.isatty() else "json"
    level = "error" if common.quiet else "debug" if common.verbose else config.log
    configure(kind, level, quiet=common.quiet)
    return SERVER.info
