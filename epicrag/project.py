"""A folder made ready: its settings, its ignore rules, and a place for its index."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from epicrag.config import FILE_NAME, KEYS, load_config
from epicrag.errors import UsageError

IGNORE_NAME = ".epicragignore"
INDEX = ".epicrag/index"
_ABOUT = {
    "home": "indexes and models; the data folder of your system",
    "index": "from the folder of this file",
    "model": "who answers: a name of `epicrag models list`, a folder, a .gguf file or a Hugging Face id",
    "embed_model": "who finds: another one later means `epicrag rebuild --embed-only`",
    "device": "auto, cpu, cuda, cuda:N",
    "dtype": "auto, float32, bfloat16, float16",
    "quantize": "none, int8: weights in 8 bits, on a CPU",
    "chunk_tokens": "longest passage, in the model's tokens",
    "top_k": "passages put before the model",
    "search_mode": "hybrid, dense, words",
    "hybrid_weights": "of meaning and of words, in hybrid search",
    "rerank_model": "a cross-encoder: a name or a path",
    "link_policy": "what is computed again where passages meet",
    "compile": "isolated, sink, prefix, neighbour",
    "max_tokens": "longest answer",
    "min_score": "the cosine that the best passage must have",
    "kv_memory": "KV held in memory: bytes, or a size with its unit",
    "kv_disk": 'KV held on disk, such as "20 GiB"',
    "kv_dtype": 'auto, or "int8": about half on disk',
    "max_file_mb": "larger files are skipped",
    "hidden": "read hidden files, too",
    "ignore_files": "honour .gitignore and .epicragignore",
    "follow_symlinks": "follow links to folders",
    "offline": "never use the network",
    "log": "debug, info, warning, error",
    "system_prompt": "KV is compiled behind it: decide before you ingest",
}
_NONE = {"rerank_model": "none", "min_score": "auto"}
_SIZES = ("kv_memory", "host_kv_memory", "kv_disk")
_HEAD = """# Settings of epicrag for this folder: read by every command that is run here.
# A flag beats the environment, which beats this file. Lines without # are in force; the others show defaults.
# See what is in force, and why: epicrag config show --origin
"""
_IGNORE = """# What `epicrag ingest` passes over, besides what .gitignore names: the same rules.
# A document that is already in the index goes with the next ingest.
#
# drafts/
# *.log
# !keep-this.log
"""


@dataclass(frozen=True, slots=True)
class Initialised:
    """The files that were written, and those that were there already."""

    folder: Path
    index: Path
    written: tuple[Path, ...]
    kept: tuple[Path, ...]


def init(folder: Path, given: Mapping[str, str] | None = None) -> Initialised:
    """Write a commented epicrag.toml, a sample of ignore rules, and a folder for the index that git ignores.

    `given` are settings to be in force. UsageError: there is an epicrag.toml, or nothing can be written.
    """
    folder = Path(os.path.abspath(folder.expanduser()))
    settings = folder / FILE_NAME
    if os.path.lexists(settings):
        raise UsageError(
            f"{settings} exists already, and is left as it is",
            f"edit it; see it with: {_show(folder)}",
        )
    in_force = {"index": f"./{INDEX}", **(given or {})}
    wanted = {
        settings: settings_text(in_force),
        folder / IGNORE_NAME: _IGNORE,
        (folder / INDEX).parent / ".gitignore": "*\n",
    }
    try:
        written = tuple(path for path, text in wanted.items() if _write(path, text))
    except OSError as error:
        raise UsageError(f"{folder} cannot be written to: {error.strerror or error}") from error
    kept = tuple(path for path in wanted if path not in written)
    index = load_config({"config": str(settings)}, environ={}).index
    return Initialised(folder, index, written, kept)


def settings_text(in_force: Mapping[str, str]) -> str:
    """Return an epicrag.toml with every key: those in force, and the others as comments with their defaults."""
    bare = load_config(environ={}, cwd=Path(os.devnull))
    lines = [_HEAD]
    for key in KEYS:
        value = in_force.get(key)
        default = "…" if key in ("home", "index") else _size(key, toml(getattr(bare, key), key))
        line = f"{key} = {toml(value)}" if value is not None else f"# {key} = {default}"
        about = f"  # {_ABOUT[key]}" if key in _ABOUT else ""
        lines.append(f"{line:<34}{about}" if about else line)
    return "\n".join(lines) + "\n"


def toml(value: object, key: str = "") -> str:
    """Return a setting as epicrag.toml has it; what None is written as is for the key to say."""
    if value is None:
        return json.dumps(_NONE.get(key, "unlimited"))
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{name} = {toml(item)}' for name, item in value.items())} }}"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _size(key: str, value: str) -> str:
    """A whole number of GiB reads better than its bytes."""
    whole, rest = divmod(int(value), 1 << 30) if key in _SIZES and value.isdigit() else (0, 1)
    return f'"{whole}GiB"' if whole and not rest else value


def _show(folder: Path) -> str:
    return f"cd {folder} && epicrag config show --origin"


def _write(path: Path, text: str) -> bool:
    """Write a file that is not there yet; return whether it was not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return False
    return True
