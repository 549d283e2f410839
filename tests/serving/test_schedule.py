"""The scheduler alone, over walks that compute nothing: who is served when, and who pays for what goes wrong."""

from __future__ import annotations

import gc
import random
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from epicrag.errors import BusyError, DeviceError
from epicrag.serving.generation import Generation, State
from epicrag.serving.schedule import Limits, Scheduler, Ticket, share


class Full(DeviceError):
    pass


@dataclass
class Pages:
    """A pool that only counts."""

    free: int


@dataclass(eq=False)
class Walk:
    n_left: int
    done: int = 0

    @property
    def is_linked(self) -> bool:
        return not self.n_left

    def link_job(self, most: int | None = None) -> Job:
        n = min(self.n_left, most or self.n_left)
        return Job(self, n, n == self.n_left)

    def step_job(self, tokens: Sequence[int]) -> Job:
        return Job(self, 0, True)


class Job(NamedTuple):
    walk: Walk
    link: int
    is_last: bool


@dataclass(eq=False)
class Work:
    """An answer of `n_tokens` tokens "0", "1", …, after a prompt of `n_link` tokens, on `pages` pages."""

    pages: Pages
    n_link: int = 4
    n_tokens: int = 3
    needs: int = 1
    n_compiled: int = 0
    fails_at: int = -1
    next_token: int | None = None
    written: int = 0
    opened: int = 0
    closed: int = 0
    waited: float = -1.0
    is_warming: bool = False

    def warm(self) -> bool:
        raise AssertionError("nothing here is cold")

    def open(self, wait_ms: float) -> Walk:
        if self.pages.free < self.needs:
            raise Full(f"{self.needs} pages")
        self.pages.free -= self.needs
        self.opened += 1
        self.waited = wait_ms
        return Walk(self.n_link)

    def take(self, logits: object) -> str:
        if self.written == self.fails_at:
            raise ValueError("this request's own fault")
        self.written += 1
        self.next_token = self.written if self.written < self.n_tokens else None
        return str(self.written - 1)

    def close(self) -> None:
        self.closed += 1
        self.pages.free += self.needs

    def is_full(self, error: Exception) -> bool:
        return isinstance(error, Full) and self.needs <= 8


@dataclass
class Machine:
    """Runs jobs, and remembers them."""

    batches: list[list[Job]] = field(default_factory=list)
    error: BaseException | None = None

    def __call__(self, jobs: Sequence[Job]) -> list[list[int]]:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.batches.append(list(jobs))
        for job in jobs:
            job.walk.n_left -= job.link
        return [[1] if job.is_last else [] for job in jobs]


@pytest.fixture
def machine() -> Machine:
    return Machine()


def generation(scheduler: Scheduler, work: Work) -> Generation:
    return Generation(scheduler, Ticket(work), State())


def scheduler_of(machine: Machine, **limits: int) -> Scheduler:
    return Scheduler(machine, Limits(**limits))


def test_nothing_runs_before_the_first_delta_is_asked_for(machine):
    scheduler = scheduler_of(machine)
    answer = generation(scheduler, Work(Pages(8)))
    assert (scheduler.n_waiting, scheduler.n_running, machine.batches) == (0, 0, [])
    assert list(answer) == ["0", "1", "2"]
    assert list(answer) == []


def test_one_step_serves_every_request(machine):
    pages = Pages(8)
    scheduler = scheduler_of(machine)
    answers = [generation(scheduler, Work(pages, n_tokens=5)) for _ in range(4)]
    for answer in answers:
        scheduler.submit(answer._ticket)
    assert list(answers[0]) == list("01234")
    steps = scheduler.steps
    assert [list(answer) for answer in answers[1:]] == [list("01234")] * 3
    assert scheduler.steps == steps
    assert pages.free == 8


def test_decoders_ride_along_with_a_long_prompt(machine):
    scheduler = scheduler_of(machine, batch_tokens=16)
    short = generation(scheduler, Work(Pages(9), n_link=4, n_tokens=30))
    next(short)
    long = generation(scheduler, Work(Pages(9), n_link=100, n_tokens=1))
    assert next(long) == "0"
    assert scheduler.steps == 1 + 7
    assert len(short._ticket.deltas) == 7
    assert all(sum(job.link for job in batch) <= 16 for batch in machine.batches)


def test_short_prompts_do_not_wait_behind_a_long_one(machine):
    scheduler = scheduler_of(machine, batch_tokens=16)
    long = generation(scheduler, Work(Pages(9), n_link=200))
    short = generation(scheduler, Work(Pages(9), n_link=8))
    scheduler.submit(long._ticket)
    assert next(short) == "0"
    assert scheduler.steps == 1


