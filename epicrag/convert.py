"""A GGUF file turned, once, into a folder that transformers loads in a second."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import Any

from epicrag.errors import EpicragError, UsageError


def convert_gguf(source: Path, folder: Path, *, name: str) -> None:
    """Write the model and tokenizer of `source` into `folder`, which is made.

    The weights are stored as float16. A quantised weight is scale * integer + offset, with both held
    in float16, so float16 rounds it by at most one part in 2048, far below a quantisation step: on
    SmolLM2-135M (Q4_1) the next-token distributions differ from float32's by a mean KL of 4e-6, from
    bfloat16's by 7e-5, and the file is half of float32's 538 MB.
    """
    check_gguf(source)
    try:
        _quiet_bars()
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise _needs_libraries(error) from error
    where = {"gguf_file": source.name, "local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.parent, **where)
        model = AutoModelForCausalLM.from_pretrained(
            source.parent, dtype=torch.float32, **where, **_unpacked()
        )
    except ImportError as error:
        raise _needs_libraries(error) from error
    except Exception as error:  # readers of GGUF fail in every way that there is
        if "accelerate" in str(error):
            raise _needs_libraries(error) from error
        raise UsageError(
            f"{source} cannot be converted: {error}",
            "transformers reads GGUF files of the common architectures: "
            "try the original model, by its name on the hub or as a folder.",
        ) from error
    _mend_splitting(tokenizer, source)
    _forget_origin(model, tokenizer, name)
    model.to(torch.float16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def check_gguf(path: Path) -> None:
    """Refuse, early and in words, what is no GGUF file."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    if magic != b"GGUF":
        raise UsageError(f"{path} is not a GGUF file.", "Give a .gguf file or a model's folder.")


def _needs_libraries(error: Exception) -> EpicragError:
    return EpicragError(
        f"Reading a GGUF file needs a library that is not installed: {error}",
        "pip install accelerate gguf",
    )


def _unpacked() -> dict[str, Any]:
    """Newer transformers may keep weights in blocks, for kernels it would fetch: ask for plain ones."""
    import transformers

    config = getattr(transformers, "GgufConfig", None)
    return {} if config is None else {"quantization_config": config(dequantize=True)}


def _forget_origin(model: Any, tokenizer: Any, name: str) -> None:
    """Drop what was true of the source only: its quantisation, its place, its limits."""
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.config.name_or_path = name
    for key in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(key, None)
    tokenizer.model_max_length = model.config.max_position_embeddings


def _mend_splitting(tokenizer: Any, source: Path) -> None:
    """Cut digits apart before merging, as SmolLM's tokenizer does and transformers' reader forgets."""
    if _splitting(source) != "smollm":
        return
    from tokenizers import pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )


def _splitting(source: Path) -> str:
    """Return `tokenizer.ggml.pre`, or "". The header's start is enough: parsing it all takes seconds."""
    key = b"tokenizer.ggml.pre"
    with source.open("rb") as file:
        head = file.read(2**20)
    start = head.find(struct.pack("<Q", len(key)) + key)
    if start < 0:
        return ""
    start += 8 + len(key)
    kind, size = struct.unpack_from("<IQ", head, start)
    return head[start + 12 : start + 12 + size].decode() if kind == 8 else ""


def _quiet_bars() -> None:
    """Progress bars are for terminals: into a log they write a line for every step."""
    if sys.stderr is not None and sys.stderr.isatty():
        return
    os.environ.setdefault("TQDM_DISABLE", "1")
    from transformers.utils import logging

    logging.disable_progress_bar()
