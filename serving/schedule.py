"""Continuous batching: every step is one flat forward pass that serves all requests that can be served.

Nobody runs in the background: whoever wants the next delta of an answer takes the turn, and its step serves the
others too. A step takes waiting requests on while there is room, decodes one token of every running answer, and
shares what is left of `batch_tokens` among the prompts that are being linked.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from epicrag.errors import BusyError
from epicrag.serving.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Sized
    from types import FrameType


class Walk(Protocol):
    """What the scheduler asks of a prompt in the pool (`link.Linked`)."""

    @property
    def is_linked(self) -> bool: ...
    @property
    def n_left(self) -> int: ...
    def link_job(self, most: int | None = None) -> Any: ...
    def step_job(self, tokens: Sequence[int]) -> Any: ...


class Work(Protocol):
    """What the scheduler asks of an answer being made. Its calls never overlap."""

    def open(self, wait_ms: float) -> Walk:
        """Take pages and pins. An error that says `is_full` means: not now."""
        ...

    @property
    def n_compiled(self) -> int:
        """Tokens that `open` had to compute."""
        ...

    @property
    def is_warming(self) -> bool:
        """Whether the walk computes chunks that the prompt lacks, before it is put in its place."""
        ...

    def warm(self) -> bool:
        """A chunk's last piece was computed. Whether it was the last chunk: then `open` is called again."""
        ...

    def take(self, logits: Any) -> str:
        """Choose the token after these logits (1, V); the text that is certain by now."""
        ...

    @property
    def next_token(self) -> int | None:
        """The token to append; None when the answer is over."""
        ...

    def close(self) -> None:
        """Give everything back, whatever happened. Called once for each `open` that returned."""
        ...

    def is_full(self, error: Exception) -> bool:
        """Whether `open` failed for want of pages that other requests hold now."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the scheduler. `max_unread`: deltas of an answer that may wait for its reader."""

    batch_tokens: int = 512
    max_running: int = 32
    max_waiting: int = 256
    max_unread: int = 64


@dataclass(eq=False, slots=True)
class Ticket:
    """One request's place in the queue, then in the batch, and the deltas its reader has not taken."""

    work: Work
    deltas: deque[str] = field(default_factory=deque)
    walk: Walk | None = None
    error: BaseException | None = None
    watch: Watch | None = None
    is_queued: bool = False
    is_over: bool = False

    @property
    def is_ready(self) -> bool:
        """Whether its reader can be answered without a step."""
        return bool(self.deltas) or self.is_over


