"""One chunk's keys and values as a safetensors file that proves it is whole.

Any safetensors reader can open the file: two tensors in 16 or 32 bits, or two in 8 bits and the scales of their
rows. Its metadata carry a checksum over the KV key, shape, dtype,
the caller's metadata and every tensor byte, so a damaged, renamed or foreign file is never taken for KV.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
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
_PLAIN = ("keys", "values")
_ROUNDED = ("keys", "values", "key_scales", "value_scales")
_DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "I8": "int8"}
_SCALE = "F16"


class DamagedFile(Exception):
    """The file is not what `write` left: truncated, changed, foreign or of another key."""


@dataclass(frozen=True, slots=True)
class StoredKV:
    """One chunk's keys and values, and what the compiler said of them."""

    keys: Tensor  # (L, G, T, Dk)
    values: Tensor  # (L, G, T, Dv)
    meta: dict[str, str]
    scales: tuple[Tensor, Tensor] | None = None
    """Of keys and values in 8 bits: what each row (L, G, T) is multiplied by."""


def check(
    keys: Tensor,
    values: Tensor,
    meta: Mapping[str, str],
    scales: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Raise ValueError unless the pair can be stored and read back as it is."""
    alike = keys.ndim == values.ndim == 4 and keys.shape[:3] == values.shape[:3]
    if not alike or keys.numel() == 0 or values.numel() == 0:
        raise ValueError(
            f"keys and values must be (L, G, T, Dk) and (L, G, T, Dv) and not empty, "
            f"not {tuple(keys.shape)} and {tuple(values.shape)}"
        )
    if keys.dtype != values.dtype or _dtype_name(keys) not in _DTYPES.values():
        raise ValueError(
            f"keys and values must share float16, bfloat16, float32 or int8, "
            f"not {keys.dtype} and {values.dtype}"
        )
    if (scales is not None) != (_dtype_name(keys) == "int8"):
        raise ValueError("keys and values in 8 bits have scales, and no others have")
    for scale in scales or ():
        if scale.shape != keys.shape[:3] or _dtype_name(scale) != _DTYPES[_SCALE]:
            raise ValueError(
                f"the scales of keys and values {tuple(keys.shape)} must be {tuple(keys.shape[:3])} in float16, "
                f"not {tuple(scale.shape)} in {scale.dtype}"
            )
    if any(name.startswith(RESERVED) for name in meta):
        raise ValueError(f"metadata names must not begin with {RESERVED!r}")


def header(key: str, tensors: Sequence[Tensor], meta: Mapping[str, str]) -> bytes:
    """Return the file's first bytes, up to the tensors: they must be contiguous and on the CPU."""
    entries = _entries([(_code(tensor), list(tensor.shape)) for tensor in tensors])
    digest = _digest(key, entries, meta, [_bytes(tensor) for tensor in tensors])
    fields = {"__metadata__": {**meta, _CHECKSUM: digest}, **entries}
    text = json.dumps(fields, sort_keys=True).encode()
    text += b" " * (-(8 + len(text)) % _ALIGN)
    return len(text).to_bytes(8, "little") + text


def write(path: Path, head: bytes, tensors: Sequence[Tensor]) -> None:
    """Write `head` and the tensors it was made for. OSError passes through.

    There is no fsync: a file torn by a power cut fails its checksum and is computed again.
    """
    with open(path, "wb") as file:
        file.write(head)
        file.writelines(_bytes(tensor) for tensor in tensors)


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
    meta, entries = _fields(fields, data.numel())
    parts = [data[low:high] for low, high in (e["data_offsets"] for e in entries.values())]
    digest = _digest(key, entries, meta, [_bytes(part) for part in parts])
    if digest != fields["__metadata__"][_CHECKSUM]:
        raise DamagedFile("checksum differs")
    keys, values, *scales = (
        part.view(_dtype(entry["dtype"])).view(entry["shape"])
        for part, entry in zip(parts, entries.values(), strict=True)
    )
    return StoredKV(keys, values, meta, (scales[0], scales[1]) if scales else None)


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


def _fields(
    fields: dict[str, Any], n_bytes: int
) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Return the caller's metadata, and what the header says of each tensor: it must be what `header` says."""
    try:
        names = _ROUNDED if "key_scales" in fields else _PLAIN
        kinds = [(str(fields[n]["dtype"]), [int(x) for x in fields[n]["shape"]]) for n in names]
        expected = _entries(kinds)
        meta = {name: str(text) for name, text in fields["__metadata__"].items()}
        del meta[_CHECKSUM]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedFile("not a KV file of epicrag") from error
    codes, shapes = [code for code, _ in kinds], [shape for _, shape in kinds]
    alike = shapes[0][:3] == shapes[1][:3] and len(shapes[0]) == len(shapes[1]) == 4
    alike = alike and codes[0] == codes[1] and (codes[0] == "I8") == (names == _ROUNDED)
    alike = alike and all(kind == (_SCALE, shapes[0][:3]) for kind in kinds[2:])
    found = {name: fields[name] for name in names}
    end = expected[names[-1]]["data_offsets"][1]
    if found != expected or not alike or min(*shapes[0], *shapes[1]) < 1 or n_bytes != end:
        raise DamagedFile(f"tensors do not fit: {n_bytes} bytes for shapes {shapes}")
    return meta, expected


def _entries(kinds: Sequence[tuple[str, list[int]]]) -> dict[str, dict[str, Any]]:
    """What a header says of tensors of these codes and shapes, which lie one behind the other."""
    entries, low = {}, 0
    for name, (code, shape) in zip(_ROUNDED, kinds, strict=False):
        high = low + math.prod(shape) * _dtype(code).itemsize
        entries[name] = {"dtype": code, "shape": shape, "data_offsets": [low, high]}
        low = high
    return entries


def _digest(
    key: str,
    entries: Mapping[str, Mapping[str, Any]],
    meta: Mapping[str, str],
    parts: Sequence[memoryview],
) -> str:
    import xxhash

    digest = xxhash.xxh3_128()
    # Where both have one shape it stands once, and what follows from it does not stand at all: so it was before
    # there were values of another width, and before there were scales.
    keys, values = entries["keys"], entries["values"]
    same = keys["shape"] == values["shape"]
    shape = keys["shape"] if same else (keys["shape"], values["shape"])
    digest.update(json.dumps([key, keys["dtype"], shape, sorted(meta.items())]).encode())
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor without copying them."""
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _code(tensor: Tensor) -> str:
    return next(code for code, name in _DTYPES.items() if name == _dtype_name(tensor))


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _dtype(code: str) -> torch.dtype:
    import torch

    dtype = getattr(torch, _DTYPES[code])
    assert isinstance(dtype, torch.dtype)
    return dtype
