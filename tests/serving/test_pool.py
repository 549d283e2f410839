"""The page pool: every page is free or owned once, shared pages stay, and what is full says so."""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from epicrag.errors import DeviceError
from epicrag.serving.entry import Entry
from epicrag.serving.pool import NoPagesError, Pool


def make_pool(pages: int = 8) -> Pool:
    row_bytes = 2 * 2 * 1 * 4 * 4
    return Pool(
        layers=2,
        groups=1,
        head_dim=4,
        budget_bytes=pages * 16 * row_bytes,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def kv(rows: int, value: float = 1.0) -> Entry:
    return Entry(torch.full((2, 1, rows, 4), value), torch.full((2, 1, rows, 4), -value))


def held(pool: Pool, key: str) -> torch.Tensor:
    runs = pool.acquire(key)
    pool.unpin(key)
    return torch.cat([pool.keys[:, :, r.start : r.start + r.length] for r in runs], 2)


def test_a_budget_is_kept():
    assert make_pool(5).n_pages == 5


def test_a_budget_below_one_page_is_refused():
    with pytest.raises(DeviceError, match="holds no page"):
        make_pool(0)


def test_a_chunk_comes_back_as_it_was_filled():
    pool = make_pool()
    pool.fill("a", kv(37, 3.0))
    assert torch.equal(held(pool, "a"), kv(37, 3.0).keys)


def test_a_chunk_is_split_over_runs_when_no_single_one_is_long_enough():
    pool = make_pool(6)
    runs = [pool.allocate(16) for _ in range(6)]
    for index in (0, 2, 4):
        pool.release(runs[index])
    pool.fill("a", kv(48, 2.0))
    assert len(pool.acquire("a")) == 3
    assert torch.equal(held(pool, "a"), kv(48, 2.0).keys)


def test_the_least_recently_used_idle_chunk_goes_first():
    pool = make_pool(3)
    for key in "abc":
        pool.fill(key, kv(16))
    pool.acquire("a")
    pool.unpin("a")
    pool.fill("d", kv(16))
    assert [pool.has(key) for key in "abcd"] == [True, False, True, True]


def test_a_chunk_that_is_read_is_never_evicted():
    pool = make_pool(2)
    pool.fill("a", kv(16, 5.0))
    pool.acquire("a")
    with pytest.raises(DeviceError, match="needs 32 tokens of KV memory; 16 of 32 are free"):
        pool.fill("b", kv(32))
    assert torch.equal(held(pool, "a"), kv(16, 5.0).keys)
    pool.unpin("a")
    pool.check()


def test_private_rows_come_back_also_after_an_error():
    pool = make_pool(2)
    with pytest.raises(RuntimeError, match="boom"), pool.private(20):
        assert pool.free_pages == 0
        raise RuntimeError("boom")
    pool.check()
    assert pool.free_pages == 2


def test_adopted_runs_keep_their_rows_and_free_the_rest():
    pool = make_pool(4)
    runs = pool.allocate(64)
    pool.adopt("p", runs, 20)
    assert pool.free_pages == 2
    assert sum(run.length for run in pool.acquire("p")) == 20
    pool.check()


def test_what_others_stand_behind_goes_after_them():
    pool = make_pool(4)
    pool.fill("a", kv(16))
    pool.adopt("b", pool.allocate(16), 16, parent="a")
    pool.adopt("c", pool.allocate(16), 16, parent="b")
    assert pool.idle_pages == 3
    pool.acquire("b")
    assert (pool.idle_pages, pool.busy_pages) == (1, 2)  # what b stands behind is read with it
    pool.allocate(32)
    assert [pool.has(key) for key in "abc"] == [True, True, False]
    with pytest.raises(NoPagesError) as caught:
        pool.allocate(16)
    assert (caught.value.pages, caught.value.busy) == (1, 4)
    pool.unpin("b")
    pool.allocate(32)
    assert [pool.has(key) for key in "abc"] == [False, False, False]


def test_a_request_that_cannot_be_served_evicts_nothing():
    pool = make_pool(3)
    pool.fill("a", kv(16))
    pool.fill("b", kv(16))
    pool.acquire("b")
    with pytest.raises(NoPagesError):
        pool.allocate(48)
    assert pool.has("a")
    with pytest.raises(NoPagesError, match="there are 48"):
        pool.expect(49, pool.n_pages)
    pool.expect(48, pool.n_pages)


def test_what_leaves_is_told_before_its_pages_go():
    pool = make_pool(2)
    seen = []
    pool.fill("a", kv(20, 3.0), leave=lambda r: seen.append(pool.keys[:, :, r.runs[0].start].sum()))
    pool.allocate(32)
    assert seen == [3.0 * 8]


def test_shared_pages_are_those_with_several_readers():
    pool = make_pool(4)
    pool.fill("a", kv(32))
    pool.acquire("a")
    assert pool.shared_pages == 0
    pool.acquire("a")
    assert pool.shared_pages == 2


def test_rows_are_free_again_when_a_fill_fails():
    pool = make_pool(2)
    with pytest.raises(RuntimeError):
        pool.fill("a", Entry(torch.zeros(2, 1, 16, 5), torch.zeros(2, 1, 16, 5)))
    pool.check()
    assert pool.free_pages == 2


class Pages(RuleBasedStateMachine):
    """Any sequence of fills, reads and private runs leaves every page accounted for."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = make_pool(6)
        self.reading: list[str] = []
        self.private: list = []
        self.content: dict[str, float] = {}

    @rule(key=st.sampled_from("abcde"), rows=st.integers(1, 60), value=st.floats(-9, 9, width=16))
    def fill(self, key, rows, value):
        try:
            new = not self.pool.has(key)
            self.pool.fill(key, kv(rows, value))
        except DeviceError:
            return
        if new:
            self.content[key] = value

    @rule(key=st.sampled_from("abcde"))
    def read(self, key):
        if self.pool.has(key):
            self.pool.acquire(key)
            self.reading.append(key)

    @precondition(lambda self: self.reading)
    @rule()
    def done(self):
        self.pool.unpin(self.reading.pop())

    @rule(rows=st.integers(1, 50))
    def take(self, rows):
        try:
            runs = self.pool.allocate(rows)
        except DeviceError:
            return
        for run in runs:
            self.pool.keys[:, :, run.start : run.start + run.length] = 99.0
        self.private.append(runs)

    @precondition(lambda self: self.private)
    @rule()
    def give(self):
        self.pool.release(self.private.pop())

    @invariant()
    def chunks_hold_their_content(self):
        for key in set(self.reading):
            assert torch.all(held(self.pool, key) == self.content[key])

    def teardown(self):
        for runs in self.private:
            self.pool.release(runs)
        self.pool.check()


Pages.TestCase.settings = settings(max_examples=40, deadline=None)
TestPages = Pages.TestCase