class Scheduler:
    """A queue, the requests that run, and the turn.

    `run` computes the jobs of a step in one pass and returns logits for each. An error there fails the requests
    of that batch; an error of one request fails that one.
    """

    def __init__(
        self, run: Callable[[Sequence[Any]], Sequence[Sized]], limits: Limits | None = None
    ) -> None:
        self.limits = limits or Limits()
        self._run = run
        self._door = threading.Condition()
        self._holder: int | None = None  # the thread whose turn it is
        self._waiting: deque[Ticket] = deque()
        self._running: list[Ticket] = []
        self._left: deque[Ticket] = deque()  # given up by their readers, not yet taken out
        # Whether the oldest waiting request found no pages, and nothing has ended since.
        self._is_full = False
        self.steps = 0
        self.decoded = 0

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_busy(self) -> bool:
        """Whether anybody is being served, or waits for it."""
        return bool(self._running or self._waiting)

    # --- for readers -----------------------------------------------------------------------------

    def submit(self, ticket: Ticket) -> None:
        """Put a request in the queue. BusyError when the queue is full."""
        with self._door:
            if ticket.is_queued or ticket.is_over:
                return
            if len(self._waiting) >= self.limits.max_waiting:
                raise BusyError(
                    f"{len(self._running)} requests are running and {len(self._waiting)} are waiting: "
                    "the queue is full",
                    "ask again later, or read the answers that are open",
                )
            ticket.is_queued = True
            ticket.watch = Watch()
            self._waiting.append(ticket)

    def read(self, ticket: Ticket) -> str | None:
        """The next delta of an answer, or None after the last. Steps while there is none.

        Raises, once, what the request failed with.
        """
        self.submit(ticket)
        while True:
            with self._door:
                while self._holder is not None and not ticket.is_ready:
                    self._door.wait()
            with undisturbed():
                with self._door:
                    if ticket.deltas:
                        return ticket.deltas.popleft()
                    if ticket.is_over:
                        error, ticket.error = ticket.error, None
                        if error is not None:
                            raise error
                        return None
                    if self._holder is not None:
                        continue
                    self._refuse_lost(ticket)
                    self._holder = threading.get_ident()
                try:
                    self._step()
                finally:
                    self._leave()

    def cancel(self, ticket: Ticket) -> None:
        """Take a request out, in whatever state: what it held is free when this returns.

        Waits for the end of a step that is under way in another thread.
        """
        with self._door:
            self.abandon(ticket)
            while not ticket.is_over and self._holder != threading.get_ident():
                self._door.wait()

    def abandon(self, ticket: Ticket) -> None:
        """`cancel` for finalizers, which may run at any moment, also within a step: never waits.

        What is held is given back now, or at the end of the step that is under way.
        """
        with undisturbed(), self._door:
            ticket.deltas.clear()
            ticket.error = None
            if not ticket.is_queued:
                ticket.is_over = True
            if ticket.is_over:
                return
            self._left.append(ticket)
            if self._holder is None:
                self._holder = threading.get_ident()
                self._leave()

    def step(self) -> bool:
        """Serve everybody once. Returns whether anything was done: False, and there is nothing to do now."""
        with self.turn():
            return self._step()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Have the model and the pool alone, between steps."""
        taken = False
        try:
            while not taken:
                with self._door:
                    while self._holder is not None:
                        self._door.wait()
                with undisturbed(), self._door:
                    if self._holder is None:
                        self._holder = threading.get_ident()
                        taken = True
            yield
        finally:
            if taken:
                with undisturbed():
                    self._leave()

    def _leave(self) -> None:
        """Give the turn up, after taking out those that were cancelled meanwhile."""
        with self._door:
            while True:
                self._take_out()
                self._holder = None
                if not self._left:  # a finalizer may have run just now
                    break
                self._holder = threading.get_ident()
            self._door.notify_all()

    # --- one step --------------------------------------------------------------------------------

    def _step(self) -> bool:
        self._take_out()
        self._admit()
        batch = self._batch()
        if not batch:
            return False
        self.steps += 1
        try:
            logits = self._run([job for _, job in batch])
        except Exception as error:  # noqa: BLE001 - raised again in each reader
            for ticket, _ in batch:
                self._end(ticket, error)
            return True
        interrupt: BaseException | None = None
        for (ticket, _), rows in zip(batch, logits, strict=True):
            try:
                if len(rows):
                    self._advance(ticket, rows)
            except BaseException as error:  # noqa: BLE001 - raised again in the reader
                self._end(ticket, error)
                if not isinstance(error, Exception):
                    interrupt = error
        if interrupt is not None:
            raise interrupt
        return True

    def _advance(self, ticket: Ticket, logits: Any) -> None:
        if ticket.work.is_warming:
            if ticket.work.warm():
                self._running.remove(ticket)
                ticket.walk = None
                self._is_full = False
                self._waiting.appendleft(ticket)
            return
        self.decoded += 1
        delta = ticket.work.take(logits)
        if ticket.work.next_token is None:
            self._end(ticket, None)
        ticket.deltas.append(delta)

    def _admit(self) -> None:
        """Take waiting requests on, the oldest first: none overtakes one that waits for pages."""
        compiled = 0
        while self._waiting and compiled < self.limits.batch_tokens:
            if self._is_full and self._running:
                return
            if len(self._running) >= self.limits.max_running:
                return
            ticket = self._waiting[0]
            try:
                assert ticket.watch is not None
                ticket.walk = ticket.work.open(ticket.watch.total())
            except Exception as error:  # noqa: BLE001 - raised again in its reader
                if self._running and ticket.work.is_full(error):
                    self._is_full = True
                    return
                self._end(ticket, error)
                continue
            self._waiting.popleft()
            self._running.append(ticket)
            compiled += ticket.work.n_compiled

    def _batch(self) -> list[tuple[Ticket, Any]]:
        """The jobs of this step: every running answer's next token, and pieces of prompts."""
        chosen = [ticket for ticket in self._running if not self._is_held_up(ticket)]
        linking = [t for t in chosen if t.walk is not None and not t.walk.is_linked]
        pieces = self._pieces(linking, len(chosen) - len(linking))
        batch = []
        for ticket in chosen:
            most = pieces.get(ticket, 1)
            if not most:
                continue
            try:
                batch.append((ticket, self._job(ticket, most)))
            except Exception as error:  # noqa: BLE001 - raised again in its reader
                self._end(ticket, error)
        return batch

    def _job(self, ticket: Ticket, most: int) -> Any:
        walk, token = ticket.walk, ticket.work.next_token
        assert walk is not None
        if not walk.is_linked:
            return walk.link_job(most)
        assert token is not None
        return walk.step_job([token])

    def _is_held_up(self, ticket: Ticket) -> bool:
        """Whether an answer waits for its reader. Not while others wait for what it holds."""
        return len(ticket.deltas) >= self.limits.max_unread and not self._waiting

    def _pieces(self, linking: Sequence[Ticket], n_decoding: int) -> dict[Ticket, int]:
        """How many tokens of each prompt go into this step."""
        limits = self.limits
        needs = [ticket.walk.n_left for ticket in linking if ticket.walk is not None]
        return dict(zip(linking, share(limits.batch_tokens - n_decoding, needs), strict=True))

    # --- ends ------------------------------------------------------------------------------------

    def _end(self, ticket: Ticket, error: BaseException | None) -> None:
        """Close a request that is over or failed; what it wrote can still be read."""
        if ticket.walk is not None:
            if ticket in self._running:
                self._running.remove(ticket)
            ticket.walk = None
            self._is_full = False
            try:
                ticket.work.close()
            except Exception as late:  # noqa: BLE001 - raised again in its reader
                error = error or late
        else:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            self._is_full = False
        ticket.error = error
        ticket.is_over = True

    def _refuse_lost(self, ticket: Ticket) -> None:
        """A request that is nowhere would be waited for without end: it fails, and gives back what it holds."""
        if ticket not in self._running and ticket not in self._waiting:
            self._end(ticket, RuntimeError("the request was lost when a step was broken off"))

    def _take_out(self) -> None:
        while self._left:
            ticket = self._left.popleft()
            if not ticket.is_over:
                self._end(ticket, None)
            ticket.deltas.clear()
            ticket.error = None


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold an interrupt (Ctrl-C) back until the end: what is half moved would be wrong for every reader.

    Only the main thread is ever interrupted. A second interrupt is not held back.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    held: list[tuple[int, FrameType | None]] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if held:
            before(number, frame)
        held.append((number, frame))

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            before(*held[0])


def share(budget: int, needs: Sequence[int]) -> list[int]:
    """Divide a budget among prompts: equal shares, what the short ones do not need goes to the others.

    What cannot be divided goes to the oldest, the first; somebody gets a token, whatever the budget.
    """
    shares = [0] * len(needs)
    left = max(budget, 1)
    order = sorted(range(len(needs)), key=lambda index: (needs[index], -index))
    for done, index in enumerate(order):
        shares[index] = min(needs[index], left // (len(needs) - done))
        left -= shares[index]
    return shares
