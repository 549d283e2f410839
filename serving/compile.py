"""A chunk's text to its KV, once: keys and values as if the chunk stood at positions 0, 1, 2 …

A compile mode says what the chunk is computed behind. That text's own KV is dropped and the chunk's keys are
turned back to position 0, so that every mode yields the same kind of entry.
"""

from __future__ import annotations

import hashlib
import re
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from epicrag.errors import UsageError
from epicrag.kernels import ops
from epicrag.serving.attention import FlatBatch, Request
from epicrag.serving.prompt import ChatFormat, Piece, Prompt

if TYPE_CHECKING:
    from epicrag.serving.model import ServedModel
    from epicrag.serving.pool import Pool, Run

COMPILE_MODES = ("isolated", "sink", "prefix", "neighbour")
"""alone · behind four sink tokens · behind the neutral system prompt · behind that and the passage before,
of which `neighbour(64)` takes no more than the last 64 tokens."""

N_SINKS = 4
_CUT_NEIGHBOUR = re.compile(r"neighbour\(([1-9]\d{0,6})\)")


def check_mode(mode: str) -> str:
    """Return the mode, or raise UsageError naming those there are."""
    if mode not in COMPILE_MODES and not _CUT_NEIGHBOUR.fullmatch(mode):
        raise UsageError(
            f"unknown compile mode {mode!r}", f"use {', '.join(COMPILE_MODES)} or neighbour(64)"
        )
    return mode


def reads_neighbour(mode: str) -> bool:
    """Whether a mode compiles a chunk behind the passage before it."""
    return mode.startswith("neighbour")


def _tail(before: tuple[int, ...], mode: str) -> tuple[int, ...]:
    """What of the passage before a chunk a `neighbour` mode takes."""
    match = _CUT_NEIGHBOUR.fullmatch(mode)
    return before[-int(match[1]) :] if match else before


