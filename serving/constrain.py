"""Output that follows a grammar: at every token, those that the grammar cannot take are masked out.

llguidance does the parsing. A grammar comes from a stranger where a server takes schemas, so that its size is
bounded before it is compiled, and what one step may cost is bounded while it runs.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from epicrag.errors import UsageError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer
    from torch import Tensor

    from epicrag.serving.tokenizer import UnitTokenizer

MAX_CHARS = 65_536
"""Of a schema as JSON, of a Lark grammar, and of all choices together."""
MAX_PARTS = 1_000
"""Objects and arrays in a schema; choices. A chain of some thousand references overflows the parser's stack."""
MAX_DEPTH = 64
MAX_PATTERN = 1_000
"""Characters of one regular expression."""
MAX_MULTIPLE = 1_000
"""`multipleOf`, without its decimal point: the parser has a state for each remainder."""
MAX_MULTIPLES = 10_000
"""All of them together."""
LOOP_TOKENS, LOOP_PERIOD = 192, 12
"""A sequence of up to so many tokens that is repeated until so many stand there goes on for ever: the grammar allows
another digit, blank or element at every step, and the model finds no way out."""
N_KEPT = 16
"""Compiled grammars that are kept for the next request."""

FORMATS = frozenset(
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"]
)
"""Of `format`: those that are followed. JSON Schema lets a reader pass over the others, and so do we."""

_SEARCH_SECONDS = 1.0
"""For so long parts of a schema are tried alone, to say which of them is refused."""
_OBJECTS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems", "items")


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer has to look like, checked: make one with `json_schema`, `json_object`, `regex` and so on.

    Whitespace between the parts of JSON is left out, so that there is none to go on with for ever. All of them
    raise UsageError for what cannot be followed, with the place in the schema where there is one.
    """

    kind: str
    source: str = field(repr=False)
    """The grammar in llguidance's own notation."""

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool | str) -> Grammar:
        """JSON that a schema accepts; the properties come in the schema's order. A text is read as JSON."""
        parsed = _parsed(schema)
        _check_size(parsed)
        _check_unicode("the JSON schema", json.dumps(parsed, ensure_ascii=False))
        parsed = _without_unknown_formats(parsed)
        source = _schema_source(parsed)
        if why := _refusal(source):
            raise UsageError(
                f"the JSON schema cannot be followed {_place(parsed, why)}: {_plain(why)}",
                "change the schema there; README lists what is supported",
            )
        return cls("json_schema", source)

    @classmethod
    def json_object(cls) -> Grammar:
        """Any JSON object."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Text that a regular expression matches from end to end: Rust's syntax, without look-around."""
        from llguidance import LLMatcher

        _check_pattern(pattern, "the regular expression")
        return cls._checked(
            "regex", LLMatcher.grammar_from_regex(pattern), "the regular expression"
        )

    @classmethod
    def choice(cls, choices: Sequence[str]) -> Grammar:
        """One of these texts."""
        given = list(dict.fromkeys(choices))
        if not given or not all(isinstance(text, str) and text for text in given):
            raise UsageError(f"choices must be texts that are not empty, not {choices!r:.200}")
        if len(given) > MAX_PARTS:
            raise UsageError(f"{len(given):,} choices are too many", f"give up to {MAX_PARTS:,}")
        _check_chars("the choices", sum(map(len, given)))
        _check_unicode("the choices", "".join(given))
        lark = "start: " + " | ".join(json.dumps(text) for text in given)
        return cls._checked("choice", lark, "the choices")

    @classmethod
    def lark(cls, grammar: str) -> Grammar:
        """A context-free grammar in llguidance's dialect of Lark, whose rule `start` is the whole answer."""
        _check_chars("the grammar", len(grammar))
        return cls._checked("lark", grammar, "the grammar")

    @classmethod
    def _checked(cls, kind: str, source: str, name: str) -> Grammar:
        _check_unicode(name, source)
        if why := _refusal(source):
            raise UsageError(f"{name} cannot be followed: {_plain(why)}")
        return cls(kind, source)


