"""The free list: against a plain set of pages."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epicrag.serving.pages import FreePages


def test_the_tightest_stretch_is_cut():
    free = FreePages(20)
    [(start, _)] = free.take(20)
    for low, length in ((0, 3), (5, 9), (16, 4)):
        free.give(start + low, length)
    assert free.take(4) == [(16, 4)]
    assert free.take(2) == [(0, 2)]
    assert list(free) == [(2, 1), (5, 9)]


def test_the_longest_go_first_where_none_is_long_enough():
    free = FreePages(20)
    free.take(20)
    for low, length in ((0, 3), (5, 6), (13, 4)):
        free.give(low, length)
    assert free.take(11) == [(5, 6), (13, 4), (0, 1)]


def test_more_than_there_are_is_refused_and_nothing_taken():
    free = FreePages(4)
    with pytest.raises(ValueError, match="5 pages of 4"):
        free.take(5)
    assert (free.count, list(free)) == (4, [(0, 4)])


def test_no_pages_at_all():
    free = FreePages(0)
    assert (free.count, list(free), free.take(0)) == (0, [], [])


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=60))
def test_pages_are_free_or_taken_and_neighbours_are_joined(moves):
    free, taken, model = FreePages(24), [], set(range(24))
    for is_take, n in moves:
        if is_take and n <= free.count:
            taken.extend(free.take(n))
        elif not is_take and taken:
            start, length = taken.pop(n % len(taken))
            cut = min(n, length)
            free.give(start, cut)
            if cut < length:
                taken.append((start + cut, length - cut))
        held = {page for start, length in taken for page in range(start, start + length)}
        stretches = list(free)
        pages = [page for start, length in stretches for page in range(start, start + length)]
        assert set(pages) == model - held
        assert free.count == len(pages) == len(set(pages))
        assert all(a + n < b for (a, n), (b, _) in pairwise(stretches))