@dataclass(frozen=True, slots=True)
class Recipe:
    """All a chunk's KV depends on besides the model: its ids, and the ids it is computed behind.

    The compile mode is nothing more than the choice of `behind`: two modes that choose the same text make
    the same entry, and share it.
    """

    ids: tuple[int, ...]
    behind: tuple[int, ...] = ()
    opens: bool = field(default=False, compare=False)
    """Whether it is what prompts open with. All attention rests on its first tokens, and one copy serves every
    prompt: it is not rounded to 8 bits."""
    namespace: str = ""
    """Whose it is; "" is the index."""

    def key(self, profile: str) -> str:
        """Content-addressed KV key: 64 hex digits. `profile` stands for model, tokenizer, dtypes, RoPE,
        and layout version."""
        if self.namespace:
            profile += "@" + hashlib.sha256(self.namespace.encode()).hexdigest()
        digest = hashlib.sha256(f"{profile}|{len(self.behind)}|{len(self.ids)}|".encode())
        tokens = array("I", (*self.behind, *self.ids))
        if sys.byteorder == "big":
            tokens.byteswap()
        digest.update(tokens.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Frame:
    """The fixed ids that the modes compile chunks behind."""

    system: tuple[int, ...]
    """The neutral system unit, as it opens a prompt."""
    labels: tuple[tuple[int, ...], tuple[int, ...]]
    """The numbers before a prompt's first and second chunk."""
    sinks: tuple[int, ...]

    @classmethod
    def of(cls, chat: ChatFormat, bos_id: int | None) -> Frame:
        """Lay out the neutral prompt; a model without BOS gets its template's first token as the sink."""
        units = chat.units(Prompt(question="?", pieces=(Piece("a"), Piece("b"))))
        system = next(unit.ids for unit in units if unit.kind == "system")
        first, second = (unit.ids for unit in units if unit.kind == "label")
        sink = system[0] if bos_id is None else bos_id
        return cls(system, (first, second), (sink,) * N_SINKS)

    def recipe(
        self,
        ids: tuple[int, ...],
        mode: str,
        before: tuple[int, ...] | None = None,
        namespace: str = "",
    ) -> Recipe:
        """The recipe of a chunk in a mode; `before`: chunk ids of the passage before it, for `neighbour`."""
        if mode == "isolated":
            return Recipe(ids, namespace=namespace)
        if mode == "sink":
            return Recipe(ids, self.sinks, namespace=namespace)
        behind = (*self.system, *self.labels[0])
        if reads_neighbour(mode) and before:
            behind = (*behind, *_tail(before, mode), *self.labels[1])
        return Recipe(ids, behind, namespace=namespace)


def compile_batch(
    model: ServedModel,
    pool: Pool,
    layers: ops.Layers,
    recipes: Sequence[Recipe],
    shared: tuple[int, tuple[Run, ...]] | None = None,
) -> list[tuple[Tensor, Tensor]]:
    """Compute several chunks in one flat forward pass; keys and values (L, G, T, D) for each, in order.

    `shared`: how many ids all the recipes are computed behind in common, and the pool rows that hold their
    exact KV (the system unit), so that they are not computed again for each chunk. Raises DeviceError when
    the pool has no room for the tokens; nothing stays allocated.
    """
    skip = shared[0] if shared else 0
    lengths = [len(r.behind) - skip + len(r.ids) for r in recipes]
    with pool.private(sum(lengths)) as runs:
        rows = torch.cat([torch.arange(r.start, r.start + r.length) for r in runs]).to(model.device)
        ids: list[int] = []
        requests, positions = [], []
        low = 0
        for recipe, length in zip(recipes, lengths, strict=True):
            ids.extend((*recipe.behind[skip:], *recipe.ids))
            place = torch.arange(skip, skip + length, device=model.device)
            positions.append(place)
            own = rows[low : low + length]
            spans = shared_spans(shared) + private_spans(own, place)
            requests.append(Request(low, low + length, own, place, spans))
            low += length
        batch = FlatBatch(pool, layers, requests, compute_dtype(model.dtype))
        model.forward(ids, torch.cat(positions), batch, [0])
        return [
            taken(pool, layers, request.write[-len(recipe.ids) :], len(recipe.behind))
            for request, recipe in zip(requests, recipes, strict=True)
        ]


def taken(pool: Pool, layers: ops.Layers, rows: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """Copy a chunk's rows out of the pool, keys turned back from position `start` to 0."""
    return relocate(pool.keys[:, :, rows], -start, layers), pool.values[:, :, rows]


def relocate(keys: Tensor, delta: int, layers: ops.Layers) -> Tensor:
    """Turn keys (L, G, T, D) by `delta` positions, each layer as its kind turns."""
    if not delta:
        return keys
    if len(layers.kinds) == 1:
        return ops.rotate(keys, delta, layers.kinds[0].rotary)
    out = torch.empty_like(keys)
    for kind, style in enumerate(layers.kinds):
        chosen = torch.tensor([k == kind for k in layers.of_layer], device=keys.device)
        out[chosen] = ops.rotate(keys[chosen], delta, style.rotary)
    return out


def shared_spans(shared: tuple[int, tuple[Run, ...]] | None) -> list[ops.Span]:
    """Spans over a unit that stands at position 0, where it was compiled."""
    spans: list[ops.Span] = []
    place = 0
    for run in shared[1] if shared else ():
        spans.append(ops.Span(run.start, run.length, 0, place))
        place += run.length
    return spans


def private_spans(rows: Tensor, positions: Tensor) -> list[ops.Span]:
    """Spans over a request's own tokens: one for each stretch of neighbouring rows. Both (n,)."""
    if not len(rows):
        return []
    cuts = (torch.nonzero(rows[1:] != rows[:-1] + 1).flatten() + 1).tolist()
    spans = []
    for low, high in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        start = int(rows[low])
        place = positions[low:high]
        spans.append(ops.Span(start, high - low, 0, int(place[0]), explicit=place))
    return spans


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Rotations are worked out in float32 at least, and cast once."""
    return torch.promote_types(dtype, torch.float32) if dtype != torch.float64 else dtype