@pytest.mark.parametrize(
    ("budget", "needs", "shares"),
    [
        (12, [100, 2, 100], [5, 2, 5]),
        (10, [100, 100, 100], [4, 3, 3]),
        (0, [5, 5], [1, 0]),
        (64, [3], [3]),
        (8, [], []),
    ],
)
def test_a_budget_is_shared_fairly(budget, needs, shares):
    assert share(budget, needs) == shares


def test_a_full_queue_says_so(machine):
    scheduler = scheduler_of(machine, max_waiting=2)
    answers = [generation(scheduler, Work(Pages(9))) for _ in range(3)]
    for answer in answers[:2]:
        scheduler.submit(answer._ticket)
    with pytest.raises(BusyError, match="0 requests are running and 2 are waiting") as caught:
        next(answers[2])
    assert caught.value.exit_code == 9
    assert list(answers[0]) == ["0", "1", "2"]
    assert list(answers[2]) == ["0", "1", "2"]


def test_no_more_than_the_bound_run_at_once(machine):
    scheduler = scheduler_of(machine, max_running=2)
    answers = [generation(scheduler, Work(Pages(9))) for _ in range(5)]
    for answer in answers:
        scheduler.submit(answer._ticket)
    assert list(answers[4]) == ["0", "1", "2"]
    assert max(len(batch) for batch in machine.batches) == 2


def test_a_request_without_pages_waits_and_none_overtakes_it(machine):
    pages = Pages(4)
    scheduler = scheduler_of(machine)
    first, big, small = (
        generation(scheduler, Work(pages, n_tokens=n, needs=needs))
        for n, needs in ((6, 2), (2, 4), (2, 1))
    )
    next(first)
    scheduler.submit(big._ticket)
    scheduler.submit(small._ticket)
    while scheduler.step():
        if small._ticket.work.opened:
            assert big._ticket.work.opened
    assert [list(one) for one in (first, big, small)] == [list("12345"), ["0", "1"], ["0", "1"]]
    assert big._ticket.work.waited > 0
    assert pages.free == 4


def test_a_request_that_can_never_fit_is_refused_and_the_others_go_on(machine):
    pages = Pages(4)
    scheduler = scheduler_of(machine)
    first = generation(scheduler, Work(pages))
    next(first)
    with pytest.raises(Full):
        next(generation(scheduler, Work(pages, needs=9)))
    with pytest.raises(Full):
        list(generation(scheduler, Work(pages, needs=5)))  # waits, and then nothing runs any more
    assert list(first) == ["1", "2"]


def test_a_reader_that_stops_reading_stalls_nobody_and_its_deltas_stay_bounded(machine):
    scheduler = scheduler_of(machine, max_unread=4)
    slow = generation(scheduler, Work(Pages(9), n_tokens=100))
    next(slow)
    assert len(list(generation(scheduler, Work(Pages(9), n_tokens=50)))) == 50
    assert len(slow._ticket.deltas) == 4
    assert not scheduler.step()
    assert len(list(slow)) == 99


def test_a_reader_that_stops_reading_does_not_keep_its_pages_from_who_waits(machine):
    pages = Pages(2)
    scheduler = scheduler_of(machine, max_unread=4)
    slow = generation(scheduler, Work(pages, n_tokens=20, needs=2))
    next(slow)
    assert list(generation(scheduler, Work(pages, needs=1))) == ["0", "1", "2"]
    assert len(list(slow)) == 19


