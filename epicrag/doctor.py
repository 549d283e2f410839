"""A look at everything that can be wrong, each with what mends it; and the repairs that can do no harm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epicrag import checkup
from epicrag.checkup import Check, bad_settings, fail, warn
from epicrag.errors import DamagedError, EpicragError, IndexEmptyError, MismatchError, UsageError
from epicrag.gc import collect
from epicrag.rebuild import rebuild
from epicrag.soundness import damaged_kv, soundness

if TYPE_CHECKING:
    from epicrag.config import Config
    from epicrag.pipeline import Pipeline

_GRAVEST = (DamagedError.exit_code, MismatchError.exit_code)
Look = Callable[[Check], None]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found, and what was mended before it."""

    checks: tuple[Check, ...]
    fixed: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 when nothing failed; else 8 for damage, 6 for another embedder, or the first failure's own."""
        codes = [check.exit_code for check in self.checks if check.state == "fail"]
        return next((code for code in (*_GRAVEST, *codes) if code in codes), 0)


def examine(
    load: Callable[[], Config],
    open_: Callable[[Config], Pipeline],
    *,
    deep: bool = False,
    fix: bool = False,
    look: Look | None = None,
) -> Diagnosis:
    """Check the machine, the settings and the index; `look` is told each check as it is made.

    With `fix`, what can be mended without losing anything is mended first, under the writer's lock: the
    fast copies are made again, KV that is damaged or of nobody is dropped.
    """
    told: list[Check] = []

    def tell(check: Check) -> None:
        told.append(check)
        if look is not None:
            look(check)

    try:
        config = load()
    except UsageError as error:
        tell(bad_settings(error))
        return Diagnosis(tuple(told))
    for check in checkup.machine(config):
        tell(check)
    fixed: list[str] = []
    try:
        with open_(config) as pipeline:
            for check in checkup.folder(pipeline.config.index):
                tell(check)
            if fix:
                fixed = repair(pipeline, list(soundness(pipeline, deep=deep)))
            for check in soundness(pipeline, deep=deep):
                tell(check)
    except IndexEmptyError as error:
        tell(warn("index", error.message, error.hint))
    except EpicragError as error:
        tell(fail("index", error.message, error.hint, error.exit_code))
    except Exception as error:  # noqa: BLE001 - what damage does to a check is damage, too
        what = f"a check could not be carried out: {type(error).__name__}: {error}"
        tell(fail("index", what, "move the index away and ingest again", DamagedError.exit_code))
    return Diagnosis(tuple(told), tuple(fixed))


def repair(pipeline: Pipeline, found: Sequence[Check]) -> list[str]:
    """Mend what may be mended of what was found; return what was done, a line each."""
    wanted = {check.repair for check in found if check.state != "ok"}
    done: list[str] = []
    if wanted & {"vectors", "words"}:
        made = rebuild(pipeline, words="words" in wanted)
        done.append(
            f"made the fast copies again: {made.vectors:,} vectors of {made.chunks:,} chunks"
        )
    if "kv" in wanted:
        done.append(_drop_damaged(pipeline))
    if "gc" in wanted:
        freed = collect(pipeline)
        done += [f"freed {one.what}: {one.files:,} files, {one.bytes:,} bytes" for one in freed]
    return done


def _drop_damaged(pipeline: Pipeline) -> str:
    """Drop every damaged file, not only those of the sample that showed there are some."""
    from epicrag.index.lock import WriterLock

    with WriterLock(pipeline.config.index):
        bad = damaged_kv(pipeline, sorted(pipeline.kv_store.keys()))
        for key in bad:
            pipeline.kv_store.delete(key)
    return f"dropped {len(bad):,} damaged KV files; they are computed again when they are used"
