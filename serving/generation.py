"""An answer being written: its text deltas, and afterwards what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from epicrag import types

if TYPE_CHECKING:
    from epicrag.serving.schedule import Scheduler, Ticket


@dataclass(slots=True)
class State:
    """What the engine fills in while it writes. It may be ahead of what has been read."""

    finish_reason: str = "length"
    receipt: types.Receipt | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    pieces_used: int = 0
    is_constrained: bool = False
    token_ids: list[int] = field(default_factory=list)


class Generation:
    """An answer being written: iterate over its text deltas; then read `receipt`, `usage` and the rest.

    Asking for a delta computes it, and serves every other open answer in the same step. `close` cancels: pages
    and pins are given back at once. So does leaving a `with` block, and losing the last reference.
    """

    def __init__(self, scheduler: Scheduler, ticket: Ticket, state: State) -> None:
        self._scheduler = scheduler
        self._ticket = ticket
        self._state = state
        self._text: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        delta = self._scheduler.read(self._ticket)
        if delta is None:
            raise StopIteration
        self._text.append(delta)
        return delta

    def close(self) -> None:
        self._scheduler.cancel(self._ticket)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._scheduler.abandon(self._ticket)

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    @property
    def finish_reason(self) -> str:
        """ "stop" (an end token, a stop string, or a grammar that is satisfied) or "length" (max_tokens, or the
        window was full, or a grammar that was followed in circles)."""
        return self._state.finish_reason

    @property
    def receipt(self) -> types.Receipt:
        """What it cost; complete once the iteration is over."""
        assert self._state.receipt is not None, "the receipt comes with the first token"
        return self._state.receipt

    @property
    def usage(self) -> types.Usage:
        return types.Usage(self._state.prompt_tokens, self._state.completion_tokens)

    @property
    def pieces_used(self) -> int:
        """How many of the prompt's pieces went in; the others did not fit the window."""
        return self._state.pieces_used

    @property
    def is_constrained(self) -> bool:
        """Whether it follows a grammar: JSON, say, and no prose."""
        return self._state.is_constrained

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The generated ids so far, end token included."""
        return tuple(self._state.token_ids)
