"""A folder for KV that is not to stay, and the end of those that a killed run left behind."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

PREFIX = "scratch-"
STALE_SECONDS = 24 * 3600.0
"""No run takes so long: what is older was left behind by one that was killed."""


@contextmanager
def scratch(home: Path) -> Iterator[Path]:
    """A folder on the disk where indexes lie, so that reading from it takes what reading from them takes."""
    cache = home / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    for folder in cache.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(folder)
    with TemporaryDirectory(prefix=PREFIX, dir=cache) as made:
        yield Path(made)
