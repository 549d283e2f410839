"""A cross-encoder with random weights, made on the spot: what it says is noise, and what is read is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from epicrag.errors import EpicragError
from epicrag.index.rerank import CrossReranker

LENGTH = 48
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
WORDS += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]


def checkpoint(folder: Path, labels: int = 1) -> Path:
    """A BERT of one layer that classifies pairs."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    torch.manual_seed(0)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(WORDS), encoding="utf-8")
    BertTokenizerFast(
        str(vocabulary), model_max_length=LENGTH, clean_up_tokenization_spaces=False
    ).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=LENGTH,
        num_labels=labels,
        initializer_range=0.5,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def reranker(tmp_path_factory) -> CrossReranker:
    return CrossReranker(checkpoint(tmp_path_factory.mktemp("cross")), "tiny", device="cpu")


def test_scores_are_those_of_the_model_whatever_stands_beside_them(reranker):
    texts = ["a b c", "d e f", "x y z"]
    together = reranker.scores("a b", texts)
    assert together == pytest.approx([reranker.scores("a b", [t])[0] for t in texts], abs=1e-5)
    assert len(set(together)) == 3
    assert reranker.scores("a b", []) == []


def test_a_long_passage_is_read_to_its_end(reranker):
    windows = list(reranker._windows("a b", "b " * 200 + "z"))
    assert len(windows) > 3
    assert windows[-1].endswith("z") and windows[0].startswith("b")
    assert sum(map(len, windows)) >= len("b " * 200 + "z")
    best = max(reranker.scores("a b", [window])[0] for window in windows)
    assert reranker.scores("a b", ["b " * 200 + "z"]) == [pytest.approx(best, abs=1e-5)]


def test_every_window_fits_beside_the_longest_question(reranker):
    query = reranker._cut("q " * 500)
    for window in reranker._windows(query, "b " * 100):
        assert len(reranker._tokenizer(query, window)["input_ids"]) <= LENGTH


def test_an_empty_text_and_broken_characters_are_scored(reranker):
    assert len(reranker.scores("\ud800", ["", "\udcff a"])) == 2


def test_a_classifier_of_several_labels_is_refused(tmp_path):
    model = CrossReranker(checkpoint(tmp_path, labels=3), "three", device="cpu")
    with pytest.raises(EpicragError, match="no single finite score") as error:
        model.scores("a", ["b"])
    assert "--no-rerank" in error.value.hint


def test_a_folder_without_a_model_is_refused_with_the_flag(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}), encoding="utf-8")
    with pytest.raises(EpicragError, match="cannot be loaded") as error:
        CrossReranker(tmp_path, "none", device="cpu")
    assert "--rerank" in error.value.hint
