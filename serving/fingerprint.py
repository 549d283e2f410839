"""What a model is, as a digest: its configuration and every byte of its weights."""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from pathlib import Path

QUANTIZE_VERSION = 1
"""Of how weights are rounded: another rounding makes other KV."""

_DIGEST = re.compile("[0-9a-f]{64}")
_SETTINGS = ("config.json", "generation_config.json")


def file_digest(path: Path, cache: Path | None = None) -> str:
    """SHA-256 of a file in hex. `cache` is a JSON file that remembers digests by path, size, place and times.

    The time of the last change of the file itself is among them, which a copy cannot set: tools that keep the
    time of its contents (cp -p, rsync, tar) do not hide that it is another file.
    """
    stat = path.stat()
    facts = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
    name = "|".join(map(str, (path.resolve(), *facts)))
    known = _read(cache)
    if name in known:
        return known[name]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if cache is not None:
        _write(cache, {**_read(cache), name: digest})
    return digest


def model_fingerprint(
    folder: Path, cache_folder: Path | None = None, quantize: str = "none"
) -> str:
    """Digest of config and weights of a transformers model folder: equal means the same KV.

    Rounded weights are other weights: `quantize`, and how the rounding is done, is part of it.
    """
    cache = cache_folder / "digests.json" if cache_folder else None
    total = hashlib.sha256()
    for name in _SETTINGS:
        if (folder / name).is_file():
            spec = json.loads((folder / name).read_text(encoding="utf-8"))
            spec.pop("transformers_version", None)
            spec.pop("_name_or_path", None)
            total.update(json.dumps(spec, sort_keys=True).encode())
    for weights in sorted(folder.glob("*.safetensors")):
        total.update(f"{weights.name}:{file_digest(weights, cache)}".encode())
    if quantize != "none":
        total.update(f"quantize:{quantize}:{QUANTIZE_VERSION}".encode())
    return total.hexdigest()


def _read(cache: Path | None) -> dict[str, str]:
    """The remembered digests; a damaged file is no more than a forgotten one."""
    try:
        known = json.loads(cache.read_text(encoding="utf-8")) if cache else {}
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {k: v for k, v in known.items() if isinstance(v, str) and _DIGEST.fullmatch(v)}


def _write(cache: Path, known: dict[str, str]) -> None:
    """Remember; where nothing can be written, the digest is computed again next time."""
    temporary = cache.with_name(f"{cache.name}.{os.getpid()}")
    with suppress(OSError):
        cache.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(known, indent=0), encoding="utf-8")
        temporary.replace(cache)
