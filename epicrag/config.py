"""The settings of a run, each with where it came from: flag, environment, file or default."""

from __future__ import annotations

import math
import os
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

from epicrag.errors import UsageError

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_EMBED_MODEL = "all-minilm-l6-v2"
DEFAULT_LINK_POLICY = "legolink(8)"
DEFAULT_COMPILE = "neighbour"
DEFAULT_HYBRID_WEIGHTS: Mapping[str, float] = MappingProxyType({"dense": 1.0, "words": 1.0})
DEFAULT_SYSTEM_PROMPT = (
    "You answer questions from the given documents. Use only what they say, answer briefly, "
    "and name the document of each fact by its number, like [1]."
)
"""What chunks are compiled behind, too: a test holds it equal to the engine's own."""

COMPILE_MODES = ("isolated", "sink", "prefix", "neighbour")
"""The words `compile` may be; a test holds them equal to the engine's own."""
QUANTIZE = ("none", "int8")
KV_DTYPES = ("auto", "int8")
DTYPES = ("auto", "float32", "bfloat16", "float16")
OCR = ("auto", "all", "never")
SEARCH_MODES = ("hybrid", "dense", "words")
CONDENSE = ("auto", "words", "model", "off")
LOG_LEVELS = ("debug", "info", "warning", "error")

FILE_NAME = "epicrag.toml"


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting, checked. Paths are absolute; sizes are bytes; None means without a limit."""

    home: Path
    index: Path
    model: str = DEFAULT_MODEL
    embed_model: str = DEFAULT_EMBED_MODEL
    device: str = "auto"
    dtype: str = "auto"
    quantize: str = "none"
    chunk_tokens: int = 512
    top_k: int = 4
    search_mode: str = "hybrid"
    hybrid_weights: Mapping[str, float] = field(default_factory=lambda: DEFAULT_HYBRID_WEIGHTS)
    rerank_model: str | None = None
    link_policy: str = DEFAULT_LINK_POLICY
    compile: str = DEFAULT_COMPILE
    max_tokens: int = 256
    condense: str = "auto"
    min_score: float | None = None
    """The cosine that the best passage must have; None ("auto"): judged by more than that."""
    kv_memory: int = 2 * 1024**3
    host_kv_memory: int = 0
    gpu_memory_utilization: float = 0.9
    kv_disk: int | None = None
    kv_dtype: str = "auto"
    max_file_mb: int = 100
    max_chars: int = 20_000_000
    max_pages: int = 5_000
    max_pdf_seconds: float = 120.0
    ocr: str = "auto"
    max_ocr_seconds: float = 900.0
    max_archive_members: int = 10_000
    max_inflated_mb: int = 500
    max_inflation_ratio: int = 300
    max_file_seconds: float = 60.0
    max_archive_depth: int = 1
    hidden: bool = False
    ignore_files: bool = True
    follow_symlinks: bool = False
    max_addresses: int = 5_000
    max_web_seconds: float = 3_600.0
    web_delay: float = 1.0
    web_timeout: float = 20.0
    sweep_minutes: float = 15.0
    offline: bool = False
    log: str = "warning"
    system_prompt: str = DEFAULT_SYSTEM_PROMPT
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Where each value came from: "flag", "env NAME", the path of a file, or "default"."""


