"""Where the server of an index is, for the programs of the person who runs it: a file that only they can read."""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epicrag import __version__
from epicrag.remote import as_json, other_server, run_file

if TYPE_CHECKING:
    from epicrag.config import Config

_log = logging.getLogger("epicrag")

_OF_INGEST_OR_PLACE = frozenset({"home", "index", "origins", "offline", "log"})


class Discovery:
    """The file of one running server."""

    def __init__(self, file: Path, facts: Mapping[str, Any]) -> None:
        self._file = file
        self._facts = facts
        self._is_there = False

    @classmethod
    def of(cls, config: Config, url: str, secret: str) -> Discovery:
        facts = {
            "schema_version": 1,
            "pid": os.getpid(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "url": url,
            "version": __version__,
            "index": os.path.abspath(config.index),
            "secret": secret,
            "settings": settings_json(config),
        }
        return cls(run_file(config.home, config.index), facts)

    def write(self) -> None:
        """Put the file there, whole or not at all. Where nothing can be written, nothing is, and the log says so.

        So it is where another server of the index still answers: the file stays that one's.
        """
        if (other := other_server(self._file)) is not None:
            _log.warning(
                "another server of this index runs at %s: `epicrag ask` goes on asking that one",
                other,
            )
            return
        temporary = self._file.with_name(f"{self._file.name}.{secrets.token_hex(8)}.tmp")
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "w", encoding="utf-8") as stream:
                json.dump(self._facts, stream)
            os.replace(temporary, self._file)
        except OSError as error:
            _log.warning(
                "%s cannot be written (%s): `epicrag ask` will not find this server",
                self._file,
                error.strerror,
            )
            with suppress(OSError):
                temporary.unlink()
            return
        self._is_there = True

    def remove(self) -> None:
        """Take it away, unless another server has put its own in its place."""
        if not self._is_there:
            return
        self._is_there = False
        with suppress(OSError, ValueError):
            if json.loads(self._file.read_text("utf-8")).get("secret") == self._facts["secret"]:
                self._file.unlink()


def settings_json(config: Config) -> dict[str, Any]:
    """The settings that may decide an answer, as JSON gives them back."""
    names = [field.name for field in fields(config) if field.name not in _OF_INGEST_OR_PLACE]
    return {name: as_json(getattr(config, name)) for name in names}
