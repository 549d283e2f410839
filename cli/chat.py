"""`epicrag chat`: a conversation over the index, kept and continued."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from epicrag.cli import look
from epicrag.cli.common import (
    Common,
    LinkPolicy,
    MaxTokens,
    Seed,
    ShowTiming,
    Strict,
    Temperature,
    TopK,
)
from epicrag.cli.output import Output, count, line_of
from epicrag.cli.reach import Face, NoServer, reach
from epicrag.cli.talk import Manner, Talk
from epicrag.config import Config
from epicrag.remote import named
from epicrag.sessions import Session, Sessions, Summary, ago


def chat(
    common: Common,
    question: Annotated[
        str | None,
        typer.Argument(
            help="One question; without it, as many as you type, or as stdin has lines."
        ),
    ] = None,
    session: Annotated[
        str | None, typer.Option("--session", help="Begin or go on with this conversation.")
    ] = None,
    go_on: Annotated[
        bool, typer.Option("--continue", "-c", help="Go on with the latest conversation.")
    ] = False,
    list_sessions: Annotated[
        bool, typer.Option("--list", help="List the conversations that are kept.")
    ] = False,
    forget: Annotated[
        str | None, typer.Option("--forget", metavar="NAME", help="Remove a conversation.")
    ] = None,
    no_save: Annotated[
        bool, typer.Option("--no-save", help="Keep nothing of what is said from now on.")
    ] = False,
    condense: Annotated[
        str | None,
        typer.Option(
            "--condense", help="Follow-up questions, for the search: auto, words, model or off."
        ),
    ] = None,
    top_k: TopK = None,
    link_policy: LinkPolicy = None,
    show_timing: ShowTiming = False,
    strict: Strict = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.0,
    seed: Seed = None,
    min_score: look.MinScore = None,
    filter: look.Filter = None,
    mode: look.Mode = None,
    weights: look.Weights = None,
    rerank: look.Rerank = None,
    no_rerank: look.NoRerank = False,
    no_server: NoServer = False,
) -> int:
    """Talk with the documents in the index: every answer knows what was asked and answered before."""
    out = common.output
    settings = {
        "link_policy": link_policy,
        "max_tokens": max_tokens,
        "condense": condense,
        **look.settings(mode, weights, rerank, no_rerank, min_score=min_score),
    }
    config = common.load(**settings)
    sessions = Sessions(_beside(config))
    if list_sessions or forget is not None:
        return _list(out, sessions) if forget is None else _forget(out, sessions, forget)
    chosen = _chosen(sessions, session, go_on, is_saved=not no_save)
    is_typed = question is None and sys.stdin.isatty()
    manner = Manner(
        k=top_k,
        filter=filter,
        strict=strict,
        condense=config.condense,
        sampling={"temperature": temperature, "seed": seed},
        show_timing=show_timing,
    )
    talk = Talk(
        out,
        sessions,
        chosen,
        manner,
        lines=None if is_typed else iter(()) if question is not None else _lines(),
        is_saved=not no_save,
    )

    def held(face: Face) -> int:
        if question is not None:
            talk.ask(face, _text(question))
            return 0
        return talk.run(face)

    if is_typed:
        _greet(out, chosen)
    return reach(
        common,
        held,
        # The model's own way to condense needs the model: a server is asked no such thing.
        no_server=no_server or (config.condense == "model" and named() is None),
        settings=settings,
        is_whole=out.is_machine or strict,
    )


def _beside(config: Config) -> Path:
    """Where conversations are kept: beside the index, or at home where it is another machine's."""
    is_elsewhere = named() is not None and not config.index.is_dir()
    return config.home if is_elsewhere else config.index


def _chosen(sessions: Sessions, name: str | None, go_on: bool, *, is_saved: bool) -> Session:
    """The session that the flags mean: a named one, the latest, or a new one."""
    if name is not None:
        chosen = sessions.open(name, must_exist=go_on)
    elif go_on:
        chosen = sessions.latest()
    else:
        return sessions.new() if is_saved else Session("")
    return chosen if is_saved else Session(chosen.name, None, chosen.turns)


def _text(question: str) -> str:
    """The question; `-` is all of stdin, as UTF-8 whatever the locale says."""
    return (
        sys.stdin.buffer.read().decode("utf-8", "replace").strip() if question == "-" else question
    )


def _lines() -> Iterator[str]:
    for line in sys.stdin.buffer:
        yield line.decode("utf-8", "replace")


def _greet(out: Output, session: Session) -> None:
    if session.turns:
        last = session.turns[-1]
        out.note(f"{session.name}: {count(len(session.turns), 'turn')} so far. You asked last:")
        out.note(f"> {line_of(last.question)}")
    out.note("/help says what there is, Ctrl-D ends.")


# --- what is kept --------------------------------------------------------------------------------


def _list(out: Output, sessions: Sessions) -> int:
    found = sessions.list()
    if out.jsonl:
        for one in found:
            out.object(_summary_json(one))
    elif out.json:
        out.object({"sessions": [_summary_json(one) for one in found]})
    else:
        for one in found:
            what = f"damaged: {one.damage}" if one.damage else line_of(one.first)
            out.text(f"{one.name}  {count(one.turns, 'turn')}, {ago(one.modified)}  {what}")
        if not found:
            out.note("no conversation is kept")
    return 0


def _summary_json(one: Summary) -> dict[str, object]:
    return {
        "session": one.name,
        "turns": one.turns,
        "first": one.first,
        "modified": one.modified,
        "damage": one.damage,
    }


def _forget(out: Output, sessions: Sessions, name: str) -> int:
    sessions.forget(name)
    if out.is_machine:
        out.object({"forgotten": name})
    else:
        out.note(f"{name} is forgotten")
    return 0
