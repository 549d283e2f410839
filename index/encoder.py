"""A sentence-transformers model run: batches of short texts to unit vectors.

The plain stack, a transformer with mean or first-token pooling, is run without the library, and a plain
BERT without transformers as well: each import costs every command seconds. Any other stack is left to the
library itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from epicrag.errors import DeviceError, EpicragError
from epicrag.index.bert import read_bert
from epicrag.index.files import read_json

if TYPE_CHECKING:
    from torch import Tensor

_BATCH = 32


class Encoder(Protocol):
    """A model, its tokenizer and what it can read at once."""

    tokenizer: Any
    max_tokens: int | None
    """Tokens it reads, special ones included; None when it reads any number."""

    def encode(self, texts: Sequence[str], prompt: str) -> NDArray[np.float32]:
        """Return (N, dim) unit rows of `prompt + text`, cut at `max_tokens`."""
        ...


def load_encoder(path: Path, device: str = "auto") -> Encoder:
    """Load the model in a folder, quietly and without the network."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and int(device[5:] or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"device {device} is not there: {torch.cuda.device_count()} CUDA devices found",
            "use --device cpu",
        )
    if not (path / "config.json").exists() and not (path / "modules.json").exists():
        raise _unloadable(path, "there is no model")
    try:
        pooling = plain_pooling(path)
        bert = read_bert(path, device) if pooling else None
        if pooling and bert:
            return PlainEncoder(path, pooling, bert)
        with quiet():
            if pooling:
                return PlainEncoder(path, pooling, AnyStack(path, device))
            return LibraryEncoder(path, device)
    except Exception as error:  # the libraries raise whatever the broken file suggests to them
        raise _unloadable(path, str(error)) from error


def _unloadable(path: Path, detail: str) -> EpicragError:
    return EpicragError(
        f"the embedder at {path} cannot be loaded: {detail}",
        "choose another with --embed-model, or fetch it again",
    )


def plain_pooling(path: Path) -> str | None:
    """Return "mean" or "cls" when the model is a plain stack, None when the library must run it."""
    modules = read_json(path / "modules.json") or []
    types = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    if types not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        return None
    bert = read_json(path / modules[0]["path"] / "sentence_bert_config.json") or {}
    config = read_json(path / modules[1]["path"] / "config.json") or {}
    extras = set(bert) - {"max_seq_length", "do_lower_case"}
    if modules[0]["path"] or bert.get("do_lower_case") or extras:
        return None
    return _pooling(config)


def _pooling(config: dict[str, Any]) -> str | None:
    """Return the one pooling mode of either style of configuration, if it is one we run."""
    if config.get("include_prompt") is False:
        return None
    modes = [config["pooling_mode"]] if "pooling_mode" in config else []
    prefix = "pooling_mode_"
    modes += [
        name.removeprefix(prefix) for name in config if name.startswith(prefix) and config[name]
    ]
    known = {"mean": "mean", "mean_tokens": "mean", "cls": "cls", "cls_token": "cls"}
    return known.get(modes[0]) if len(modes) == 1 else None


class Stack(Protocol):
    """A transformer with its tokenizer: texts to the states of their tokens."""

    @property
    def tokenizer(self) -> Any: ...
    @property
    def max_positions(self) -> int | None: ...

    def states(self, texts: Sequence[str], max_tokens: int | None) -> tuple[Tensor, Tensor]:
        """Return the last layer's states (N, T, dim) and which of them are tokens (N, T)."""
        ...


class PlainEncoder:
    """Transformer, pooling, unit length: equal to what sentence-transformers computes."""

    def __init__(self, path: Path, pooling: str, stack: Stack) -> None:
        self.tokenizer = stack.tokenizer
        self._stack = stack
        self._pooling = pooling
        bert = read_json(path / "sentence_bert_config.json") or {}
        limits = [stack.max_positions, stack.tokenizer.model_max_length]
        asked = bert.get("max_seq_length")
        self.max_tokens: int | None = asked or min(int(n) for n in limits if n)

    def encode(self, texts: Sequence[str], prompt: str) -> NDArray[np.float32]:
        return _in_batches([prompt + text for text in texts], self._batch)

    def _batch(self, texts: list[str]) -> NDArray[np.float32]:
        import torch

        with torch.inference_mode():
            states, mask = self._stack.states([text.strip() for text in texts], self.max_tokens)
            unit = torch.nn.functional.normalize(_pool(states, mask, self._pooling), dim=1)
        return np.asarray(unit.cpu().numpy(), np.float32)


class AnyStack:
    """Whatever transformer transformers can run."""

    def __init__(self, path: Path, device: str) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
        model = AutoModel.from_pretrained(str(path), local_files_only=True, dtype=torch.float32)
        self._model: Any = model.eval().to(device)
        self.max_positions: int | None = getattr(model.config, "max_position_embeddings", None)

    def states(self, texts: Sequence[str], max_tokens: int | None) -> tuple[Tensor, Tensor]:
        inputs = self.tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=max_tokens,
            return_tensors="pt",
        ).to(self._model.device)
        return self._model(**inputs).last_hidden_state, inputs["attention_mask"]


def _pool(states: Tensor, mask: Tensor, pooling: str) -> Tensor:
    if pooling == "cls":
        return states[:, 0]
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


class LibraryEncoder:
    """Whatever else sentence-transformers can run."""

    def __init__(self, path: Path, device: str) -> None:
        from sentence_transformers import SentenceTransformer

        self._model: Any = SentenceTransformer(str(path), device=device, local_files_only=True)
        self.tokenizer: Any = self._model.tokenizer
        length = self._model.max_seq_length
        self.max_tokens: int | None = int(length) if length and length < 1e9 else None

    def encode(self, texts: Sequence[str], prompt: str) -> NDArray[np.float32]:
        def batch(some: list[str]) -> NDArray[np.float32]:
            vectors = self._model.encode(
                some, prompt=prompt, normalize_embeddings=True, show_progress_bar=False
            )
            return np.asarray(vectors, np.float32)

        return _in_batches(list(texts), batch)


def _in_batches(
    texts: list[str], batch: Callable[[list[str]], NDArray[np.float32]]
) -> NDArray[np.float32]:
    """Run texts of like length together, so that little is padded, and return their rows in order."""
    import torch

    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    try:
        parts = [
            batch([texts[i] for i in order[start : start + _BATCH]])
            for start in range(0, len(texts), _BATCH)
        ]
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            "no memory is left for the embedder", "run it with --device cpu"
        ) from error
    rows = np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)
    result = np.empty_like(rows)
    result[order] = rows
    return result


@contextmanager
def quiet() -> Iterator[None]:
    """Load without progress bars and reports on stderr, and leave the settings as they were."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
