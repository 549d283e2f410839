"""What a user may see go wrong, each with its exit code. A message says what, and the hint what next."""

from __future__ import annotations


class EpicragError(Exception):
    """Base of every error meant for a user. `message` says what happened, `hint` what to do next."""

    exit_code = 1
    code = "unexpected"

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(EpicragError):
    """A flag, argument or configuration value that cannot be used."""

    exit_code = 2
    code = "usage"


class IndexEmptyError(EpicragError):
    """No index yet, or nothing in it."""

    exit_code = 3
    code = "no_index"


class AbstainedError(EpicragError):
    """Nothing relevant was found, and `--strict` asked to fail then."""

    exit_code = 4
    code = "abstained"


class PartialIngestError(EpicragError):
    """Some files failed; the others are in."""

    exit_code = 5
    code = "partial_ingest"


class MismatchError(EpicragError):
    """The model or embedder is not the one the index was made with."""

    exit_code = 6
    code = "mismatch"


class LockedError(EpicragError):
    """Another process is writing to the index."""

    exit_code = 7
    code = "locked"


class DamagedError(EpicragError):
    """The index on disk is damaged."""

    exit_code = 8
    code = "damaged"


class DeviceError(EpicragError):
    """A device is missing or memory ran out."""

    exit_code = 9
    code = "device"


class BusyError(EpicragError):
    """As many requests run and wait as may; this one was not taken on."""

    exit_code = 9
    code = "busy"


class OfflineError(EpicragError):
    """Something is missing and the offline switch forbids fetching it."""

    exit_code = 10
    code = "offline"


class BelowError(EpicragError):
    """An evaluation scored less than `--fail-under` asks for."""

    exit_code = 11
    code = "below"
