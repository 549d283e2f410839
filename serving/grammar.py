"""The policies as a user writes them: `legolink(16)+focus(5%,4)+correct(0.25)`.

Terms are joined by `+`. Arguments stand in brackets, in order or by name (`layers=30%-60%`); a share may be
written as a number or a percentage.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from epicrag.errors import UsageError
from epicrag.serving.policies import (
    Correct,
    Damp,
    Depth,
    Deviation,
    Focus,
    Full,
    LegoLink,
    LegoLink0,
    Naive,
    Policy,
    Prefix,
    Reconnect,
    Spread,
    Union,
)

_MOST = 1_000_000
_MOST_ALPHA = 2


def _number(text: str) -> float:
    value = float(text)
    if not 0 <= value <= _MOST:
        raise ValueError(f"the numbers must be between 0 and {_MOST:,}")
    return value


def _count(text: str) -> int:
    try:
        value = _number(text)
    except ValueError as error:
        raise ValueError(_told(error) or f"{text!r} is not a number") from None
    if value != int(value):
        raise ValueError("it counts whole tokens")
    return int(value)


def _share(text: str) -> float:
    value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    if not 0 <= value <= 1:
        raise ValueError("a share is written like 5% or 0.05, and 1 is everything")
    return value


def _percent(text: str) -> float:
    if not text.endswith("%"):
        raise ValueError(f"{text!r} is not a percentage")
    return _share(text)


def _alpha(text: str) -> float:
    value = float(text)
    if not 0 <= value <= _MOST_ALPHA:
        raise ValueError(f"it takes a share of the change, 0 to {_MOST_ALPHA}")
    return value


def _alpha_or_auto(text: str) -> float | str:
    return text if text == "auto" else _alpha(text)


def _factors(text: str) -> tuple[float, ...]:
    return tuple(_alpha(part) for part in text.split("/"))


def _fade(text: str) -> tuple[float, ...]:
    values = _factors(text)
    if len(values) > 2:
        raise ValueError("fade is one number, or one for keys and one for values: fade=0.66/0.75")
    return values


def _layers(text: str) -> Depth:
    start, dash, end = text.partition("-")
    depth = Depth(_share(start), _share(end)) if dash else None
    if depth is None or depth.start >= depth.end:
        raise ValueError("layers are written like layers=33%-67%, a part of the model's depth")
    return depth


def _heads(text: str) -> str:
    if text not in ("max", "mean"):
        raise ValueError("heads are joined by heads=max or heads=mean")
    return text


def _told(error: ValueError) -> str:
    """The message of an error of ours; nothing for one that `float` raised."""
    return "" if "could not convert" in str(error) else str(error)


@dataclass(frozen=True, slots=True)
class _Form:
    """A term: what it makes, the arguments it takes in order, and those it takes by name."""

    make: Callable[..., Policy]
    ordered: tuple[tuple[str, Callable[[str], Any]], ...] = ()
    named: tuple[tuple[str, Callable[[str], Any]], ...] = ()


_LOOK = (("layers", _layers), ("heads", _heads))
_SHAPE = (("values", _alpha), ("fade", _fade), ("depth", _factors))
_FORMS: dict[str, _Form] = {
    "full": _Form(Full),
    "prefix": _Form(Prefix),
    "none": _Form(Naive),
    "legolink-0": _Form(LegoLink0),
    "legolink": _Form(LegoLink, (("tokens", _count), ("share", _percent))),
    "spread": _Form(Spread, (("tokens", _count), ("probes", _count))),
    "focus": _Form(Focus, (("share", _share), ("anchors", _count)), (("tokens", _count), *_LOOK)),
    "reconnect": _Form(Reconnect, (("tokens", _count),), (("edge", _count), *_LOOK)),
    "deviation": _Form(Deviation, (("share", _share),)),
    "damp": _Form(Damp, (("tokens", _count), ("amount", _number))),
    "correct": _Form(Correct, (("alpha", _alpha_or_auto),), _SHAPE),
}
"""In the order in which a policy's name lists them, so that a policy has one name."""

