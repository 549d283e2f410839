"""Which files make up the copy of the vectors, and of which state of the catalog: one small file, renamed into place.

Whoever writes into the folder holds its lock, so what the manifest does not name is left over from a kill.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from epicrag.index.segments import SUFFIX, TEMPORARY, Facts

FILE_NAME = "manifest"
_LOCK_NAME = "lock"
_MAGIC = b"epicrag vector manifest\n"
_LIMIT = 1 << 20  # of the line of JSON


class DamagedManifest(Exception):
    """The file is not what `write` left."""


@dataclass(frozen=True, slots=True, eq=False)
class Manifest:
    """The state of the catalog that was copied, the last vector id in it, and the files, by id."""

    generation: int
    stamp: str
    last_id: int
    segments: tuple[Facts, ...] = ()
    dead: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """(D,), ascending: ids in the files that the catalog no longer has."""


def read(folder: Path) -> tuple[Manifest | None, str]:
    """Return the manifest, and a name of this very version of it; None: there is none.

    DamagedManifest; OSError when the file cannot be read.
    """
    try:
        raw = (folder / FILE_NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    end = raw.find(b"\n", len(_MAGIC), _LIMIT)
    body = raw[end + 1 :]
    try:
        facts = json.loads(raw[len(_MAGIC) : end])
        digest = facts.pop("xxh3")
        if not raw.startswith(_MAGIC) or digest != _digest(facts, body) or len(body) % 8:
            raise DamagedManifest("its checksum differs")
        facts["segments"] = tuple(Facts(**segment) for segment in facts["segments"])
        return Manifest(**facts, dead=np.frombuffer(body, "<i8")), digest
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedManifest("it is no manifest") from error


def write(folder: Path, manifest: Manifest) -> str:
    """Put a manifest in place of the one before, if it is another, and return its name. OSError passes."""
    facts = asdict(manifest)
    body = np.asarray(facts.pop("dead"), "<i8").tobytes()
    digest = _digest(facts, body)
    with suppress(DamagedManifest, OSError):
        if read(folder)[1] == digest:
            return digest
    line = json.dumps({**facts, "xxh3": digest}).encode()
    temporary = folder / f"{FILE_NAME}.{secrets.token_hex(8)}{TEMPORARY}"
    try:
        temporary.write_bytes(_MAGIC + line + b"\n" + body)
        os.replace(temporary, folder / FILE_NAME)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return digest


def forget(folder: Path) -> None:
    """Remove the manifest, so that nothing in the folder counts; OSError passes through."""
    (folder / FILE_NAME).unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove what the manifest does not name: of earlier ones, or left by writers that were killed."""
    try:
        manifest, _ = read(folder)
    except DamagedManifest:
        manifest = None
    named = {segment.file for segment in manifest.segments} if manifest else set()
    for entry in os.scandir(folder):
        if entry.name.endswith((SUFFIX, TEMPORARY)) and entry.name not in named:
            with suppress(
                OSError
            ):  # a leftover costs its bytes, no more: the next save tries again
                os.unlink(entry.path)


@contextmanager
def locked(folder: Path, *, wait: bool) -> Iterator[None]:
    """Be the only one to write into the folder, which is made. BlockingIOError: another is, unless `wait`."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


def _digest(facts: dict[str, object], body: bytes) -> str:
    import xxhash

    digest = xxhash.xxh3_128(json.dumps(facts, sort_keys=True).encode())
    digest.update(body)
    return digest.hexdigest()
