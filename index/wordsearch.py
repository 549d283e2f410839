"""Passages by their words: BM25 as FTS5 computes it, in tens of milliseconds however common the words are."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

Rows = Callable[..., list[tuple[Any, ...]]]
"""Runs a query with its values, and returns all rows."""

HEAD_WEIGHT = 2.0
"""What a word in the title or the headings counts, as against one in the text."""
MOST_TERMS = 32
"""Of a question: the rarest ones. A pasted page is no question."""
_MOST_ROWS = 6_000  # scored by FTS5, at some microseconds each
_K1, _B = 1.2, 0.75  # FTS5's own


def best(
    rows: Rows, terms: Sequence[str], n: int, allowed: Collection[int] | None = None
) -> list[tuple[int, float]]:
    """Return the n best (chunk row, BM25) with any of the terms, best first; only `allowed` rows if given.

    `terms` are as `words.query_words` makes them. A term that most passages hold picks none of its own
    where rarer ones do, but counts in those they pick. Rare is what is rare among the allowed.
    """
    if not terms or n < 1 or (allowed is not None and not allowed):
        return []
    counts = frequencies(rows, terms)
    ordered = sorted((term for term in counts if counts[term]), key=lambda term: counts[term])
    held = counts
    if allowed is not None:
        held = _held_within(rows, ordered, counts, allowed)
        ordered = sorted(held, key=lambda term: (held[term], counts[term]))
    ordered = ordered[:MOST_TERMS]
    picking = _picking(ordered, held)
    if not ordered:
        return []
    if not picking:
        return _of_common(rows, ordered, counts, n, allowed)
    left_out = len(ordered) - len(picking)
    found = _ranked(rows, " OR ".join(map(_quoted, picking)), 4 * n if left_out else n, allowed)
    return _rescored(rows, [row for row, _ in found], counts)[:n] if left_out else found


def frequencies(rows: Rows, terms: Iterable[str]) -> dict[str, int]:
    """Return in how many passages each term stands; above a few thousand, about how many.

    Common terms are counted in the first rows only: rows come in order, so the last one seen tells how
    dense they stand.
    """
    sql = "SELECT count(*), max(rowid) FROM (SELECT rowid FROM words WHERE words MATCH ? LIMIT ?)"
    unique = list(dict.fromkeys(terms))[: 8 * MOST_TERMS]
    last = rows("SELECT coalesce(max(row), 0) FROM chunks")[0][0]
    counts = {}
    for term in unique:
        count, seen = rows(sql, _quoted(term), _MOST_ROWS)[0]
        counts[term] = count if count < _MOST_ROWS else max(count * last // seen, count)
    return counts


def _held_within(
    rows: Rows, terms: Sequence[str], counts: dict[str, int], allowed: Collection[int]
) -> dict[str, int]:
    """Return in how many of the allowed rows each of the first terms stands that do so in any, up to some
    thousands. `counts`: in how many rows at all."""
    some = "SELECT rowid FROM words WHERE words MATCH ? LIMIT ?"
    many = (
        "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ?"
        " AND +rowid IN (SELECT value FROM json_each(?)) LIMIT ?)"
    )
    within, listed, held = set(allowed), json.dumps([int(row) for row in allowed]), {}
    for term in terms:
        if counts[term] < _MOST_ROWS:
            found = rows(some, _quoted(term), _MOST_ROWS)
            count = sum(row in within for (row,) in found)
        else:  # the list is read anew for each
            ((count,),) = rows(many, _quoted(term), listed, _MOST_ROWS)
        if count:
            held[term] = count
        if len(held) == MOST_TERMS:
            break
    return held


def _picking(ordered: Sequence[str], counts: dict[str, int]) -> list[str]:
    """Return the rarest terms whose passages together are few enough to score."""
    picked, room = [], _MOST_ROWS
    for term in ordered:
        room -= counts[term]
        if room <= 0:
            break
        picked.append(term)
    return picked


def _of_common(
    rows: Rows,
    ordered: Sequence[str],
    counts: dict[str, int],
    n: int,
    allowed: Collection[int] | None,
) -> list[tuple[int, float]]:
    """All terms are common: the passages that hold as many of them at once as it takes to be few."""
    for width in range(2, len(ordered) + 1):
        together = " AND ".join(map(_quoted, ordered[:width]))
        sql = "SELECT rowid FROM words WHERE words MATCH ? LIMIT ?"
        if len(rows(sql, together, _MOST_ROWS)) < _MOST_ROWS:
            break
    else:
        together = " AND ".join(map(_quoted, ordered))
    found = _ranked(rows, together, 4 * n, allowed, _MOST_ROWS)
    if len(found) < n and len(ordered) > 1:  # they hardly ever stand together
        found += _ranked(rows, _quoted(ordered[0]), 4 * n, allowed, _MOST_ROWS)
    return _rescored(rows, list(dict.fromkeys(row for row, _ in found)), counts)[:n]


def _ranked(
    rows: Rows, match: str, n: int, allowed: Collection[int] | None, most: int | None = None
) -> list[tuple[int, float]]:
    """Return the n best of one FTS5 query, of its first `most` rows where that is given."""
    where, values = "words MATCH ?", [match]
    if allowed is not None:
        # The plus keeps SQLite from asking FTS5 once for each of the rows.
        where += " AND +rowid IN (SELECT value FROM json_each(?))"
        values.append(json.dumps([int(row) for row in allowed]))
    limit = f" LIMIT {most}" if most else ""
    sql = (
        f"SELECT rowid, score FROM (SELECT rowid, -bm25(words, {HEAD_WEIGHT}, 1.0) AS score"
        f" FROM words WHERE {where}{limit}) ORDER BY score DESC, rowid LIMIT {int(n)}"
    )
    return [(row, float(score)) for row, score in rows(sql, *values)]


def _rescored(rows: Rows, found: Sequence[int], counts: dict[str, int]) -> list[tuple[int, float]]:
    """Score rows by all terms, the common ones too: BM25 with the mean length of these rows."""
    sql = "SELECT rowid, head, body FROM words WHERE rowid IN (SELECT value FROM json_each(?))"
    texts = {row: (head.split(), body.split()) for row, head, body in rows(sql, json.dumps(found))}
    total = rows("SELECT count(*) FROM chunks")[0][0]
    mean = sum(len(head) + len(body) for head, body in texts.values()) / max(len(texts), 1)
    weights = {
        term: max(math.log((total - count + 0.5) / (count + 0.5)), 1e-6)
        for term, count in counts.items()
    }
    scores = {}
    for row, (head, body) in texts.items():
        length = _K1 * (1 - _B + _B * (len(head) + len(body)) / mean)
        held, in_head = Counter(body), Counter(head)
        heights = {term: held[term] + HEAD_WEIGHT * in_head[term] for term in weights}
        scores[row] = sum(
            weights[term] * count * (_K1 + 1) / (count + length)
            for term, count in heights.items()
            if count
        )
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))


def _quoted(term: str) -> str:
    """A term as FTS5 takes it, whatever it holds: within quotes nothing is an operator."""
    return '"' + term.replace('"', '""') + '"'