class Vocabulary:
    """A model's tokenizer as grammars see it. What takes long is made by the first grammar."""

    def __init__(self, tokenizer: UnitTokenizer, ends: Iterable[int]) -> None:
        """`ends`: the ids that end an answer; of all control tokens only they are ever allowed."""
        self._tokenizer = tokenizer
        self._ends = sorted(ends)
        self._lock = threading.Lock()
        self._tokens: LLTokenizer | None = None
        self._compiled = lru_cache(N_KEPT)(self._compile)

    def follow(self, grammar: Grammar) -> Constraint:
        """The state of one answer under a grammar.

        Compiles the grammar, some milliseconds, where it is new. UsageError: nothing can satisfy it, or the
        model's tokenizer is of a kind that cannot be constrained.
        """
        matcher = self._compiled(grammar.source).deep_copy()
        return Constraint(matcher, self._tokenizer.special_ids, self._ends)

    def _compile(self, source: str) -> LLMatcher:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokens_of(), source, log_level=0, limits=_limits())
        matcher.compute_bitmask()  # only the first look at a grammar tells that nothing satisfies it
        if matcher.is_error() or (matcher.is_stopped() and not matcher.is_accepting()):
            why = _plain(matcher.get_error() or str(matcher.stop_reason()))
            raise UsageError(
                f"no answer can satisfy the grammar: {why}", "look for parts that contradict"
            )
        return matcher

    def _tokens_of(self) -> LLTokenizer:
        with self._lock:
            if self._tokens is None:
                from llguidance import LLTokenizer

                text = self._tokenizer.to_json()
                try:
                    self._tokens = LLTokenizer(text, eos_token=self._known_ends() or None)
                except ValueError as error:
                    raise UsageError(
                        f"this model's tokenizer cannot be constrained: {error}",
                        "ask without a grammar (response_format), or choose another model",
                    ) from error
            return self._tokens

    def _known_ends(self) -> list[int]:
        size = self._tokenizer.size
        return [end for end in self._ends if end < size]


class Constraint:
    """Where one answer stands in its grammar: masks logits, and takes the token that was chosen."""

    def __init__(self, matcher: LLMatcher, control: Iterable[int], ends: Sequence[int]) -> None:
        self._matcher = matcher
        self._control = sorted(control)
        self._ends = list(ends)
        self._taken: deque[int] = deque(maxlen=LOOP_TOKENS)
        self.is_complete = False
        """Whether the answer is whole and nothing can follow it, an end token or not."""

    @property
    def is_endless(self) -> bool:
        """Whether the answer goes round in circles."""
        taken = list(self._taken)
        return len(taken) == LOOP_TOKENS and any(
            taken[period:] == taken[:-period] for period in range(1, LOOP_PERIOD + 1)
        )

    def mask(self, logits: Tensor) -> Tensor:
        """Logits (V,) with minus infinity for every token that may not come next, in a new tensor."""
        import numpy as np
        import torch

        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = np.zeros(logits.numel(), bool)  # rows beyond the vocabulary stay barred
        known = np.unpackbits(bits, bitorder="little", count=min(len(bits) * 8, len(allowed)))
        allowed[: len(known)] = known
        accepts = self._matcher.is_accepting()
        for ids, value in ((self._control, False), (self._ends, accepts)):
            allowed[[token for token in ids if token < len(allowed)]] = value
        if not allowed.any():
            raise UsageError("the grammar cannot be followed with this model's vocabulary")
        barred = torch.from_numpy(~allowed).to(logits.device)
        return logits.masked_fill(barred, float("-inf"))

    def take(self, token: int) -> None:
        """Go on by a token that `mask` left."""
        if token in self._ends:
            self.is_complete = True
            return
        self._matcher.consume_token(token)
        self._check()
        self._taken.append(token)
        self.is_complete = self._matcher.is_stopped() and self._matcher.is_accepting()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise UsageError(
                f"the grammar cannot be followed further: {_plain(self._matcher.get_error())}",
                "use a simpler schema or pattern",
            )


# --- limits --------------------------------------------------------------------------------------


def _limits() -> LLParserLimits:
    """What one grammar may cost: some ten milliseconds a step, some ten megabytes of states."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=20_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def _check_chars(name: str, n: int) -> None:
    if n > MAX_CHARS:
        raise UsageError(f"{name}: {n:,} characters are too many", f"up to {MAX_CHARS:,} are taken")


def _check_unicode(name: str, text: str) -> None:
    """UsageError for halves of surrogate pairs: there is no such text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{name}: {text[error.start : error.end]!r} is no character", "leave it out"
        ) from error


def _check_pattern(pattern: str, name: str) -> None:
    if not isinstance(pattern, str) or not pattern:
        raise UsageError(f"{name} must be a text that is not empty, not {pattern!r:.100}")
    if len(pattern) > MAX_PATTERN:
        raise UsageError(
            f"{name}: {len(pattern):,} characters are too many", f"up to {MAX_PATTERN:,} are taken"
        )
    _check_unicode(name, pattern)


def _parsed(schema: Mapping[str, Any] | bool | str) -> dict[str, Any]:
    """The schema as plain JSON, a copy. The depth is bounded by the reader of JSON and by `_check_size`."""
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema, allow_nan=False)
        _check_chars("the JSON schema", len(text))
        parsed = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the JSON schema is not JSON: {error}") from error
    if isinstance(parsed, bool):
        parsed = {} if parsed else {"anyOf": []}
    if not isinstance(parsed, dict):
        raise UsageError(f"a JSON schema is an object, not {type(parsed).__name__}")
    parsed.pop("x-guidance", None)  # llguidance would take options from it
    return parsed


