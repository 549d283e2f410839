"""Pictures (PNG, JPEG, TIFF …): the text that stands on them, where OCR of pictures is asked for."""

from __future__ import annotations

import io
import time
import warnings
from typing import Any

from epicrag.connectors import ocr
from epicrag.connectors.base import Limits, Parsed, ocr_too_slow, too_many_pages
from epicrag.connectors.draft import Draft
from epicrag.types import Unread

_MAX_PIXELS = 200_000_000


def refusal(limits: Limits) -> str | None:
    """Say why pictures are not read; None when they are. Only with `ocr = "all"`: photographs are no
    documents, and reading one takes seconds."""
    if limits.ocr != "all":
        how = "" if ocr.is_installed() else f" (and {ocr.INSTALL})"
        return f"an image: its text is read with --ocr all{how}"
    return (
        None if ocr.is_installed() else f"an image, which needs OCR; install it with: {ocr.INSTALL}"
    )


def parse_picture(data: bytes, limits: Limits) -> Parsed | Unread:
    """Read the text on a picture; a TIFF may have several pages."""
    if (why := refusal(limits)) is not None:
        return Unread("unsupported", why)
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data)) as image:
                return _read(image, limits)
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError) as error:
        return Unread("failed", f"damaged image: {error}"[:300])


def _read(image: Any, limits: Limits) -> Parsed | Unread:
    n_pages = getattr(image, "n_frames", 1) if image.format == "TIFF" else 1
    if n_pages > limits.max_pages:
        return too_many_pages(n_pages, limits.max_pages)
    if image.width * image.height > _MAX_PIXELS:
        return Unread(
            "skipped", f"an image of {image.width:,} × {image.height:,} pixels: too large"
        )
    from epicrag.connectors.pdf import write_page

    draft = Draft()
    deadline = time.monotonic() + limits.max_ocr_seconds
    for page in range(n_pages):
        if n_pages > 1:
            image.seek(page)
            draft.page = page + 1
        left = deadline - time.monotonic()
        text = ocr.read_picture(_pixels(image), left) if left > 0 else None
        if text is None:
            return ocr_too_slow(page, n_pages, limits.max_ocr_seconds)
        write_page(draft, text, [])
    if not draft.length:
        return Unread("empty", "no text: OCR found none on it")
    return draft.parsed(f"image/{(image.format or 'png').lower()}")


def _pixels(image: Any) -> Any:
    """The picture as an array (height, width, 3), upright and not larger than an engine needs."""
    import numpy as np
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(image).convert("RGB")
    upright.thumbnail((ocr.MAX_SIDE, ocr.MAX_SIDE))
    return np.asarray(upright)[..., ::-1].copy()
