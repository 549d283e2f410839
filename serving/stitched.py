"""A prompt in the pool under a policy: chunks pinned, private rows taken, and what all that cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from epicrag.kernels import ops
from epicrag.serving.compose import plan, plan_prefix, skipped
from epicrag.serving.link import Linked, stitch
from epicrag.serving.prefixes import Match, cut
from epicrag.serving.warming import ColdError
from epicrag.serving.watch import Watch

if TYPE_CHECKING:
    from epicrag.serving.compile import Recipe
    from epicrag.serving.compose import Plan
    from epicrag.serving.engine import Engine
    from epicrag.serving.policies import Policy
    from epicrag.serving.pool import Run
    from epicrag.serving.prompt import Chat, Prompt


AT_ONCE = 256
"""Tokens of chunks without KV that a request computes in one piece, while the others wait."""

_ROOT, _BARE = "chunks:", "bare:"
"""Of private prefixes: those computed over a system prompt that passed through the store's sixteen bits, and those
without one."""


class Stitched:
    """A prompt in the pool with everything its receipt needs; a context manager that gives all back."""

    def __init__(
        self,
        engine: Engine,
        prompt: Prompt | Chat,
        policy: Policy,
        mode: str,
        n_new: int,
        warmed: Mapping[str, int] | None = None,
        *,
        at_once: bool = True,
    ) -> None:
        """`warmed`: KV keys that were computed for this prompt just now, with their tokens. What is still
        missing is computed `at_once`, or, where that would take long, a ColdError names it."""
        self._engine = engine
        self._namespace = prompt.namespace
        self._warmed = dict(warmed or {})
        self._at_once = at_once
        self.late = (0, 0)
        """Rows that are read exact and stitched, of chunks that had to be compiled for this prompt."""
        self.computed = 0
        """Tokens that had to be compiled for this prompt, because no tier had them."""
        self._pins: list[Recipe] = []
        self._prefix = Match()
        """What was found of earlier prompts, exactly."""
        self._system: Recipe | None = None
        """The system prompt, where it was found alone."""
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

    def _open(self, prompt: Prompt | Chat, n_new: int, watch: Watch) -> None:
        engine = self._engine
        engine.pool.expect(self._least_rows(n_new), engine.pages_for_requests)
        recipes = engine.recipes(self.layout, prompt, self.mode)
        resident: dict[int, tuple[Run, ...]] = {}
        exact: dict[int, bool] = {}
        ids = self.layout.by_place[: self.layout.solid]
        system = 0
        late: set[int] = set()
        if self.policy.reuse == "chunks":
            if not self._at_once:
                self._refuse_cold(recipes.values())
            system = self._find_private(ids, recipes, resident, exact)
            for index, recipe in recipes.items():
                resident[index], computed = engine.cache.acquire(recipe)
                self._pins.append(recipe)
                computed = computed or self._warmed.pop(engine.cache.key(recipe), 0)
                self.computed += computed
                if computed:
                    late.add(index)
                segment = self.layout.segments[index]
                behind = (*recipe.behind, *segment.unit.head)
                exact[index] = len(behind) == segment.start and behind == ids[: segment.start]
        self.load_ms = watch.lap()
        self.plan = self._plan(exact, resident)
        if self._prefix.length:
            self.plan = skipped(self.plan, system, self._prefix.length)
        if self.policy.reuse == "prefix":
            self._prefix = engine.prefixes.match(ids, self._root)
            self.plan = plan_prefix(self.layout, self._prefix.length)
        read = [part for part in self.plan.reused if part.segment in late]
        self.late = (
            sum(part.n_rows for part in read if exact[part.segment]),
            sum(part.n_rows for part in read if not exact[part.segment]),
        )
        self.select_ms += watch.lap()
        self._linked = stitch(
            engine.model, engine.pool, engine.layers, self.layout, self.plan, resident, n_new
        )
        self._linked.shared.extend(_spans(self._prefix, system))
        self.stitch_ms = watch.lap()

    def _refuse_cold(self, recipes: Iterable[Recipe]) -> None:
        """ColdError where so much KV is missing that computing it now would hold up everybody else."""
        cache = self._engine.cache
        once = {cache.key(recipe): recipe for recipe in recipes}
        missing = [recipe for recipe in once.values() if not cache.holds(recipe)]
        if sum(len(recipe.ids) for recipe in missing) > AT_ONCE:
            raise ColdError(missing)

    def _plan(self, exact: dict[int, bool], resident: dict[int, tuple[Run, ...]]) -> Plan:
        """Apply the policy; where it must see the stitched prompt to choose, let it."""
        if not self.policy.selectors or all(exact.values()):
            return plan(self.layout, self.policy, exact)
        from epicrag.serving.select import Look, choose

        engine = self._engine
        look = Look(
            engine.model, engine.pool, engine.layers, self.layout, self.policy, exact, resident
        )
        chosen = choose(look)
        return plan(self.layout, self.policy, exact, chosen.rows, chosen.cost)

    def _least_rows(self, n_new: int) -> int:
        """Rows that the prompt takes at least, whatever is found: a chunk that stands in it twice counts once."""
        rows = self.layout.n_tokens + n_new
        if rows <= self._engine.pages_for_requests * self._engine.pool.page_size:
            return rows
        chunks = [s.unit.ids for s in self.layout.segments if s.unit.kind == "chunk"]
        ratio = self._engine.pool.ratio if self.policy.reuse == "chunks" else 0
        shared = sum(-(-len(ids) // max(1, ratio)) for ids in set(chunks))
        return rows - sum(map(len, chunks)) + shared

    @property
    def linked(self) -> Linked:
        assert self._linked is not None
        return self._linked

    def _find_private(
        self,
        ids: tuple[int, ...],
        recipes: dict[int, Recipe],
        resident: dict[int, tuple[Run, ...]],
        exact: dict[int, bool],
    ) -> int:
        """Look for what stands before the first chunk in earlier prompts; returns the system prompt's length.

        What is found holds the system prompt too, which then needs no entry of its own.
        """
        self._system = recipes.get(0) if self.layout.segments[0].unit.kind == "system" else None
        length = len(self._system.ids) if self._system is not None else 0
        found = self._engine.prefixes.match(ids[: self._private_end + 1], self._root)
        if found.length <= length:
            self._engine.prefixes.release(found)
            return length
        self._prefix = found
        if self._system is not None:
            del recipes[0]
            resident[0], exact[0] = cut(found.runs, length), True
        return length

    @property
    def _private_end(self) -> int:
        """Where the first chunk begins, or a gap: what is computed up to there depends on no chunk."""
        starts = [s.start for s in self.layout.segments if s.unit.kind == "chunk"]
        return min([*starts, self.layout.solid])

    @property
    def _root(self) -> str:
        """The ground that this prompt's prefixes are computed on (see `PrefixTree`)."""
        if self.policy.reuse == "prefix":
            return f"prefix:{self._namespace}"
        return f"{_ROOT if self._system is not None else _BARE}{self._namespace}"

    def keep(self, generated: Sequence[int]) -> None:
        """Leave what is exact of this prompt to later ones: what no stitched chunk had a part in.

        `generated`: the answer's ids; those that were computed behind an exact prompt are kept with it.
        """
        linked, policy = self._linked, self.policy
        if linked is None or not linked.is_linked or policy.reuse == "nothing":
            return
        ids = self.layout.by_place[: self.layout.solid]
        end = len(ids) if policy.reuse == "prefix" else self._private_end
        if end == self.layout.end:
            ids = (*ids, *generated[: linked.used - len(self.plan.positions)])
            end = len(ids)
        if end <= self._prefix.length:
            return
        if policy.reuse == "chunks" and self._system is not None and not self._prefix.length:
            if end <= len(self._system.ids):
                return
            key = self._engine.cache.key(self._system)
            runs = self._engine.pool.acquire(key)
            self._prefix = Match(len(self._system.ids), runs, key)
        parent, self._prefix = self._prefix, Match()
        runs, linked.runs = linked.runs, ()
        self._engine.prefixes.keep(ids[:end], parent, runs, self._root)

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


def _spans(match: Match, low: int) -> Iterator[ops.Span]:
    """Spans over what was found from position `low` on."""
    place = 0
    for run in match.runs:
        skip = max(0, low - place)
        if skip < run.length:
            yield ops.Span(run.start + skip, run.length - skip, 0, place + skip)
        place += run.length
