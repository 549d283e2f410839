"""Which passages may be found: `year>=2020 and path~"manual/*"`, read, and held against the catalog.

    filter     = and { "or" and }
    and        = term { "and" term }
    term       = "not" term | "(" filter ")" | comparison
    comparison = field operator value | field ["not"] "in" "(" value { "," value } ")"
    operator   = "=" "!=" "<" "<=" ">" ">=" "~" "!~"
    value      = "quoted" | 'quoted' | word

`~` compares with a glob, in which `*` stands for any characters, `/` included, `?` for one and `[ab]` for one
of some. Words that are operators or hold other signs than . _ - / : @ + * ? have to be quoted, with a backslash
before a quote within.

Fields are path, name, ext, media and title of the document, page, heading and part of the passage, and whatever
documents say of themselves: author, date, year, tags … A relative path fits at the end of a path, from one of
its folders on. Numbers and dates are compared as such: `date>=2020-03`, to the precision that is given. Text is
compared without regard to case, but for path and name. A field of several values fits if one of them does, and
`!=`, `!~` and `not in` if none is equal. What a document does not have fits nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from math import isfinite
from typing import TYPE_CHECKING, NoReturn, Protocol

from epicrag.errors import UsageError
from epicrag.index.fields import ALIASES, CHUNK_FIELDS, Facts, Value, known_fields

if TYPE_CHECKING:
    from epicrag.index.catalog import Catalog

LONGEST = 10_000
MOST = 200  # comparisons
DEEPEST = 50  # parentheses and nots: more is no filter, and would end Python's stack
HOLDS, HOLDS_ANY_CASE = "holds", "holds in any case"
"""Operators without a word for them: the text holds another one."""

_TOKEN = re.compile(
    r"\s*(?:(?P<quoted>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')"
    r"|(?P<operator>!=|!~|<=|>=|==|=|<|>|~)|(?P<mark>[(),\[\]])|(?P<word>[\w.\-/:@+*?]+))"
)
_DATE = re.compile(r"\d{4}(-\d{2}(-\d{2}([T ]\d{2}(:\d{2}){0,2}.*)?)?)?")
_NEGATED = {"!=": "=", "!~": "~", "not in": "in"}


class Node(Protocol):
    """A part of a filter."""

    def test(self, facts: Facts) -> bool | None:
        """Return whether it fits; None where that depends on the chunk, and the facts are of a document."""
        ...


@dataclass(frozen=True, slots=True)
class Both:
    left: Node
    right: Node

    def test(self, facts: Facts) -> bool | None:
        left = self.left.test(facts)
        if left is False:
            return False
        right = self.right.test(facts)
        return right if left or right is False else None


@dataclass(frozen=True, slots=True)
class Either:
    left: Node
    right: Node

    def test(self, facts: Facts) -> bool | None:
        left = self.left.test(facts)
        if left:
            return True
        right = self.right.test(facts)
        return right if left is False or right else None


@dataclass(frozen=True, slots=True)
class Not:
    inner: Node

    def test(self, facts: Facts) -> bool | None:
        inner = self.inner.test(facts)
        return None if inner is None else not inner


@dataclass(frozen=True, slots=True)
class Every:
    """Fits all passages."""

    def test(self, facts: Facts) -> bool | None:
        return True


@dataclass(frozen=True, slots=True)
class Compare:
    """One comparison. `position` is where its field stands in the text, from 0."""

    field: str
    operator: str
    values: tuple[str, ...]
    position: int = 0

    def test(self, facts: Facts) -> bool | None:
        if facts.is_document and self.field in CHUNK_FIELDS:
            return None
        held = facts.get(self.field)
        if not held:
            return False
        plain = _NEGATED.get(self.operator, self.operator)
        fits = any(_compare(self.field, one, plain, value) for one in held for value in self.values)
        return fits != (self.operator in _NEGATED)


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter as it was written, and what it means."""

    text: str
    root: Node
    comparisons: tuple[Compare, ...]

    def rows(self, catalog: Catalog) -> frozenset[int]:
        """Return the rows of all chunks that fit. UsageError: no document has such a field."""
        documents = catalog.document_facts()
        self._refuse_unknown(known_fields(facts for _, facts in documents))
        verdicts = {row: self.root.test(facts) for row, facts in documents}
        open_ = [row for row, verdict in verdicts.items() if verdict is None]
        fitting = catalog.rows_of([row for row, verdict in verdicts.items() if verdict])
        if open_:
            found = catalog.chunk_facts(documents=open_)
            fitting += [row for row, facts in found if self.root.test(facts)]
        return frozenset(fitting)

    def allows(self, catalog: Catalog, row: int) -> bool:
        """Return whether one chunk fits, read anew from the catalog."""
        return any(self.root.test(fact) for _, fact in catalog.chunk_facts(row=row))

    def _refuse_unknown(self, known: frozenset[str]) -> None:
        for one in self.comparisons:
            if one.field not in known:
                near = get_close_matches(one.field, sorted(known), n=1, cutoff=0.5)
                hint = f"did you mean {near[0]}? " if near else ""
                raise UsageError(
                    f"no document has a field {one.field!r}, at character {one.position + 1} of"
                    f" the filter: {self.text}",
                    f"{hint}fields here: {', '.join(sorted(known))}",
                )


