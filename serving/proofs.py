"""What has been proven about a model on this machine, so that it need not be proven at every start.

A proof is a line in a small JSON file under a digest of all that it depends on. What failed is never written;
a file that is damaged, or cannot be written, proves nothing.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FILE_NAME = "proofs.json"
_MOST = 64
_LIBRARIES = ("epicrag", "torch", "transformers", "safetensors", "numba")


@dataclass(frozen=True, slots=True)
class Proofs:
    """The proofs about one model as it is run here. Without a folder, nothing is ever proven."""

    folder: Path | None
    key: str

    @classmethod
    def of(cls, folder: Path | None, *facts: object) -> Proofs:
        """`facts` say what model it is and how it is run: fingerprint, dtype, device …"""
        text = "\n".join([*map(str, facts), *_machine(), *_code()])
        return cls(folder, hashlib.sha256(text.encode()).hexdigest())

    def holds(self, what: str) -> bool:
        return self.text(what) is not None

    def text(self, what: str) -> str | None:
        """What was found when it was proven; None where it was not."""
        kept = self._read().get(self.key, {}).get(what)
        digest, _, text = kept.partition(":") if isinstance(kept, str) else ("", "", "")
        return text if digest == _digest(text) else None

    def keep(self, what: str, text: str = "") -> None:
        """Remember what was proven, and what was found."""
        if self.folder is None:
            return
        known = self._read()
        mine = {**known.pop(self.key, {}), what: f"{_digest(text)}:{text}"}
        kept = dict([*known.items(), (self.key, mine)][-_MOST:])
        file = self.folder / FILE_NAME
        temporary = file.with_name(f"{FILE_NAME}.{os.getpid()}")
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(kept, indent=0), encoding="utf-8")
            temporary.replace(file)

    def _read(self) -> dict[str, dict[str, object]]:
        try:
            text = (self.folder / FILE_NAME).read_text(encoding="utf-8") if self.folder else "{}"
            known = json.loads(text)
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(known, dict):
            return {}
        return {key: value for key, value in known.items() if isinstance(value, dict)}


def _digest(text: str) -> str:
    """What tells that a text is as it was written."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _machine() -> list[str]:
    """The libraries and the processor, which decide what the arithmetic gives."""
    import torch

    processor = torch.backends.cpu.get_cpu_capability()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return [*map(_version, _LIBRARIES), processor, gpu, f"{torch.get_num_threads()} threads"]


def _version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{package} not installed"


def _code() -> list[str]:
    """The engine's own files: a change to one of them, in a working copy, ends all proofs."""
    rooms = (Path(__file__).parent, Path(__file__).parents[1] / "kernels")
    files = sorted(file for room in rooms for file in room.resolve().glob("*.py"))
    stats = [(file, file.stat()) for file in files]
    return [f"{file.name} {stat.st_size} {stat.st_mtime_ns}" for file, stat in stats]
