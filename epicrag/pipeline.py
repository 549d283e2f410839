"""Joins the rooms: files to index, question to answer. The one face that CLI, server and LlamaIndex use.

It holds no algorithm. Rooms are opened at first need, so that a run that needs no model loads none.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from epicrag.ask import AnswerStream, Ask, sources_of
from epicrag.config import DEFAULT_HYBRID_WEIGHTS, Config, enforce_offline, load_config
from epicrag.errors import EpicragError, IndexEmptyError, UsageError
from epicrag.history import fitted
from epicrag.ingest import (
    Event,
    IngestResult,
    Manner,
    MassDeleteError,
    Progress,
    describe,
    ingest,
    no_such_path,
    own_keys,
)
from epicrag.quiet import hush
from epicrag.sources import is_address, limits_of
from epicrag.types import Answer, Found, Hit, Relevance

if TYPE_CHECKING:
    from epicrag.connectors.found import Source
    from epicrag.connectors.split import TokenCounter
    from epicrag.index.catalog import Catalog
    from epicrag.index.embed import Embedder
    from epicrag.index.filters import Filter
    from epicrag.index.kvstore import KVStore
    from epicrag.index.retrieve import Reranker
    from epicrag.index.vectors import VectorIndex
    from epicrag.recognise import Recogniser
    from epicrag.serving.engine import Engine
    from epicrag.serving.policies import Policy
    from epicrag.serving.prompt import Chat, Piece, Prompt, Turn
    from epicrag.serving.sample import Sampling
    from epicrag.sessions import Exchange
    from epicrag.uses import Uses

__all__ = [
    "AnswerStream",
    "Event",
    "IngestResult",
    "Manner",
    "MassDeleteError",
    "Pipeline",
    "Progress",
    "Status",
    "sources_of",
]


@dataclass(frozen=True, slots=True)
class Status:
    """What is in an index, and which models it was made with (None where not yet known)."""

    index: Path
    generation: int
    last_ingest: str | None
    documents: int
    chunks: int
    tokens: int
    vectors: int
    kv_entries: int
    kv_bytes: int
    kv_bytes_per_token: int | None
    """What a token of a chunk takes with the model of the last ingest; None while none has been loaded."""
    chunks_with_kv: int
    kv_other_entries: int
    """Of `kv_entries`: those of no chunk as ingest compiles it. The next ingest, of whatever, drops them."""
    kv_other_bytes: int
    kv_dtype: str | None
    """What KV is kept in: "float16", "bfloat16", "int8"; None while no model has been loaded."""
    kv_budget: int | None
    """Bytes that KV may take on disk, as configured; None: all there is."""
    retrievals: int
    """Passages that were retrieved so far, and of these, those whose KV was there then."""
    retrievals_with_kv: int
    model: str | None
    model_fingerprint: str | None
    dtype: str | None
    compile: str | None
    embedder: str | None
    embedder_fingerprint: str | None
    configured_model: str
    configured_embedder: str
    kv_bytes_per_text_token: float | None = None
    """What the KV of passages takes on disk for a token of their text; None while there is none. A little more
    than `kv_bytes_per_token`: with the tokens that join passages in a prompt, and the heads of files."""


class Pipeline:
    """One index with its models: a context manager.

    Threads may share it for questions: `find`, `stream` and what hangs on them take `turn`, which is also to be
    held around any other use of the catalog then. An embedder, engine or token counter that is given is used as it is; else they are those of the
    configuration, loaded at first need. `say` is told what takes long then: a fetch, a conversion.
    `kv_folder` keeps KV there in place of the index's own folder, and leaves the index as it is.
    `engine_options` are handed on to `Engine.load`.
    """

    def __init__(
        self,
        config: Config,
        *,
        create: bool = False,
        embedder: Embedder | None = None,
        engine: Engine | None = None,
        counter: TokenCounter | None = None,
        say: Callable[[str], None] | None = None,
        kv_folder: Path | None = None,
        engine_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.config = config
        self.turn = threading.RLock()
        """One thread at a time in the catalog, the vectors and the embedder."""
        self._engine_options = dict(engine_options or {})
        self._kv_folder = kv_folder
        self._rerankers: dict[str, Reranker] = {}
        self._say = say
        self._create = create
        self._given_embedder = embedder
        self._given_engine = engine
        self._given_counter = counter
        self._is_closed = False

    @classmethod
    def open(
        cls,
        config: Config | None = None,
        *,
        create: bool = False,
        say: Callable[[str], None] | None = None,
        kv_folder: Path | None = None,
        engine_options: Mapping[str, Any] | None = None,
        **flags: object,
    ) -> Pipeline:
        """Open the index of a configuration; `flags` overrule it.

        IndexEmptyError: there is no index and `create` is False. With `create` it is made by the first
        `ingest`, not before.
        """
        given = {key: value for key, value in flags.items() if value is not None}
        settings = _overruled(config, given) if config else load_config(given)
        pipeline = cls(
            settings,
            create=create,
            say=say,
            kv_folder=kv_folder,
            engine_options=engine_options,
        )
        if not create:
            _ = pipeline.catalog
        return pipeline

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the index; an answer that is being written is written to its end. UsageError for what is asked then."""
        self._is_closed = True
        if "recogniser" in self.__dict__:
            self.recogniser.close()
        if catalog := self.__dict__.pop("catalog", None):
            catalog.close()

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise UsageError("this pipeline was closed", "open another one: Pipeline.open()")

    # --- the rooms ---

    @cached_property
    def catalog(self) -> Catalog:
        from epicrag.index.catalog import Catalog

        self._refuse_closed()
        try:
            return Catalog.open(self.config.index, create=self._create)
        except IndexEmptyError as error:
            raise self._empty(f"there is no index at {self.config.index}") from error

    @cached_property
    def vectors(self) -> VectorIndex:
        from epicrag.index.vectors import VectorIndex

        return VectorIndex.open(self.catalog, self.config.index)

    @cached_property
    def kv_store(self) -> KVStore:
        from epicrag.index.kvstore import KVStore

        folder = self._kv_folder or self.config.index / "kv"
        budget = self.config.kv_disk
        return KVStore(folder, budget_bytes=budget, value_of=self.uses.worth if budget else None)

    @cached_property
    def uses(self) -> Uses:
        from epicrag.uses import Uses

        return Uses(lambda: self.catalog, lambda: frozenset(own_keys(self.catalog)))

    @cached_property
    def embedder(self) -> Embedder:
        if self._given_embedder is not None:
            return self._given_embedder
        from epicrag.index.embed import SentenceEmbedder
        from epicrag.index.prompts import prompts_of

        name, path = self.config.embed_model, self._model_path(self.config.embed_model)
        return SentenceEmbedder(
            path, name, prompts=prompts_of(name, path), device=self.config.device
        )

    def _searching(
        self,
        mode: str | None,
        weights: tuple[float, float] | None,
        min_score: float | str | None = None,
    ) -> Config:
        """The configuration of one search."""
        choices = {"search_mode": mode, "min_score": min_score}
        given: dict[str, object] = {
            key: value for key, value in choices.items() if value is not None
        }
        if weights is not None:
            given["hybrid_weights"] = dict(zip(DEFAULT_HYBRID_WEIGHTS, weights, strict=True))
        return _overruled(self.config, given) if given else self.config

    @cached_property
    def reranker(self) -> Reranker | None:
        """Reads question and passage together; None unless one is configured."""
        name = self.config.rerank_model
        return self._load_reranker(name) if name is not None else None

    def _reranker(self, choice: str | bool | None) -> Reranker | None:
        """The reranker of one search: as configured, none (False), or another one, which is kept."""
        if isinstance(choice, str) and choice != self.config.rerank_model:
            if choice not in self._rerankers:
                self._rerankers[choice] = self._load_reranker(choice)
            return self._rerankers[choice]
        return None if choice is False else self.reranker

    def _load_reranker(self, name: str) -> Reranker:
        from epicrag.index.rerank import CrossReranker

        return CrossReranker(self._model_path(name), name, device=self.config.device)

    @cached_property
    def engine(self) -> Engine:
        if self._given_engine is not None:
            return self._given_engine
        path = self._model_path(self.config.model)
        from epicrag.serving.engine import Engine

        return Engine.load(
            path,
            name=self.config.model,
            store=self.kv_store,
            device=self.config.device,
            dtype=self.config.dtype,
            quantize=self.config.quantize,
            compile_mode=self._compile_mode,
            kv_memory_bytes=self.config.kv_memory,
            host_kv_memory_bytes=self.config.host_kv_memory,
            gpu_memory_utilization=self.config.gpu_memory_utilization,
            kv_dtype=None if self.config.kv_dtype == "auto" else self.config.kv_dtype,
            cache_folder=self.config.home / "cache",
            **self._engine_options,
        )

    @cached_property
    def recogniser(self) -> Recogniser:
        """Finds the passages of the index in flat text; from any thread."""
        from epicrag.recognise import Recogniser

        return Recogniser(self.engine.tokenizer, index=self.config.index)

    @cached_property
    def counter(self) -> TokenCounter:
        """Counts tokens as the serving model does, without its weights."""
        if self._given_counter is not None:
            return self._given_counter
        from epicrag.serving.tokenizer import UnitTokenizer

        return UnitTokenizer.load(self._model_path(self.config.model))

    @property
    def _compile_mode(self) -> str:
        """The mode that the configured policy is defined with, where it is; else the configured one."""
        return self._policy(None).compile_mode or self.config.compile

    def _model_path(self, name: str) -> Path:
        """Return a model's folder, ready to load. The libraries are silenced before their import."""
        from epicrag.models import Models

        hush()
        enforce_offline(self.config)
        return Models(self.config).ensure(name, self._say)

    @property
    def given_engine(self) -> Engine | None:
        """The engine that was given; None where it is loaded as configured."""
        return self._given_engine

    def embedder_identity(self) -> str:
        """A cheap identity of the embedder, without loading it; "" when there is none to be had."""
        if self._given_embedder is not None:
            return self._given_embedder.fingerprint
        return self._identity(self.config.embed_model)

    def engine_identity(self) -> str:
        """A cheap identity of the model and of what decides the KV, without loading it."""
        config = self.config
        if self._given_engine is not None:
            return self._given_engine.profile
        settings: tuple[object, ...] = (
            config.device,
            config.dtype,
            config.quantize,
            self._compile_mode,
        )
        if config.kv_dtype != "auto":
            settings = (*settings, f"kv {config.kv_dtype}")
        return self._identity(config.model, *settings)

    def model_fingerprint(self) -> str | None:
        """The fingerprint of the configured model, without loading it; None where it is not on this machine."""
        if self._given_engine is not None:
            return self._given_engine.fingerprint
        from epicrag.models import Models
        from epicrag.serving.fingerprint import model_fingerprint

        try:
            folder = Models(self.config).path(self.config.model)
        except EpicragError:
            return None
        return model_fingerprint(folder, self.config.home / "cache", self.config.quantize)

    def _identity(self, name: str, *settings: object) -> str:
        from epicrag.identity import identity_of

        return identity_of(name, self._model_path(name), *settings)

    # --- the verbs ---

    def ingest(
        self,
        paths: Sequence[str | Path] | str | Path,
        *,
        kv: bool = True,
        dry_run: bool = False,
        yes: bool = False,
        wait: float = 0.0,
        progress: Progress | None = None,
    ) -> IngestResult:
        """Make the index equal to the files at and below `paths`; other documents are not touched.

        A path may be an address: of a page, or of a sitemap, which stands for its pages. `kv` compiles the
        KV of every chunk that lacks it. A document that fails is reported, keeps its old version, and stops
        nothing. MassDeleteError: more than half of the index would go and `yes` is False. LockedError:
        another process is writing, and was for `wait` seconds. Ctrl-C ends the run early, with a result
        that says `interrupted`; the next run resumes.
        """
        from epicrag.sources import sources_of

        given = [paths] if isinstance(paths, str | Path) else paths
        if not self.exists:
            _refuse_missing(given)
        manner = Manner(kv=kv, dry_run=dry_run, yes=yes, wait=wait)
        with self._writable(dry_run) as tools:
            say = self._saying(progress)
            sources = sources_of(given, tools.config, tools.catalog, say)
            return ingest(tools, sources, manner, progress)

    def ingest_from(
        self, source: Source, manner: Manner, progress: Progress | None = None
    ) -> IngestResult:
        """`ingest` for a source of any kind (`epicrag.connectors.found`)."""
        with self._writable(manner.dry_run) as tools:
            return ingest(tools, [source], manner, progress)

    def ingest_documents(
        self,
        documents: Iterable[Any],
        *,
        root: str,
        kv: bool = True,
        yes: bool = False,
        wait: float = 0.0,
        progress: Progress | None = None,
    ) -> IngestResult:
        """Make what the index holds of `root` equal to these documents of LlamaIndex.

        `root` is the name of where they come from: documents of an earlier call under the same name that
        are not among them are deleted. Each is cited as `reader:root/id`.
        """
        from epicrag.connectors.llamahub import Documents

        manner = Manner(kv=kv, yes=yes, wait=wait)
        return self.ingest_from(
            Documents(root, documents, limits_of(self.config)), manner, progress
        )

    def ingest_reader(
        self,
        reader: str,
        arguments: Mapping[str, Any],
        root: str,
        manner: Manner,
        progress: Progress | None = None,
    ) -> IngestResult:
        """`ingest_documents` for what a reader class of LlamaIndex loads, named as `module:Class`."""
        from epicrag.connectors.llamahub import Documents, load

        if progress:
            progress(Event("doing", message=f"loading documents with {reader}"))
        documents = load(reader, arguments)
        return self.ingest_from(
            Documents(root, documents, limits_of(self.config)), manner, progress
        )

    def ingest_bytes(
        self, name: str, data: bytes, manner: Manner, progress: Progress | None = None
    ) -> IngestResult:
        """Make one document of bytes; `name` says their format, and is cited as `stdin:name`."""
        from epicrag.connectors.stream import Stream

        return self.ingest_from(Stream(name, data, limits_of(self.config)), manner, progress)

    def watch(
        self,
        paths: Sequence[str | Path],
        manner: Manner,
        progress: Progress,
        *,
        stop: threading.Event | None = None,
        debounce: float = 0.4,
    ) -> bool:
        """`ingest` now, and again whatever changes, until `stop` is set; return whether interrupted.

        Ctrl-C between two runs raises KeyboardInterrupt. Where most of the index would go in the course
        of it, nothing is deleted and a note says so, unless `manner.yes`.
        """
        from epicrag.watch import Watch

        for path in paths:
            if is_address(path):
                raise UsageError(f"{path} cannot be watched", "--watch follows files and folders")
        if not self.exists:
            _refuse_missing(paths)
        watch = Watch(
            self.ingest_from,
            self.config,
            [Path(path) for path in paths],
            progress,
            kv=manner.kv,
            yes=manner.yes,
            wait=manner.wait,
            debounce=debounce,
            stop=stop or threading.Event(),
        )
        return watch.follow()

    def _saying(self, progress: Progress | None) -> Callable[[str], None] | None:
        return (lambda text: progress(Event("doing", message=text))) if progress else None

    @contextmanager
    def _writable(self, dry_run: bool) -> Iterator[Pipeline]:
        """A dry run over no index is planned against an empty one, of which nothing stays."""
        if dry_run and "catalog" not in self.__dict__ and not self.exists:
            with TemporaryDirectory() as folder:
                config = replace(self.config, index=Path(folder))
                with Pipeline(config, create=True) as empty:
                    yield empty
            return
        yield self

    @property
    def exists(self) -> bool:
        """Whether there is an index, be it an empty one."""
        from epicrag.index.catalog import FILE_NAME

        return (self.config.index / FILE_NAME).exists()

    def search(self, query: str, *, k: int | None = None, **options: Any) -> list[Hit]:
        """Return the `k` best passages for a query, best first, each text once; `options` are those of `find`."""
        return list(self.find(query, k=k, **options).hits)

    def find(
        self,
        query: str,
        *,
        k: int | None = None,
        filter: str | Filter | None = None,
        mode: str | None = None,
        weights: tuple[float, float] | None = None,
        rerank: str | bool | None = None,
        min_score: float | str | None = None,
    ) -> Found:
        """Return the `k` best passages for a query, and whether they speak of it.

        `filter` says which passages may be found: `year>=2020 and path~"manual/*"`. `mode`, `weights` (dense,
        words), `rerank` (a model, or False) and `min_score` ("auto", or a cosine) are as configured unless they
        are given.
        IndexEmptyError: nothing is in the index. MismatchError: made with another embedder.
        UsageError: the filter cannot be read, or names a field that no document has.
        """
        with self.turn:
            return self._find(query, k, filter, mode, weights, rerank, min_score)

    def _find(
        self,
        query: str,
        k: int | None,
        filter: str | Filter | None,
        mode: str | None,
        weights: tuple[float, float] | None,
        rerank: str | bool | None,
        min_score: float | str | None,
    ) -> Found:
        query = _readable(query, "query")
        self.refuse_empty()
        from epicrag.index.filters import parse_filter
        from epicrag.index.retrieve import Request, check_embedder, find

        config = self._searching(mode, weights, min_score)
        request = Request(
            query,
            k=k or config.top_k,
            mode=config.search_mode,
            weights=config.hybrid_weights,
            filter=parse_filter(filter) if isinstance(filter, str) else filter,
            reranker=self._reranker(rerank),
            min_score=config.min_score,
        )
        check_embedder(self.catalog, self.embedder)
        found = find(self.catalog, self.vectors, self.embedder, request)
        check_embedder(self.catalog, self.embedder)  # a rebuild may have switched in between
        self._count(found.hits)
        return found

    def _count(self, hits: Sequence[Hit]) -> None:
        """Count what was retrieved; with a KV folder of its own the index stays as it is."""
        if self._kv_folder is None:
            self.uses.note(hits, self.kv_store)

    def ask(
        self,
        question: str,
        **options: Any,
    ) -> Answer:
        """Answer a question from the documents; `options` are those of `stream`."""
        return self.stream(question, **options).finish()

    def stream(
        self,
        question: str,
        *,
        k: int | None = None,
        policy: Policy | str | None = None,
        sampling: Sampling | None = None,
        strict: bool = False,
        shuffle_seed: int | None = None,
        chunks: Sequence[Hit] | None = None,
        history: Sequence[Turn] = (),
        query: str | None = None,
        namespace: str = "",
        system: str | None = None,
        cite: bool = True,
        say: Callable[[str], None] | None = None,
        **search: Any,
    ) -> AnswerStream:
        """Retrieve now, and answer while the result is iterated.

        `chunks` are taken in place of retrieval, in their order. `shuffle_seed` puts the passages in a
        random order. `history` is the conversation so far, of which the oldest turns are left out where not
        all fit. `query` is what is searched for; without it a follow-up question is condensed as configured.
        `search` are options of `find`. `namespace` keeps what is found again of the conversation apart from that of others. `system` stands in
        place of the configured system prompt. `cite` False puts no markers into the text. `say` is told what
        takes long. Nothing relevant: `answered` is False, or AbstainedError under `strict`.
        """
        self._refuse_closed()
        question = _readable(question, "question")
        policy = self._policy(policy)
        if query is None and history and chunks is None:
            query = self._condensed(question, history)
        with self.turn:
            if self._given_engine is None:
                # A model that is not there is said before the search.
                self._model_path(self.config.model)
            hits, relevance, spent_ms = self._hits(query or question, k, chunks, search)
            if shuffle_seed is not None:
                random.Random(shuffle_seed).shuffle(hits)
            searched = "" if chunks is not None else query or question
            ask = Ask(
                question,
                tuple(hits),
                self.config.model,
                spent_ms,
                strict,
                relevance,
                cite and not (sampling and sampling.grammar),  # JSON with markers is none
                query=searched,
            )
            if not hits or (relevance and not relevance.is_relevant):
                return AnswerStream(ask, None)
            prompt = self.prompt(question, hits)
            prompt = replace(
                prompt,
                system=prompt.system if system is None else system,
                history=tuple(history),
                namespace=namespace,
            )
            sampling = sampling or self.sampling()
            if history:
                prompt, kept = fitted(self.engine, prompt, sampling.max_tokens)
                ask = replace(ask, history=kept)
            lacking = self.foretell_kv(prompt, policy, sampling.max_tokens, say)
            self._expect_kv(policy, prompt, hits, lacking)
        generation = self.engine.generate(prompt, policy=policy, sampling=sampling)

        def on_end() -> list[str]:
            if self._is_closed:
                return []
            with self.turn:
                self._note_kv(policy, prompt, hits)
                return self._kept(policy, [prompt.pieces[index] for index in lacking])

        return AnswerStream(ask, generation, on_end=on_end)

    def _condensed(self, question: str, history: Sequence[Turn]) -> str:
        """What to search for when a question comes in a conversation."""
        from epicrag.condense import along, model_rewriter

        def rewrite(question: str, turns: Sequence[Exchange]) -> str:
            return model_rewriter(self.engine)(
                question, turns
            )  # loaded where one is to be rewritten

        return along(question, history, self.config.condense, rewrite).query

    def foretell_kv(
        self,
        prompt: Prompt | Chat,
        policy: Policy,
        n_new: int,
        say: Callable[[str], None] | None = None,
    ) -> dict[int, int]:
        """Say how much KV has to be computed before the first word; return it by piece, in tokens."""
        lacking = self.engine.lacking(prompt, policy, n_new=n_new)
        say = say or self._say
        if lacking and say:
            say(
                f"computing the KV of {_passages(len(lacking))} first ({sum(lacking.values()):,} tokens)"
            )
        return lacking

    def _expect_kv(
        self, policy: Policy, prompt: Prompt, hits: Sequence[Hit], lacking: Iterable[int]
    ) -> None:
        """Say what KV is worth that is about to be computed: it must not push out what is used more."""
        if self.config.kv_disk is None or policy.compile_mode:
            return
        counts = self.catalog.uses_of([hits[index].chunk.id for index in lacking])
        self.uses.expect(
            {
                self.engine.key_of(prompt.pieces[index]): counts.get(hits[index].chunk.id, 0)
                for index in lacking
            }
        )

    def _kept(self, policy: Policy, pieces: Sequence[Piece]) -> list[str]:
        """What to tell of KV that was computed for an answer: that it is on disk now, and until when."""
        if self._kv_folder:
            return []
        keys = {self.engine.key_of(piece, policy.compile_mode) for piece in pieces}
        kept = {key for key in keys if self.kv_store.contains(key)}
        if not kept:
            return []
        is_noted = kept <= self.catalog.kv_keys()
        until = "" if is_noted else " until the next ingest"
        note = f"the KV of {_passages(len(kept))} was computed for this answer and is kept{until}"
        return [f"{note}: the next question over the same passages does without that"]

    def _note_kv(self, policy: Policy, prompt: Prompt, hits: Sequence[Hit]) -> None:
        """Tell the catalog which KV the answer has left on disk, so that ingest keeps it with its chunk.

        KV of another kind than the index holds is not noted: the next ingest removes it.
        """
        engine, catalog = self.engine, self.catalog
        if engine.refusal or policy.reuse != "chunks" or policy.compile_mode or self._kv_folder:
            return
        known = {hit.row: piece for hit, piece in zip(hits, prompt.pieces, strict=True)}
        missing = {row: p for row, p in known.items() if row >= 0 and not catalog.kv_key(row)}
        if not missing:
            return
        with suppress(EpicragError):  # a reader of an index that it may not write to
            if not catalog.setting("kv_profile"):
                catalog.set_setting("kv_profile", engine.profile)
                catalog.set_setting("kv_own_keys", json.dumps(sorted(engine.own_keys())))
                describe(catalog, engine)
            if catalog.setting("kv_profile") == engine.profile:
                keys = [(row, engine.key_of(piece)) for row, piece in missing.items()]
                catalog.set_kv([(row, key) for row, key in keys if self.kv_store.contains(key)])

    def _hits(
        self,
        question: str,
        k: int | None,
        chunks: Sequence[Hit] | None,
        search: Mapping[str, Any],
    ) -> tuple[list[Hit], Relevance | None, float]:
        """Return the passages, each text once, what speaks for them, and the milliseconds it took."""
        if chunks is not None:
            once: dict[str, Hit] = {}
            for hit in chunks:
                once.setdefault(hit.chunk.id, hit)
            return list(once.values()), None, 0.0
        self.refuse_empty()
        _ = self.embedder, self.vectors, self.reranker  # loading them is no part of the question
        began = time.perf_counter()
        found = self.find(question, k=k, **search)
        return list(found.hits), found.relevance, (time.perf_counter() - began) * 1000

    def prompt(self, question: str, hits: Sequence[Hit]) -> Prompt:
        """What the engine is asked when these passages, in this order, are to answer a question."""
        from epicrag.serving.prompt import Piece, Prompt

        pieces = tuple(Piece(hit.chunk.model_text, self._before(hit)) for hit in hits)
        return Prompt(system=self.config.system_prompt, pieces=pieces, question=question)

    def _before(self, hit: Hit) -> str | None:
        """The passage before a hit; a chunk that is not of this index (row below 0) has none."""
        before = self.catalog.previous(hit.row) if hit.row >= 0 else None
        return before.model_text if before else None

    def _policy(self, policy: Policy | str | None) -> Policy:
        from epicrag.serving.policies import parse_policy

        if policy is None or isinstance(policy, str):
            return parse_policy(policy or self.config.link_policy)
        return policy

    def sampling(self, **choices: Any) -> Sampling:
        """Return how to choose tokens: as configured, but for `choices` (fields of `Sampling`)."""
        from epicrag.serving.sample import Sampling

        return Sampling(**{"max_tokens": self.config.max_tokens, **choices})

    def status(self) -> Status:
        """Describe the index from what ingest left in it; no model is loaded."""
        setting, counts = self.catalog.setting, self.catalog.counts()
        sizes, wanted = self.kv_store.sizes(), self.catalog.kv_keys()
        retrievals, with_kv = self.catalog.retrievals()
        other = sizes.keys() - wanted - own_keys(self.catalog)
        embedder: dict[str, str] = json.loads(setting("embedder") or "{}")
        return Status(
            index=self.config.index,
            generation=self.catalog.generation,
            last_ingest=setting("last_ingest"),
            documents=counts.documents,
            chunks=counts.chunks,
            tokens=counts.tokens,
            vectors=counts.vectors,
            kv_entries=len(sizes),
            kv_bytes=sum(sizes.values()),
            kv_bytes_per_token=int(setting("kv_bytes_per_token") or 0) or None,
            chunks_with_kv=sum(key in sizes for _, _, key in self.catalog.kv_rows()),
            kv_other_entries=len(other),
            kv_other_bytes=sum(sizes[key] for key in other),
            kv_dtype=setting("kv_dtype"),
            kv_budget=self.config.kv_disk,
            retrievals=retrievals,
            retrievals_with_kv=with_kv,
            model=setting("model_name"),
            model_fingerprint=setting("model_fingerprint"),
            dtype=setting("model_dtype"),
            compile=setting("model_compile_mode"),
            embedder=embedder.get("name"),
            embedder_fingerprint=embedder.get("fingerprint"),
            configured_model=self.config.model,
            configured_embedder=self.config.embed_model,
            kv_bytes_per_text_token=self._bytes_per_text_token(sizes),
        )

    def _bytes_per_text_token(self, sizes: Mapping[str, int]) -> float | None:
        """`sizes`: bytes on disk by key. What several passages share counts once."""
        keys = self.catalog.chunk_keys()
        tokens = {key: n for _, n, key in keys if key is not None and key in sizes}
        total = sum(tokens.values())
        return sum(sizes[key] for key in tokens) / total if total else None

    def refuse_empty(self) -> None:
        if not self.catalog.chunk_count():
            raise self._empty(f"nothing is in the index at {self.config.index}")

    def _empty(self, message: str) -> IndexEmptyError:
        return IndexEmptyError(message, "put documents into it: epicrag ingest PATH")


def _passages(n: int) -> str:
    return f"{n:,} passage{'' if n == 1 else 's'}"


def _readable(text: str, what: str) -> str:
    """Return text that a tokenizer takes: bytes of the command line that are not UTF-8 become "?"."""
    if not text.strip():
        raise UsageError(f"the {what} is empty", f'give it as text: epicrag ask "{what} …"')
    return text.encode("utf-8", "replace").decode("utf-8")


def _refuse_missing(paths: Sequence[str | Path]) -> None:
    """Before an index is made: a path that is not there cannot be one that was deleted."""
    for path in paths:
        if not is_address(path) and not os.path.lexists(os.path.expanduser(path)):
            raise no_such_path(path)


def _overruled(config: Config, flags: dict[str, object]) -> Config:
    """Check flags as `load_config` does, and lay those that were given over a configuration."""
    checked = load_config(flags, environ={})
    return replace(config, **{key: getattr(checked, key) for key in flags if key != "config"})