_ALONE = ("full", "prefix", "none")
_TERM = re.compile(r"([a-z]+(?:-0)?)(?:\(([^()]*)\))?")


def parse(text: str) -> Policy:
    """Read a policy. Raises UsageError saying what is possible."""
    terms = [_term(term.strip(), text) for term in text.strip().lower().split("+")]
    names = [name for name, _ in terms]
    if len(set(names)) != len(names):
        raise _unknown(text, f"{next(n for n in names if names.count(n) > 1)} stands there twice")
    order = list(_FORMS)
    terms.sort(key=lambda term: order.index(term[0]))
    bases = [(name, given) for name, given in terms if name not in ("damp", "correct")]
    for name, _ in bases:
        if name in ("full", "prefix") and len(terms) > 1:
            raise _unknown(text, f"{name} reuses no chunk, so there is nothing to repair")
        if name == "none" and len(bases) > 1:
            raise _unknown(text, "none stands for computing nothing again")
    policy = _joined([_FORMS[name].make(**given) for name, given in bases])
    wrappers = dict(term for term in terms if term not in bases)
    # Damping inside, correction outside: one order, so that a policy has one name.
    if "correct" in wrappers and not policy.recomputes:
        if bases:
            raise _unknown(
                text, f"correct needs a policy that recomputes tokens, {policy.name} does not"
            )
        policy = LegoLink()
    if "damp" in wrappers:
        policy = Damp(**wrappers["damp"], base=policy)
    if "correct" in wrappers:
        policy = Correct(**wrappers["correct"], base=policy)
    return policy


def _joined(bases: list[Policy]) -> Policy:
    if not bases:
        return Naive()
    return bases[0] if len(bases) == 1 else Union(tuple(bases))


def _term(term: str, text: str) -> tuple[str, dict[str, Any]]:
    """A term's name and arguments. `correct` alone is made with its own default of a base."""
    match = _TERM.fullmatch(term)
    if match is None or match[1] not in _FORMS:
        raise _unknown(text, "it is none of them" if term == text else f"{term!r} is none of them")
    name, inside = match[1], match[2]
    try:
        given = _arguments(_FORMS[name], inside or "")
    except ValueError as error:
        why = _told(error) or f"{inside!r} is not a list of numbers"
        raise _unknown(text, f"{name}: {why}") from None
    if name == "legolink" and "share" in given:
        given = {"tokens": 0, **given}
    return name, given


def _arguments(form: _Form, inside: str) -> dict[str, Any]:
    """Read what stands in the brackets. ValueError for anything that does not fit the form."""
    readers = dict(form.ordered) | dict(form.named)
    free = [name for name, _ in form.ordered]
    given: dict[str, Any] = {}
    for part in (p.strip() for p in inside.split(",")) if inside.strip() else ():
        name, equals, value = part.partition("=")
        if not equals:
            name, value = _next(form, free, part), part
        if name not in readers or name in given:
            raise ValueError(f"takes {_takes(form)}, each once")
        given[name] = readers[name](value.strip())
        free = [other for other in free if other != name]
    return given


def _next(form: _Form, free: list[str], value: str) -> str:
    """The argument that the next value without a name is for: a percentage skips what counts tokens."""
    for name in free:
        if not (value.endswith("%") and dict(form.ordered)[name] is _count):
            return name
    raise ValueError(f"takes {_takes(form)}")


def _takes(form: _Form) -> str:
    parts = [name for name, _ in form.ordered] + [f"{name}=…" for name, _ in form.named]
    return f"at most ({', '.join(parts)})" if parts else "nothing in brackets"


def _unknown(text: str, why: str) -> UsageError:
    return UsageError(
        f"unknown link policy {text!r}: {why}",
        "use full, prefix, none, legolink-0, or one or more of legolink(16), legolink(2%), spread(4,12), "
        "focus(5%,4), reconnect(8), deviation(15%) joined by +; damp(4,15) and correct(0.25) can be added",
    )