def parse_filter(text: str) -> Filter:
    """Read a filter. UsageError, with the place, when it is none."""
    return _Parser(text).parse()


# --- comparing -----------------------------------------------------------------------------------


def _compare(field: str, held: Value, operator: str, wanted: str) -> bool:
    if operator == HOLDS:
        return wanted in _text(held)
    if operator == HOLDS_ANY_CASE:
        return wanted.casefold() in _text(held).casefold()
    if field == "path":
        return _compare_path(str(held), operator, wanted)
    if field == "ext" and operator in ("=", "in"):
        wanted = wanted.removeprefix(".")
    if operator == "~":
        return fnmatchcase(*_folded(field, _text(held), wanted))
    pair = _comparable(field, held, wanted)
    return pair is not None and _ORDER[operator](*pair)


def _comparable(
    field: str, held: Value, wanted: str
) -> tuple[float, float] | tuple[str, str] | None:
    """Return both sides as numbers, as dates of one precision, or as text; None if they do not compare."""
    numbers = _number(held), _number(wanted)
    if numbers[0] is not None and numbers[1] is not None:
        return numbers[0], numbers[1]
    if isinstance(held, int | float) and not isinstance(held, bool):
        return None
    text = _text(held)
    if _DATE.fullmatch(wanted) and _DATE.match(text):
        return text[: len(wanted)], wanted.replace(" ", "T")
    return _folded(field, text, wanted)


def _compare_path(path: str, operator: str, wanted: str) -> bool:
    """Compare a path with an absolute path or glob, or with one from any of its folders on."""
    from os.path import abspath, expanduser

    if wanted.startswith(("./", "../", "~/")):
        wanted = abspath(expanduser(wanted))
    tails = [path] if wanted.startswith("/") else _tails(path)
    if operator == "~":
        return any(fnmatchcase(tail, wanted) for tail in tails)
    if operator in ("=", "in"):
        return wanted in tails
    return _ORDER[operator](path, wanted)


def _tails(path: str) -> list[str]:
    """Return a path from each of its folders on."""
    return [path, *(path[at + 1 :] for at, sign in enumerate(path) if sign == "/")]


