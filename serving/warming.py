"""Chunks without KV, computed piece by piece, so that the steps of an engine go on serving everybody else."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from epicrag.serving.compile import taken
from epicrag.serving.compose import compose, plan
from epicrag.serving.link import Job, Linked, stitch
from epicrag.serving.policies import Full
from epicrag.serving.prompt import Unit

if TYPE_CHECKING:
    from epicrag.serving.compile import Recipe
    from epicrag.serving.engine import Engine


class ColdError(Exception):
    """A prompt has chunks without KV: they are to be computed before it takes its place."""

    def __init__(self, recipes: list[Recipe]) -> None:
        super().__init__(f"{len(recipes)} chunks have no KV")
        self.recipes = recipes


class Warming:
    """Compiles as a walk (`schedule.Walk`): one chunk after the other, each in pieces of any size.

    `begin` takes pages, `advance` is called when a chunk's last piece was computed; `close` gives all back.
    """

    is_linked = False

    def __init__(
        self, engine: Engine, recipes: Iterable[Recipe], *, must_store: bool = False
    ) -> None:
        self._engine = engine
        self._left = deque(recipes)
        self._must_store = must_store
        self._recipe: Recipe | None = None
        self._linked: Linked | None = None
        self._opening: Recipe | None = None
        """The system prompt that the chunk is computed behind, while it is pinned for that."""
        self.done: dict[str, int] = {}
        """KV keys of what was computed, and its tokens."""

    def begin(self) -> None:
        """Take on the next chunk. NoPagesError where the pool has no room for it now."""
        engine, recipe = self._engine, self._left[0]
        cache = engine.cache
        ids, resident, exact = (*recipe.behind, *recipe.ids), {}, {}
        units = []
        if cache.is_behind_system(recipe):
            runs, n_computed = cache.acquire(cache.opening)
            self._opening = cache.opening
            if n_computed:
                self.done[cache.key(cache.opening)] = n_computed
            n_system = len(cache.opening.ids)
            units.append(Unit("system", ids[:n_system]))
            ids, resident, exact = ids[n_system:], {0: runs}, {0: True}
        layout = compose([*units, Unit("question", ids)], len(ids) + len(recipe.behind))
        try:
            self._linked = stitch(
                engine.model,
                engine.pool,
                engine.layers,
                layout,
                plan(layout, Full(), exact),
                resident,
                0,
            )
        except BaseException:
            self._release()
            raise
        self._recipe = self._left.popleft()

    @property
    def n_left(self) -> int:
        """Tokens of this chunk that are not computed yet."""
        return self._linked.n_left if self._linked is not None else 0

    def link_job(self, most: int | None = None) -> Job:
        assert self._linked is not None
        return self._linked.link_job(most)

    def step_job(self, tokens: object) -> Job:
        raise AssertionError("nothing is appended to a chunk")

    def advance(self) -> bool:
        """Keep the chunk that is complete, and begin the next; False where there is none."""
        recipe, linked, engine = self._recipe, self._linked, self._engine
        assert recipe is not None and linked is not None
        rows = linked.rows[: linked.used][-len(recipe.ids) :]
        pair = taken(engine.pool, engine.layers, rows, len(recipe.behind))
        self._release()
        engine.cache.keep(recipe, *pair, must_store=self._must_store)
        self.done[engine.cache.key(recipe)] = len(recipe.ids)
        if not self._left:
            return False
        self.begin()
        return True

    def close(self) -> None:
        """Safe to call again."""
        self._left.clear()
        self._release()

    def _release(self) -> None:
        linked, self._linked = self._linked, None
        if linked is not None:
            linked.close()
        opening, self._opening = self._opening, None
        if opening is not None:
            self._engine.cache.release(opening)
