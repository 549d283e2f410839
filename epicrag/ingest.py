"""Make the index equal to its sources: look, plan, read, split, embed, store, and compile what lacks KV.

One transaction a document, so that a run killed at any moment leaves an index that opens; what is left
to do is derived from what is there, so that the next run resumes. Nothing heavy is loaded before it is
known to be needed: a run over unchanged files loads neither torch nor a model.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice, pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, Protocol

from epicrag.errors import EpicragError, UsageError
from epicrag.types import Chunk, Document, Entry, FileReport, FileStatus, Unread

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from numpy import float32
    from numpy.typing import NDArray

    from epicrag.config import Config
    from epicrag.connectors.found import Found, Source
    from epicrag.connectors.split import TokenCounter
    from epicrag.index.catalog import Catalog, DocumentRow
    from epicrag.index.embed import Embedder
    from epicrag.index.kvstore import KVStore
    from epicrag.index.sync import Plan
    from epicrag.index.vectors import VectorIndex
    from epicrag.serving.engine import Engine
    from epicrag.serving.prompt import Piece
    from epicrag.uses import Uses

EMBED_BATCH = 128
"""Passages handed to the embedder at once: bounds memory whatever the size of a document."""
SPARE_CHUNKS = 20_000
"""Passages of deleted documents whose vectors a run holds, about: for documents that moved and changed."""
ENTRY_BYTES = 1024
"""What a file of KV takes besides its tokens: its header, or a little more."""
_EXTRA_TOKENS = 4
_KEPT = " (the version read earlier is kept)"
_GIVEN = "given_roots"
_NO_BYTES = hashlib.sha256().hexdigest()
KV_BATCH = 16
"""Chunks noted in the catalog at once, and then compiled."""


@dataclass(frozen=True, slots=True)
class Event:
    """How far a run is: `done` of `total` files ("file"), of the passages of one long file ("embed") or
    of the tokens to compile ("kv"); or a word to the user ("note"), or what begins now ("doing"). A bench
    counts its measurements ("bench"), an evaluation its questions ("eval"), a rebuild its passages ("reembed")
    and an archive its files ("archive")."""

    stage: Literal["file", "embed", "reembed", "kv", "archive", "note", "doing", "bench", "eval"]
    done: int = 0
    total: int = 0
    report: FileReport | None = None
    computed: int = 0
    """Tokens whose KV this run has computed; `done` also counts those that were there already."""
    seconds: float = 0.0
    """Since the stage began."""
    message: str = ""
    left: float | None = None
    """Seconds that it will still take, where the run knows better than by what is done of the total."""


Progress = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What a run did. `kv_bytes` is what the index's KV store holds after it."""

    files: tuple[FileReport, ...]
    kv_bytes: int = 0
    kv_chunks: int = 0
    """Chunks that this run compiled."""
    kv_tokens: int = 0
    """Tokens of these chunks' text; the few that join a passage to others in a prompt are not counted."""
    ms: float = 0.0
    dry_run: bool = False
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    ignored: int = 0
    """Files and folders passed over in silence: hidden, or matched by an ignore rule."""
    held: int = 0
    """Documents that are gone or empty and still in the index: they were most of it, and nobody has said yes."""
    removed: int = 0
    """Documents that this run forgot: their files are gone, or hold no text any more."""

    @property
    def counts(self) -> dict[str, int]:
        """How many files have each status; a status that does not occur is left out."""
        return dict(Counter(report.status for report in self.files))

    @property
    def chunks(self) -> int:
        return sum(report.chunks for report in self.files)

    @property
    def tokens(self) -> int:
        return sum(report.tokens for report in self.files)


class MassDeleteError(UsageError):
    """The plan deletes more than half of the index, or all that a path held which is gone, and nobody has
    said yes."""

    code = "mass_delete"

    def __init__(
        self,
        deleted: int,
        known: int,
        emptied: int = 0,
        missing: Sequence[str] = (),
        given: Sequence[str] = (),
    ) -> None:
        """`emptied`: how many of the deleted have files that are still there, and empty. `missing`: what was
        asked for and is gone. `given`: all that was asked for."""
        empty = f" ({emptied} of their files are there and empty)" if emptied else ""
        gone = f"{missing[0]} is not there, or empty: " if missing else ""
        if len(missing) > 1:
            gone = f"{missing[0]} and {len(missing) - 1} more are not there, or empty: "
        super().__init__(
            f"{gone}this would delete {deleted} of the {known} documents in the index{empty}",
            "check that the folder is there and complete (an unmounted disk looks like this); "
            f"if you mean it: epicrag ingest {_words(given)} --yes",
        )
        self.deleted = deleted
        self.known = known


