"""Who answers: a running server of the index, where it would answer alike, else a pipeline of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Protocol, TypeVar

import typer

from epicrag.cli.common import Common
from epicrag.config import Config
from epicrag.errors import UsageError
from epicrag.remote import FIXED, Remote, Server, ServerGoneError, differing, discover, named

NoServer = Annotated[
    bool,
    typer.Option("--no-server", help="Load the model here, even where a server is running."),
]

_LOCAL = ("index", "home", *FIXED)
"""Settings that cannot be said to a server that is named by hand."""

T = TypeVar("T")


class Face(Protocol):
    """What a pipeline and a server have in common."""

    config: Config

    def find(self, query: str, *args: Any, **options: Any) -> Any: ...
    def stream(self, question: str, *args: Any, **options: Any) -> Any: ...
    def sampling(self, *args: Any, **choices: Any) -> Any: ...


def reach(
    common: Common,
    use: Callable[[Face], T],
    *,
    no_server: bool,
    settings: dict[str, Any],
    is_whole: bool = False,
) -> T:
    """Call `use` with who answers, and again with a pipeline where a server fails before anything was shown.

    `is_whole`: nothing is shown before the answer is complete.
    """
    config = common.load(**settings)
    server = None if no_server else find_server(common, config)
    if server is not None:
        try:
            with Remote(server, config, common.output.note) as remote:
                return use(remote)
        except ServerGoneError as error:
            # A server that somebody named is wanted, and no other.
            if not server.is_own or (error.began and not is_whole):
                raise
            common.output.detail(f"{error.message}: answering without it")
    with common.open(**settings) as pipeline:
        return use(pipeline)


def find_server(common: Common, config: Config) -> Server | None:
    """The server to use, or None; with -v it is said which, or why not."""
    if server := named():
        _refuse_local(config)
        common.output.detail(f"asking the server at {server.url} (EPICRAG_SERVER)")
        return server
    server = discover(config)
    if server is None:
        return None
    if differences := differing(server, config):
        common.output.detail(
            f"the server at {server.url} is not used, its settings are others: {'; '.join(differences)}"
        )
        return None
    common.output.detail(f"asking the server at {server.url}")
    return server


def _refuse_local(config: Config) -> None:
    given = [key for key in _LOCAL if config.origins.get(key) == "flag"]
    if given:
        flags = " and ".join(f"--{key.replace('_', '-')}" for key in given)
        raise UsageError(
            f"{flags} cannot be said to the server that EPICRAG_SERVER names",
            "leave it out, or ask without the server: --no-server",
        )


def is_beside(face: Face) -> bool:
    """Whether the index is on this machine, so that something may be left beside it."""
    return not isinstance(face, Remote) or face.server.is_own
