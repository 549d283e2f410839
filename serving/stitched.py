"""A prompt in the pool under a policy: chunks pinned, private rows taken, and what all that cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from epicrag.kernels import ops
from epicrag.serving.compose import plan, plan_prefix
from epicrag.serving.link import Linked, stitch
from epicrag.serving.prefixes import Match
from epicrag.serving.watch import Watch

if TYPE_CHECKING:
    from epicrag.serving.compile import Recipe
    from epicrag.serving.engine import Engine
    from epicrag.serving.policies import Policy
    from epicrag.serving.pool import Run
    from epicrag.serving.prompt import Prompt


class Stitched:
    """A prompt in the pool with everything its receipt needs; a context manager that gives all back."""

    def __init__(
        self, engine: Engine, prompt: Prompt, policy: Policy, mode: str, n_new: int
    ) -> None:
        self._engine = engine
        self.computed = 0
        """Tokens that had to be compiled for this prompt, because no tier had them."""
        self._pins: list[Recipe] = []
        self._prefix = Match()
        self._linked: Linked | None = None
        watch = Watch()
        self.policy = policy
        self.mode = mode
        self.layout = engine.lay_out(prompt, n_new)
        self.select_ms = watch.lap()
        try:
            self._open(prompt, n_new, watch)
        except BaseException:
            self.close()
            raise

    def _open(self, prompt: Prompt, n_new: int, watch: Watch) -> None:
        engine = self._engine
        recipes = engine.recipes(self.layout, prompt, self.mode)
        resident: dict[int, tuple[Run, ...]] = {}
        exact: dict[int, bool] = {}
        if self.policy.reuse == "chunks":
            ids = self.layout.ids
            for index, recipe in recipes.items():
                resident[index], computed = engine.cache.acquire(recipe)
                self._pins.append(recipe)
                self.computed += computed
                start = self.layout.segments[index].start
                exact[index] = len(recipe.behind) == start and recipe.behind == ids[:start]
        self.load_ms = watch.lap()
        self.plan = plan(self.layout, self.policy, exact)
        if self.policy.reuse == "prefix":
            self._prefix = engine.prefixes.match(self.layout.ids)
            self.plan = plan_prefix(self.layout, self._prefix.length)
        self.select_ms += watch.lap()
        self._linked = stitch(
            engine.model, engine.pool, engine.layers, self.layout, self.plan, resident, n_new
        )
        if self._prefix.length:
            place = 0
            for run in self._prefix.runs:
                self._linked.shared.append(ops.Span(run.start, run.length, 0, place))
                place += run.length
        self.stitch_ms = watch.lap()

    @property
    def linked(self) -> Linked:
        assert self._linked is not None
        return self._linked

    def keep_prefix(self) -> None:
        """Hand the prompt's own rows to the tree of exact prefixes, for later prompts."""
        linked = self.linked
        runs, linked.runs = linked.runs, ()
        self._engine.prefixes.keep(self.layout.ids, self._prefix, runs)
        self._prefix = Match()

    def close(self) -> None:
        """Release pages and pins. Safe to call again."""
        if self._linked is not None:
            self._linked.close()
        pins, self._pins = self._pins, []
        for recipe in pins:
            self._engine.cache.release(recipe)
        prefix, self._prefix = self._prefix, Match()
        self._engine.prefixes.release(prefix)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
