"""What `doctor` looks at besides the index: versions, devices, memory, models, settings and the folder."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from epicrag.errors import DeviceError, EpicragError, OfflineError, UsageError

if TYPE_CHECKING:
    from epicrag.config import Config

State = Literal["ok", "warn", "fail"]
_PACKAGES = ("torch", "transformers", "sentence-transformers", "numba", "llama-index-core")
_LITTLE_ROOM = 1 << 30


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `exit_code` is what a failure of it ends with."""

    name: str
    state: State
    what: str
    fix: str | None = None
    """The command, or the step, that mends it."""
    exit_code: int = 1
    repair: str | None = None
    """Which of `doctor`'s own repairs mends it; None: none of them may."""


def ok(name: str, what: str) -> Check:
    return Check(name, "ok", what)


def warn(name: str, what: str, fix: str | None = None, repair: str | None = None) -> Check:
    return Check(name, "warn", what, fix, repair=repair)


def fail(
    name: str, what: str, fix: str | None = None, code: int = 1, repair: str | None = None
) -> Check:
    return Check(name, "fail", what, fix, code, repair)


def machine(config: Config) -> Iterator[Check]:
    """Look at everything that does not need an index."""
    yield ok("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield _packages()
    yield _faiss()
    yield settings(config)
    yield (device := _device(config))
    if device.state != "fail":
        yield from _kernels(config)
    yield from _models(config)
    yield _memory(config)


def bad_settings(error: UsageError) -> Check:
    """Settings that cannot be used: nothing else can be looked at."""
    return fail("settings", error.message, error.hint, UsageError.exit_code)


def _packages() -> Check:
    lacking = [name for name in _PACKAGES if _version(name) is None]
    found = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES if name not in lacking)
    if lacking:
        return fail("packages", f"{', '.join(lacking)} not installed", "pip install epicrag")
    return ok("packages", found)


def _faiss() -> Check:
    try:
        import faiss
    except ImportError as error:
        return fail("faiss", f"cannot be imported: {error}", "pip install faiss-cpu")
    gpus = faiss.get_num_gpus() if hasattr(faiss, "get_num_gpus") else 0
    build = f"for GPUs, {gpus} found" if hasattr(faiss, "StandardGpuResources") else "for the CPU"
    return ok("faiss", f"{faiss.__version__}, built {build}")


def settings(config: Config) -> Check:
    """Whether settings that could be loaded can be used, too."""
    from epicrag.serving.policies import parse_policy

    try:
        parse_policy(config.link_policy)
    except EpicragError as error:
        return fail("settings", error.message, error.hint, UsageError.exit_code)
    files = sorted({origin for origin in config.origins.values() if origin.startswith("/")})
    found = f"read from {', '.join(files)}" if files else "all as by default"
    asked = os.environ.get("EPICRAG_KERNELS", "").strip()
    return ok("settings", f"{found}; EPICRAG_KERNELS is {asked}" if asked else found)


def _device(config: Config) -> Check:
    import torch

    has_gpu = torch.cuda.is_available()
    if config.device.startswith("cuda") and not has_gpu:
        return fail(
            "device",
            f"{config.device} is configured, and torch {torch.__version__} finds no CUDA device",
            'set device = "auto", or install a torch built for your GPU',
            DeviceError.exit_code,
        )
    if config.device == "cpu" or not has_gpu:
        return ok("device", f"CPU, {os.cpu_count()} cores")
    index = int(config.device.partition(":")[2] or 0)
    if index >= torch.cuda.device_count():
        n = torch.cuda.device_count()
        return fail(
            "device",
            f"{config.device} is configured, and there are {n} devices",
            code=DeviceError.exit_code,
        )
    free, total = torch.cuda.mem_get_info(index)
    name = torch.cuda.get_device_name(index)
    return ok("device", f"{name}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free")


