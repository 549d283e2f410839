"""What `doctor` looks at in an index: that its parts are whole, fit each other, and fit the settings."""

from __future__ import annotations

import json
import os
import random
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from epicrag.checkup import Check, fail, ok, warn
from epicrag.connectors.folder import is_missing
from epicrag.documents import is_there
from epicrag.errors import DamagedError, EpicragError, MismatchError
from epicrag.gc import leftovers, orphans
from epicrag.index.sync import is_below
from epicrag.ingest import asked_for, own_keys
from epicrag.rebuild import embedder_of, misfits

if TYPE_CHECKING:
    from epicrag.pipeline import Pipeline

_WORDS_LOOKED_AT = 64  # chunks
_NAMED = 5  # documents in a hint
_DAMAGED, _MISMATCH = DamagedError.exit_code, MismatchError.exit_code
SAMPLE = 32
"""KV files whose checksums are compared without `--deep`."""
_AGAIN = "move the index away and run `epicrag ingest PATH` again; your documents are untouched"


def soundness(pipeline: Pipeline, *, deep: bool) -> Iterator[Check]:
    """Look at an index. Writes nothing; loads the embedder, and with `deep` the model."""
    yield _catalog(pipeline, deep)
    try:
        yield (texts := _texts(pipeline))
        if texts.state != "ok":  # all that reads them would stumble over it
            return
        yield from _vectors(pipeline)
        yield _words(pipeline)
        yield from _staging(pipeline)
        yield from _kv(pipeline, deep)
        yield _writer(pipeline)
        yield _leftovers(pipeline)
        yield _sources(pipeline)
        yield from _embedder(pipeline)
        yield _model(pipeline)
        if deep:
            yield _generation(pipeline)
    except DamagedError as error:  # a part that could not even be read
        yield fail("catalog", error.message, error.hint, _DAMAGED)


# --- the catalog ---------------------------------------------------------------------------------


def _catalog(pipeline: Pipeline, deep: bool) -> Check:
    faults = pipeline.catalog.database.faults(thorough=deep)
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        return fail("catalog", f"{faults[0]}{more}", _AGAIN, _DAMAGED)
    counts = pipeline.catalog.counts()
    how = "every page and index" if deep else "quickly"
    return ok(
        "catalog",
        f"sound ({how}): {_n(counts.documents, 'document')}, {_n(counts.chunks, 'chunk')}",
    )


def _texts(pipeline: Pipeline) -> Check:
    """Ids are made of the texts: one that changed on disk does not fit its id."""
    catalog, n = pipeline.catalog, pipeline.catalog.chunk_count()
    bad = catalog.changed_texts()
    if not bad:
        return ok("texts", f"{n:,} of {n:,} chunks are what they were")
    paths = [row.path for row in catalog.documents() if catalog.changed_texts(row.path)]
    what = f"the text of {bad:,} of {_n(n, 'chunk')} has changed on disk, such as of {paths[0]}"
    some = shlex.join(paths[:_NAMED]) + (" …" if len(paths) > _NAMED else "")
    fix = f"read them again, and nothing else; their KV stays: epicrag ingest {some}"
    return fail("texts", what, fix, _DAMAGED)


def _vectors(pipeline: Pipeline) -> Iterator[Check]:
    """Every passage can be found, and the fast copy holds what the catalog does."""
    from epicrag.index.vectors import VectorIndex

    catalog = pipeline.catalog
    ids, rows = catalog.vector_rows()
    bare = catalog.chunk_count() - len(set(rows.tolist()))
    for _ in catalog.vector_batches():  # raises where one is not of unit length
        pass
    if bare:
        what = f"{_n(bare, 'chunk')} without a vector: never found"
        yield warn("vectors", what, "epicrag rebuild --embed-only")
    else:
        yield ok("vectors", f"{_n(len(ids), 'vector')}, every chunk has its own")
    why = VectorIndex.fault(catalog, pipeline.config.index)
    if why is None:
        yield ok("vector copy", f"{_n(len(ids), 'vector')}, as in the catalog")
    elif why in ("missing", "old"):
        what = f"{why}: made again when it is next needed"
        yield warn("vector copy", what, "epicrag rebuild", "vectors")
    else:
        yield fail("vector copy", why, "epicrag rebuild", _DAMAGED, "vectors")


