"""The entry point of the `epicrag` command: from here on an interrupt is no traceback."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def run() -> None:
    """Import the command and run it. Imported before that is only what Python has anyway."""
    try:
        from epicrag.cli.main import run as begun

        begun()
    except KeyboardInterrupt:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.write("error: interrupted\n")
            sys.stderr.flush()
        os._exit(130)  # what was being imported is not asked to tidy up
