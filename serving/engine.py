"""The engine: one request's life, from units of text to streamed tokens and a receipt."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from epicrag import errors, types
from epicrag.kernels import ops
from epicrag.serving.attention import RefusedModel
from epicrag.serving.cache import ChunkCache
from epicrag.serving.compile import Frame, Recipe, check_mode
from epicrag.serving.compose import Layout, compose, plan
from epicrag.serving.generation import Generation, State
from epicrag.serving.model import LAYOUT_VERSION, ServedModel
from epicrag.serving.policies import Full, Policy
from epicrag.serving.pool import Pool
from epicrag.serving.prefixes import PrefixTree
from epicrag.serving.prompt import ASKING, ChatFormat, Piece, Prompt
from epicrag.serving.sample import Sampler, Sampling, TextStream
from epicrag.serving.stitched import Stitched
from epicrag.serving.tokenizer import UnitTokenizer
from epicrag.serving.watch import Watch

if TYPE_CHECKING:
    from epicrag.index.kvstore import KVStore

_log = logging.getLogger("epicrag")

DEFAULT_COMPILE = "neighbour"
DEFAULT_KV_BYTES = 2 << 30


class Steps(Protocol):
    """What decoding asks for: tokens in, logits out."""

    def step(self, tokens: Sequence[int]) -> Tensor: ...


class Engine:
    """A model with its pool, its chunk cache and its own attention.

    Requests may be read side by side, from one thread or several: they take turns token by token. `refusal`
    says why reuse is off for this model, and is None when it is on.
    """

    def __init__(
        self,
        model: ServedModel,
        tokenizer: UnitTokenizer,
        chat: ChatFormat,
        *,
        name: str,
        store: KVStore | None = None,
        compile_mode: str = DEFAULT_COMPILE,
        kv_memory_bytes: int = DEFAULT_KV_BYTES,
        kv_dtype: torch.dtype | None = None,
        namespace: str = "default",
        self_check: bool = True,
    ) -> None:
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        self.chat = chat
        self.compile_mode = check_mode(compile_mode)
        self.refusal: str | None = None
        self._turn = threading.Lock()
        bos = tokenizer.template_ids(chat.bos) if chat.bos else ()
        self.frame = Frame.of(chat, bos[0] if bos else None)
        kv_dtype = kv_dtype or _store_dtype(model.dtype)
        try:
            self._open(store, kv_memory_bytes, kv_dtype, namespace)
            if self_check:
                from epicrag.serving.selfcheck import check

                check(self)
        except RefusedModel as refused:
            self.refusal = f"no reuse for {name}: {refused}"
            _log.warning("%s; answers are computed by full prefill", self.refusal)

    def _open(
        self, store: KVStore | None, budget: int, kv_dtype: torch.dtype, namespace: str
    ) -> None:
        """Read the model's geometry and rotation, and make pool and caches. RefusedModel if it cannot be."""
        model = self.model
        geometry = model.geometry()
        self.layers = model.kinds()
        self.pool = Pool(
            layers=geometry.layers,
            groups=geometry.groups,
            head_dim=geometry.head_dim,
            value_dim=geometry.value_dim,
            budget_bytes=budget,
            dtype=model.dtype,
            device=model.device,
        )
        parts = {
            "model": model.fingerprint,
            "tokenizer": self.tokenizer.fingerprint,
            "dtype": str(model.dtype),
            "kv_dtype": str(kv_dtype),
            "rope": _rope_text(self.layers),
            "layout": str(LAYOUT_VERSION),
            "namespace": namespace,
        }
        profile = hashlib.sha256(
            "|".join(f"{k}={v}" for k, v in parts.items()).encode()
        ).hexdigest()
        self.cache = ChunkCache(
            model,
            self.pool,
            self.layers,
            profile=profile,
            system=self.frame.system,
            store=store,
            store_dtype=kv_dtype,
            meta={"epicrag": "kv", **parts},
        )
        self.prefixes = PrefixTree(self.pool)

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        name: str,
        store: KVStore | None = None,
        device: str = "auto",
        dtype: str = "auto",
        compile_mode: str = DEFAULT_COMPILE,
        kv_memory_bytes: int = DEFAULT_KV_BYTES,
        kv_dtype: str | None = None,
        namespace: str = "default",
        cache_folder: Path | None = None,
        self_check: bool = True,
    ) -> Engine:
        """Load a model folder. Raises UsageError for a bad folder or flag, DeviceError for device or memory."""
        check_mode(compile_mode)
        tokenizer = UnitTokenizer.load(path)
        model = ServedModel.load(path, device=device, dtype=dtype, cache_folder=cache_folder)
        return cls(
            model,
            tokenizer,
            ChatFormat.load(path, tokenizer),
            name=name,
            store=store,
            compile_mode=compile_mode,
            kv_memory_bytes=kv_memory_bytes,
            kv_dtype=getattr(torch, kv_dtype) if kv_dtype else None,
            namespace=namespace,
            self_check=self_check,
        )

    # --- facts -----------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> str:
        return self.model.fingerprint

    @property
    def tokenizer_fingerprint(self) -> str:
        return self.tokenizer.fingerprint

    @property
    def context_window(self) -> int:
        return self.model.context_window

    @property
    def device(self) -> str:
        return str(self.model.device)

    @property
    def dtype(self) -> str:
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def profile(self) -> str:
        """Equal profiles give equal KV keys to equal chunks: model, dtypes, RoPE, mode and its fixed text."""
        if self.refusal:
            return f"refused:{self.model.fingerprint}"
        frame = (self.frame.system, self.frame.labels, self.frame.sinks)
        text = f"{self.cache.profile}|{self.compile_mode}|{frame}"
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token of a chunk takes in the store; 0 for a model that reuse is refused for."""
        return 0 if self.refusal else self.cache.bytes_per_token

    def own_keys(self) -> set[str]:
        """KV keys of entries that belong to no document and must be kept."""
        return set() if self.refusal else self.cache.own_keys

    # --- chunks ----------------------------------------------------------------------------------

    def recipe_of(
        self, piece: Piece, mode: str | None = None, ids: tuple[int, ...] | None = None
    ) -> Recipe:
        """The recipe of a chunk in a mode; `ids` where its text is tokenised already."""
        mode = mode or self.compile_mode
        chunk_ids = self.chat.chunk_ids
        before = chunk_ids(piece.before) if piece.before and mode == "neighbour" else None
        return self.frame.recipe(ids or chunk_ids(piece.text), mode, before)

    def key_of(self, piece: Piece, mode: str | None = None) -> str:
        """KV key of a chunk in the engine's compile mode, or in another."""
        return self.cache.key(self.recipe_of(piece, mode))

    def compile(
        self, pieces: Sequence[Piece], mode: str | None = None
    ) -> Iterator[tuple[int, str, int]]:
        """Store the KV of chunks: yields (index, key, tokens computed; 0 when it was there), lazily.

        Each is on disk before it is yielded, so a stop at any moment loses at most one batch. Yields
        nothing for a model that reuse is refused for.
        """
        if self.refusal:
            return
        recipes = [self.recipe_of(piece, mode) for piece in pieces]
        done = self.cache.ensure_stored([Recipe(self.frame.system), *recipes])
        while True:
            with self._turn:
                item = next(done, None)
            if item is None:
                return
            if item.index:
                yield item.index - 1, item.key, item.n_tokens

    # --- requests --------------------------------------------------------------------------------

    def lay_out(self, prompt: Prompt, n_new: int) -> Layout:
        """Place a prompt's units, dropping chunks that do not fit before `n_new` generated tokens."""
        layout = compose(self.chat.units(prompt), self.context_window - n_new)
        if layout.n_tokens + n_new > self.context_window:
            raise errors.UsageError(
                f"the question alone needs {layout.n_tokens} tokens and {n_new} for the answer; "
                f"the window of {self.name} is {self.context_window}",
                "ask a shorter question, or lower --max-tokens",
            )
        return layout

    def recipes(self, layout: Layout, prompt: Prompt, mode: str) -> dict[int, Recipe]:
        """The recipe of each segment that can be reused, by its index."""
        out = {}
        for index, segment in enumerate(layout.segments):
            if segment.unit.kind == "chunk":
                piece = prompt.pieces[segment.unit.piece]
                out[index] = self.recipe_of(piece, mode, segment.unit.ids + segment.unit.tail)
            elif segment.cacheable:
                out[index] = Recipe(segment.unit.ids)
        return out

    def stitched(
        self, prompt: Prompt, policy: Policy, *, mode: str | None = None, n_new: int = 1
    ) -> Stitched:
        """Put a prompt into the pool under a policy, with room for `n_new` tokens. For benches and tests:
        `generate` is this with sampling around it."""
        return Stitched(
            self, prompt, policy, policy.compile_mode or mode or self.compile_mode, n_new
        )

    def generate(
        self,
        prompt: Prompt,
        *,
        policy: Policy,
        sampling: Sampling | None = None,
        mode: str | None = None,
    ) -> Generation:
        """Answer a prompt. Nothing runs until the first delta is asked for.

        A prompt with chunks also ends where the model begins a question of its own. Raises UsageError when
        the question does not fit the window, DeviceError when KV memory runs out.
        """
        sampling = sampling or Sampling()
        if prompt.pieces:
            sampling = replace(sampling, stop=(*sampling.stop, ASKING))
        state = State()
        chosen = check_mode(policy.compile_mode or mode or self.compile_mode)
        run = self._run_plain if self.refusal else self._run
        return Generation(self._by_turns(run(prompt, policy, sampling, chosen, state)), state)

    def _by_turns(self, work: Generator[str]) -> Generator[str]:
        """Hold the engine only while a token is computed: answers that are read side by side take turns."""
        try:
            while True:
                with self._turn:
                    delta = next(work, None)
                if delta is None:
                    return
                yield delta
        finally:
            with self._turn:
                work.close()

    def _run(
        self, prompt: Prompt, policy: Policy, sampling: Sampling, mode: str, state: State
    ) -> Generator[str]:
        watch = Watch()
        with Stitched(self, prompt, policy, mode, sampling.max_tokens) as stitched:
            start = watch.total()
            logits = stitched.linked.link()
            state.prompt_tokens = stitched.layout.n_tokens
            state.pieces_used = len(prompt.pieces) - stitched.layout.dropped
            steps = self._steps(stitched.linked, logits[0], sampling, state)
            first = next(steps, "")
            now = watch.total()
            ms = types.Timings(
                load=stitched.load_ms,
                stitch=stitched.stitch_ms,
                select=stitched.select_ms,
                link=now - start,
                first_token=now,
                total=now,
            )
            state.receipt = self._receipt(stitched, ms)
            yield first
            yield from steps
            if policy.reuse == "prefix":
                stitched.keep_prefix()
            state.receipt = replace(state.receipt, ms=replace(ms, total=watch.total()))

    def _steps(
        self, linked: Steps, logits: Tensor, sampling: Sampling, state: State
    ) -> Iterator[str]:
        """Choose, show and append tokens until an end; the first yield comes with the first token."""
        sampler = Sampler(sampling)
        stream = TextStream(self.tokenizer, sampling.stop)
        while True:
            token = sampler(logits)
            state.token_ids.append(token)
            state.completion_tokens += 1
            if token in self.model.eos_ids:
                state.finish_reason = "stop"
                break
            text = stream.push(token)
            if stream.stopped:
                state.finish_reason = "stop"
                yield text
                return
            yield text
            if state.completion_tokens >= sampling.max_tokens:
                break
            logits = linked.step([token])[0]
        yield stream.end()

    def _receipt(self, stitched: Stitched, ms: types.Timings) -> types.Receipt:
        """Say what was reused. Chunks compiled in this request count as recomputed: nothing was saved."""
        cost = stitched.plan
        exact, moved = cost.exact, cost.stitched
        late = min(stitched.computed, exact + moved)
        from_stitched = min(late, moved)
        return types.Receipt(
            policy=stitched.policy.name,
            compile=stitched.mode,
            context_tokens=cost.exact + cost.stitched + cost.recomputed,
            exact=exact - (late - from_stitched),
            stitched=moved - from_stitched,
            recomputed=cost.recomputed + late,
            fresh=cost.fresh,
            dropped_chunks=stitched.layout.dropped,
            fallback=f"{late} tokens were compiled during the request" if late else None,
            ms=ms,
        )

    def _run_plain(
        self, prompt: Prompt, policy: Policy, sampling: Sampling, mode: str, state: State
    ) -> Generator[str]:
        """Full prefill by transformers alone: what a model gets that reuse is refused for."""
        from epicrag.serving.plain import PlainLinked

        watch = Watch()
        layout = self.lay_out(prompt, sampling.max_tokens)
        cost = plan(layout, Full(), {})
        select = watch.lap()
        linked = PlainLinked(self.model)
        logits = linked.step(layout.ids)
        state.prompt_tokens = layout.n_tokens
        state.pieces_used = len(prompt.pieces) - layout.dropped
        steps = self._steps(linked, logits[-1], sampling, state)
        first = next(steps, "")
        now = watch.total()
        ms = types.Timings(select=select, link=now - select, first_token=now, total=now)
        state.receipt = types.Receipt(
            policy="full",
            compile=mode,
            context_tokens=cost.recomputed,
            exact=0,
            stitched=0,
            recomputed=cost.recomputed,
            fresh=cost.fresh,
            dropped_chunks=layout.dropped,
            fallback=self.refusal,
            ms=ms,
        )
        yield first
        yield from steps
        state.receipt = replace(state.receipt, ms=replace(ms, total=watch.total()))


def _store_dtype(dtype: torch.dtype) -> torch.dtype:
    """Sixteen bits on disk: the mantissa of float16 for float32 models, the model's own otherwise."""
    return torch.float16 if dtype in (torch.float32, torch.float64) else dtype


def _rope_text(layers: ops.Layers) -> str:
    """How every layer turns its keys, as text: part of what a KV entry depends on."""
    kinds = []
    for kind in layers.kinds:
        rotary = kind.rotary
        frequencies = hashlib.sha256(rotary.inv_freq.cpu().numpy().tobytes()).hexdigest()
        kinds.append(f"{rotary.start}:{rotary.dim}:{rotary.interleaved}:{frequencies}")
    if len(kinds) == 1:
        return kinds[0]
    return "/".join(kinds) + ":" + ",".join(map(str, layers.of_layer))
