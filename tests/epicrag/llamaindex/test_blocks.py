"""Nodes as segments."""

from __future__ import annotations

from llama_index.core.schema import ImageNode, NodeWithScore, TextNode

from epicrag.llamaindex.blocks import Segment, distinct, passage_before


def test_the_text_of_a_foreign_node_is_what_it_shows_to_an_llm():
    node = TextNode(text="body", metadata={"year": 2020, "path": "/x"})
    node.excluded_llm_metadata_keys = ["path"]
    segment = Segment.of(NodeWithScore(node=node))
    assert segment.text == "year: 2020\n\nbody"
    assert segment.source == node.node_id


def test_metadata_of_a_wrong_kind_says_nothing():
    for value in (5, ["x"], None):
        node = TextNode(text="body", metadata={"epicrag_before": value, "epicrag_namespace": value})
        block = Segment.of(NodeWithScore(node=node)).block()
        assert (block.before, block.namespace) == (None, "")


def test_equal_texts_are_one_segment_and_images_are_none():
    nodes = [TextNode(text="a", id_="1"), TextNode(text="b", id_="2"), TextNode(text="a", id_="3")]
    found = [NodeWithScore(node=node) for node in [*nodes, ImageNode(image="aGk=")]]
    assert [segment.source for segment in distinct(map(Segment.of, found))] == ["1", "2"]


def test_the_passage_before_is_looked_up_only_for_the_very_chunk(pipeline, chunks):
    source = f"{chunks[1].id}@2"
    assert passage_before(pipeline.catalog, source) == chunks[0].model_text
    first, moved, gone = f"{chunks[0].id}@1", f"{chunks[1].id}@3", f"{chunks[1].id}@99"
    foreign = ["", "node", "node@", "a@b", "@2", "x@²", "x@" + "9" * 40]
    for other in [first, moved, gone, *foreign]:
        assert passage_before(pipeline.catalog, other) is None