def load_config(
    flags: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Config:
    """Return the settings: flag over environment over epicrag.toml (`project_file`) over the user's file over default.

    `flags` are keyed like the file; one that is None was not given. The extra flag `config`, or
    EPICRAG_CONFIG, names a file to be read in place of the project's. Raises UsageError for an
    unknown key or a bad value, saying which source it stands in.
    """
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    environ = os.environ if environ is None else environ
    cwd = Path.cwd() if cwd is None else cwd
    named = given.pop("config", None) or environ.get("EPICRAG_CONFIG")

    # Weakest first: a later layer overwrites an earlier one.
    layers = [_file_layer(_user_file())]
    layers.append(_named_layer(cwd, str(named)) if named else _file_layer(project_file(cwd)))
    layers.append(_env_layer(environ, cwd))
    layers.append([_Given(key, value, "flag", cwd) for key, value in given.items()])
    return _build([item for layer in layers for item in layer], environ)


def config_files(
    flags: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> list[Path]:
    """Return the files that `load_config` looks into, weakest first, whether they are there or not."""
    environ = os.environ if environ is None else environ
    cwd = Path.cwd() if cwd is None else cwd
    named = (flags or {}).get("config") or environ.get("EPICRAG_CONFIG")
    return [_user_file(), cwd / Path(str(named)).expanduser() if named else project_file(cwd)]


def project_file(cwd: Path) -> Path:
    """Return the epicrag.toml of the nearest folder at or above this one; the folder's own where none has one.

    As far as the root of the repository that it is in, or else the user's home: what lies above either is
    somebody else's, and so is a file that another user owns.
    """
    own, home = cwd / FILE_NAME, Path(os.path.expanduser("~"))
    folders = [cwd, *cwd.parents]
    tops = (n for n, one in enumerate(folders) if one == home or os.path.exists(one / ".git"))
    found = (folder / FILE_NAME for folder in folders[: next(tops, 0) + 1])
    return next((f for f in found if os.path.isfile(f) and (f == own or _is_ours(f))), own)


def _is_ours(file: Path) -> bool:
    try:
        return file.stat().st_uid in (0, os.geteuid())
    except OSError:
        return False


def enforce_offline(config: Config) -> None:
    """Where the configuration says offline, forbid the network to the model libraries as well.

    To be called before they are imported; one that already is imported is told, too.
    """
    if not config.offline:
        return
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        os.environ[name] = "1"
    if (constants := sys.modules.get("huggingface_hub.constants")) is not None:
        constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


# --- where values come from ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Given:
    """A value as somebody wrote it. Relative paths are meant from `base`."""

    key: str
    value: object
    origin: str
    base: Path


def _user_file() -> Path:
    from platformdirs import user_config_path

    return user_config_path("epicrag", appauthor=False) / FILE_NAME


def _default_home() -> Path:
    from platformdirs import user_data_path

    return user_data_path("epicrag", appauthor=False)


def _named_layer(cwd: Path, name: str) -> list[_Given]:
    path = cwd / Path(name).expanduser()
    if not path.is_file():
        raise UsageError(
            f"There is no configuration file {path}.",
            "It was named by --config or EPICRAG_CONFIG: mend the path, or leave it out.",
        )
    return _file_layer(path)


def _file_layer(path: Path) -> list[_Given]:
    """Return what a file sets; a file that does not exist sets nothing."""
    try:
        table = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: {error}.", "Save it as UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{path} is not valid TOML: {error}.", 'A line looks like: model = "smollm2-135m"'
        ) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    return [_Given(key, value, str(path), path.parent) for key, value in table.items()]


ENVIRONMENT = {
    f"EPICRAG_{key.upper()}": key
    for key in ("home", "index", "model", "embed_model", "quantize", "offline", "log")
}
"""The variables that set a key. An empty one counts as not set."""


def _env_layer(environ: Mapping[str, str], cwd: Path) -> list[_Given]:
    layer = []
    for name, key in ENVIRONMENT.items():
        if text := environ.get(name, ""):
            value = _switch(text, name) if key == "offline" else text
            layer.append(_Given(key, value, f"env {name}", cwd))
    return layer


KERNELS = ("auto", "reference", "triton")
"""What EPICRAG_KERNELS may say: `kernels/choice.py` reads it, where it is needed."""


def _check_kernels(environ: Mapping[str, str]) -> None:
    """UsageError now for what would be an error at the first forward pass."""
    text = environ.get("EPICRAG_KERNELS", "")
    if text.strip() and text.strip().lower() not in KERNELS:
        raise UsageError(
            f"EPICRAG_KERNELS is {text!r}, which is no back end.",
            f"Use one of {', '.join(KERNELS)}, or unset it.",
        )


def _switch(text: str, name: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.strip().lower() not in words:
        raise UsageError(
            f"{name} is {text!r}, and should be a switch.", f"Use one of {', '.join(words)}."
        )
    return words[text.strip().lower()]


# --- what a value may be -------------------------------------------------------------------------


class _BadValueError(Exception):
    """Says what a value should be; the caller knows whose value it was."""


def _text(value: object, base: Path) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _BadValueError("text that is not empty")
    return value


def _model(value: object, base: Path) -> str:
    """A name or a path; a path that says it is one is meant from where it was written."""
    text = _text(value, base)
    return str(_path(text, base)) if text.startswith(("./", "../", "~")) else text


def _model_or_none(value: object, base: Path) -> str | None:
    return None if value == "none" else _model(value, base)


def _prompt(value: object, base: Path) -> str:
    if not isinstance(value, str):
        raise _BadValueError("text")
    return value


def _path(value: object, base: Path) -> Path:
    if isinstance(value, Path):
        value = str(value)
    # The joined path is absolute and free of "..", but links in it stay as they were named.
    return Path(os.path.abspath(base / Path(_text(value, base)).expanduser()))


def _flag(value: object, base: Path) -> bool:
    if not isinstance(value, bool):
        raise _BadValueError("true or false")
    return value


def _integer(least: int) -> Callable[[object, Path], int]:
    def parse(value: object, base: Path) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise _BadValueError(f"a whole number, at least {least}")
        return value

    return parse


def _number(least: float, most: float) -> Callable[[object, Path], float]:
    def parse(value: object, base: Path) -> float:
        # NaN lies between no two numbers.
        match value:
            case int() | float() if not isinstance(value, bool) and least <= value <= most:
                return float(value)
        raise _BadValueError(f"a number from {least:g} to {most:g}")

    return parse


def _number_or_auto(value: object, base: Path) -> float | None:
    if value == "auto":
        return None
    try:
        number = float(value) if isinstance(value, str) else value
        return _number(-1, 1)(number, base)
    except (ValueError, _BadValueError):
        raise _BadValueError('"auto", or a number from -1 to 1') from None


def _weights(value: object, base: Path) -> Mapping[str, float]:
    """Read "dense=1,words=0.5", or a table of the same; what is not named has no weight."""
    wanted = _BadValueError('weights such as "dense=1,words=0.5", not below 0, and one above')
    pairs = value
    if isinstance(value, str):
        pairs = dict(part.split("=", 1) for part in value.split(",") if "=" in part)
        if len(pairs) != len(value.split(",")):
            raise wanted
    if not isinstance(pairs, Mapping):
        raise wanted
    weights = dict.fromkeys(DEFAULT_HYBRID_WEIGHTS, 0.0)
    for name, weight in pairs.items():
        name = str(name).strip()
        try:
            number = math.nan if isinstance(weight, bool) else float(weight)
        except (TypeError, ValueError):
            raise wanted from None
        if name not in weights or not 0 <= number < math.inf:
            raise wanted
        weights[name] = number
    if not any(weights.values()):
        raise wanted
    return MappingProxyType(weights)


def _choice(words: tuple[str, ...]) -> Callable[[object, Path], str]:
    def parse(value: object, base: Path) -> str:
        if value not in words:
            raise _BadValueError(f"one of {', '.join(words)}")
        return str(value)

    return parse


def _compile_mode(value: object, base: Path) -> str:
    cut = re.fullmatch(r"neighbour\([1-9]\d{0,6}\)", value) if isinstance(value, str) else None
    if value not in COMPILE_MODES and not cut:
        raise _BadValueError(f"one of {', '.join(COMPILE_MODES)}, or neighbour(64)")
    return str(value)


def _device(value: object, base: Path) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise _BadValueError("auto, cpu, cuda or cuda:N")
    return value


_UNITS = {"": 1, "b": 1}
_UNITS |= {unit + "ib": 1024**n for n, unit in enumerate("kmgt", 1)}
_UNITS |= {unit + "b": 1000**n for n, unit in enumerate("kmgt", 1)}


def _bytes(value: object, base: Path) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).strip().lower())
    if not isinstance(value, str) or match is None or match[2] not in _UNITS:
        raise _BadValueError('a size such as "2GiB" or "500 MB", or a number of bytes')
    return int(float(match[1]) * _UNITS[match[2]])


