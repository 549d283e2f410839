"""One chunk's keys and values as a safetensors file that proves it is whole.

Any safetensors reader can open the file. Its metadata carry a checksum over the KV key, shape, dtype,
the caller's metadata and every tensor byte, so a damaged, renamed or foreign file is never taken for KV.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

RESERVED = "epicrag."
_CHECKSUM = RESERVED + "xxh3_128"
_ALIGN = 64
_HEADER_LIMIT = 1 << 20
_Shapes = tuple[list[int], list[int]]
"""Of keys and of values."""
_DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}


class DamagedFile(Exception):
    """The file is not what `write` left: truncated, changed, foreign or of another key."""


@dataclass(frozen=True, slots=True)
class StoredKV:
    """One chunk's keys and values, and what the compiler said of them."""

    keys: Tensor  # (L, G, T, Dk)
    values: Tensor  # (L, G, T, Dv)
    meta: dict[str, str]


def check(keys: Tensor, values: Tensor, meta: Mapping[str, str]) -> None:
    """Raise ValueError unless the pair can be stored and read back as it is."""
    alike = keys.ndim == values.ndim == 4 and keys.shape[:3] == values.shape[:3]
    if not alike or keys.numel() == 0 or values.numel() == 0:
        raise ValueError(
            f"keys and values must be (L, G, T, Dk) and (L, G, T, Dv) and not empty, "
            f"not {tuple(keys.shape)} and {tuple(values.shape)}"
        )
    if keys.dtype != values.dtype or _dtype_name(keys) not in _DTYPES.values():
        raise ValueError(
            f"keys and values must share float16, bfloat16 or float32, "
            f"not {keys.dtype} and {values.dtype}"
        )
    if any(name.startswith(RESERVED) for name in meta):
        raise ValueError(f"metadata names must not begin with {RESERVED!r}")


def header(key: str, keys: Tensor, values: Tensor, meta: Mapping[str, str]) -> bytes:
    """Return the file's first bytes, up to the tensors: the pair must be contiguous and on the CPU."""
    code = next(code for code, name in _DTYPES.items() if name == _dtype_name(keys))
    shapes, cut, end = _shapes(keys, values), keys.nbytes, keys.nbytes + values.nbytes
    digest = _digest(key, code, shapes, meta, _bytes(keys), _bytes(values))
    fields = {
        "__metadata__": {**meta, _CHECKSUM: digest},
        "keys": {"dtype": code, "shape": shapes[0], "data_offsets": [0, cut]},
        "values": {"dtype": code, "shape": shapes[1], "data_offsets": [cut, end]},
    }
    text = json.dumps(fields, sort_keys=True).encode()
    text += b" " * (-(8 + len(text)) % _ALIGN)
    return len(text).to_bytes(8, "little") + text


def write(path: Path, head: bytes, keys: Tensor, values: Tensor) -> None:
    """Write `head` and the pair it was made for. OSError passes through.

    There is no fsync: a file torn by a power cut fails its checksum and is computed again.
    """
    with open(path, "wb") as file:
        file.write(head)
        file.write(_bytes(keys))
        file.write(_bytes(values))


def begins_with(path: Path, head: bytes, size: int) -> bool:
    """Return whether a file of `size` bytes with this header stands at `path`."""
    try:
        with open(path, "rb") as file:
            return os.fstat(file.fileno()).st_size == size and file.read(len(head)) == head
    except OSError:
        return False


def read(path: Path, key: str) -> StoredKV:
    """Map the file and check every byte. OSError when it cannot be opened, else DamagedFile.

    The tensors are views of a private mapping: writing to them never reaches the file, and deleting
    the file never takes them away. The mapping holds no file descriptor.
    """
    with open(path, "rb", buffering=0) as file:
        raw = _map(file)
    fields, data = _parse(raw)
    meta, code, shapes = _fields(fields, data.numel())
    cut = math.prod(shapes[0]) * _dtype(code).itemsize
    digest = _digest(key, code, shapes, meta, _bytes(data[:cut]), _bytes(data[cut:]))
    if digest != fields["__metadata__"][_CHECKSUM]:
        raise DamagedFile("checksum differs")
    keys, values = data[:cut].view(_dtype(code)), data[cut:].view(_dtype(code))
    return StoredKV(keys.view(shapes[0]), values.view(shapes[1]), meta)


def _map(file: FileIO) -> Tensor:
    """Return the bytes of an open file as a private mapping; read where the system cannot map so."""
    import torch

    size = os.fstat(file.fileno()).st_size
    if size < 8:
        raise DamagedFile(f"{size} bytes are too few")
    try:  # by descriptor: another process may put another file in the path's place
        name = f"/dev/fd/{file.fileno()}"
        return torch.from_file(name, shared=False, size=size, dtype=torch.uint8)
    except RuntimeError:
        raw = torch.empty(size, dtype=torch.uint8)
        if file.readinto(_bytes(raw)) != size:
            raise DamagedFile("it was cut while it was read") from None
        return raw


def _parse(raw: Tensor) -> tuple[dict[str, Any], Tensor]:
    """Return the JSON header and the data section."""
    length = int.from_bytes(bytes(_bytes(raw[:8])), "little")
    if length > min(_HEADER_LIMIT, raw.numel() - 8):
        raise DamagedFile("header is longer than the file")
    try:
        fields = json.loads(bytes(_bytes(raw[8 : 8 + length])))
    except ValueError as error:
        raise DamagedFile("header is no JSON") from error
    if (8 + length) % _ALIGN or not isinstance(fields, dict):
        raise DamagedFile("not a KV file of epicrag")
    return fields, raw[8 + length :]


def _fields(fields: dict[str, Any], n_bytes: int) -> tuple[dict[str, str], str, _Shapes]:
    """Return the caller's metadata, the dtype code and the shapes, which may differ in width alone."""
    try:
        found = [fields["keys"], fields["values"]]
        code = str(found[0]["dtype"])
        shapes = ([int(n) for n in found[0]["shape"]], [int(n) for n in found[1]["shape"]])
        cut, more = (math.prod(shape) * _dtype(code).itemsize for shape in shapes)
        expected = [
            {"dtype": code, "shape": shape, "data_offsets": span}
            for shape, span in zip(shapes, ([0, cut], [cut, cut + more]), strict=True)
        ]
        meta = {name: str(text) for name, text in fields["__metadata__"].items()}
        del meta[_CHECKSUM]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedFile("not a KV file of epicrag") from error
    alike = shapes[0][:3] == shapes[1][:3] and len(shapes[0]) == len(shapes[1]) == 4
    if found != expected or not alike or min(*shapes[0], *shapes[1]) < 1 or n_bytes != cut + more:
        raise DamagedFile(f"tensors do not fit: {n_bytes} bytes for shapes {shapes}")
    return meta, code, shapes


def _digest(
    key: str,
    code: str,
    shapes: _Shapes,
    meta: Mapping[str, str],
    keys: memoryview,
    values: memoryview,
) -> str:
    import xxhash

    digest = xxhash.xxh3_128()
    # Where both have one shape it stands once: so it did before values could be of another width.
    shape = shapes[0] if shapes[0] == shapes[1] else shapes
    digest.update(json.dumps([key, code, shape, sorted(meta.items())]).encode())
    digest.update(keys)
    digest.update(values)
    return digest.hexdigest()


def _shapes(keys: Tensor, values: Tensor) -> _Shapes:
    return list(keys.shape), list(values.shape)


def _bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor without copying them."""
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _dtype(code: str) -> torch.dtype:
    import torch

    dtype = getattr(torch, _DTYPES[code])
    assert isinstance(dtype, torch.dtype)
    return dtype