class Tools(Protocol):
    """What a run works with. Each property loads its room at first use."""

    @property
    def config(self) -> Config: ...
    @property
    def catalog(self) -> Catalog: ...
    @property
    def vectors(self) -> VectorIndex: ...
    @property
    def kv_store(self) -> KVStore: ...
    @property
    def uses(self) -> Uses: ...
    @property
    def counter(self) -> TokenCounter: ...
    @property
    def embedder(self) -> Embedder: ...
    @property
    def engine(self) -> Engine: ...
    def embedder_identity(self) -> str: ...
    def engine_identity(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Manner:
    """How a run is to be carried out; see `Pipeline.ingest`."""

    kv: bool = True
    dry_run: bool = False
    yes: bool = False
    wait: float = 0.0
    """Seconds to wait for another process that is writing."""
    hold: bool = False
    """Where most of the index would go, leave that and do the rest, instead of MassDeleteError."""
    lately: int = 0
    """Documents deleted a moment ago, as part of what may be one loss."""
    light: bool = False
    """Where nothing has changed, do nothing at all: the KV was looked through a moment ago."""


def ingest(
    tools: Tools,
    sources: Sequence[Source],
    manner: Manner,
    progress: Progress | None = None,
) -> IngestResult:
    """Carry out one run; see `Pipeline.ingest`."""
    began = time.perf_counter()
    run = _Run(tools, progress or (lambda event: None), manner=manner)
    interrupted = False
    with ExitStack() as stack:
        for source in sources:
            stack.callback(source.close)
        parts = [source.find() for source in sources if source.is_remote]
        tools.catalog.database.refuse_removed()  # the lock would make its folder anew
        stack.enter_context(_lock(tools.config.index, manner, run.note))
        parts += [source.find() for source in sources if not source.is_remote]
        plan = run.guard(run.plan(parts))
        if manner.dry_run:
            run.foretell(plan)
        elif plan.has_work or not manner.light:
            interrupted = run.carry_out(plan, manner.kv)
    return run.result(began, dry_run=manner.dry_run, interrupted=interrupted)


def _lock(
    folder: Path, manner: Manner, say: Callable[[str], None]
) -> AbstractContextManager[object]:
    if manner.dry_run:
        return nullcontext()
    from epicrag.index.lock import WriterLock

    return WriterLock(folder, manner.wait, say)


@dataclass(slots=True)
class _Run:
    """The state of one run: its reports so far, and what it has computed."""

    tools: Tools
    progress: Progress
    reports: dict[str, FileReport] = field(default_factory=dict)
    known: dict[str, DocumentRow] = field(default_factory=dict)
    found: Found | None = None
    manner: Manner = field(default_factory=lambda: Manner())
    known_count: int = 0
    held: int = 0
    removed: int = 0
    emptied: frozenset[str] = frozenset()
    """Known documents whose files have no byte any more."""
    replaced: frozenset[str] = frozenset()
    """Documents below where a given link led before, that have a successor at the same place."""
    outdated: frozenset[str] = frozenset()
    """Known documents that older readers read."""
    damaged: frozenset[str] = frozenset()
    """Documents, asked for by name, of which passages have changed on disk."""
    spare_vectors: dict[str, NDArray[float32]] = field(default_factory=dict)
    """By chunk id: of documents that this run deleted. What they held may stand elsewhere now."""
    notes: list[str] = field(default_factory=list)
    checked: Embedder | None = None
    done: int = 0
    total: int = 0
    kv_chunks: int = 0
    kv_tokens: int = 0
    only: AbstractSet[int] | None = None
    """The rows of the chunks whose KV is wanted; None: of all."""

    # --- before anything is written ---

    def plan(self, parts: list[Found]) -> Plan:
        """Compare what was found with the catalog; refuse a path that neither has heard of."""
        from epicrag.connectors.found import merged, told_apart
        from epicrag.index.sync import plan

        self.known = {row.path: row for row in self.tools.catalog.documents()}
        self.known_count = len(self.known)
        self.found = found = merged(parts)
        for name, root in found.absent:
            self._check_known(name, root)
        if found.ignored and not found.entries:
            self.note(f"every file found is hidden or matched by an ignore rule ({found.ignored})")
        left = self._left(found)
        planned = plan(
            self.tools.catalog,
            found.entries,
            found.roots,
            held=found.held | left,
            spare=found.spare,
        )
        taken = {entry.path for entry in found.entries}
        told = told_apart((*found.reports, *map(_lost, planned.twice)), taken)
        self.reports = {path: self._if_kept(report) for path, report in told.items()}
        self.emptied = frozenset(e.path for e in planned.change if _is_without_bytes(e))
        return self._resplit(planned)

    def _left(self, found: Found) -> frozenset[str]:
        """Return the documents below where a given name led before and leads no more, and no other name leads.

        What now stands at the same place below that name is not lost, but replaced.
        """
        from epicrag.index.sync import is_below

        before = _given(self.tools.catalog)
        moved = {
            before[name]: root
            for name, root in found.given.items()
            if before.get(name, root) != root
        }
        if not moved:
            return frozenset()
        stays = {root for name, root in before.items() if name not in found.given}
        stays |= {*found.given.values(), *found.roots}
        left = frozenset(
            path
            for path in self.known
            if is_below(path, moved.keys()) and not is_below(path, stays)
        )
        entries = {entry.path for entry in found.entries}
        self.replaced = frozenset(
            path
            for path in left
            for old, new in moved.items()
            if _is_below(path, old) and new + path[len(old) :] in entries
        )
        return left

    def _if_kept(self, report: FileReport) -> FileReport:
        """Say of a known file that is over a limit now that its old version stays."""
        is_kept = report.status == "skipped" and self.found and report.path in self.found.spare
        if is_kept and any(_is_below(path, report.path) for path in self.known):
            return replace(report, reason=f"{report.reason}{_KEPT}")
        return report

    def _check_known(self, name: str, root: str) -> None:
        if not any(_is_below(known, root) for known in self.known):
            raise no_such_path(name)

    def _resplit(self, plan: Plan) -> Plan:
        """Count as changed what was split with another chunk size than asked for now, or read by older readers."""
        from epicrag.connectors.formats import READING

        wanted, sizes = self.tools.config.chunk_tokens, _chunk_sizes(self.tools.catalog)
        self.outdated = frozenset(
            entry.path for entry in plan.unchanged if self.known[entry.path].reading < READING
        )
        stale = {
            entry.path
            for entry in plan.unchanged
            if _size_at(sizes, entry.path) not in (None, wanted)
        } | self.outdated
        self.damaged = frozenset(e.path for e in plan.unchanged if self._is_damaged(e.path))
        stale |= self.damaged
        return replace(
            plan,
            change=(*plan.change, *(e for e in plan.unchanged if e.path in stale)),
            unchanged=tuple(e for e in plan.unchanged if e.path not in stale),
        )

    def _is_damaged(self, path: str) -> bool:
        """Whether a document that was asked for by its name has passages whose text changed on disk."""
        asked = self.found.asked if self.found else ()
        is_named = any(path == root or path.startswith(f"{root}!/") for root in asked)
        return is_named and self.tools.catalog.changed_texts(path) > 0

    def guard(self, plan: Plan) -> Plan:
        """Refuse to delete most of the index, or leave that out, unless somebody has said yes.

        A file that was truncated to nothing counts as one that is gone: a full disk leaves such. What was
        asked for by name and is gone takes nothing with it unasked, be it a single document.
        """
        doomed = len(set(plan.delete) - self.replaced) + len(self.emptied)
        lost = self._lost(plan)
        is_most = not self._may_remove(doomed)
        if self.manner.yes or not (lost or is_most):
            return plan
        error = self._mass_delete(doomed, lost)
        if self.manner.dry_run:
            self.note(f"{error.message}: without --yes that is asked about")
            return plan
        if not self.manner.hold:
            raise error
        if not is_most:
            self.held = len(lost)
            return replace(plan, delete=tuple(path for path in plan.delete if path not in lost))
        self.held = doomed
        change = tuple(entry for entry in plan.change if entry.path not in self.emptied)
        return replace(plan, delete=(), change=change)

    def _lost(self, plan: Plan) -> AbstractSet[str]:
        """Those of the documents to be deleted that lie at or below what was asked for and is gone."""
        from epicrag.index.sync import is_below

        missing = set(self.found.missing) if self.found else set()
        return {p for p in plan.delete if p not in self.replaced and is_below(p, missing)}

    def _mass_delete(self, doomed: int, lost: AbstractSet[str]) -> MassDeleteError:
        found = self.found
        missing = (
            [root for root in found.missing if any(_is_below(p, root) for p in lost)]
            if found
            else []
        )
        given = found.asked if found else ()
        return MassDeleteError(doomed, self.known_count, len(self.emptied), missing, given)

    def _may_remove(self, count: int) -> bool:
        """May so many documents go in this run, without being asked about?"""
        from epicrag.index.sync import is_most

        return self.manner.yes or not is_most(count, self.known_count, self.manner.lately)

    def foretell(self, plan: Plan) -> None:
        """Report what the plan would do; whether its content can be read is not yet known."""
        self._report_untouched(plan)
        for entry in plan.add:
            refusal = entry.refusal()
            status: FileStatus = "added" if refusal is None else "unsupported"
            self._report(FileReport(entry.path, status, refusal))
        for entry in plan.change:
            if entry.path in self.emptied:
                reason = "no text in it (its earlier text would be removed from the index)"
                self._report(FileReport(entry.path, "empty", reason))
            else:
                self._report(self._if_outdated(FileReport(entry.path, "changed")))
        for old, entry in plan.rename:
            self._report(self._renamed(old, entry))
        for path in plan.delete:
            self._report(self._deleted(path))

    # --- the work ---

    def carry_out(self, plan: Plan, kv: bool) -> bool:
        """Write; return whether the user interrupted. What is done until then stays done."""
        catalog = self.tools.catalog
        self._refuse_foreign_embedder(bool(plan.add or plan.change))
        generation = catalog.generation
        try:
            self._apply(plan)
            self._settle()
            if catalog.generation != generation:
                self.tools.vectors.refresh()
            own = self._compile() if kv else own_keys(catalog)
            self.tools.kv_store.gc(catalog.kv_keys() | own)
        except KeyboardInterrupt:
            return True
        catalog.set_setting("last_ingest", datetime.now(UTC).isoformat(timespec="seconds"))
        return False

    def _refuse_foreign_embedder(self, is_needed: bool) -> None:
        """Before anything is written: refuse another embedder than the index was made with.

        The embedder is loaded only if its files are not the very ones that were checked before.
        """
        catalog, identity = self.tools.catalog, self.tools.embedder_identity()
        if identity != catalog.setting("embedder_identity") and (is_needed or self.known):
            self._embedder()
            catalog.set_setting("embedder_identity", identity)

    def _embedder(self) -> Embedder:
        from epicrag.index.retrieve import check_embedder

        if self.checked is None:
            check_embedder(self.tools.catalog, self.tools.embedder)
            self.checked = self.tools.embedder
        return self.checked

    def _apply(self, plan: Plan) -> None:
        catalog, found = self.tools.catalog, self.found
        self.total = sum(map(len, (plan.add, plan.change, plan.rename, plan.delete)))
        self._report_untouched(plan)
        if found and found.web_roots:  # before the documents: what has no origin is never missed
            catalog.origins.note(found.origins)
        self._rename(plan.rename)
        for path in plan.delete:
            self._delete(path, is_reused=bool(plan.add or plan.change))
        for entry in plan.change:
            self._report(self._if_outdated(self._try_document(entry, "changed")))
        for entry in plan.add:
            self._report(self._try_document(entry, "added"))
        if found and found.web_roots:
            catalog.origins.prune(found.web_roots, found.origins, found.spare)

    def _rename(self, pairs: Sequence[tuple[str, Entry]]) -> None:
        """Relabel documents; the same bytes under another extension may read otherwise: read again."""
        self.tools.catalog.rename_documents([(old, entry.path) for old, entry in pairs])
        reports = [self._renamed(old, entry) for old, entry in pairs]
        self.known |= {entry.path: self.known[old] for old, entry in pairs}
        for (old, entry), report in zip(pairs, reports, strict=True):
            if PurePosixPath(old).suffix != PurePosixPath(entry.path).suffix:
                report = self._try_document(entry, "renamed")
            self._report(report)

    def _if_outdated(self, report: FileReport) -> FileReport:
        """Say why a file is read again that has not changed."""
        if report.status == "changed" and report.path in self.damaged:
            return replace(report, reason="read anew: what the index held of it was damaged")
        if report.status == "changed" and report.path in self.outdated:
            return replace(report, reason="read anew by a newer epicrag")
        return report

    def _delete(self, path: str, *, is_reused: bool) -> None:
        """Forget a document; its vectors are kept for this run, for what moved and was edited at once."""
        if is_reused:
            self._spare([chunk_id for _, chunk_id in self.tools.catalog.chunk_ids(path)])
        self.tools.catalog.delete_document(path)
        self.removed += path not in self.replaced
        self._report(self._deleted(path))

    def _spare(self, ids: Sequence[str]) -> None:
        """Keep the vectors of passages that go: another document of this run may hold them."""
        if ids and len(self.spare_vectors) < SPARE_CHUNKS:
            self.spare_vectors |= self.tools.catalog.vectors_of(set(ids))

    def _try_document(self, entry: Entry, status: FileStatus) -> FileReport:
        """Bring one document in; whatever is wrong with it concerns this document only."""
        try:
            return self._document(entry, status)
        except EpicragError:  # the disk, the device, the model: would fail for the next one too
            raise
        except Exception as error:  # noqa: BLE001 - a reader's bug must not cost the other files
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            return FileReport(entry.path, "failed", reason)

    def _document(self, entry: Entry, status: FileStatus) -> FileReport:
        from epicrag.connectors.split import split

        document = entry.read()
        if isinstance(document, Unread):
            return self._unread(entry, document)
        chunks = split(document, self.tools.counter, chunk_tokens=self.tools.config.chunk_tokens)
        if not chunks:
            return self._unread(entry, Unread("empty", "no text in it"))
        self._put(document, chunks)
        tokens = sum(chunk.n_tokens for chunk in chunks)
        return FileReport(entry.path, status, chunks=len(chunks), tokens=tokens)

    def _put(self, document: Document, chunks: Sequence[Chunk]) -> None:
        """Store a document. Passages that it had before, behind the same passage, keep their KV."""
        catalog, vectors = self.tools.catalog, self._embed(chunks)
        old = catalog.chunk_ids(document.path)
        before = [chunk_id for _, chunk_id in old]
        self._spare(before)
        known = dict(zip(_in_context(before), [row for row, _ in old], strict=True))
        keys = {pair: key for pair, row in known.items() if (key := catalog.kv_key(row))}
        rows = catalog.put_document(document, chunks, vectors)
        pairs = zip(rows, _in_context([chunk.id for chunk in chunks]), strict=True)
        if kept := [(row, keys[pair]) for row, pair in pairs if pair in keys]:
            catalog.set_kv(kept)

    def _embed(self, chunks: Sequence[Chunk]) -> list[NDArray[float32]]:
        """Return the vectors of passages; what the index knows under another name is not computed again."""
        vectors = self.tools.catalog.vectors_of({chunk.id for chunk in chunks})
        texts = {chunk.id: chunk.model_text for chunk in chunks if chunk.id not in vectors}
        for chunk_id in self.spare_vectors.keys() & texts.keys():
            vectors[chunk_id] = self.spare_vectors[chunk_id]
            del texts[chunk_id]
        began, ids = time.perf_counter(), list(texts)
        for at in range(0, len(ids), EMBED_BATCH):
            some = ids[at : at + EMBED_BATCH]
            found = self._embedder().passages([texts[chunk_id] for chunk_id in some])
            vectors.update(zip(some, map(finite, found), strict=True))
            if len(ids) > EMBED_BATCH:
                seconds = time.perf_counter() - began
                done = min(at + EMBED_BATCH, len(ids))
                self.progress(Event("embed", done, len(ids), seconds=seconds))
        return [vectors[chunk.id] for chunk in chunks]

    def _unread(self, entry: Entry, unread: Unread) -> FileReport:
        """A failure or a limit keeps the old version answerable; a file that now holds no text takes it away,
        until most of the index would have gone so."""
        reason = unread.reason
        if entry.path not in self.known:
            return FileReport(entry.path, unread.status, reason)
        if unread.status in ("failed", "skipped"):
            return FileReport(entry.path, unread.status, reason + _KEPT)
        if not self._may_remove(self.removed + 1):
            self.held += 1
            again = _words([entry.path])
            reason += f"; most of the index would go{_KEPT}; if that is right: epicrag ingest {again} --yes"
            return FileReport(entry.path, "failed", reason)
        self.tools.catalog.delete_document(entry.path)
        self.removed += 1
        reason += " (its earlier text was removed from the index)"
        return FileReport(entry.path, unread.status, reason)

    def _settle(self) -> None:
        """Remember which chunk size these sources were split with, and where their names led."""
        catalog, wanted = self.tools.catalog, self.tools.config.chunk_tokens
        sizes = _chunk_sizes(catalog)
        for root in self.found.areas if self.found else ():
            sizes = {path: size for path, size in sizes.items() if not _is_below(path, root)}
            if _size_at(sizes, root) != wanted:
                sizes[root] = wanted
        catalog.set_setting("chunk_tokens", json.dumps(sizes))
        if self.found and self.found.given and not self.held:
            catalog.set_setting(_GIVEN, json.dumps(_given(catalog) | dict(self.found.given)))

    # --- keys and values ---

    def _compile(self) -> AbstractSet[str]:
        """Compile every chunk that lacks its KV; return the engine's own keys where they are known."""
        catalog, identity = self.tools.catalog, self.tools.engine_identity()
        is_current = catalog.setting("kv_identity") == identity
        if is_current and (refusal := catalog.setting("kv_refusal")):
            self.note(refusal)
            return own_keys(catalog)
        pending = self._pending()
        each = int(catalog.setting("kv_bytes_per_token") or 0)
        fitting = self._that_fits(each, pending) if is_current and each else None
        nothing = not (pending if fitting is None else fitting)
        if nothing and (is_current or not catalog.chunk_count()):
            return own_keys(catalog)
        engine = self.tools.engine
        describe(catalog, engine)
        if engine.refusal:
            catalog.set_setting("kv_identity", identity)
            self.note(engine.refusal)
            return own_keys(catalog)
        if catalog.setting("kv_profile") != engine.profile:
            # Before the first entry of the new kind: a run that is killed must not leave two kinds mixed.
            catalog.set_setting("kv_identity", "")
            catalog.clear_kv()
            catalog.set_setting("kv_profile", engine.profile)
            pending, fitting = self._pending(), None
        catalog.set_setting("kv_own_keys", json.dumps(sorted(engine.own_keys())))
        if fitting is None:
            self._compile_own(engine)
            fitting = self._that_fits(engine.kv_bytes_per_token, pending)
        self._compile_all(engine, fitting)
        catalog.set_setting("kv_identity", identity)
        return engine.own_keys()

    def _compile_own(self, engine: Engine) -> None:
        """Store the engine's own entries before the budget is shared out: without them nothing is compiled."""
        if self.tools.config.kv_disk is not None:
            self.tools.uses.expect({})
            for _ in engine.compile(()):
                pass

    def _pending(self) -> dict[int, int]:
        """Return row: tokens of the chunks that lack their KV, the most retrieved first, then in reading order."""
        contains = self.tools.kv_store.contains
        lacking = {
            row: tokens
            for row, tokens, key in self.tools.catalog.chunk_keys()
            if (self.only is None or row in self.only) and not (key and contains(key))
        }
        uses = self.tools.catalog.uses() if lacking else {}
        return dict(sorted(lacking.items(), key=lambda item: -uses.get(item[0], 0)))

    def _that_fits(self, each: int, pending: dict[int, int]) -> dict[int, int]:
        """Return the chunks, in their order, whose KV finds room; say what is left out, and why.

        each: bytes that a token takes. Under a budget, KV that is there makes room for what is retrieved more.
        """
        if not pending:
            return {}
        room = _room_bytes(self.tools.config.index)
        on_disk = _take(pending, lambda row: _entry_bytes(pending[row], each), room)
        worth_it = self._worth_it(pending, each)
        fitting = {row: pending[row] for row in on_disk if row in worth_it}
        if left := len(pending) - len(fitting):
            is_full = len(on_disk) < len(worth_it)
            why = "finds no room on disk" if is_full else "does not fit into kv_disk"
            help = "free some space" if is_full else "raise kv_disk"
            self.note(
                f"the KV of {left:,} of {len(pending):,} chunks {why} "
                f"({each:,} bytes a token) and is computed when it is first used: the most retrieved come "
                f"first; {help}, set kv_dtype to int8, or use a smaller model"
            )
        return fitting

    def _worth_it(self, pending: dict[int, int], each: int) -> AbstractSet[int]:
        """Those of the pending chunks whose KV the budget has room for: the most retrieved of all.

        Of chunks that are retrieved alike those keep theirs that have it, so that no run undoes another's work.
        """
        budget, catalog = self.tools.config.kv_disk, self.tools.catalog
        if budget is None:
            return pending.keys()
        sizes, uses = self.tools.kv_store.sizes(), catalog.uses()
        budget -= sum(sizes.get(key, 0) for key in own_keys(catalog))
        there = {row: key for _, row, key in catalog.kv_rows() if key in sizes}
        chosen = self.only or ()
        rows = sorted(
            (*there, *pending),
            key=lambda row: (-uses.get(row, 0), row not in chosen, row in pending),
        )
        counted: set[str] = set()  # several chunks may share one entry

        def cost(row: int) -> int:
            if row in pending:
                return _entry_bytes(pending[row], each)
            is_new = there[row] not in counted
            counted.add(there[row])
            return sizes[there[row]] if is_new else 0

        return {row for row in _take(rows, cost, budget) if row in pending}

    def _compile_all(self, engine: Engine, pending: dict[int, int]) -> None:
        """Compile in batches, each noted before it is begun: at no moment is there KV that nobody knows of.

        A note without its KV costs nothing, as it does where the budget has evicted it; KV without a note is
        taken for nobody's.
        """
        began, done, total = time.perf_counter(), 0, sum(pending.values())
        uses = self.tools.catalog.uses()
        for rows, pieces in _batches(self.tools.catalog, pending):
            keys = [engine.key_of(piece) for piece in pieces]
            self.tools.catalog.set_kv(list(zip(rows, keys, strict=True)))
            if self.tools.config.kv_disk is not None:
                worth = (uses.get(row, 0) for row in rows)
                self.tools.uses.expect(dict(zip(keys, worth, strict=True)))
            for i, _, computed in engine.compile(pieces):
                done += pending[rows[i]]
                self.kv_chunks += computed > 0
                self.kv_tokens += pending[rows[i]] if computed else 0
                seconds = time.perf_counter() - began
                self.progress(Event("kv", done, total, None, self.kv_tokens, seconds))

    # --- the report ---

    def _report(self, report: FileReport) -> None:
        self.reports[report.path] = report
        self.done += 1
        self.progress(Event("file", min(self.done, self.total), self.total, report))

    def _report_untouched(self, plan: Plan) -> None:
        """Say first what needs no work: passed over by the walk, or unchanged."""
        for entry in plan.unchanged:
            report = self._as_known(entry.path, FileReport(entry.path, "unchanged"))
            self.reports[entry.path] = report
        doomed = set(plan.delete)
        for path in sorted(self.reports):
            if path not in doomed:  # said when it is done, with the reason of the walk
                self.progress(Event("file", 0, self.total, self.reports[path]))

    def _as_known(self, path: str, report: FileReport) -> FileReport:
        row = self.known[path]
        return replace(report, chunks=row.chunks, tokens=row.tokens)

    def _renamed(self, old: str, entry: Entry) -> FileReport:
        return self._as_known(old, FileReport(entry.path, "renamed", f"was {old}"))

    def _deleted(self, path: str) -> FileReport:
        """The report of a document that is gone: why, where it is still there and passed over now."""
        from epicrag.index.sync import above

        passed = self.found.passed if self.found else {}
        for place in above(path):
            if (report := self.reports.get(place)) and report.status != "deleted":
                return FileReport(path, "deleted", report.reason)
            if place in passed:
                return FileReport(path, "deleted", passed[place])
        return FileReport(path, "deleted")

    def note(self, message: str) -> None:
        self.notes.append(message)
        self.progress(Event("note", message=message))

    def result(self, began: float, *, dry_run: bool, interrupted: bool) -> IngestResult:
        return IngestResult(
            files=tuple(self.reports[path] for path in sorted(self.reports)),
            kv_bytes=0 if dry_run else self.tools.kv_store.nbytes(),
            kv_chunks=self.kv_chunks,
            kv_tokens=self.kv_tokens,
            ms=(time.perf_counter() - began) * 1000,
            dry_run=dry_run,
            interrupted=interrupted,
            notes=tuple(self.notes),
            ignored=self.found.ignored if self.found else 0,
            held=self.held,
            removed=self.removed,
        )


def compile_kv(
    tools: Tools, rows: AbstractSet[int], progress: Progress | None = None
) -> IngestResult:
    """Compute the KV of these chunks where it is not on disk; the result has no files. See `warm`."""
    began = time.perf_counter()
    run = _Run(tools, progress or (lambda event: None), only=rows)
    interrupted = False
    with _lock(tools.config.index, Manner(), lambda text: None):
        try:
            run._compile()
        except KeyboardInterrupt:
            interrupted = True
    return run.result(began, dry_run=False, interrupted=interrupted)


def _batches(
    catalog: Catalog, pending: Iterable[int]
) -> Iterator[tuple[tuple[int, ...], tuple[Piece, ...]]]:
    """Yield the rows and pieces of pending chunks, in their order, few enough to hold in memory."""
    rows = iter(pending)
    while batch := tuple(islice(rows, KV_BATCH)):
        yield batch, tuple(piece_of(catalog, row) for row in batch)


def piece_of(catalog: Catalog, row: int) -> Piece:
    """A chunk's text, with the text before it in its document."""
    from epicrag.serving.prompt import Piece

    previous = catalog.previous(row)
    return Piece(catalog.chunk(row).model_text, previous.model_text if previous else None)


def _take(rows: Iterable[int], cost: Callable[[int], int], room: int) -> list[int]:
    """The first of these rows that there is room for, up to the one that finds none."""
    taken = []
    for row in rows:
        room -= cost(row)
        if room < 0:
            break
        taken.append(row)
    return taken


def _entry_bytes(tokens: int, each: int) -> int:
    """What a chunk's KV takes on disk, or a little more: the model is shown more than its text."""
    return (tokens + _EXTRA_TOKENS) * each + ENTRY_BYTES


def _in_context(ids: Sequence[str]) -> list[tuple[str, str]]:
    """Return for each chunk, by id, what its KV may depend on: the text before it, and its own."""
    return list(pairwise(["", *ids]))


def _lost(pair: tuple[Entry, Entry]) -> FileReport:
    """The report of what is not read because another has its path."""
    entry, other = map(str, pair)
    return FileReport(
        pair[0].path, "skipped", f"{entry} has the path of {other}, which is read"[:500]
    )


def no_such_path(path: str | Path) -> UsageError:
    """The error for a path that is not there, and that the index has not heard of either."""
    return UsageError(f"no such file or folder: {path}", "give a path that exists")


def _words(given: Sequence[str]) -> str:
    """What was asked for, as a shell takes it again."""
    return shlex.join(given) if given else "PATH"


def _is_without_bytes(entry: Entry) -> bool:
    """The digest decides: the size of a page that was not fetched again is 0 too."""
    try:
        return entry.size == 0 and entry.digest() == _NO_BYTES
    except OSError:
        return False


def _is_below(path: str, root: str) -> bool:
    from epicrag.index.sync import is_below

    return is_below(path, {root})


def finite(windows: NDArray[float32]) -> NDArray[float32]:
    """Leave out the windows of a passage that an embedder made nothing of: they are not to be found."""
    import numpy as np

    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(windows, axis=1)
    kept: NDArray[float32] = windows[np.isfinite(lengths) & (lengths > 0)]
    return kept


def _room_bytes(folder: Path) -> int:
    """Bytes of the disk that KV may take: what is free, less a tenth for everybody else."""
    free = shutil.disk_usage(folder).free
    return free - free // 10


def describe(catalog: Catalog, engine: Engine) -> None:
    """Leave what `status` and `doctor` show, and the next run needs to know, without loading the model."""
    facts = {
        "kv_refusal": engine.refusal or "",
        "kv_bytes_per_token": engine.kv_bytes_per_token,
        "kv_dtype": engine.kv_dtype,
        # What the keys of its KV are made with besides the texts: see `keys.py`.
        "kv_cache_profile": "" if engine.refusal else engine.cache.profile,
    }
    names = ("name", "fingerprint", "tokenizer_fingerprint", "dtype", "compile_mode")
    for name, value in {**facts, **{f"model_{n}": getattr(engine, n) for n in names}}.items():
        catalog.set_setting(name, str(value))


def own_keys(catalog: Catalog) -> AbstractSet[str]:
    """Return the KV keys of the engine's own units, as the last run that loaded it left them."""
    return set(json.loads(catalog.setting("kv_own_keys") or "[]"))


def _given(catalog: Catalog) -> dict[str, str]:
    """Return where each name that was given led when it was last ingested."""
    stored: dict[str, str] = json.loads(catalog.setting(_GIVEN) or "{}")
    return stored


def asked_for(catalog: Catalog) -> AbstractSet[str]:
    """Return the files, folders and sites that were ever ingested by name."""
    return {*_chunk_sizes(catalog), *_given(catalog).values()}


def _chunk_sizes(catalog: Catalog) -> dict[str, int]:
    """Return the chunk size that was last used below each ingested root."""
    stored: dict[str, int] = json.loads(catalog.setting("chunk_tokens") or "{}")
    return stored


def _size_at(sizes: dict[str, int], path: str) -> int | None:
    """Return the size recorded for the nearest place at or above this path."""
    from epicrag.index.sync import above

    places = [place for place in above(path) if place in sizes]
    return sizes[max(places, key=len)] if places else None