def _number(value: Value) -> float | None:
    """Return what compares as a number; None for what a float cannot hold, NaN and infinity too."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _folded(field: str, held: str, wanted: str) -> tuple[str, str]:
    return (held, wanted) if field == "name" else (held.casefold(), wanted.casefold())


_ORDER: dict[str, Callable[..., bool]] = {
    "=": lambda a, b: a == b,
    "in": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


# --- reading -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.comparisons: list[Compare] = []
        self.at = self.depth = 0
        if len(text) > LONGEST:
            raise UsageError(f"the filter is longer than {LONGEST:,} characters", "shorten it")
        self.tokens = self._tokens()

    def parse(self) -> Filter:
        root = self._either()
        if self.token.kind != "end":
            self._fail('"and", "or" or the end')
        return Filter(self.text, root, tuple(self.comparisons))

    def _tokens(self) -> list[_Token]:
        tokens, at, end = [], 0, len(self.text.rstrip())
        while at < end:
            found = _TOKEN.match(self.text, at)
            if found is None or found.lastgroup is None:
                at += len(self.text[at:]) - len(self.text[at:].lstrip())
                self._fail_at(at, "a field, a value or an operator")
            tokens.append(
                _Token(found.lastgroup, found[found.lastgroup], found.start(found.lastgroup))
            )
            at = found.end()
        return [*tokens, _Token("end", "", end)]

    @property
    def token(self) -> _Token:
        return self.tokens[self.at]

    def _either(self) -> Node:
        node = self._both()
        while self._takes("or"):
            node = Either(node, self._both())
        return node

    def _both(self) -> Node:
        node = self._term()
        while self._takes("and"):
            node = Both(node, self._term())
        return node

    def _term(self) -> Node:
        self.depth += 1
        if self.depth > DEEPEST:
            self._fail(f"no more than {DEEPEST} levels")
        try:
            if self._takes("not"):
                return Not(self._term())
            if self._takes("("):
                node = self._either()
                self._expect(")")
                return node
            return self._comparison()
        finally:
            self.depth -= 1

    def _comparison(self) -> Node:
        start = self.token
        if start.kind not in ("word", "quoted") or start.text.lower() in ("and", "or", "in"):
            self._fail("a field")
        self.at += 1
        name = _unquoted(start).casefold()
        operator = self._operator()
        values = self._list() if operator.endswith("in") else (self._value(),)
        node = Compare(ALIASES.get(name, name), operator, values, start.position)
        self.comparisons.append(node)
        if len(self.comparisons) > MOST:
            self._fail(f"no more than {MOST} comparisons; many values of one field go into in (…)")
        return node

    def _operator(self) -> str:
        if self.token.kind == "operator":
            self.at += 1
            return self.tokens[self.at - 1].text.replace("==", "=")
        if self._takes("in"):
            return "in"
        if self._takes("not"):
            self._expect("in")
            return "not in"
        self._fail("an operator: = != < <= > >= ~ !~ in")

    def _list(self) -> tuple[str, ...]:
        closing = "]" if self._takes("[") else ")"
        if closing == ")":
            self._expect("(")
        values = [self._value()]
        while self._takes(","):
            values.append(self._value())
        self._expect(closing)
        return tuple(values)

    def _value(self) -> str:
        token = self.token
        if token.kind not in ("word", "quoted") or token.text.lower() in ("and", "or", "not", "in"):
            self._fail("a value")
        self.at += 1
        return _unquoted(token)

    def _takes(self, text: str) -> bool:
        is_it = self.token.kind in ("word", "mark") and self.token.text.lower() == text
        self.at += is_it
        return is_it

    def _expect(self, text: str) -> None:
        if not self._takes(text):
            self._fail(f'"{text}"')

    def _fail(self, wanted: str) -> NoReturn:
        self._fail_at(self.token.position, wanted)

    def _fail_at(self, position: int, wanted: str) -> NoReturn:
        found = self.text[position : position + 20].strip() or "its end"
        raise UsageError(
            f"the filter cannot be read at character {position + 1}: expected {wanted},"
            f" found {found}",
            'write it as in: year>=2020 and path~"manual/*"',
        )


def _unquoted(token: _Token) -> str:
    if token.kind != "quoted":
        return token.text
    return re.sub(r"\\(.)", r"\1", token.text[1:-1])
