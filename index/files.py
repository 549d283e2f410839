"""The small files beside a model's weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json(file: Path) -> Any:
    """Return the content of a configuration file, None when the model has none."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