@pytest.mark.parametrize("where", ["run", "open", "close"])
def test_an_interrupt_is_held_back_until_nothing_is_half_moved(machine, where):
    """Whoever reads is interrupted, and loses nothing; the other's answer is what it would have been."""
    pages = Pages(4)
    scheduler = scheduler_of(machine)
    other = generation(scheduler, Work(pages, n_tokens=5))
    assert next(other) == "0"
    interrupted = Work(pages, n_tokens=3 if where == "run" else 1)
    target, name = (scheduler, "_run") if where == "run" else (interrupted, where)
    right = getattr(target, name)

    def press(*given):
        setattr(target, name, right)
        out = right(*given)
        signal.raise_signal(signal.SIGINT)
        return out

    setattr(target, name, press)
    mine = generation(scheduler, interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(mine)
    assert not scheduler._holder
    assert "".join(mine) == "".join(map(str, range(interrupted.n_tokens)))
    assert list(other) == ["1", "2", "3", "4"]
    assert pages.free == 4


@pytest.mark.parametrize("state", ["new", "waiting", "linking", "running", "over"])
@pytest.mark.parametrize("how", ["close", "with", "forget"])
def test_cancelling_in_any_state_gives_everything_back_at_once(machine, state, how):
    pages = Pages(3)
    scheduler = scheduler_of(machine, batch_tokens=2)
    other = generation(scheduler, Work(pages, n_tokens=50, needs=1, n_link=1))
    next(other)
    work = Work(pages, needs=3 if state == "waiting" else 2, n_link=20)
    answer = generation(scheduler, work)
    if state != "new":
        scheduler.submit(answer._ticket)
        scheduler.step()
    if state in ("running", "over"):
        next(answer)
    if state == "over":
        list(answer)
    if how == "close":
        answer.close()
        answer.close()
    elif how == "with":
        with pytest.raises(KeyError), answer:
            raise KeyError
    if how != "forget":
        assert list(answer) == []
    del answer
    gc.collect()
    assert (pages.free, scheduler.n_running, scheduler.n_waiting) == (2, 1, 0)
    assert work.opened == work.closed
    assert len(list(other)) == 49


def test_one_requests_failure_is_its_own(machine):
    pages = Pages(9)
    scheduler = scheduler_of(machine)
    good, bad = generation(scheduler, Work(pages)), generation(scheduler, Work(pages, fails_at=1))
    scheduler.submit(bad._ticket)
    assert list(good) == ["0", "1", "2"]
    assert next(bad) == "0"  # what it wrote before can still be read
    with pytest.raises(ValueError, match="own fault"):
        next(bad)
    assert list(bad) == []
    assert pages.free == 9


def test_an_error_of_the_pass_fails_all_in_the_batch_and_leaves_the_pool_whole(machine):
    pages = Pages(9)
    scheduler = scheduler_of(machine)
    answers = [generation(scheduler, Work(pages)) for _ in range(3)]
    for answer in answers:
        scheduler.submit(answer._ticket)
    machine.error = RuntimeError("boom")
    for answer in answers:
        with pytest.raises(RuntimeError, match="boom"):
            next(answer)
    assert pages.free == 9
    assert list(generation(scheduler, Work(pages))) == ["0", "1", "2"]


def test_an_interrupt_leaves_every_request_where_it_was(machine):
    scheduler = scheduler_of(machine)
    answers = [generation(scheduler, Work(Pages(9))) for _ in range(2)]
    for answer in answers:
        next(answer)
    machine.error = KeyboardInterrupt()
    answers[0]._ticket.deltas.clear()
    with pytest.raises(KeyboardInterrupt):
        next(answers[0])
    assert "".join(answers[1]) == "12"


def test_compiling_for_new_requests_is_bounded_in_a_step(machine):
    scheduler = scheduler_of(machine, batch_tokens=16)
    answers = [generation(scheduler, Work(Pages(9), n_compiled=10)) for _ in range(5)]
    for answer in answers:
        scheduler.submit(answer._ticket)
    scheduler.step()
    assert scheduler.n_running == 2


def test_the_turn_excludes_steps(machine):
    scheduler = scheduler_of(machine)
    order: list[str] = []
    with scheduler.turn():
        reader = threading.Thread(
            target=lambda: order.extend(generation(scheduler, Work(Pages(9))))
        )
        reader.start()
        reader.join(0.05)
        order.append("turn")
    reader.join()
    assert order == ["turn", "0", "1", "2"]


def test_a_finalizer_within_a_step_waits_for_the_steps_end(machine):
    pages = Pages(9)
    scheduler = scheduler_of(machine)
    victim = generation(scheduler, Work(pages, n_tokens=9))
    next(victim)
    held = [victim]
    del victim

    class Forgetful(Work):
        def take(self, logits: object) -> str:
            held.clear()
            return super().take(logits)

    assert list(generation(scheduler, Forgetful(pages))) == ["0", "1", "2"]
    assert (pages.free, scheduler.n_running) == (9, 0)


def test_many_threads_with_cancels_leave_nothing_behind(machine):
    pages = Pages(8)
    scheduler = scheduler_of(machine, batch_tokens=8, max_running=4, max_waiting=400, max_unread=3)
    wrong: list[object] = []

    def client(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(25):
            n = dice.randrange(1, 12)
            work = Work(pages, dice.randrange(1, 30), n, dice.randrange(1, 5))
            stop = dice.randrange(0, 14)
            with generation(scheduler, work) as answer:
                got = [delta for delta, _ in zip(answer, range(stop), strict=False)]
            if got != [str(i) for i in range(min(n, stop))]:
                wrong.append(got)

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert (pages.free, scheduler.n_running, scheduler.n_waiting) == (8, 0, 0)