def _without_unknown_formats(schema: dict[str, Any]) -> dict[str, Any]:
    for _, part in subschemas(schema, "#"):
        if isinstance(part.get("format"), str) and part["format"] not in FORMATS:
            del part["format"]
    return schema


def _check_size(schema: dict[str, Any]) -> None:
    """Refuse what would take long to compile, or more stack than there is."""
    n_parts = 0
    multiples: list[int] = []
    todo: list[tuple[str, Any, int]] = [("#", schema, 1)]
    while todo:
        where, part, depth = todo.pop()
        if not isinstance(part, dict | list):
            continue
        n_parts += 1
        if n_parts > MAX_PARTS:
            raise UsageError(
                f"the JSON schema has more than {MAX_PARTS:,} objects and arrays",
                "use a smaller one",
            )
        if depth > MAX_DEPTH:
            raise UsageError(
                f"the JSON schema is nested more than {MAX_DEPTH} deep at {where[:200]}…",
                "use a flatter one",
            )
        if isinstance(part, dict):
            for pattern in _patterns(part):
                _check_pattern(pattern, f"the pattern at {where}")
            multiples += _multiples(part, where)
        todo += [(f"{where}/{key}", inner, depth + 1) for key, inner in _items(part)]
    least = math.lcm(*multiples)  # parts that hold at once are joined
    if least > MAX_MULTIPLE or sum(multiples) > MAX_MULTIPLES:
        raise UsageError(
            f"the JSON schema's multipleOf values are too large: {sorted(set(multiples))[-5:]}",
            f"their least common multiple may be up to {MAX_MULTIPLE:,}",
        )


def _items(part: dict[str, Any] | list[Any]) -> Iterable[tuple[str, Any]]:
    if isinstance(part, dict):
        return [(key.replace("~", "~0").replace("/", "~1"), inner) for key, inner in part.items()]
    return [(str(index), inner) for index, inner in enumerate(part)]


def _patterns(part: dict[str, Any]) -> list[str]:
    own, keys = part.get("pattern"), part.get("patternProperties")
    return [*([own] if isinstance(own, str) else []), *(keys if isinstance(keys, dict) else ())]


def _multiples(part: dict[str, Any], where: str) -> list[int]:
    """`multipleOf` as a whole number, its decimal point left out."""
    value = part.get("multipleOf")
    if not isinstance(value, int | float) or isinstance(value, bool):
        return []
    exact = Decimal(str(value))
    digits = int("".join(map(str, exact.as_tuple().digits)))
    shift = int(exact.as_tuple().exponent)
    if value <= 0 or not -12 <= shift <= 6:
        raise UsageError(f"the JSON schema's multipleOf at {where} is {value}: too large or small")
    return [digits * 10 ** max(shift, 0)]


# --- what llguidance says of it ------------------------------------------------------------------


def _schema_source(schema: dict[str, Any]) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(
        json.dumps(schema),
        overrides={"whitespace_flexible": False, "lenient": False, "coerce_one_of": False},
    )


@lru_cache(N_KEPT)
def _refusal(source: str) -> str:
    """Why a grammar cannot be compiled; empty where it can."""
    from llguidance import LLMatcher

    is_error, said = LLMatcher.validate_grammar_with_warnings(source, limits=_limits())
    return (said[0] or "it is refused") if is_error else ""


def _plain(why: str) -> str:
    """A library's message on one line, of bounded length."""
    why = why.replace("Unimplemented keys:", "keywords that are not supported:")
    if why.startswith("oneOf"):
        return "oneOf is followed where its parts clearly exclude each other; say anyOf"
    return " ".join(why.replace("<non-verbose/>", "").split())[:300]


def _place(schema: dict[str, Any], why: str) -> str:
    """Where the part of a schema stands that is refused for this reason: the smallest one that is, alone."""
    roots: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    place = "#"
    until = time.monotonic() + _SEARCH_SECONDS
    for where, part in subschemas(schema, "#"):
        if time.monotonic() > until:
            break
        if len(where) > len(place) and where.startswith(place):
            source = _schema_source({**roots, **part})
            # The definitions are compiled only where they are referred to.
            if _refusal(source) == why:
                place = where
    return f"at {place[:200]}"


def subschemas(schema: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each part that is a schema itself, before the parts within it."""
    if not isinstance(schema, dict):
        return
    yield where, schema
    for key, value in schema.items():
        if key in _OBJECTS and isinstance(value, dict):
            for name, inner in _items(value):
                yield from subschemas(inner, f"{where}/{key}/{name}")
        elif key in _LISTS and isinstance(value, list):
            for index, inner in enumerate(value):
                yield from subschemas(inner, f"{where}/{key}/{index}")
        elif key not in ("const", "enum", "default", "examples"):
            yield from subschemas(value, f"{where}/{key}")
