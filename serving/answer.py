"""One request's answer: a prompt put into the pool, tokens chosen and shown until an end, and the receipt."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from epicrag import types
from epicrag.serving.pool import NoPagesError
from epicrag.serving.sample import Sampler, Sampling, TextStream
from epicrag.serving.warming import ColdError, Warming
from epicrag.serving.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from epicrag.serving.compose import Layout, Plan
    from epicrag.serving.engine import Engine
    from epicrag.serving.generation import State
    from epicrag.serving.schedule import Walk


class Placed(Protocol):
    """A prompt that is ready to be linked: `Stitched`, or a plain one for a model that reuse is refused for."""

    layout: Layout
    plan: Plan
    computed: int
    late: tuple[int, int]
    load_ms: float
    stitch_ms: float
    select_ms: float

    @property
    def linked(self) -> Walk: ...
    def keep(self, generated: list[int]) -> None: ...
    def close(self) -> None: ...


class Answering:
    """What the scheduler drives: see `schedule.Work`.

    `place` puts the prompt into the pool; `policy` and `mode` are the receipt's words for how.
    """

    def __init__(
        self,
        engine: Engine,
        place: Callable[[Mapping[str, int] | None], Placed],
        sampling: Sampling,
        state: State,
        *,
        policy: str,
        mode: str,
        n_pieces: int,
    ) -> None:
        self._engine = engine
        self._place = place
        self._sampling = sampling
        self._state = state
        self._policy = policy
        self._mode = mode
        self._n_pieces = n_pieces
        grammar = sampling.grammar
        self._sampler = Sampler(sampling, engine.vocabulary.follow(grammar) if grammar else None)
        state.is_constrained = grammar is not None
        self._stream = TextStream(engine.tokenizer, () if grammar else sampling.stop)
        self._placed: Placed | None = None
        self._warming: Warming | None = None
        self._warmed: dict[str, int] | None = None
        self._warm_ms = 0.0
        self._busy_before = 0
        self._watch = Watch()
        self._ms = types.Timings()
        self.next_token: int | None = None

    def open(self, wait_ms: float) -> Walk:
        """Put the prompt into the pool, or begin to compute the chunks of it that have no KV.

        NoPagesError when there is no room for it now.
        """
        self._watch = Watch()
        self._busy_before = self._engine.busy_pages
        try:
            placed = self._placed = self._place(self._warmed)
        except ColdError as cold:
            warming = Warming(self._engine, cold.recipes)
            warming.begin()
            self._warming = warming
            return warming
        self._ms = types.Timings(
            wait=wait_ms - self._warm_ms,
            load=placed.load_ms + self._warm_ms,
            stitch=placed.stitch_ms,
            select=placed.select_ms,
        )
        self._watch.lap()
        self._state.prompt_tokens = placed.layout.n_tokens
        self._state.pieces_used = self._n_pieces - placed.layout.dropped
        return placed.linked

    @property
    def is_warming(self) -> bool:
        return self._warming is not None

    def warm(self) -> bool:
        """Keep the chunk that is complete by now; whether it was the last, and the prompt can be put in its place."""
        assert self._warming is not None
        try:
            if self._warming.advance():
                return False
        except NoPagesError:  # the others are computed when the prompt has its own pages
            pass
        self._warmed = self._warming.done
        self._warm_ms = self._watch.total()
        warming, self._warming = self._warming, None
        warming.close()
        return True

    @property
    def n_compiled(self) -> int:
        return self._placed.computed if self._placed is not None else 0

    def is_full(self, error: Exception) -> bool:
        """Whether other requests hold the pages that were missing: they will be free again."""
        if not isinstance(error, NoPagesError):
            return False
        own = error.busy - self._busy_before
        return own + error.pages <= self._engine.pages_for_requests

    def take(self, logits: Tensor) -> str:
        """Choose the token after `logits` (1, V); returns the text that is certain by now."""
        state, sampling = self._state, self._sampling
        token = self._sampler(logits[-1])
        state.token_ids.append(token)
        state.completion_tokens += 1
        is_over = True
        if token in self._engine.model.eos_ids:
            state.finish_reason = "stop"
            text = self._stream.end()
        else:
            text = self._stream.push(token)
            if self._stream.stopped:
                state.finish_reason = "stop"
            elif self._sampler.is_complete:
                state.finish_reason = "stop"
                text += self._stream.end()
            elif state.completion_tokens >= sampling.max_tokens or self._sampler.is_endless:
                text += self._stream.end()
            else:
                is_over = False
        self.next_token = None if is_over else token
        if state.receipt is None:
            self._ms = replace(self._ms, link=self._watch.lap(), first_token=self._total())
            state.receipt = self._receipt()
        # After each token: whoever asks may stop whenever it likes.
        state.receipt = replace(state.receipt, ms=replace(self._ms, total=self._total()))
        return text

    def close(self) -> None:
        """Release pages and pins; rows that are exact stay behind for later prompts."""
        warming, self._warming = self._warming, None
        if warming is not None:
            warming.close()
        placed, self._placed = self._placed, None
        if placed is None:
            return
        try:
            placed.keep(self._state.token_ids)
        finally:
            placed.close()

    def _total(self) -> float:
        """Milliseconds since the request was put in the queue."""
        return self._ms.wait + self._warm_ms + self._watch.total()

    def _receipt(self) -> types.Receipt:
        """Say what was reused. Chunks compiled in this request count as recomputed: nothing was saved."""
        placed = self._placed
        assert placed is not None
        cost = placed.plan
        exact, moved = cost.exact, cost.stitched
        late_exact, late_moved = placed.late
        late = late_exact + late_moved
        done = placed.computed
        compiled = f"{done} tokens were compiled during the request" if done else None
        receipt = types.Receipt(
            policy=self._policy,
            compile=self._mode,
            context_tokens=cost.context,
            exact=exact - late_exact,
            stitched=moved - late_moved,
            recomputed=cost.recomputed + late,
            fresh=cost.fresh,
            dropped_chunks=placed.layout.dropped,
            fallback=self._engine.refusal or compiled,
            ms=self._ms,
            charged=round(cost.charged + (late / cost.context if late else 0.0), 6),
        )
        self._engine.count(receipt)
        return receipt