def _bytes_or_unlimited(value: object, base: Path) -> int | None:
    return None if value == "unlimited" else _bytes(value, base)


KEYS: Mapping[str, Callable[[object, Path], object]] = MappingProxyType(
    {
        "home": _path,
        "index": _path,
        "model": _model,
        "embed_model": _model,
        "device": _device,
        "dtype": _choice(DTYPES),
        "quantize": _choice(QUANTIZE),
        "chunk_tokens": _integer(32),
        "top_k": _integer(1),
        "search_mode": _choice(SEARCH_MODES),
        "hybrid_weights": _weights,
        "rerank_model": _model_or_none,
        "link_policy": _text,
        "compile": _compile_mode,
        "max_tokens": _integer(1),
        "condense": _choice(CONDENSE),
        "min_score": _number_or_auto,
        "kv_memory": _bytes,
        "host_kv_memory": _bytes,
        "gpu_memory_utilization": _number(0.01, 1),
        "kv_disk": _bytes_or_unlimited,
        "kv_dtype": _choice(KV_DTYPES),
        "max_file_mb": _integer(1),
        "max_chars": _integer(1),
        "max_pages": _integer(1),
        "max_pdf_seconds": _number(0.001, 1e6),
        "ocr": _choice(OCR),
        "max_ocr_seconds": _number(0.001, 1e6),
        "max_archive_members": _integer(1),
        "max_inflated_mb": _integer(1),
        "max_inflation_ratio": _integer(1),
        "max_file_seconds": _number(0.001, 1e6),
        "max_archive_depth": _integer(0),
        "hidden": _flag,
        "ignore_files": _flag,
        "follow_symlinks": _flag,
        "max_addresses": _integer(1),
        "max_web_seconds": _number(0.001, 1e7),
        "web_delay": _number(0, 3600),
        "web_timeout": _number(0.001, 3600),
        "sweep_minutes": _number(0.001, 1e6),
        "offline": _flag,
        "log": _choice(LOG_LEVELS),
        "system_prompt": _prompt,
    }
)
"""Every key of epicrag.toml and the check of its value."""


