"""On what something was measured: the model, the machine and the versions, so that a reader can judge."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epicrag.serving.engine import Engine

PACKAGES = ("epicrag", "torch", "transformers")


def describe(engine: Engine) -> dict[str, str | int]:
    """Return the facts about an engine and the machine it runs on."""
    import torch

    on_cpu = engine.model.device.type == "cpu"
    return {
        "model": engine.name,
        "fingerprint": engine.fingerprint[:12],
        "dtype": engine.dtype,
        "device": engine.device,
        "processor": _processor() if on_cpu else torch.cuda.get_device_name(engine.model.device),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _processor() -> str:
    """The name that the system gives its processor; Linux keeps it in a file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (names or [platform.processor() or platform.machine()])[0]
