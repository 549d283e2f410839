"""Bytes that a server sends packed, unpacked piece by piece: never more at once than a piece."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

_STEP = 1 << 16
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


def unpack(pieces: Iterable[bytes], packing: str, most: int) -> tuple[bytes, bool]:
    """Return the first `most` bytes, and whether that is all. `packing` is a Content-Encoding.

    One layer of gzip or deflate is unpacked. ValueError: any other packing, or damaged.
    """
    names = [name for word in packing.lower().split(",") if (name := word.strip())]
    names = [name for name in names if name != "identity"]
    if len(names) > 1 or not _WINDOWS.keys() >= set(names):
        raise ValueError(f"it is sent packed as {packing[:60]}, which is not read")
    found = bytearray()
    for piece in inflated(pieces, names[0]) if names else pieces:
        found += piece
        if len(found) > most:
            del found[most:]
            return bytes(found), False
    return bytes(found), True


def inflated(pieces: Iterable[bytes], packing: str) -> Iterator[bytes]:
    """Yield what is packed as "gzip" or "deflate" in small pieces. ValueError: it is damaged."""
    window = _WINDOWS[packing]
    inflater, begun = zlib.decompressobj(window), False
    try:
        for piece in pieces:
            left = piece
            while left:
                if inflater.eof:
                    left = left.lstrip(b"\0")
                    if window != _WINDOWS["gzip"] or not left.startswith(b"\x1f"):
                        return
                    inflater = zlib.decompressobj(window)
                try:
                    out = inflater.decompress(left, _STEP)
                except zlib.error:
                    if begun or window != _WINDOWS["deflate"]:
                        raise
                    window = -15  # what many servers call deflate: without the head of zlib
                    inflater = zlib.decompressobj(window)
                    out = inflater.decompress(left, _STEP)
                begun = True
                yield out
                left = inflater.unconsumed_tail or inflater.unused_data
        yield inflater.flush()
    except zlib.error as error:
        raise ValueError("what it is packed as is damaged") from error
    if begun and not inflater.eof:
        raise ValueError("what it is packed as ends early")