# --- putting them together -----------------------------------------------------------------------


def _build(given: list[_Given], environ: Mapping[str, str]) -> Config:
    _check_kernels(environ)
    values: dict[str, Any] = {}
    origins = dict.fromkeys(KEYS, "default")
    for item in given:
        values[item.key] = _parse(item)
        origins[item.key] = item.origin
    # The offline switches of the environment are hard: nothing weaker or stronger opens the network.
    for name in ("EPICRAG_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if environ.get(name, "").strip().lower() in ("1", "true", "yes", "on"):
            values["offline"], origins["offline"] = True, f"env {name}"
            break
    home = values.setdefault("home", _default_home())
    values.setdefault("index", home / "indexes" / "default")
    return Config(**values, origins=MappingProxyType(origins))


def _parse(item: _Given) -> object:
    if item.key not in KEYS:
        near = get_close_matches(item.key.replace("-", "_"), KEYS, n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]}?" if near else f"Keys are: {', '.join(KEYS)}."
        raise UsageError(f"Unknown key {item.key!r} ({item.origin}).", hint)
    try:
        return KEYS[item.key](item.value, item.base)
    except _BadValueError as bad:
        raise UsageError(
            f"{item.key} is {item.value!r} ({item.origin}).", f"It should be {bad}."
        ) from None
