"""The settings of a server, apart from those of its index and its model."""

from __future__ import annotations

from dataclasses import dataclass, field

from epicrag.server.tenants import Tenants


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What `epicrag serve` was asked for. Times are seconds, sizes bytes."""

    host: str = "127.0.0.1"
    port: int = 8000
    tenants: Tenants = field(default_factory=Tenants)
    """Who may ask, by token; without one whoever reaches the server may."""
    allow_hosts: tuple[str, ...] = ()
    """Names, besides those of this machine, that a request's Host header may give."""
    allow_origins: tuple[str, ...] = ()
    """Origins, besides the server's own, whose pages may ask: "https://notes.example"."""
    served_model_name: str | None = None
    """What the model is called by clients; None: as configured."""
    chunk_tokens: int = 512
    """Tokens of a chunk of `documents` that a request brings along."""
    max_running: int = 32
    max_waiting: int = 256
    """Answers that may be open at once: so many computed, and so many waiting."""
    max_registrations: int = 16
    """Requests that register chunks which may be open at once."""
    max_body_bytes: int = 16 * 1024**2
    max_json_depth: int = 64
    max_json_items: int = 200_000
    """Strings, lists, objects and commas of one body."""
    max_document_chars: int = 2_000_000
    """Characters of all `documents` that one request brings along."""
    max_inputs: int = 256
    """Texts of one request for embeddings."""
    max_input_chars: int = 1_000_000
    """Characters of all texts of one request for embeddings."""
    max_top_k: int = 1_000
    """Passages that one search may ask for."""
    request_timeout_s: float = 600.0
    """How long an answer may take, from its request to its last word."""
    body_timeout_s: float = 30.0
    header_timeout_s: float = 10.0
    keep_alive_s: float = 15.0
    grace_s: float = 30.0
    """How long open answers may go on once the server was told to stop."""


def check_policy(name: str) -> None:
    """UsageError for a link policy that there is not: said now, and not to the first client."""
    from epicrag.serving.policies import parse_policy

    parse_policy(name)
