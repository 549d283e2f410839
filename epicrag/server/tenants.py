"""Who may ask: a tenant for each token, and what of the others it never sees."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

OPERATOR_NAMESPACE = "api"


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
