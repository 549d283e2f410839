"""Keep the model libraries from talking: what the user reads is epicrag's own."""

from __future__ import annotations

import os

_SWITCHES = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


def hush() -> None:
    """Switch off the libraries' progress bars, advice and telemetry; to be called before their import.

    A switch that the user has set stays as it is.
    """
    for name, value in _SWITCHES.items():
        os.environ.setdefault(name, value)
