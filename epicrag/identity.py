"""Tell cheaply whether a model is still the one that was loaded before, without loading it.

An identity that differs proves nothing: the model is then loaded, and its fingerprint decides.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from pathlib import Path


def identity_of(name: str, path: Path, *settings: object) -> str:
    """Return a digest over a model's name, the sizes and times of its files, settings and machine."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    facts = [name, str(path), *map(str, settings), *_machine()]
    for file in files:
        stat = file.stat()
        times = f"{stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}"
        facts.append(f"{file.relative_to(path)} {stat.st_size} {times}")
    return hashlib.sha256("\n".join(facts).encode("utf-8", "surrogateescape")).hexdigest()


def _machine() -> list[str]:
    """What else decides a model's numbers: library versions, and whether there is a GPU to be used."""
    versions = [_version(name) for name in ("epicrag", "torch", "transformers")]
    gpu = f"{Path('/dev/nvidiactl').exists()} {os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}"
    return [*versions, gpu]


def _version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{package} not installed"
