"""From logits to the next token, and from tokens to text that can be streamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from epicrag.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from epicrag.serving.constrain import Constraint, Grammar


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose tokens. Temperature 0 is greedy; `top_k` 0 and `top_p` 1 cut nothing.

    The same seed gives the same text on the same machine. Under a `grammar` stop strings are not looked for: they
    would cut what the grammar makes whole. Raises UsageError on values that mean nothing.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        bad = [
            (self.max_tokens < 1, "max_tokens must be at least 1", self.max_tokens),
            (not 0 <= self.temperature <= 100, "temperature must be 0 to 100", self.temperature),
            (not 0 < self.top_p <= 1, "top_p must be above 0 and at most 1", self.top_p),
            (self.top_k < 0, "top_k must be 0 (off) or more", self.top_k),
            (
                self.seed is not None and not 0 <= self.seed < 2**63,
                "a seed must be 0 to 2^63 - 1",
                self.seed,
            ),
            (any(not s for s in self.stop), "a stop string must not be empty", self.stop),
        ]
        for wrong, rule, value in bad:
            if wrong:
                raise UsageError(f"{rule}, not {value!r}")


class Sampler:
    """One request's choices: greedy, or drawn with a generator of its own, among what its grammar allows."""

    def __init__(self, sampling: Sampling, constraint: Constraint | None = None) -> None:
        self._sampling = sampling
        self._constraint = constraint
        self._generator: torch.Generator | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the grammar is satisfied and nothing can follow."""
        return self._constraint is not None and self._constraint.is_complete

    @property
    def is_endless(self) -> bool:
        """Whether what follows the grammar goes round in circles."""
        return self._constraint is not None and self._constraint.is_endless

    def __call__(self, logits: Tensor) -> int:
        """Choose a token from logits (V,). UsageError when the grammar cannot be followed further."""
        if self._constraint is None:
            return self._choose(logits)
        token = self._choose(self._constraint.mask(logits))
        self._constraint.take(token)
        return token

    def _choose(self, logits: Tensor) -> int:
        sampling = self._sampling
        if sampling.temperature == 0:
            return int(logits.argmax())
        import torch

        if self._generator is None:
            self._generator = torch.Generator("cpu")
            if sampling.seed is None:
                self._generator.seed()
            else:
                self._generator.manual_seed(sampling.seed)
        logits = logits.float().cpu()
        # From the highest down: what a tiny temperature makes of the others is nothing, and no overflow.
        probabilities = self._cut((logits - logits.max()) / sampling.temperature)
        return int(torch.multinomial(probabilities, 1, generator=self._generator))

    def _cut(self, logits: Tensor) -> Tensor:
        """Probabilities (V,) after top-k and top-p."""
        k, p = self._sampling.top_k, self._sampling.top_p
        if 0 < k < logits.numel():
            logits = logits.masked_fill(logits < logits.topk(k).values[-1], float("-inf"))
        probabilities = logits.softmax(-1)
        if p < 1:
            ordered, order = probabilities.sort(descending=True)
            # Keep the smallest set that reaches p: a token goes if those before it have reached it.
            gone = ordered.cumsum(-1) - ordered >= p
            gone[0] = False  # however small p is
            probabilities = probabilities.scatter(0, order[gone], 0.0)
        return probabilities


class Decoder(Protocol):
    def decode(self, ids: Sequence[int]) -> str: ...


class TextStream:
    """Tokens in, pieces of text out: never half a character, never a part of a stop string."""

    def __init__(self, decoder: Decoder, stop: Sequence[str]) -> None:
        self._decoder = decoder
        self._stop = stop
        self._ids: list[int] = []
        self._start = 0  # ids before it are out and only give context
        self._shown = 0  # ids whose text has been taken
        self._held = ""  # text that may be the beginning of a stop string
        self.stopped = False

    def push(self, token: int) -> str:
        """Take a token; return the text that is certain by now. Sets `stopped` at a stop string."""
        self._ids.append(token)
        before = self._decoder.decode(self._ids[self._start : self._shown])
        after = self._decoder.decode(self._ids[self._start :])
        if after.endswith("\ufffd") or len(after) <= len(before):
            return ""  # half a character: wait for its other bytes
        self._start, self._shown = self._shown, len(self._ids)
        return self._release(after[len(before) :])

    def end(self) -> str:
        """Return what was held back; after a stop string there is nothing."""
        if self.stopped:
            return ""
        before = self._decoder.decode(self._ids[self._start : self._shown])
        rest = self._decoder.decode(self._ids[self._start :])[len(before) :]
        self._start = self._shown = len(self._ids)
        out = self._release(rest)
        held, self._held = self._held, ""
        return out + ("" if self.stopped else held)

    def _release(self, text: str) -> str:
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