def _kernels(config: Config) -> Iterator[Check]:
    """Which back end runs each operation of a forward pass on the configured device, and why."""
    import torch

    from epicrag.kernels import choice

    on_gpu = config.device != "cpu" and torch.cuda.is_available()
    device = torch.device("cpu")
    if on_gpu:
        device = torch.device("cuda" if config.device == "auto" else config.device)
    try:
        wish, chosen = choice.wish(), choice.choices(device)
    except ValueError as error:
        yield fail("kernels", str(error), f"unset {choice.WISH}", UsageError.exit_code)
        return
    lacks = choice.triton_lacks(device) if wish == "triton" or on_gpu else None
    if lacks and wish == "triton":
        yield warn("kernels", f"{choice.WISH} is triton: {lacks}", f"unset {choice.WISH}")
    elif lacks and wish == "auto":
        yield warn("kernels", f"torch's, and none of our own for this GPU: {lacks}", _mended(lacks))
    yield from (ok(f"kernel {name}", f"{one.name}: {one.why}") for name, one in chosen.items())
    yield from _compiled(on_gpu)


def _mended(lacks: str) -> str | None:
    """What gives a GPU its Triton kernels, by what `choice.triton_lacks` says; None: nothing does."""
    if "cannot be imported" in lacks:
        return "pip install triton"
    if "cannot compile" in lacks:
        return (
            "install a C compiler and Python's headers (gcc, python3-dev), or name a compiler in CC"
        )
    return None


def _compiled(on_gpu: bool) -> Iterator[Check]:
    """The products with a model's weights, and its forward pass as a whole."""
    from epicrag.kernels import choice, native

    if on_gpu:
        yield ok("kernel products", "torch: the GPU's own library has them")
        yield ok("kernel decoder", "transformers' modeling code: the fast decoder is the CPU's")
        return
    like = "where a model is built like Llama"
    if choice.wish() == "reference":
        asked = f"asked for by {choice.WISH}"
        yield ok("kernel products", f"torch: {asked}; compiled with --quantize int8 alone")
        yield ok("kernel decoder", f"transformers' modeling code: {asked}")
        return
    if lacking := native.why_not():
        yield ok("kernel products", f"torch: {lacking}")
        yield ok("kernel decoder", f"fast {like}, few rows as many ({lacking})")
        return
    few = f"up to {native.NARROW} tokens at once"
    yield ok("kernel products", f"compiled for {few}, as they wait for the weights; torch for more")
    proof = "if it passes its proof at load (ask -v says so)"
    yield ok("kernel decoder", f"fast {like}, {proof}; compiled for {few}")


def _models(config: Config) -> Iterator[Check]:
    """Whether both models are here, so that nothing has to be fetched."""
    from epicrag.models import Models

    for name, wanted in (("model", config.model), ("embedder", config.embed_model)):
        try:
            yield ok(name, f"{wanted}, in {Models(config).path(wanted)}: ready offline")
        except OfflineError as error:
            yield fail(name, error.message, error.hint, error.exit_code)
        except EpicragError as error:
            fix = f"epicrag models pull {wanted}"
            yield warn(name, f"{error.message} It is made ready when it is first needed.", fix)


def _memory(config: Config) -> Check:
    """The weights and the KV that memory is to hold, against what is free."""
    import psutil
    import torch

    weights = _weights_bytes(config)
    if config.device != "cpu" and torch.cuda.is_available():
        return ok(
            "memory", f"weights {_size(weights)}; KV takes what the settings leave of the GPU"
        )
    if config.dtype in ("auto", "float32"):
        weights *= 2  # stored in 16 bits as a rule
    needed = weights + config.kv_memory + config.host_kv_memory
    free = psutil.virtual_memory().available
    what = (
        f"{_size(weights)} of weights and up to {_size(config.kv_memory)} of KV, {_size(free)} free"
    )
    if needed > free:
        return warn("memory", what, 'set a smaller kv_memory, or quantize = "int8"')
    return ok("memory", what)


def _weights_bytes(config: Config) -> int:
    from epicrag.models import Models

    try:
        folder = Models(config).path(config.model)
    except EpicragError:
        return 0
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def folder(index: Path) -> Iterator[Check]:
    """Whether the folder of an index can be written to, and has room."""
    if not os.access(index, os.W_OK | os.X_OK):
        yield warn("folder", f"{index} cannot be written to: it answers, and takes nothing in")
    else:
        yield ok("folder", f"{index}")
    free = shutil.disk_usage(index).free
    state = f"{_size(free)} free"
    if free < _LITTLE_ROOM:
        yield warn("disk", state, "free some space, for one with `epicrag gc`", "gc")
    else:
        yield ok("disk", state)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _size(n_bytes: float) -> str:
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"
