"""Link policies: what of a stitched prompt is computed again, and how the rest is read.

A policy is a small frozen dataclass. `recompute` returns rows of each chunk; `Damp` and `Correct` wrap
another policy and change how the reused rows are read. The question is always computed fresh.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from epicrag.errors import UsageError

Reuse = Literal["chunks", "prefix", "nothing"]


@dataclass(frozen=True, slots=True)
class Damping:
    """Lower the scores of the first `tokens` of every chunk but the first by `amount`."""

    tokens: int
    amount: float


class Policy:
    """What a request reuses. The defaults are those of naive stitching: chunks as they were compiled."""

    __slots__ = ()
    reuse: Reuse = "chunks"

    @property
    def name(self) -> str:
        """The policy as a user writes it; `parse_policy(policy.name) == policy`."""
        raise NotImplementedError

    def recompute(self, length: int) -> range:
        """Rows of a chunk of `length` tokens to compute again in place."""
        return range(0)

    @property
    def damping(self) -> Damping | None:
        return None

    @property
    def correction(self) -> float:
        """Alpha of the mean-change correction; 0 for none."""
        return 0.0

    @property
    def compile_mode(self) -> str | None:
        """The compile mode the policy is defined with, where it is."""
        return None


@dataclass(frozen=True, slots=True)
class Full(Policy):
    """Compute everything: the exact reference, and the fallback."""

    reuse: Reuse = "nothing"

    @property
    def name(self) -> str:
        return "full"


@dataclass(frozen=True, slots=True)
class Prefix(Policy):
    """Reuse the longest exact shared prefix of earlier prompts only: what today's engines do."""

    reuse: Reuse = "prefix"

    @property
    def name(self) -> str:
        return "prefix"


@dataclass(frozen=True, slots=True)
class Naive(Policy):
    """Stitch the chunks as they are; only the question is computed."""

    @property
    def name(self) -> str:
        return "none"


@dataclass(frozen=True, slots=True)
class LegoLink(Policy):
    """Compute the first `tokens` of every chunk again, at all layers, against the whole stitched prompt.

    The system prompt is skipped: it stands where it was compiled. Source: EPIC (arXiv 2410.15332), LegoLink.
    """

    tokens: int = 16

    @property
    def name(self) -> str:
        return f"legolink({self.tokens})"

    def recompute(self, length: int) -> range:
        return range(min(self.tokens, length))


@dataclass(frozen=True, slots=True)
class LegoLink0(Policy):
    """Compute nothing again; chunks are compiled behind dropped sink tokens (EPIC, LegoLink-0)."""

    @property
    def name(self) -> str:
        return "legolink-0"

    @property
    def compile_mode(self) -> str | None:
        return "sink"


@dataclass(frozen=True, slots=True)
class Damp(Policy):
    """`base`, with the attention paid to the chunks' own sinks lowered, for the link and for decoding."""

    tokens: int = 4
    amount: float = 15.0
    base: Policy = Naive()

    @property
    def name(self) -> str:
        return f"damp({self.tokens},{_number(self.amount)}){_joined(self.base)}"

    def recompute(self, length: int) -> range:
        return self.base.recompute(length)

    @property
    def damping(self) -> Damping | None:
        return Damping(self.tokens, self.amount)

    @property
    def correction(self) -> float:
        return self.base.correction

    @property
    def compile_mode(self) -> str | None:
        return self.base.compile_mode


@dataclass(frozen=True, slots=True)
class Correct(Policy):
    """`base`, with `alpha` times the mean change of a chunk's recomputed tokens added to its other tokens."""

    alpha: float = 0.5
    base: Policy = LegoLink()

    @property
    def name(self) -> str:
        return f"{self.base.name}+correct({_number(self.alpha)})"

    def recompute(self, length: int) -> range:
        return self.base.recompute(length)

    @property
    def damping(self) -> Damping | None:
        return self.base.damping

    @property
    def correction(self) -> float:
        return self.alpha

    @property
    def compile_mode(self) -> str | None:
        return self.base.compile_mode


def _number(value: float) -> str:
    return f"{value:g}"


def _joined(base: Policy) -> str:
    return "" if isinstance(base, Naive) else f"+{base.name}"


_Maker = Callable[[list[float], Policy], Policy]


