"""One prompt under one policy, measured: the time to its first token, its answer forced, requests side by side."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epicrag.errors import BusyError, DeviceError
from epicrag.types import Receipt

if TYPE_CHECKING:
    from torch import Tensor

    from epicrag.serving.engine import Engine
    from epicrag.serving.generation import Generation
    from epicrag.serving.policies import Policy
    from epicrag.serving.prompt import Prompt


@dataclass(frozen=True, slots=True)
class Variant:
    """A link policy over chunks that were compiled in a mode: what is compared with what."""

    policy: Policy
    mode: str

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def stitches(self) -> bool:
        """Whether it reuses compiled chunks."""
        return self.policy.reuse == "chunks"


@dataclass(frozen=True, slots=True)
class Timed:
    """What one answer took. Milliseconds are of the wall, from the call on: tokenisation is in them."""

    first_token_ms: float
    decode_tokens: int
    """Tokens after the first."""
    decode_ms: float
    prompt_tokens: int
    receipt: Receipt
    token_ids: tuple[int, ...]

    @property
    def charged(self) -> float:
        """Share of the context that was paid for: as the receipt counts it, else what was recomputed."""
        charged = getattr(self.receipt, "charged", None)
        if charged is not None:
            return float(charged)
        return self.receipt.recomputed / max(1, self.receipt.context_tokens)


def load(engine: Engine, prompt: Prompt, variant: Variant) -> float:
    """Bring a prompt's chunks into memory; milliseconds that the disk took. Nothing is computed."""
    with engine.stitched(prompt, variant.policy, mode=variant.mode) as stitched:
        return stitched.load_ms


def timed(engine: Engine, prompt: Prompt, variant: Variant, n_tokens: int) -> Timed:
    """Generate at most `n_tokens` tokens, greedily."""
    begun = time.perf_counter()
    with _generation(engine, prompt, variant, n_tokens) as generation:
        next(generation, "")
        first = time.perf_counter()
        for _ in generation:
            pass
        ended = time.perf_counter()
        return Timed(
            first_token_ms=(first - begun) * 1000,
            decode_tokens=len(generation.token_ids) - 1,
            decode_ms=(ended - first) * 1000,
            prompt_tokens=generation.usage.prompt_tokens,
            receipt=generation.receipt,
            token_ids=generation.token_ids,
        )


def forced(engine: Engine, prompt: Prompt, variant: Variant, answer: Sequence[int]) -> Tensor:
    """Log-probabilities (A, V), float64, at the places of an answer's A tokens, whatever they are."""
    import torch

    with engine.stitched(prompt, variant.policy, mode=variant.mode, n_new=len(answer)) as stitched:
        first = stitched.linked.link()
        rest = stitched.linked.step(list(answer[:-1])) if len(answer) > 1 else first[:0]
        return torch.cat((first, rest)).double().log_softmax(-1)


def divergence(want: Tensor, got: Tensor) -> tuple[float, float]:
    """Mean KL per token in nats, and the share of tokens with the same first choice, of (A, V) each.

    Not a number where one of them is not: rounding may leave a little less than 0, nothing else becomes 0.
    """
    kl = (want.exp() * (want - got)).sum(-1).mean()
    same = (want.argmax(-1) == got.argmax(-1)).double().mean()
    if not bool(want.isfinite().all() and got.isfinite().all()):
        return math.nan, math.nan
    return max(0.0, float(kl)), float(same)


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that were read side by side."""

    requests: int
    refused: int
    """For want of memory, or of a place in the queue."""
    seconds: float
    first_token_ms: tuple[float, ...]

    @property
    def per_second(self) -> float | None:
        return self.requests / self.seconds if self.requests and self.seconds else None


def side_by_side(
    engine: Engine, prompts: Sequence[Prompt], variant: Variant, n_tokens: int, threads: int
) -> Load:
    """Answer every prompt, `threads` at a time. An interrupt cancels them all before it goes on."""
    begun = time.perf_counter()
    opened = [_generation(engine, prompt, variant, n_tokens) for prompt in prompts]
    with ThreadPoolExecutor(threads) as pool:
        waiting = [pool.submit(_first_ms, generation) for generation in opened]
        try:
            times = [future.result() for future in waiting]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for generation in opened:
                generation.close()
            raise
    seconds = time.perf_counter() - begun
    done = tuple(ms for ms in times if ms is not None)
    return Load(len(done), len(times) - len(done), seconds, done)


def _first_ms(generation: Generation) -> float | None:
    """Read an answer to its end; milliseconds to its first token, None where it is refused."""
    begun = time.perf_counter()
    try:
        with generation:
            next(generation, "")
            first = time.perf_counter()
            for _ in generation:
                pass
    except (BusyError, DeviceError):
        return None
    return (first - begun) * 1000


def _generation(engine: Engine, prompt: Prompt, variant: Variant, n_tokens: int) -> Generation:
    from epicrag.serving.sample import Sampling

    sampling = Sampling(max_tokens=n_tokens)
    return engine.generate(prompt, policy=variant.policy, sampling=sampling, mode=variant.mode)
