"""Link policies: what of a stitched prompt is computed again, and how the rest is read.

A policy is a small frozen dataclass. What it computes again is known from sizes alone (`recompute`), or
found by looking at the stitched prompt first (`selectors`, which `select.py` runs). `Union` joins such
policies; `Damp` and `Correct` wrap one and change how the reused rows are read. The question is always
computed fresh.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Reuse = Literal["chunks", "prefix", "nothing"]
Heads = Literal["max", "mean"]


@dataclass(frozen=True, slots=True)
class Damping:
    """Lower the scores of the first `tokens` of every chunk but the first by `amount`."""

    tokens: int
    amount: float


class Alpha(NamedTuple):
    """How much of the mean change of a chunk's probes is added to other rows: to their keys and their values."""

    keys: float
    values: float


NO_FADE = Alpha(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Correction:
    """Add alpha times the mean change of a chunk's probes to its other tokens.

    `alpha` holds at the chunk's beginning. From its token `FADE_FROM` on it falls as `(n / FADE_FROM) ** -fade`,
    in steps that end at powers of two; no fade is one alpha for the whole chunk. `depth` multiplies it layer by
    layer: one factor for each equal part of the layers, none for all alike. With `shrink` the mean change is
    first shrunk by what of it is noise: the less its probes agree in a layer, the less of it is added.
    """

    alpha: Alpha
    fade: Alpha = NO_FADE
    depth: tuple[float, ...] = ()
    shrink: bool = False

    FADE_FROM = 10
    FIRST_STEP = 16

    def pieces(self, length: int) -> list[tuple[int, int, Alpha]]:
        """Rows [low, high) of a chunk and their alpha."""
        if not any(self.fade):
            return [(0, length, self.alpha)]
        out = []
        low, high = 0, self.FIRST_STEP
        while low < length:
            middle = math.sqrt(low * high) if low else self.FADE_FROM
            out.append((low, min(high, length), self._at(middle)))
            low, high = high, 2 * high
        return out

    def _at(self, place: float) -> Alpha:
        times = place / self.FADE_FROM
        return Alpha(
            self.alpha.keys * times**-self.fade.keys, self.alpha.values * times**-self.fade.values
        )

    def factor(self, layer: int, n_layers: int) -> float:
        """What alpha is multiplied by in a layer."""
        return self.depth[layer * len(self.depth) // n_layers] if self.depth else 1.0


@dataclass(frozen=True, slots=True)
class Depth:
    """Layers from `start` to `end`, as shares of the model's depth, so that it fits every model."""

    start: float
    end: float

    def layers(self, n_layers: int) -> range:
        """At least one layer."""
        low = min(int(self.start * n_layers + 0.5), n_layers - 1)
        return range(low, max(low + 1, min(int(self.end * n_layers + 0.5), n_layers)))


class Policy:
    """What a request reuses. The defaults are those of naive stitching: chunks as they were compiled."""

    __slots__ = ()
    reuse: Reuse = "chunks"

    @property
    def name(self) -> str:
        """The policy as a user writes it; `parse_policy(policy.name) == policy`."""
        raise NotImplementedError

    def recompute(self, length: int) -> Sequence[int]:
        """Rows of a chunk of `length` tokens to compute again, ascending, as far as sizes tell."""
        return range(0)

    @property
    def selectors(self) -> tuple[Selector, ...]:
        """The parts that choose rows after looking at the stitched prompt."""
        return ()

    @property
    def recomputes(self) -> bool:
        """Whether it may compute anything of a chunk again."""
        return bool(self.selectors) or bool(self.recompute(1))

    @property
    def damping(self) -> Damping | None:
        return None

    @property
    def correction(self) -> Correction | None:
        return None

    @property
    def compile_mode(self) -> str | None:
        """The compile mode the policy is defined with, where it is."""
        return None


@dataclass(frozen=True, slots=True)
class Full(Policy):
    """Compute everything: the exact reference, and the fallback."""

    reuse: Reuse = "nothing"

    @property
    def name(self) -> str:
        return "full"


@dataclass(frozen=True, slots=True)
class Prefix(Policy):
    """Reuse the longest exact shared prefix of earlier prompts only: what today's engines do."""

    reuse: Reuse = "prefix"

    @property
    def name(self) -> str:
        return "prefix"


@dataclass(frozen=True, slots=True)
class Naive(Policy):
    """Stitch the chunks as they are; only the question is computed."""

    @property
    def name(self) -> str:
        return "none"


@dataclass(frozen=True, slots=True)
class LegoLink(Policy):
    """Compute the first `tokens` of every chunk again, and at least the first `share` of it.

    At all layers, against the whole stitched prompt. The system prompt is skipped: it stands where it was
    compiled. Source: EPIC (arXiv 2410.15332), LegoLink.
    """

    tokens: int = 16
    share: float = 0.0

    @property
    def name(self) -> str:
        if not self.share:
            return f"legolink({self.tokens})"
        tokens = f"{self.tokens}," if self.tokens else ""
        return f"legolink({tokens}{share_text(self.share)})"

    def recompute(self, length: int) -> Sequence[int]:
        return range(min(length, max(self.tokens, count_of(self.share, length))))


@dataclass(frozen=True, slots=True)
class Spread(Policy):
    """Compute the first `tokens` of every chunk again, and `probes` more spread evenly over the rest of it."""

    tokens: int = 4
    probes: int = 12

    @property
    def name(self) -> str:
        return f"spread({self.tokens},{self.probes})"

    def recompute(self, length: int) -> Sequence[int]:
        first = min(self.tokens, length)
        rest = length - first
        n = min(self.probes, rest)
        return [*range(first), *(first + (2 * i + 1) * rest // (2 * n) for i in range(n))]


@dataclass(frozen=True, slots=True)
class LegoLink0(Policy):
    """Compute nothing again; chunks are compiled behind dropped sink tokens (EPIC, LegoLink-0)."""

    @property
    def name(self) -> str:
        return "legolink-0"

    @property
    def compile_mode(self) -> str | None:
        return "sink"


class Selector(Policy):
    """A policy that chooses rows by what it sees in the stitched prompt."""

    __slots__ = ()

    @property
    def selectors(self) -> tuple[Selector, ...]:
        return (self,)


EARLY = Depth(0.2, 0.4)
"""Layers that a selection pass looks at: they rank tokens no worse than later ones or all, and the pass ends there."""


QUESTION_TOKENS = 16
"""Of a longer question the last ones are looked at: a selection pass is charged, and must stay small."""


@dataclass(frozen=True, slots=True)
class Focus(Selector):
    """Compute again the `share` of the context's tokens that the question attends to most.

    The selection pass runs the last `tokens` of the question over the chunks as they were compiled and sums
    attention in `layers`. The first `anchors` tokens of each chunk are computed again in any case and come
    on top. Sources: ProphetKV; FusionRAG (arXiv 2601.12904).
    """

    share: float = 0.05
    anchors: int = 4
    tokens: int = QUESTION_TOKENS
    layers: Depth = EARLY
    heads: Heads = "max"

    @property
    def name(self) -> str:
        options = _options(self, Focus(), ("tokens", "layers", "heads"))
        return f"focus({share_text(self.share)},{self.anchors}{options})"

    def recompute(self, length: int) -> Sequence[int]:
        return range(min(self.anchors, length))


@dataclass(frozen=True, slots=True)
class Reconnect(Selector):
    """Compute again the `tokens` of each chunk that its own border and the question attend to most.

    The border is the last `edge` tokens of the chunk, which the selection pass computes at their place in
    the stitched prompt, together with the last `QUESTION_TOKENS` of the question. A token's score is its share of the border's attention
    to the chunk plus its share of the question's. The rows become sparse links from block to block.
    """

    tokens: int = 8
    edge: int = 4
    layers: Depth = EARLY
    heads: Heads = "max"

    @property
    def name(self) -> str:
        options = _options(self, Reconnect(), ("edge", "layers", "heads"))
        return f"reconnect({self.tokens}{options})"


@dataclass(frozen=True, slots=True)
class Deviation(Selector):
    """Compute again the `share` of the context's tokens whose values deviate most after one layer.

    The selection pass computes the whole context through the first layer and compares the second layer's
    values with those of the cache. Source: CacheBlend (arXiv 2405.16444).
    """

    share: float = 0.15

    @property
    def name(self) -> str:
        return f"deviation({share_text(self.share)})"


@dataclass(frozen=True, slots=True)
class Union(Policy):
    """Compute again what any of `parts` does."""

    parts: tuple[Policy, ...] = ()

    @property
    def name(self) -> str:
        return "+".join(part.name for part in self.parts)

    def recompute(self, length: int) -> Sequence[int]:
        return sorted({row for part in self.parts for row in part.recompute(length)})

    @property
    def selectors(self) -> tuple[Selector, ...]:
        return tuple(selector for part in self.parts for selector in part.selectors)

    @property
    def compile_mode(self) -> str | None:
        return next((part.compile_mode for part in self.parts if part.compile_mode), None)


class Wrapper(Policy):
    """A policy that computes what its `base` does and changes how the rest is read."""

    __slots__ = ()
    base: Policy

    def recompute(self, length: int) -> Sequence[int]:
        return self.base.recompute(length)

    @property
    def selectors(self) -> tuple[Selector, ...]:
        return self.base.selectors

    @property
    def damping(self) -> Damping | None:
        return self.base.damping

    @property
    def correction(self) -> Correction | None:
        return self.base.correction

    @property
    def compile_mode(self) -> str | None:
        return self.base.compile_mode


@dataclass(frozen=True, slots=True)
class Damp(Wrapper):
    """`base`, with the attention paid to the chunks' own sinks lowered, for the link and for decoding."""

    tokens: int = 4
    amount: float = 15.0
    base: Policy = Naive()

    @property
    def name(self) -> str:
        rest = "" if isinstance(self.base, Naive) else f"+{self.base.name}"
        return f"damp({self.tokens},{number_text(self.amount)}){rest}"

    @property
    def damping(self) -> Damping | None:
        return Damping(self.tokens, self.amount)


@dataclass(frozen=True, slots=True)
class Correct(Wrapper):
    """`base`, with `alpha` times the mean change of a chunk's recomputed tokens added to its other tokens.

    `values` is the alpha of the values where it is not that of the keys; `fade` (one number, or one for the keys
    and one for the values) lets it fall along the chunk, `depth` scales it by layer: see `Correction`. `auto`
    for alpha is as much as the probes agree on, found layer by layer.
    """

    alpha: float | Literal["auto"] = 0.5
    base: Policy = LegoLink()
    values: float | None = None
    fade: tuple[float, ...] = ()
    depth: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        alpha = self.alpha if self.alpha == "auto" else number_text(self.alpha)
        values = "" if self.values is None else f",values={number_text(self.values)}"
        fade = f",fade={_list_text(self.fade)}" if self.fade else ""
        depth = f",depth={_list_text(self.depth)}" if self.depth else ""
        return f"{self.base.name}+correct({alpha}{values}{fade}{depth})"

    @property
    def correction(self) -> Correction | None:
        keys = 1.0 if self.alpha == "auto" else self.alpha
        alpha = Alpha(keys, keys if self.values is None else self.values)
        fade = Alpha(self.fade[0], self.fade[-1]) if self.fade else NO_FADE
        shrink = self.alpha == "auto"
        return Correction(alpha, fade, self.depth, shrink) if any(alpha) else None


def count_of(share: float, whole: int) -> int:
    """How many of `whole` a share is, rounded up: a share above 0 of something is at least one."""
    # The product of 0.07 and 100 is a little more than 7.
    return min(whole, math.ceil(round(share * whole, 6)))


def number_text(value: float) -> str:
    """The shortest way to write a number that reads back as the same one."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _list_text(values: Iterable[float]) -> str:
    return "/".join(map(number_text, values))


def share_text(value: float) -> str:
    """A share as a percentage where that reads back as the same number."""
    percent = f"{value * 100:g}"
    return f"{percent}%" if float(percent) / 100 == value else number_text(value)


def _options(policy: Policy, default: Policy, names: Iterable[str]) -> str:
    """What differs from the default, as `,name=value`."""
    out = ""
    for name in names:
        value = getattr(policy, name)
        if value != getattr(default, name):
            text = (
                f"{share_text(value.start)}-{share_text(value.end)}"
                if isinstance(value, Depth)
                else value
            )
            out += f",{name}={text}"
    return out


def parse_policy(text: str) -> Policy:
    """Read a policy as a user writes it: `legolink(16)`, `legolink(4)+focus(5%)`, `damp(4,15)+correct(0.5)`.

    Raises UsageError saying what is possible.
    """
    from epicrag.serving.grammar import parse

    return parse(text)