def _legolink(numbers: list[float], _: Policy) -> Policy:
    return LegoLink(int(numbers[0])) if numbers else LegoLink()


def _damp(numbers: list[float], base: Policy) -> Policy:
    given = [*numbers, *(Damp().tokens, Damp().amount)[len(numbers) :]]
    return Damp(int(given[0]), given[1], base)


def _correct(numbers: list[float], base: Policy) -> Policy:
    return Correct(numbers[0], base) if numbers else Correct(base=base)


_MAKERS: dict[str, tuple[int, _Maker]] = {
    "full": (0, lambda _, __: Full()),
    "prefix": (0, lambda _, __: Prefix()),
    "none": (0, lambda _, __: Naive()),
    "legolink-0": (0, lambda _, __: LegoLink0()),
    "legolink": (1, _legolink),
    "damp": (2, _damp),
    "correct": (1, _correct),
}
"""How many numbers each takes at most, and how it is made from them and the policy it wraps."""

_WRAPPERS = ("damp", "correct")
_TERM = re.compile(r"([a-z]+(?:-0)?)(?:\(([^()]*)\))?")


def parse_policy(text: str) -> Policy:
    """Read a policy as a user writes it: `legolink(16)`, `damp(4,15)+legolink(8)`, `legolink+correct(0.5)`.

    Raises UsageError saying what is possible.
    """
    terms = [term.strip() for term in text.strip().lower().split("+")]
    parsed = [_term(term, text) for term in terms]
    bases = [term for term in parsed if term[0] not in _WRAPPERS]
    wrappers = [term for term in parsed if term[0] in _WRAPPERS]
    if len(bases) > 1:
        raise _unknown(text, "only one of them may say what is recomputed")
    if wrappers and bases and bases[0][0] in ("full", "prefix"):
        raise _unknown(text, f"{bases[0][0]} reuses no chunk, so there is nothing to repair")
    if len({name for name, _ in wrappers}) != len(wrappers):
        raise _unknown(text, "each of damp and correct at most once")
    policy: Policy = _MAKERS[bases[0][0]][1](bases[0][1], Naive()) if bases else Naive()
    # Damping inside, correction outside: one order, so that a policy has one name.
    for name, numbers in sorted(wrappers, key=lambda term: term[0] == "correct"):
        if name == "correct" and not policy.recompute(1):
            policy = _with_base(policy, bases, text)
        policy = _MAKERS[name][1](numbers, policy)
    return policy


def _with_base(policy: Policy, bases: list[tuple[str, list[float]]], text: str) -> Policy:
    """`correct` alone means after `legolink`; after something that recomputes nothing it means nothing."""
    if bases:
        raise _unknown(
            text, f"correct needs a policy that recomputes tokens, {bases[0][0]} does not"
        )
    if isinstance(policy, Damp):
        return Damp(policy.tokens, policy.amount, base=LegoLink())
    return LegoLink()


def _term(term: str, text: str) -> tuple[str, list[float]]:
    match = _TERM.fullmatch(term)
    if match is None or match[1] not in _MAKERS:
        raise _unknown(text, "it is none of them" if term == text else f"{term!r} is none of them")
    name, inside = match[1], match[2]
    try:
        numbers = [float(x) for x in inside.split(",")] if inside else []
    except ValueError:
        raise _unknown(text, f"{inside!r} is not a list of numbers") from None
    most = _MAKERS[name][0]
    if len(numbers) > most:
        raise _unknown(text, f"{name} takes at most {most} numbers")
    if any(not 0 <= x <= 1e6 for x in numbers):
        raise _unknown(text, "the numbers must be between 0 and 1,000,000")
    if name == "correct" and numbers and numbers[0] > 2:
        raise _unknown(text, "correct takes a share of the change, 0 to 2")
    if name in ("legolink", "damp") and numbers and numbers[0] != int(numbers[0]):
        raise _unknown(text, f"{name} counts whole tokens")
    return name, numbers


def _unknown(text: str, why: str) -> UsageError:
    return UsageError(
        f"unknown link policy {text!r}: {why}",
        "use full, prefix, none, legolink(16), legolink-0 or damp(4,15); "
        "damp and correct(0.5) can be added to legolink with +",
    )
