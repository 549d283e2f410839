"""BERT without transformers gives the very vectors that transformers gives, or leaves the model to it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from epicrag.index.bert import is_plain_bert, read_bert, read_word_pieces
from epicrag.index.encoder import AnyStack, PlainEncoder, load_encoder

WORDS = ["how", "late", "may", "a", "claim", "be", "cafe", "café", "##s", "?", ".", "今", "天"]
TEXTS = [
    "",
    "how",
    "  How late may a Claim be? ",
    "a claims " * 40,
    "Café cafés",
    "今天 [SEP] a",
    "zzz",
]
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory) -> Path:
    """A random BERT with BERT's own tokenizer, pooled by the mean, that reads 32 tokens."""
    from transformers import BertConfig, BertModel, BertTokenizer

    folder = tmp_path_factory.mktemp("bert")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: i for i, word in enumerate([*special, *WORDS])}
    BertTokenizer(vocab=vocabulary, model_max_length=32).save_pretrained(folder)
    torch.manual_seed(0)
    more = {"intermediate_size": 24, "max_position_embeddings": 32, "vocab_size": len(vocabulary)}
    BertModel(BertConfig(**SIZES, **more)).save_pretrained(folder)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    write(
        folder / "modules.json",
        [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in modules],
    )
    write(folder / "1_Pooling/config.json", {"pooling_mode_mean_tokens": True})
    return folder


@pytest.fixture
def changed(tiny_bert, tmp_path) -> Callable[..., Path]:
    """The tiny model with changed keys in one of its JSON files."""
    import shutil

    def change(file: str, **keys: object) -> Path:
        folder = tmp_path / f"changed{len(list(tmp_path.iterdir()))}"
        shutil.copytree(tiny_bert, folder)
        write(folder / file, json.loads((folder / file).read_text()) | keys)
        return folder

    return change


def write(file: Path, content: object) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_are_those_of_transformers_bit_by_bit(tiny_bert, pooling):
    bert = read_bert(tiny_bert, "cpu")
    assert bert is not None
    ours = PlainEncoder(tiny_bert, pooling, bert)
    theirs = PlainEncoder(tiny_bert, pooling, AnyStack(tiny_bert, "cpu"))
    assert ours.max_tokens == theirs.max_tokens
    for prompt in ("", "how "):
        np.testing.assert_array_equal(ours.encode(TEXTS, prompt), theirs.encode(TEXTS, prompt))
        for text in TEXTS:  # alone there is no padding, and another path through the attention
            np.testing.assert_array_equal(
                ours.encode([text], prompt), theirs.encode([text], prompt)
            )


def test_tokens_stand_where_transformers_sees_them(tiny_bert):
    ours, theirs = read_word_pieces(tiny_bert), AnyStack(tiny_bert, "cpu").tokenizer
    assert ours is not None
    settings = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}
    for text in TEXTS:
        assert ours(text)["offset_mapping"] == list(theirs(text, **settings)["offset_mapping"])
    assert ours.num_special_tokens_to_add() == theirs.num_special_tokens_to_add()
    assert ours.model_max_length == theirs.model_max_length


@pytest.mark.parametrize(
    ("file", "keys"),
    [
        ("config.json", {"model_type": "roberta"}),
        ("config.json", {"hidden_act": "gelu_new"}),
        ("config.json", {"position_embedding_type": "relative_key"}),
        ("config.json", {"is_decoder": True}),
        ("config.json", {"auto_map": {"AutoModel": "own.Code"}}),
        ("config.json", {"num_hidden_layers": 3}),  # whose weights are not there
        ("config.json", {"intermediate_size": 32}),  # nor are they of this shape
        ("tokenizer_config.json", {"do_lower_case": False}),
        ("tokenizer_config.json", {"tokenizer_class": "OwnTokenizer"}),
        ("tokenizer_config.json", {"padding_side": "left"}),
        ("tokenizer_config.json", {"sep_token": "[CLS]"}),
        ("tokenizer.json", {"pre_tokenizer": {"type": "Whitespace"}}),
        ("tokenizer.json", {"post_processor": None}),
    ],
)
def test_anything_else_is_left_to_transformers(changed, file, keys):
    assert read_bert(changed(file, **keys), "cpu") is None


def test_no_configuration_is_no_plain_bert():
    assert not is_plain_bert({})
    assert not is_plain_bert({"model_type": "bert", "hidden_act": "gelu", **SIZES})


def test_weights_under_a_prefix_are_found(tiny_bert, changed):
    from safetensors.torch import load_file, save_file

    folder = changed("config.json")
    file = folder / "model.safetensors"
    save_file({f"bert.{name}": tensor for name, tensor in load_file(file).items()}, file)
    ours, same = load_encoder(folder), load_encoder(tiny_bert)
    np.testing.assert_array_equal(ours.encode(TEXTS, ""), same.encode(TEXTS, ""))


def test_plain_bert_is_run_without_transformers(tiny_bert):
    code = (
        "import sys; from pathlib import Path; from epicrag.index.encoder import load_encoder; "
        f"load_encoder(Path({str(tiny_bert)!r})).encode(['a claim'], ''); "
        "print(sorted({'transformers', 'sentence_transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]", done.stderr
