"""Texts are found by their hashes wherever they stand, and hashes alone are never believed for more."""

from __future__ import annotations

import random

import numpy as np

from epicrag.known import BEGINS, MOST_CANDIDATES, Candidate, Known


def words(seed: int, n: int = 60) -> str:
    draw = random.Random(seed)
    return " ".join("".join(draw.choices("abcdefgh", k=draw.randint(2, 8))) for _ in range(n))


def known(*texts: str) -> Known:
    made = Known()
    made.update(enumerate(texts))
    return made


def found(of: Known, text: str) -> list[Candidate]:
    return sorted(of.find(text.encode()))


def test_every_known_text_is_found_where_it_stands():
    texts = [words(seed) for seed in range(50)]
    flat = "intro\n" + "\n\n".join(texts[seed] for seed in (7, 3, 3, 41)) + " end"
    expected = sorted(
        Candidate(at, at + len(texts[seed]), seed)
        for seed in (3, 7, 41)
        for at in range(len(flat))
        if flat.startswith(texts[seed], at)
    )
    assert len(expected) == 4
    assert found(known(*texts), flat) == expected


def test_text_that_differs_in_one_byte_is_not_found():
    text = words(1)
    assert found(known(text), text[:-1] + "!") == []
    assert found(known(text), text[:-1]) == []


def test_texts_of_any_script_are_found_by_their_bytes():
    text = "Die Fähre fährt stündlich. 渡船每小时一班。🚢 " * 3
    flat = "ü" * 5 + text
    assert found(known(text), flat) == [Candidate(10, 10 + len(text.encode()), 0)]


def test_equal_beginnings_are_told_apart():
    texts = [words(1) + words(seed) for seed in range(2, 40)]
    assert [one.row for one in found(known(*texts), "x " + texts[20])] == [20]


def test_short_texts_are_left_out():
    short = "a" * (BEGINS - 1)
    assert len(known(short, short + "a")) == 1
    assert found(known(short), short) == []
    assert found(Known(), words(1)) == []


def test_rows_go_and_come():
    texts = [words(seed) for seed in range(4)]
    of = known(*texts)
    of.update([(9, words(99))], gone=[1, 2])
    assert [one.row for one in found(of, "\n".join([*texts, words(99)]))] == [0, 3, 9]
    of.update([], gone=[0, 3, 9])
    assert len(of) == 0


def test_text_of_one_letter_does_not_explode():
    of = known(*("a" * n for n in range(BEGINS, BEGINS + 40)))
    assert len(of.find(b"a" * 20_000)) <= MOST_CANDIDATES


def test_memory_of_a_text_is_bounded():
    of = Known()
    before = of.nbytes
    of.update((n, words(n, 40)) for n in range(1000))
    assert of.nbytes - before <= 1000 * 40
    assert of.nbytes < 2 << 20
    assert isinstance(of.nbytes, int | np.integer)
