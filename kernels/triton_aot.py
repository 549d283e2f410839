"""Triton's kernels compiled ahead of time, without a GPU: what each would take of one, and whether it spills.

A module of kernels yields its `specimens()`: every variant that is launched on real models. Triton's own compiler
and assembler make of each what they would make on the GPU; the assembler's account of it is read here.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CAPABILITIES = (80, 90)
"""Ampere's A100 and Hopper's H100."""

SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024}
"""Bytes of shared memory that one block may have."""

REGISTER_LIMIT = 255

_ASIDE = {"triton_aot", "triton_table"}


@dataclass(frozen=True, slots=True, eq=False)
class Specimen:
    """One variant of a kernel, as it would be launched.

    `signature` names every parameter in order, with its type as Triton writes it (`*bf16`, `i32`, `i64`, `fp32`), or
    `constexpr`, and then its value stands in `constexprs`. An integer that is 1 at launch, or a pointer that is
    None, is made a constant by Triton: say so here too.
    """

    name: str
    kernel: Any
    """The `@triton.jit` function."""
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 3
    divisible: frozenset[str] | None = None
    """Parameters that are multiples of 16 at launch, as Triton finds out there: all pointers, if not said."""

    def attributes(self) -> dict[tuple[int, ...], list[list[Any]]]:
        """What Triton is told of the parameters besides their types."""
        wide = self.divisible
        if wide is None:
            wide = frozenset(n for n, kind in self.signature.items() if kind.startswith("*"))
        places = [i for i, name in enumerate(self.signature) if name in wide]
        return {(i,): [["tt.divisibility", 16]] for i in places}


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a specimen takes of a GPU of one compute capability (80 is 8.0)."""

    name: str
    kernel: str
    capability: int
    registers: int
    """Of one thread."""
    spill_stores: int
    spill_loads: int
    """Bytes of one thread that went to local memory for want of registers."""
    stack: int
    """Bytes of local memory of one thread, spills among them."""
    shared_bytes: int
    """Of one block."""
    barriers: int
    num_warps: int
    num_stages: int
    seconds: float

    @property
    def faults(self) -> tuple[str, ...]:
        """Why it should not be launched; nothing, as a rule."""
        found = []
        if self.spill_stores or self.spill_loads:
            found.append(f"spills {self.spill_stores} bytes and reads {self.spill_loads} back")
        elif self.stack:
            found.append(f"has {self.stack} bytes of stack")
        if self.registers > REGISTER_LIMIT:
            found.append(f"takes {self.registers} registers of {REGISTER_LIMIT}")
        limit = SHARED_LIMIT.get(self.capability)
        if limit is not None and self.shared_bytes > limit:
            found.append(f"takes {self.shared_bytes:,} bytes of shared memory of {limit:,}")
        return tuple(f"{self.name} on sm_{self.capability} {fault}" for fault in found)


def lacking() -> str | None:
    """Why nothing can be compiled ahead of time in this process; None where it can."""
    try:
        import triton
    except Exception as error:  # noqa: BLE001 - whatever it is, there is no Triton
        return f"Triton cannot be imported: {error}"
    if triton.knobs.runtime.interpret:
        return "under TRITON_INTERPRET there are no functions to compile"
    try:
        path = triton.knobs.nvidia.ptxas.path
    except Exception as error:  # noqa: BLE001 - Triton raises what it likes
        return f"Triton finds no ptxas: {error}"
    return None if Path(path).exists() else f"Triton's ptxas is not at {path}"


def compile_specimen(specimen: Specimen, capability: int) -> Compiled:
    """Compile for a compute capability (80 or 90) as at launch, and read the assembler's account.

    ValueError where the signature is not the kernel's, or nothing can be compiled in this process; Triton's own
    errors where it refuses the kernel.
    """
    why = lacking()
    if why is not None:
        raise ValueError(why)
    _check(specimen)
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(
        fn=specimen.kernel,
        signature=dict(specimen.signature),
        constexprs=dict(specimen.constexprs),
        attrs=specimen.attributes(),
    )
    options = {"num_warps": specimen.num_warps, "num_stages": specimen.num_stages}
    log = io.StringIO()
    start = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="epicrag-aot-") as folder,
        contextlib.ExitStack() as stack,
    ):
        # A kernel out of the cache has no account: compile it anew, and keep out of the user's cache.
        for knobs in (triton.knobs.cache, triton.knobs.compilation, triton.knobs.nvidia):
            stack.enter_context(knobs.scope())
        triton.knobs.cache.dir = folder
        triton.knobs.compilation.always_compile = True
        triton.knobs.nvidia.dump_ptxas_log = True
        with contextlib.redirect_stdout(log):
            made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    seconds = time.perf_counter() - start
    account = read_account(log.getvalue())
    return Compiled(
        name=specimen.name,
        kernel=specimen.kernel.__name__,
        capability=capability,
        shared_bytes=int(made.metadata.shared),
        num_warps=specimen.num_warps,
        num_stages=specimen.num_stages,
        seconds=round(seconds, 3),
        **account,
    )


def read_account(log: str) -> dict[str, int]:
    """Registers, spills, stack and barriers out of what `ptxas -v` writes. ValueError where it is not that.

    Functions that were not inlined have their own line about the stack; the worst counts.
    """
    used = [int(n) for n in re.findall(r"Used (\d+) registers", log)]
    frames = re.findall(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log
    )
    if not used or not frames:
        raise ValueError(f"ptxas does not say what the kernel takes:\n{log.strip()[-2000:]}")
    stack, stores, loads = (max(int(frame[i]) for frame in frames) for i in range(3))
    barriers = [int(n) for n in re.findall(r"used (\d+) barriers", log)]
    return {
        "registers": max(used),
        "stack": stack,
        "spill_stores": stores,
        "spill_loads": loads,
        "barriers": max(barriers, default=0),
    }


def modules() -> list[str]:
    """Names of the files with kernels, `triton_rows` and so on, in order of the alphabet."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("triton_*.py"))
    return [name for name in names if name not in _ASIDE]


def specimens_of(module: str) -> list[Specimen]:
    """All specimens of a file, by its name without its ending; none of a file that has no `specimens`."""
    specimens = getattr(_import(module), "specimens", None)
    return [] if specimens is None else list(specimens())


def kernels_of(module: str) -> Iterator[str]:
    """Names of a file's kernels: its own functions under `@triton.jit` whose name ends with `_kernel`."""
    loaded = _import(module)
    for name, value in vars(loaded).items():
        own = getattr(value, "__module__", None) == loaded.__name__
        if name.endswith("_kernel") and own and hasattr(value, "arg_names"):
            yield name


def _import(module: str) -> Any:
    return importlib.import_module(f"epicrag.kernels.{module}")


def _check(specimen: Specimen) -> None:
    """Refuse a signature that is not the kernel's; Triton's own words about it are hard to read."""
    given, wanted = list(specimen.signature), list(specimen.kernel.arg_names)
    if given != wanted:
        raise ValueError(f"{specimen.name}: the signature names {given}, the kernel {wanted}")
    constants = {name for name, kind in specimen.signature.items() if kind == "constexpr"}
    if constants != set(specimen.constexprs):
        raise ValueError(
            f"{specimen.name}: constants are {sorted(constants)}, and values are given for "
            f"{sorted(specimen.constexprs)}"
        )
    if specimen.divisible is not None and not specimen.divisible <= set(given):
        raise ValueError(
            f"{specimen.name}: no parameters {sorted(specimen.divisible - set(given))}"
        )
