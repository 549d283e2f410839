"""BERT run by torch and tokenizers alone, equal bit by bit to transformers, whose import takes seconds.

A model that says anything which is not read here is not for this file: `read_bert` returns None for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epicrag.index.files import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

_ADAPTED = ("auto_map", "quantization_config", "add_cross_attention", "is_decoder", "pruned_heads")
_NO_SETTINGS = ("chunk_size_feed_forward",)  # which are the same at 0 as when they are not there
_SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


@dataclass(frozen=True, slots=True)
class Bert:
    """A BERT encoder with its tokenizer."""

    tokenizer: WordPieces
    max_positions: int
    _weights: Mapping[str, Tensor]
    _layers: int
    _heads: int
    _eps: float
    _device: str

    def states(self, texts: Sequence[str], max_tokens: int | None) -> tuple[Tensor, Tensor]:
        """Return the last layer's states (N, T, dim) and which of them are tokens (N, T)."""
        import torch

        ids, mask = self.tokenizer.batch(texts, max_tokens)
        rows = torch.tensor(ids, device=self._device)
        is_token = torch.tensor(mask, device=self._device)
        seen = None
        if not bool(is_token.all()):
            n_texts, length = rows.shape
            seen = is_token.bool()[:, None, None, :].expand(n_texts, 1, length, length)
        states = self._embed(rows)
        for layer in range(self._layers):
            states = self._layer(f"encoder.layer.{layer}.", states, seen)
        return states, is_token

    def _embed(self, ids: Tensor) -> Tensor:
        from torch.nn.functional import embedding

        words, places, kinds = (
            self._weights[f"embeddings.{name}_embeddings.weight"]
            for name in ("word", "position", "token_type")
        )
        return self._norm(
            "embeddings.LayerNorm", embedding(ids, words) + kinds[0] + places[None, : ids.shape[1]]
        )

    def _layer(self, at: str, states: Tensor, seen: Tensor | None) -> Tensor:
        from torch.nn.functional import gelu, scaled_dot_product_attention

        by_head = (*states.shape[:-1], self._heads, -1)
        query, key, value = (
            self._linear(f"{at}attention.self.{name}", states).view(by_head).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        mixed = scaled_dot_product_attention(
            query, key, value, attn_mask=seen, scale=query.shape[-1] ** -0.5
        )
        mixed = mixed.transpose(1, 2).reshape(states.shape)
        mixed = self._linear(f"{at}attention.output.dense", mixed)
        states = self._norm(f"{at}attention.output.LayerNorm", mixed + states)
        wide = gelu(self._linear(f"{at}intermediate.dense", states))
        return self._norm(f"{at}output.LayerNorm", self._linear(f"{at}output.dense", wide) + states)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        from torch.nn.functional import linear

        return linear(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        from torch.nn.functional import layer_norm

        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return layer_norm(x, weight.shape, weight, bias, self._eps)


@dataclass(frozen=True, slots=True)
class WordPieces:
    """BERT's tokenizer, asked as transformers' is."""

    model_max_length: int | None
    _tokenizer: Tokenizer

    def batch(
        self, texts: Sequence[str], max_tokens: int | None
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Return ids, cut at `max_tokens` and padded to the longest, and which are tokens: 1, else 0."""
        tokenizer = self._tokenizer
        if max_tokens is None:
            tokenizer.no_truncation()
        else:
            tokenizer.enable_truncation(max_tokens)
        pad = tokenizer.token_to_id(_SPECIAL["pad"])
        tokenizer.enable_padding(pad_id=pad, pad_token=_SPECIAL["pad"])
        encoded = tokenizer.encode_batch(list(texts))
        return [one.ids for one in encoded], [one.attention_mask for one in encoded]

    def __call__(self, text: str, **_settings: object) -> dict[str, list[tuple[int, int]]]:
        """Return the characters [start, end) of each token, special ones left out, nothing cut off."""
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        return {"offset_mapping": self._tokenizer.encode(text, add_special_tokens=False).offsets}

    def num_special_tokens_to_add(self) -> int:
        return int(self._tokenizer.num_special_tokens_to_add(False))


def read_bert(path: Path, device: str) -> Bert | None:
    """Load the BERT in a folder; None where it, or its tokenizer, is not as plain as this file's."""
    config = read_json(path / "config.json") or {}
    tokenizer = read_word_pieces(path) if is_plain_bert(config) else None
    weights = _weights(path, config, device) if tokenizer else None
    if tokenizer is None or weights is None:
        return None
    return Bert(
        tokenizer,
        int(config["max_position_embeddings"]),
        weights,
        int(config["num_hidden_layers"]),
        int(config["num_attention_heads"]),
        float(config["layer_norm_eps"]),
        device,
    )


def is_plain_bert(config: Mapping[str, Any]) -> bool:
    """Whether a configuration describes BERT's encoder as it was published, and names its sizes."""
    sizes = ("num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings")
    return (
        config.get("model_type") == "bert"
        and config.get("hidden_act") == "gelu"
        and config.get("position_embedding_type", "absolute") == "absolute"
        and not any(config.get(name) for name in (*_ADAPTED, *_NO_SETTINGS))
        and all(isinstance(config.get(name), int) for name in sizes)
        and isinstance(config.get("layer_norm_eps"), int | float)
        and config["hidden_size"] % config["num_attention_heads"] == 0
    )


def read_word_pieces(path: Path) -> WordPieces | None:
    """Load BERT's tokenizer; None where the folder's settings would make another one of its file."""
    from tokenizers import Tokenizer

    spec = read_json(path / "tokenizer.json") or {}
    settings = read_json(path / "tokenizer_config.json") or {}
    if not _is_plain_tokenizer(spec, settings):
        return None
    limit = settings.get("model_max_length")
    return WordPieces(
        int(limit) if limit and limit < 1e9 else None,
        Tokenizer.from_file(str(path / "tokenizer.json")),
    )


def _is_plain_tokenizer(spec: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
        "strip_accents": settings.get("strip_accents"),
        "lowercase": settings.get("do_lower_case", True),
    }
    model, added = spec.get("model") or {}, spec.get("added_tokens") or []
    return (
        settings.get("tokenizer_class") in ("BertTokenizer", "BertTokenizerFast")
        and spec.get("normalizer") == normalizer
        and spec.get("pre_tokenizer") == {"type": "BertPreTokenizer"}
        and _frame(spec.get("post_processor") or {}) == ["[CLS]", "A", "[SEP]"]
        and model.get("type") == "WordPiece"
        and model.get("unk_token") == _SPECIAL["unk"]
        and model.get("continuing_subword_prefix") == "##"
        and model.get("max_input_chars_per_word") == 100
        and {token["content"] for token in added} == set(_SPECIAL.values())
        and all(settings.get(f"{name}_token", text) == text for name, text in _SPECIAL.items())
        and settings.get("padding_side", "right") == settings.get("truncation_side", "right")
        and settings.get("padding_side", "right") == "right"
        and not (settings.get("additional_special_tokens") or settings.get("auto_map"))
    )


def _frame(post_processor: Mapping[str, Any]) -> list[str]:
    """Return what a single text becomes, part by part, by the template of a tokenizer's file."""
    parts = post_processor.get("single") or []
    return [str(next(iter(part.values())).get("id")) for part in parts]


def _weights(path: Path, config: Mapping[str, Any], device: str) -> dict[str, Tensor] | None:
    """Return the weights by name, in float32; None where one is missing or of another shape."""
    import torch
    from safetensors import safe_open

    wanted, found = _shapes(config), {}
    if not (path / "model.safetensors").is_file():
        return None
    with safe_open(path / "model.safetensors", "pt") as file:
        prefix = "bert." if "bert.embeddings.LayerNorm.weight" in file.keys() else ""  # noqa: SIM118
        names = set(file.keys())
        for name, shape in wanted.items():
            if prefix + name not in names:
                return None
            tensor = file.get_tensor(prefix + name)
            if tuple(tensor.shape[-len(shape) :]) != shape:
                return None
            found[name] = tensor.to(device, torch.float32)
    return found


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the weights that the encoder consists of, and the shapes of those that are square or flat."""
    dim, wide = int(config["hidden_size"]), int(config["intermediate_size"])
    shapes: dict[str, tuple[int, ...]] = {
        f"embeddings.{name}_embeddings.weight": (dim,)
        for name in ("word", "position", "token_type")
    }

    def linear(name: str, rows: int, columns: int) -> None:
        shapes.update({f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)})

    def norm(name: str) -> None:
        shapes.update({f"{name}.weight": (dim,), f"{name}.bias": (dim,)})

    norm("embeddings.LayerNorm")
    for layer in range(int(config["num_hidden_layers"])):
        at = f"encoder.layer.{layer}."
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            linear(f"{at}attention.{name}", dim, dim)
        linear(f"{at}intermediate.dense", wide, dim)
        linear(f"{at}output.dense", dim, wide)
        norm(f"{at}attention.output.LayerNorm")
        norm(f"{at}output.LayerNorm")
    return shapes
