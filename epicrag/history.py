"""How much of a conversation a prompt can take: whole turns, the oldest left out first.

The history of a prompt is what was asked and what was answered, as messages of their own, and no word of the passages of
earlier turns. Those are found again where a question needs them, and take most of the window otherwise; what was found for
an old question would be read as if it spoke of the new one. The numbers in earlier answers ("[2]") are left out: they
meant passages that no longer stand in the prompt, and a model copies them. So is an answer that only says that nothing was
found: it invites another.

History stands before the passages, where nothing of it depends on them: each turn is computed once, and found again by
every turn after it, exactly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epicrag.serving.engine import Engine
    from epicrag.serving.prompt import Prompt, Turn
    from epicrag.sessions import Exchange
    from epicrag.types import Receipt

STEP = 4
"""Turns are left out so many at a time: what stays then begins with the same turn for a while, and is found again."""
LATEST_SHARE = 4
"""The latest turn stays, before the last passages, where it takes no more than one in so many tokens of the window."""
_MARK = re.compile(r"\s*\[\d{1,3}\]")


@dataclass(frozen=True, slots=True)
class Kept:
    """What of a conversation went into a prompt."""

    turns: int = 0
    dropped: int = 0
    """Turns that did not fit, the oldest."""
    tokens: int = 0
    context: int = 0
    """Tokens of the system prompt and the passages."""

    def reused(self, receipt: Receipt | None) -> int:
        """How many of `tokens` were found as they were computed for an earlier turn."""
        if receipt is None or not self.tokens:
            return 0
        return max(0, min(self.tokens, receipt.context_tokens - self.context))


NOTHING_SAID = Kept()


def messages_of(turns: Sequence[Exchange]) -> tuple[Turn, ...]:
    """Turns as a prompt takes them: what was answered, without numbers of passages."""
    from epicrag.serving.prompt import Turn

    return tuple(
        message
        for turn in turns
        if turn.answered
        for message in (
            Turn("user", turn.question),
            Turn("assistant", _MARK.sub("", turn.answer).strip()),
        )
    )


def fitted(engine: Engine, prompt: Prompt, n_new: int) -> tuple[Prompt, Kept]:
    """Return a prompt with as many of its turns as fit beside passages, question and `n_new` tokens."""
    n_long = _surely_long(prompt, engine.context_window)
    n_before, prompt = (
        len(_starts(prompt.history[:n_long])),
        replace(prompt, history=prompt.history[n_long:]),
    )
    starts = _starts(prompt.history)
    if not starts:
        return prompt, replace(NOTHING_SAID, dropped=n_before)
    units = engine.chat.units(prompt)
    said = [len(unit.ids) for unit in units if unit.kind == "history"][: len(prompt.history)]
    tails = [len(unit.tail) for unit in units if unit.tail][:-1]
    rest = sum(len(unit.ids) for unit in units) + sum(tails) - sum(said)
    passages = sum(len(unit.ids) for unit in units if unit.piece >= 0) + sum(tails)
    room = engine.context_window - n_new - rest
    up_to = [0, *accumulate(said)]
    sizes = [up_to[-1] - up_to[start] for start in starts]  # of the history that begins there
    dropped = _dropped(sizes, room)
    if dropped == len(starts) and sizes[-1] <= min(
        engine.context_window // LATEST_SHARE, room + passages
    ):
        dropped -= 1
    begin = starts[dropped] if dropped < len(starts) else len(prompt.history)
    prompt = replace(prompt, history=prompt.history[begin:])
    context = sum(
        segment.length
        for segment in engine.lay_out(prompt, n_new).segments
        if segment.unit.kind in ("system", "chunk")
    )
    return prompt, Kept(
        len(starts) - dropped, n_before + dropped, up_to[-1] - up_to[begin], context
    )


def _starts(turns: Sequence[Turn]) -> list[int]:
    """Where an exchange begins."""
    return [n for n, turn in enumerate(turns) if turn.role == "user" or n == 0]


def _surely_long(prompt: Prompt, window: int) -> int:
    """How many of the oldest messages go before anything is tokenised: the window cannot hold them."""
    from epicrag.serving.tokenizer import MOST_CHARS

    left = [*accumulate(len(turn.text) for turn in reversed(prompt.history))][::-1]
    fitting = (n for n in _starts(prompt.history) if left[n] <= window * MOST_CHARS)
    return next(fitting, len(prompt.history))


def _dropped(sizes: Sequence[int], room: int) -> int:
    """How many of the oldest turns go, where `sizes` are those of what is left from each turn on."""
    least = next((n for n, size in enumerate(sizes) if size <= room), len(sizes))
    if least in (0, len(sizes)):
        return least
    return min(-(-least // STEP) * STEP, len(sizes) - 1)