def _words(pipeline: Pipeline) -> Check:
    """The index of words has a row for each chunk and none besides, finds them, and is kept so."""
    try:
        n, lost = words_of(pipeline)
        what = f"{_n(lost, 'row')} of words too many or too few" if lost else _unlike(pipeline)
    except DamagedError as error:
        n, what = 0, error.message
    if what:
        return fail("words", what, "epicrag rebuild", _DAMAGED, "words")
    return ok("words", f"of {_n(n, 'chunk')}")


def _unlike(pipeline: Pipeline) -> str:
    """Say what is wrong with the words of a sample of chunks, or with what keeps them equal; "" if nothing is."""
    from epicrag.index.words import joined

    rows = pipeline.catalog.database.rows
    (kept,) = rows(
        "SELECT count(*) FROM sqlite_master WHERE name IN ('words_insert', 'words_delete')"
    )[0]
    if kept != 2:
        return "the triggers that keep the words equal to the passages are gone"
    chunks = [row for row, _, _ in pipeline.catalog.chunk_rows()]
    for row in chunks[:: max(len(chunks) // _WORDS_LOOKED_AT, 1)]:
        chunk = pipeline.catalog.chunk(row)
        body = joined(f"{chunk.table or ''} {chunk.text}")
        held = rows("SELECT body FROM words WHERE rowid = ?", (row,))
        word = next(iter(body.split()), None)
        if held != [(body,)]:
            return f"the words of chunk {chunk.id} are not those of its text"
        asked = f'body : "{word}"'
        if word and not rows("SELECT 1 FROM words WHERE words MATCH ? AND rowid = ?", (asked, row)):
            return f"chunk {chunk.id} is not found by its own words"
    return ""


def words_of(pipeline: Pipeline) -> tuple[int, int]:
    """Return how many rows of words there are, and how many are too many or too few."""
    rows = pipeline.catalog.database.rows
    (n,) = rows("SELECT count(*) FROM words")[0]
    (extra,) = rows("SELECT count(*) FROM words WHERE rowid NOT IN (SELECT row FROM chunks)")[0]
    (lacking,) = rows("SELECT count(*) FROM chunks WHERE row NOT IN (SELECT rowid FROM words)")[0]
    return n, extra + lacking


def _staging(pipeline: Pipeline) -> Iterator[Check]:
    from epicrag.index.staging import Staging

    staging = Staging(pipeline.catalog)
    if (target := staging.embedder) is not None:
        of = pipeline.catalog.chunk_count()
        what = f"embedding with {target['name']} was begun and not finished: {staging.count:,} of {of:,} chunks"
        fix = f"epicrag rebuild --embed-only --embed-model {target['name']}, or drop it: epicrag gc"
        yield warn("rebuild", what, fix)


# --- KV ------------------------------------------------------------------------------------------


def _kv(pipeline: Pipeline, deep: bool) -> Iterator[Check]:
    sizes, wanted = pipeline.kv_store.sizes(), pipeline.catalog.kv_keys()
    yield _checksums(pipeline, sorted(sizes), deep)
    missing = len({row for _, row, key in pipeline.catalog.kv_rows() if key not in sizes})
    bare = pipeline.catalog.chunk_count() - len(pipeline.catalog.kv_rows()) + missing
    total = sum(sizes.values())
    budget = pipeline.config.kv_disk
    if budget is not None and total > budget:
        what = f"{_mib(total)} on disk, and the budget kv_disk is {_mib(budget)}"
        yield warn("KV", what, "epicrag gc, or a larger kv_disk", "gc")
    elif bare:
        what = f"{_n(bare, 'chunk')} without KV on disk: it is computed when it is first used"
        yield warn("KV", what, "epicrag warm")
    else:
        yield ok("KV", f"{len(wanted):,} entries, {_mib(total)} on disk, every chunk has its own")
    yield _foreign(pipeline)


def _checksums(pipeline: Pipeline, keys: Sequence[str], deep: bool) -> Check:
    looked_at = keys if deep else random.Random(0).sample(keys, min(SAMPLE, len(keys)))
    bad = damaged_kv(pipeline, looked_at)
    if bad:
        what = f"{len(bad):,} of {len(looked_at):,} files are not whole, such as {bad[0]}"
        fix = "epicrag doctor --fix: they are dropped, and computed again when they are used"
        return fail("KV files", what, fix, _DAMAGED, "kv")
    rest = "" if len(looked_at) == len(keys) else f" of {len(keys):,} (--deep: all)"
    return ok("KV files", f"{len(looked_at):,}{rest} have their checksums")


def damaged_kv(pipeline: Pipeline, keys: Sequence[str]) -> list[str]:
    """Return the keys whose files are there and not whole."""
    from epicrag.index.kvstore import Missing

    found = ((key, pipeline.kv_store.look(key)) for key in keys)
    return [key for key, kv in found if isinstance(kv, Missing) and kv.reason == "damaged"]


def _foreign(pipeline: Pipeline) -> Check:
    """KV of other models, modes or earlier texts: it can never be taken for KV of a passage, and takes room."""
    doomed = orphans(pipeline)
    noted = pipeline.catalog.kv_keys() | own_keys(pipeline.catalog)
    if lost := pipeline.kv_store.keys() - noted - doomed.keys():
        what = f"{len(lost):,} entries are of passages, and the catalog has lost the notes of them"
        return warn("foreign KV", what, "epicrag doctor --fix, or epicrag gc", "gc")
    if not doomed:
        return ok("foreign KV", "none")
    what = f"{len(doomed):,} entries, {_mib(sum(doomed.values()))}: of other models, settings or earlier texts"
    return warn("foreign KV", what, "epicrag gc", "gc")


def _model(pipeline: Pipeline) -> Check:
    """Whether the KV of the index is of the configured model."""
    setting = pipeline.catalog.setting
    made, name = setting("model_fingerprint"), pipeline.config.model
    if not made or not pipeline.catalog.kv_keys():
        return ok("model of the KV", "no KV yet")
    mine = pipeline.model_fingerprint()
    if mine is None:
        return warn(
            "model of the KV", f"{setting('model_name')}; {name} is not here to be compared"
        )
    if mine == made:
        return ok("model of the KV", f"{setting('model_name')} ({made[:12]}), as configured")
    what = (
        f"the KV is of {setting('model_name')} ({made[:12]}), and {name} ({mine[:12]}) is configured:"
        " none of it can be used"
    )
    return warn("model of the KV", what, "epicrag warm, or --model as before")


# --- files ---------------------------------------------------------------------------------------


def _writer(pipeline: Pipeline) -> Check:
    from epicrag.index.lock import owner

    who = owner(pipeline.config.index)
    return warn("writer", f"another epicrag{who} is writing now") if who else ok("writer", "none")


def _leftovers(pipeline: Pipeline) -> Check:
    found = list(leftovers(pipeline.config.index))
    if not found:
        return ok("leftovers", "none")
    what = f"{len(found):,} temporary files of killed runs, {_mib(sum(size for _, size in found))}"
    return warn("leftovers", what, "epicrag gc", "gc")


def _sources(pipeline: Pipeline) -> Check:
    """Whether the files that were read are still there; what is no file is not looked for."""
    paths = [row.path for row in pipeline.catalog.documents() if row.path.startswith("/")]
    gone = [path for path in paths if not is_there(path)]
    if not gone:
        return ok("sources", f"{len(paths):,} files are where they were")
    what = f"{len(gone):,} of {len(paths):,} files are gone, such as {gone[0]}"
    roots = {_root_of(path, asked_for(pipeline.catalog)) for path in gone}
    lost = sorted(root for root in roots if is_missing(root))
    if lost or (len(gone) == len(paths) and len(gone) > 1):
        places = " and ".join(lost or sorted(roots))
        return warn("sources", what, f"is the disk of {places} mounted? its documents are kept")
    names = shlex.join(sorted(roots))
    return warn("sources", what, f"make the index equal to what is there: epicrag ingest {names}")


def _root_of(path: str, roots: Collection[str]) -> str:
    """What was asked for that a file belongs to; its folder, where that is not known."""
    return max(
        (root for root in roots if is_below(path, {root})), key=len, default=os.path.dirname(path)
    )


# --- with the models -----------------------------------------------------------------------------


def _embedder(pipeline: Pipeline) -> Iterator[Check]:
    """Whether the configured embedder is the index's, and a passage finds itself."""
    made = embedder_of(pipeline)
    if not made:
        return
    try:
        embedder = pipeline.embedder
    except EpicragError as error:
        yield fail("embedder of the index", error.message, error.hint, error.exit_code)
        return
    if made["fingerprint"] != embedder.fingerprint:
        what = (
            f"the vectors are of {made['name']} ({made['dim']} numbers, {str(made['fingerprint'])[:8]}), and "
            f"{embedder.name} ({embedder.dim} numbers, {embedder.fingerprint[:8]}) is configured"
        )
        fix = f"epicrag rebuild --embed-only --embed-model {embedder.name}, or --embed-model {made['name']}"
        yield fail("embedder of the index", what, fix, _MISMATCH)
        return
    yield ok(
        "embedder of the index", f"{embedder.name} ({embedder.fingerprint[:12]}), as configured"
    )
    yield _round_trip(pipeline)


def _round_trip(pipeline: Pipeline) -> Check:
    """Embed a sample of passages anew: each must come out as its own vectors are."""
    n, bad = misfits(pipeline)
    if not n:
        return ok("round trip", "nothing to find yet")
    if not bad:
        return ok(
            "round trip",
            f"{_n(n, 'passage')} of {pipeline.catalog.chunk_count():,}, embedded anew, find themselves",
        )
    where = pipeline.catalog.chunk(bad[0]).document
    what = f"{len(bad):,} of {_n(n, 'passage')}, embedded anew, do not find themselves, such as of {where}"
    return fail("round trip", what, "epicrag rebuild --embed-only", _DAMAGED)


def _generation(pipeline: Pipeline) -> Check:
    """Load the model and let it write three tokens over one passage; its KV goes to a folder that is dropped."""
    from epicrag.pipeline import Pipeline as Other
    from epicrag.types import Hit

    row, chunk = next(iter(pipeline.catalog.all_chunks()), (None, None))
    if row is None or chunk is None:
        return ok("generation", "nothing to read yet")
    with TemporaryDirectory() as scratch:
        given = pipeline.given_engine
        config = replace(pipeline.config, kv_memory=min(pipeline.config.kv_memory, 1 << 30))
        with Other(config, engine=given, kv_folder=Path(scratch)) as other:
            try:
                sampling = other.sampling(max_tokens=3)
                answer = other.ask(
                    "What is this?", sampling=sampling, chunks=[Hit(row, chunk, 1.0)]
                )
            except EpicragError as error:
                return fail("generation", error.message, error.hint, error.exit_code)
    return ok(
        "generation",
        f"{answer.usage.completion_tokens} tokens by {answer.model}: {json.dumps(answer.text)}",
    )


def _n(n: int, word: str) -> str:
    return f"{n:,} {word}{'' if n == 1 else 's'}"


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:,.1f} MiB"
