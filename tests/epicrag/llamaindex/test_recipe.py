"""LlamaIndex's own CompactAndRefine with segments in place of text: what the README's recipe says.

It takes messages in place of texts since 0.14.22, of which the first three releases are excluded.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, CitableBlock, TextBlock
from llama_index.core.prompts import PromptTemplate
from llama_index.core.response_synthesizers import CompactAndRefine
from llama_index.core.schema import NodeWithScore, TextNode

from epicrag.llamaindex import EpicragRetriever

pytestmark = pytest.mark.skipif(
    "multimodal" not in signature(CompactAndRefine.__init__).parameters,
    reason="this llama-index-core has no synthesizer of messages",
)


class SegmentNode(TextNode):
    """A node that shows itself as a segment."""

    def get_content_blocks(self, metadata_mode: Any = None) -> list[Any]:
        return [CitableBlock(title="", source=self.node_id, content=[TextBlock(text=self.text)])]


class SegmentPrompt(PromptTemplate):
    """Segments, then the question; nothing is written into a text."""

    def format_messages(self, llm: Any = None, **given: Any) -> list[ChatMessage]:
        told = {**self.kwargs, **given}
        blocks = [block for message in told.get("context_messages", ()) for block in message.blocks]
        question = TextBlock(text=str(told.get("query_str", "")))
        return [ChatMessage(role="user", blocks=[*blocks, question])]


def test_a_stock_synthesizer_of_messages_hands_segments_on(pipeline, engine, llm, chunks):
    found = EpicragRetriever(pipeline).retrieve("code?")
    nodes = [NodeWithScore(node=SegmentNode(**one.node.model_dump())) for one in found]
    prompt = SegmentPrompt("{context_messages}{query_str}")
    synthesizer = CompactAndRefine(
        llm=llm,
        multimodal=True,
        chat_content_qa_template=prompt,
        chat_content_refine_template=prompt,
    )
    response = synthesizer.synthesize("What is the {door} code?", nodes)
    assert str(response) == "The code is 4471."
    assert [piece.text for piece in engine.prompts[0].pieces] == [c.model_text for c in chunks]
    assert engine.prompts[0].question == "What is the {door} code?"
