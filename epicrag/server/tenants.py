"""Who may ask: a tenant for each token, and what of the others it never sees."""

from __future__ import annotations

import hashlib
import hmac
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from epicrag.errors import UsageError

OPERATOR_NAMESPACE = "api"
SHARED_NAMESPACE = "shared"
MIN_TOKEN_CHARS = 16

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEYS = {"name": str, "token": str, "sha256": str, "index": bool, "operator": bool}
_EXAMPLE = """a tenant looks like this:

[[tenants]]
name = "alice"
token = "…"          # or: sha256 = "…", the SHA-256 of the token in hex
index = true         # the server's index answers to it"""


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whoever a request comes from. What is cached for a namespace is used for no other."""

    name: str
    namespace: str
    may_ask: bool = False
    """Whether the index of the server answers to it."""
    is_operator: bool = False
    """Whether it may see the counts of all."""


LOCAL = Tenant("local", OPERATOR_NAMESPACE, may_ask=True, is_operator=True)
"""Whoever reaches a server that asks for no token, and the programs of the person who runs it."""
NOBODY = Tenant("nobody", "nobody")
"""Whoever asks without a token for what needs none."""


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


@dataclass(frozen=True, slots=True)
class Tenants:
    """The tenants by the SHA-256 of their tokens. None at all: no token is asked for."""

    known: tuple[tuple[bytes, Tenant], ...] = field(default=(), repr=False)

    @property
    def wants_token(self) -> bool:
        return bool(self.known)

    def of(self, token: str) -> Tenant | None:
        """Whose token it is. It takes as long whichever token is given, and whether it is known or not."""
        given, found = digest_of(token), None
        for digest, tenant in self.known:
            if hmac.compare_digest(digest, given):
                found = tenant
        return found


def load_tenants(file: Path | None, token: str | None) -> Tenants:
    """The tenants of a token file, and the operator, whose token `token` is; either may be missing.

    UsageError: the file cannot be read or understood, a token is too short, or others may read it.
    """
    operator = ((_strong(token, "EPICRAG_TOKEN"), LOCAL),) if token is not None else ()
    known = (*operator, *(_read(file) if file else ()))
    if len({digest for digest, _ in known}) < len(known):
        raise UsageError("two tenants have the same token", "give each a token of its own")
    return Tenants(known)


def _read(file: Path) -> tuple[tuple[bytes, Tenant], ...]:
    try:
        text, mode = file.read_bytes().decode("utf-8-sig"), file.stat().st_mode
        table = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"the token file {file} cannot be read: {error.strerror}") from error
    except ValueError as error:  # its message may show a line, and a line may be a token
        raise UsageError(f"the token file {file} is not TOML in UTF-8", _EXAMPLE) from error
    rows, share = table.pop("tenants", None), table.pop("share", False)
    if table or not isinstance(rows, list) or not rows or not isinstance(share, bool):
        wrong = f": {next(iter(table))!r} is no key of it" if table else ""
        raise UsageError(f"the token file {file} names no tenants{wrong}", _EXAMPLE)
    known = tuple(_tenant(row, n, file, share) for n, row in enumerate(rows, 1))
    if len({tenant.name for _, tenant in known}) < len(known):
        raise UsageError(f"two tenants of {file} have one name", "give each a name of its own")
    if mode & stat.S_IROTH and any("token" in row for row in rows):
        raise UsageError(
            f"everybody on this machine may read the tokens in {file}",
            f"run: chmod 600 {file}; or give them as sha256",
        )
    return known


def _tenant(row: Any, n: int, file: Path, share: bool) -> tuple[bytes, Tenant]:
    where = f"tenant {n} of {file}"
    if not isinstance(row, Mapping):
        raise UsageError(f"{where} is no table", _EXAMPLE)
    for key, value in row.items():
        if key not in _KEYS or type(value) is not _KEYS[key]:
            raise UsageError(f"{where} has a key {key!r} that cannot be used so", _EXAMPLE)
    name = row.get("name", "")
    if not _NAME.fullmatch(name):
        raise UsageError(f"{where} has no name of letters, digits and ._-", _EXAMPLE)
    if ("token" in row) == ("sha256" in row):
        raise UsageError(f"{where} needs one of token and sha256", _EXAMPLE)
    if "token" in row:
        digest = _strong(row["token"], f"the token of {where}")
    elif _SHA256.fullmatch(row["sha256"].lower()):
        digest = bytes.fromhex(row["sha256"])
    else:
        raise UsageError(f"the sha256 of {where} is not 64 hexadecimal digits", _EXAMPLE)
    namespace = SHARED_NAMESPACE if share else f"tenant:{name}"
    operator = row.get("operator", False)
    return digest, Tenant(name, namespace, row.get("index", False), operator)


def _strong(token: str, what: str) -> bytes:
    """The digest of a token that cannot be guessed, and that a header can carry."""
    if len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable():
        raise UsageError(
            f"{what} is not {MIN_TOKEN_CHARS} or more characters of plain ASCII",
            "make one with: openssl rand -hex 24",
        )
    if token != token.strip() or " " in token:
        raise UsageError(f"{what} holds spaces", "make one with: openssl rand -hex 24")
    return digest_of(token)
