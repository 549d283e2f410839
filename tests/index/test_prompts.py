"""Embedders get the prefixes that they were trained with."""

from __future__ import annotations

import json

import pytest

from epicrag.index.prompts import prompts_of


@pytest.mark.parametrize(
    ("name", "query", "document"),
    [
        ("intfloat/e5-small-v2", "query: ", "passage: "),
        ("e5-small-v2", "query: ", "passage: "),
        ("intfloat/multilingual-e5-base", "query: ", "passage: "),
        (
            "BAAI/bge-small-en-v1.5",
            "Represent this sentence for searching relevant passages: ",
            None,
        ),
        ("BAAI/bge-base-zh-v1.5", "为这个句子生成表示以用于检索相关文章：", None),
        ("nomic-ai/nomic-embed-text-v1.5", "search_query: ", "search_document: "),
    ],
)
def test_known_families_are_told_by_name(tmp_path, name, query, document):
    prompts = prompts_of(name, tmp_path)
    assert (prompts.get("query"), prompts.get("document")) == (query, document)


@pytest.mark.parametrize(
    "name", ["all-minilm-l6-v2", "thenlper/gte-small", "BAAI/bge-m3", "my/code5-small"]
)
def test_others_get_none(tmp_path, name):
    assert prompts_of(name, tmp_path) == {}


def test_an_instructed_e5_gets_its_instruction_and_no_passage_prefix(tmp_path):
    prompts = prompts_of("intfloat/multilingual-e5-large-instruct", tmp_path)
    assert prompts["query"].startswith("Instruct: ") and "document" not in prompts


def test_a_copy_in_a_folder_is_told_by_what_it_was_saved_under(tmp_path):
    config = {"_name_or_path": "intfloat/e5-small-v2"}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert prompts_of(str(tmp_path), tmp_path) == {"query": "query: ", "document": "passage: "}


def test_what_the_model_itself_says_counts_first(tmp_path):
    own = tmp_path / "config_sentence_transformers.json"
    own.write_text(json.dumps({"prompts": {"query": "q: ", "document": "d: "}}), encoding="utf-8")
    assert prompts_of("intfloat/e5-small-v2", tmp_path) == {}
    own.write_text(json.dumps({"prompts": {"query": "", "document": ""}}), encoding="utf-8")
    assert prompts_of("intfloat/e5-small-v2", tmp_path) == {
        "query": "query: ",
        "document": "passage: ",
    }
