"""The engine: one request's life, from units of text to streamed tokens and a receipt."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from epicrag import errors, types
from epicrag.kernels import ops
from epicrag.serving import link, plain
from epicrag.serving.answer import Answering, Placed
from epicrag.serving.attention import RefusedModel
from epicrag.serving.cache import ChunkCache, Compiled
from epicrag.serving.compile import Frame, Recipe, check_mode, reads_neighbour
from epicrag.serving.compose import Layout, compose
from epicrag.serving.constrain import Vocabulary
from epicrag.serving.generation import Generation, State
from epicrag.serving.model import LAYOUT_VERSION, ServedModel
from epicrag.serving.plain import PlainPlaced
from epicrag.serving.policies import Policy
from epicrag.serving.pool import NoPagesError, Pool
from epicrag.serving.prefixes import PrefixTree
from epicrag.serving.prompt import ASKING, Chat, ChatFormat, Piece, Prompt
from epicrag.serving.sample import Sampling
from epicrag.serving.schedule import Limits, Scheduler, Ticket
from epicrag.serving.stitched import Stitched
from epicrag.serving.threads import settle
from epicrag.serving.tokenizer import UnitTokenizer
from epicrag.serving.warming import Warming

if TYPE_CHECKING:
    from epicrag.index.kvstore import KVStore

_log = logging.getLogger("epicrag")

DEFAULT_COMPILE = "neighbour"
DEFAULT_KV_BYTES = 2 << 30
DEFAULT_GPU_SHARE = 0.9
_WAIT_S = 0.02
PIECE_TOKENS = 256
"""Of a chunk that is compiled while others are answered, so many at a time."""


class Engine:
    """A model with its pool, its chunk cache and its own attention.

    Answers may be read side by side, from one thread or several: each step computes a token of every one of
    them, in one forward pass (`schedule.py`). `refusal` says why reuse is off for this model, and is None when
    it is on.
    """

    def __init__(
        self,
        model: ServedModel,
        tokenizer: UnitTokenizer,
        chat: ChatFormat,
        *,
        name: str,
        store: KVStore | None = None,
        other_store: KVStore | None = None,
        compile_mode: str = DEFAULT_COMPILE,
        kv_memory_bytes: int = DEFAULT_KV_BYTES,
        host_kv_memory_bytes: int = 0,
        gpu_memory_utilization: float = DEFAULT_GPU_SHARE,
        kv_dtype: torch.dtype | None = None,
        context_limit: int | None = None,
        limits: Limits | None = None,
        self_check: bool = True,
    ) -> None:
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        self.vocabulary = Vocabulary(tokenizer, model.eos_ids)
        self.chat = chat
        self.compile_mode = check_mode(compile_mode)
        self.refusal: str | None = None
        self._context_limit = context_limit
        self._tokens: Counter[str] = Counter()
        _log.debug("%s runs through %s", name, model.forward_kind)
        bos = tokenizer.template_ids(chat.bos) if chat.bos else ()
        self.frame = Frame.of(chat, bos[0] if bos else None)
        kv_dtype = kv_dtype or _store_dtype(model.dtype)
        self.kv_dtype = str(kv_dtype).removeprefix("torch.")
        """What chunks' KV is kept in, on disk and in memory."""
        budget = _pool_bytes(model.device, kv_memory_bytes, gpu_memory_utilization)
        try:
            self._open(store, other_store, budget, host_kv_memory_bytes, kv_dtype)
            if self_check:
                from epicrag.serving.assure import assure

                assure(self)
        except RefusedModel as refused:
            self.refusal = f"no reuse for {name}: {refused}"
            _log.warning("%s; answers are computed by full prefill", self.refusal)
        if ops.wish() == "triton" and (lacks := ops.triton_lacks(model.device)):
            _log.warning("%s is triton, and plain torch computes: %s", ops.WISH, lacks)
        self.scheduler = Scheduler(plain.run if self.refusal else link.run, limits)

    def _open(
        self,
        store: KVStore | None,
        other_store: KVStore | None,
        budget: int,
        host_budget: int,
        kv_dtype: torch.dtype,
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
            rounded=kv_dtype == torch.int8,
        )
        parts = {
            "model": model.fingerprint,
            "tokenizer": self.tokenizer.fingerprint,
            "dtype": str(model.dtype),
            "kv_dtype": str(kv_dtype),
            "rope": _rope_text(self.layers),
            "layout": str(LAYOUT_VERSION),
            "namespace": "default",  # of keys since the first release: namespaces stand in the recipes
        }
        wide_dtype = _store_dtype(model.dtype) if kv_dtype == torch.int8 else kv_dtype
        wide_parts = {**parts, "kv_dtype": str(wide_dtype)}
        self.cache = ChunkCache(
            model,
            self.pool,
            self.layers,
            profile=_profile(parts),
            system=self.frame.system,
            store=store,
            other_store=other_store,
            store_dtype=kv_dtype,
            wide_dtype=wide_dtype,
            wide_profile=_profile(wide_parts),
            host_budget=host_budget,
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
        other_store: KVStore | None = None,
        device: str = "auto",
        dtype: str = "auto",
        quantize: str = "none",
        compile_mode: str = DEFAULT_COMPILE,
        kv_memory_bytes: int = DEFAULT_KV_BYTES,
        host_kv_memory_bytes: int = 0,
        gpu_memory_utilization: float = DEFAULT_GPU_SHARE,
        kv_dtype: str | None = None,
        context_limit: int | None = None,
        cache_folder: Path | None = None,
        limits: Limits | None = None,
        self_check: bool = True,
    ) -> Engine:
        """Load a model folder. Raises UsageError for a bad folder or flag, DeviceError for device or memory.

        KV memory is `kv_memory_bytes` on a CPU; on a GPU it is the share `gpu_memory_utilization` of what
        the weights leave free. `host_kv_memory_bytes` keep the KV of chunks that had to leave it. `kv_dtype`:
        what chunks' KV is kept in, on disk and in memory; "int8" halves it or better, None is 16 bits.
        `other_store` keeps the KV of namespaces, apart from the index's in `store`. `context_limit`: a smaller
        window than the model's.
        """
        check_mode(compile_mode)
        threads = settle()
        _log.debug("%s: %d threads, by %s", name, threads.n, threads.why)
        tokenizer = UnitTokenizer.load(path)
        model = ServedModel.load(
            path, device=device, dtype=dtype, quantize=quantize, cache_folder=cache_folder
        )
        return cls(
            model,
            tokenizer,
            ChatFormat.load(path, tokenizer),
            name=name,
            store=store,
            other_store=other_store,
            compile_mode=compile_mode,
            kv_memory_bytes=kv_memory_bytes,
            host_kv_memory_bytes=host_kv_memory_bytes,
            gpu_memory_utilization=gpu_memory_utilization,
            kv_dtype=getattr(torch, kv_dtype) if kv_dtype else None,
            context_limit=context_limit,
            limits=limits,
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
        window = self.model.context_window
        return min(window, self._context_limit or window)

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
        behind = piece.before if reads_neighbour(mode) else None
        before = chunk_ids(behind) if behind else None
        return self.frame.recipe(ids or chunk_ids(piece.text), mode, before, piece.namespace)

    def key_of(self, piece: Piece, mode: str | None = None) -> str:
        """KV key of a chunk in the engine's compile mode, or in another."""
        return self.cache.key(self.recipe_of(piece, mode))

    def keeps(self, namespace: str = "") -> bool:
        """Whether the KV of a namespace is stored on disk. A model that reuse is refused for has none to store."""
        return self.refusal is not None or self.cache.keeps(namespace)

    def compile(
        self, pieces: Sequence[Piece], mode: str | None = None
    ) -> Iterator[tuple[int, str, int]]:
        """Store the KV of chunks: yields (index, key, tokens computed; 0 when it was there), lazily.

        Each is on disk before it is yielded, so a stop at any moment loses at most one batch. While running
        requests hold the pages that it needs, it waits for them. Yields nothing for a model that reuse is
        refused for.
        """
        if self.refusal:
            return
        recipes = [Recipe(self.frame.system, opens=True)]
        recipes += [self.recipe_of(piece, mode) for piece in pieces]
        left = dict(enumerate(recipes))
        while left:
            if self.scheduler.is_busy:
                index, recipe = next(iter(left.items()))
                n_computed = self._compile_beside(recipe)
                del left[index]
                if index:
                    yield index - 1, self.cache.key(recipe), n_computed
                continue
            order = list(left)
            done = self.cache.ensure_stored([left[index] for index in order])
            while (item := self._next_compiled(done)) is not None:
                index = order[item.index]
                del left[index]
                if index:
                    yield index - 1, item.key, item.n_tokens
                if self.scheduler.is_busy:
                    break

    def _compile_beside(self, recipe: Recipe) -> int:
        """Compile one chunk while others are answered: a piece, then a step for them. Returns its tokens, 0 where
        it was there."""
        with self.scheduler.turn():
            if self.cache.is_kept(recipe):
                return 0
        warming = Warming(self, [recipe], must_store=True)
        try:
            while not self._began(warming):
                if not self.scheduler.step():
                    time.sleep(_WAIT_S)  # all that run wait for their readers
            while warming.n_left:
                with self.scheduler.turn():
                    link.run([warming.link_job(PIECE_TOKENS)])
                self.scheduler.step()
            with self.scheduler.turn():
                warming.advance()
        finally:
            with self.scheduler.turn():
                warming.close()
        return len(recipe.ids)

    def _began(self, warming: Warming) -> bool:
        """Whether a compile got its pages; not while those that run hold them."""
        with self.scheduler.turn():
            try:
                warming.begin()
            except NoPagesError:
                if not self.scheduler.n_running:
                    raise
                return False
        return True

    def _next_compiled(self, done: Iterator[Compiled]) -> Compiled | None:
        """The next of some compiles, None at their end, or where they must be begun again after a wait."""
        with self.scheduler.turn():
            try:
                return next(done, None)
            except NoPagesError:
                if not self.scheduler.n_running:
                    raise
        if not self.scheduler.step():
            time.sleep(_WAIT_S)  # all that run wait for their readers
        return None

    def lacking(
        self, prompt: Prompt | Chat, policy: Policy, *, mode: str | None = None, n_new: int = 1
    ) -> dict[int, int]:
        """The chunks whose KV an answer would have to compute first: index of the piece, and its tokens."""
        if self.refusal or policy.reuse != "chunks":
            return {}
        layout = self.lay_out(prompt, n_new)
        recipes = self.recipes(layout, prompt, policy.compile_mode or mode or self.compile_mode)
        units = {index: layout.segments[index].unit for index in recipes}
        return {
            unit.piece: len(unit.ids)
            for index, unit in units.items()
            if unit.kind == "chunk" and not self.cache.holds(recipes[index])
        }

    # --- requests --------------------------------------------------------------------------------

    def lay_out(self, prompt: Prompt | Chat, n_new: int) -> Layout:
        """Place a prompt's units, dropping chunks that do not fit before `n_new` generated tokens.

        UsageError: the rest does not fit, or, of a `Chat`, anything. Its text is the asker's: nothing is dropped.
        """
        window, is_chat = self.context_window, isinstance(prompt, Chat)
        layout = compose(self.chat.units(prompt), window - n_new, may_drop=not is_chat)
        if layout.end + n_new > window:
            what = "the conversation" if is_chat else "the question alone"
            raise errors.UsageError(
                f"{what} needs {layout.end} tokens and {n_new} for the answer; "
                f"the window of {self.name} is {window}",
                f"{'shorten it' if is_chat else 'ask a shorter question'}, or lower --max-tokens",
            )
        return layout

    def recipes(self, layout: Layout, prompt: Prompt | Chat, mode: str) -> dict[int, Recipe]:
        """The recipe of each segment that can be reused, by its index."""
        out = {}
        pieces = prompt.pieces
        for index, segment in enumerate(layout.segments):
            if segment.unit.kind == "chunk":
                piece = pieces[segment.unit.piece]
                out[index] = self.recipe_of(piece, mode, segment.unit.stored)
            elif segment.cacheable:
                ids = segment.unit.ids
                # The neutral one is no secret: every namespace reads what ingest compiled.
                owner = "" if ids == self.frame.system else prompt.namespace
                out[index] = Recipe(ids, opens=True, namespace=owner)
        return out

    def stitched(
        self, prompt: Prompt | Chat, policy: Policy, *, mode: str | None = None, n_new: int = 1
    ) -> Stitched:
        """Put a prompt into the pool under a policy, with room for `n_new` tokens. For benches and tests:
        `generate` is this with sampling around it."""
        return Stitched(
            self, prompt, policy, policy.compile_mode or mode or self.compile_mode, n_new
        )

    def generate(
        self,
        prompt: Prompt | Chat,
        *,
        policy: Policy,
        sampling: Sampling | None = None,
        mode: str | None = None,
    ) -> Generation:
        """Answer a prompt. Nothing runs, and no place in the queue is taken, until the first delta is asked for.

        A prompt with chunks also ends where the model begins a question of its own. UsageError: the grammar
        cannot be followed with this model. Reading raises UsageError when the question does not fit the window, DeviceError when KV memory can never hold it, and BusyError
        when the queue is full.
        """
        return self._generation(prompt, policy, sampling, mode)[0]

    def submit(
        self,
        prompt: Prompt | Chat,
        *,
        policy: Policy,
        sampling: Sampling | None = None,
        mode: str | None = None,
    ) -> Generation:
        """`generate`, with a place in the queue at once: whoever reads another answer serves this one too.

        Raises BusyError when the queue is full.
        """
        generation, ticket = self._generation(prompt, policy, sampling, mode)
        self.scheduler.submit(ticket)
        return generation

    def step(self) -> bool:
        """Serve every open answer once, for a caller that drives the engine by itself.

        Returns whether anything was done: False says that all wait for their readers, or that there is nothing.
        """
        return self.scheduler.step()

    def _generation(
        self, prompt: Prompt | Chat, policy: Policy, sampling: Sampling | None, mode: str | None
    ) -> tuple[Generation, Ticket]:
        sampling = sampling or Sampling()
        if isinstance(prompt, Prompt) and prompt.pieces:
            sampling = replace(sampling, stop=(*sampling.stop, ASKING))
        state = State()
        chosen = check_mode(policy.compile_mode or mode or self.compile_mode)
        place: Callable[[Mapping[str, int] | None], Placed] = partial(
            self._place, prompt, policy, chosen, sampling.max_tokens
        )
        if self.refusal:
            plain_place = partial(self.lay_out, prompt, sampling.max_tokens)
            place = lambda _: PlainPlaced(self.model, plain_place)
        work = Answering(
            self,
            place,
            sampling,
            state,
            policy="full" if self.refusal else policy.name,
            mode=chosen,
            n_pieces=len(prompt.pieces),
        )
        ticket = Ticket(work)
        return Generation(self.scheduler, ticket, state), ticket

    def _place(
        self,
        prompt: Prompt | Chat,
        policy: Policy,
        mode: str,
        n_new: int,
        warmed: Mapping[str, int] | None,
    ) -> Stitched:
        """A prompt in the pool; ColdError at first where many of its chunks have no KV yet."""
        at_once = warmed is not None
        return Stitched(self, prompt, policy, mode, n_new, warmed, at_once=at_once)

    # --- what is held ----------------------------------------------------------------------------

    def pin(self, pieces: Sequence[Piece], mode: str | None = None) -> None:
        """Keep chunks in the pool until `unpin` is called as often: they are loaded or compiled now.

        Does nothing for a model that reuse is refused for. Raises DeviceError, with nothing pinned, when the
        pins would leave the requests less than half of the pool.
        """
        if self.refusal:
            return
        with self.scheduler.turn():
            self.cache.pin([self.recipe_of(piece, mode) for piece in pieces])

    def unpin(self, pieces: Sequence[Piece], mode: str | None = None) -> None:
        """Undo one `pin` of each; those that are not pinned are passed over."""
        if self.refusal:
            return
        with self.scheduler.turn():
            self.cache.unpin([self.recipe_of(piece, mode) for piece in pieces])

    @property
    def busy_pages(self) -> int:
        """Pages that running requests and pins hold."""
        return 0 if self.refusal else self.pool.busy_pages

    @property
    def pages_for_requests(self) -> int:
        """Pages that are free when nothing runs."""
        return 0 if self.refusal else self.pool.n_pages - self.cache.pinned_pages

    def count(self, receipt: types.Receipt) -> None:
        """Add a request's prompt to what `stats` tells."""
        kinds = ("exact", "stitched", "recomputed", "fresh")
        self._tokens.update({kind: getattr(receipt, kind) for kind in kinds})
        self._tokens["requests"] += 1

    def stats(self) -> Stats:
        """What runs, who holds the memory, and what was reused since the engine was made."""
        tokens, scheduler = self._tokens, self.scheduler
        out = Stats(
            running=scheduler.n_running,
            waiting=scheduler.n_waiting,
            steps=scheduler.steps,
            requests=tokens["requests"],
            exact=tokens["exact"],
            stitched=tokens["stitched"],
            recomputed=tokens["recomputed"],
            fresh=tokens["fresh"],
            generated=scheduler.decoded,
        )
        if self.refusal:
            return out
        pool, hits = self.pool, self.cache.hits
        return replace(
            out,
            pages=pool.n_pages,
            pages_free=pool.free_pages,
            pages_idle=pool.idle_pages,
            pages_shared=pool.shared_pages,
            pages_pinned=self.cache.pinned_pages,
            host_bytes=self.cache.host.nbytes,
            from_pool=hits["pool"],
            from_host=hits["host"],
            from_disk=hits["disk"],
            compiled=hits["compiled"],
            prefixes=len(self.prefixes),
        )


@dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot of an engine. Tokens and hits are counted since it was made; hits are chunks."""

    running: int = 0
    waiting: int = 0
    steps: int = 0
    requests: int = 0
    exact: int = 0
    stitched: int = 0
    recomputed: int = 0
    fresh: int = 0
    generated: int = 0
    pages: int = 0
    pages_free: int = 0
    """Hold nothing."""
    pages_idle: int = 0
    """Hold what nobody reads now, and may go."""
    pages_shared: int = 0
    """Are read by more than one request."""
    pages_pinned: int = 0
    host_bytes: int = 0
    from_pool: int = 0
    from_host: int = 0
    from_disk: int = 0
    compiled: int = 0
    prefixes: int = 0


def _store_dtype(dtype: torch.dtype) -> torch.dtype:
    """Sixteen bits on disk: the mantissa of float16 for float32 models, the model's own otherwise."""
    return torch.float16 if dtype in (torch.float32, torch.float64) else dtype


def _profile(parts: Mapping[str, str]) -> str:
    return hashlib.sha256("|".join(f"{k}={v}" for k, v in parts.items()).encode()).hexdigest()


def _pool_bytes(device: torch.device, kv_memory: int, gpu_share: float) -> int:
    """Bytes for the pool. On a GPU what is free there counts, after the weights."""
    if device.type != "cuda":
        return kv_memory
    return int(torch.cuda.mem_get_info(device)[0] * gpu_share)


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
