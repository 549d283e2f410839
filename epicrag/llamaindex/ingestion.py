"""An `IngestionPipeline` that cuts as `epicrag ingest` does and computes the passages' KV, for an index of one's own."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.node_parser import NodeParser
from llama_index.core.schema import (
    BaseNode,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    ObjectType,
    RelatedNodeInfo,
    TextNode,
    TransformComponent,
)
from llama_index.core.utils import get_tqdm_iterable

from epicrag.errors import UsageError
from epicrag.llamaindex.blocks import BEFORE_KEY, NAMESPACE_KEY, OURS, Segment, foreign
from epicrag.llamaindex.messages import piece_of

if TYPE_CHECKING:
    from epicrag.connectors.split import TokenCounter
    from epicrag.llamaindex.llm import EpicragLLM
    from epicrag.pipeline import Pipeline
    from epicrag.serving.engine import Engine
    from epicrag.serving.prompt import Piece
    from epicrag.types import Chunk

    Source = Pipeline | EpicragLLM | Engine

_log = logging.getLogger("epicrag")


class EpicragNodeParser(NodeParser):
    """Cuts documents into the passages that `epicrag ingest` cuts them into: at headings, then sentences, tiling the
    text, of at most `chunk_tokens` tokens of the serving model.

    A node's text is what the model reads of it, headings above included; all metadata is kept from the model and the
    embedder. It carries the passage before it, which its KV is computed behind. Ids are the same in every run.
    """

    chunk_tokens: int = Field(default=512, ge=1, description="Most tokens of one passage.")
    tokenizer: str = Field(default="", description="Identity of the tokenizer that counts.")
    reading: int = Field(default=0, description="Version of the way texts are read.")

    _counter: Any = PrivateAttr()
    _limits: Any = PrivateAttr()

    def __init__(self, source: Source, *, chunk_tokens: int | None = None, **options: Any) -> None:
        """`source`: what serves the model that counts. `chunk_tokens` defaults to the configuration's."""
        from epicrag.connectors.base import Limits
        from epicrag.connectors.formats import READING
        from epicrag.sources import limits_of

        pipeline, counter = _pipeline(source), _counter(source)
        own: dict[str, Any] = {
            "tokenizer": str(getattr(counter, "fingerprint", type(counter).__name__)),
            "reading": READING,
        }
        if pipeline or chunk_tokens:
            own["chunk_tokens"] = chunk_tokens or (pipeline and pipeline.config.chunk_tokens)
        super().__init__(**own, **options)
        self._counter = counter
        self._limits = limits_of(pipeline.config) if pipeline else Limits()

    @classmethod
    def class_name(cls) -> str:
        return "EpicragNodeParser"

    def _parse_nodes(
        self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any
    ) -> list[BaseNode]:
        found: list[BaseNode] = []
        for document in get_tqdm_iterable(nodes, show_progress, "Cutting into passages"):
            found.extend(self._cut(document))
        return found

    async def _aparse_nodes(
        self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any
    ) -> list[BaseNode]:
        return await asyncio.to_thread(self._parse_nodes, nodes, show_progress, **kwargs)

    def _postprocess_parsed_nodes(
        self, nodes: list[BaseNode], parent_doc_map: dict[str, Any]
    ) -> list[BaseNode]:
        """The metadata of the document are the node's too, kept from every text; the spans are known already."""
        spans = [
            (node.start_char_idx, node.end_char_idx) for node in nodes if isinstance(node, TextNode)
        ]
        ours = [
            {key: value for key, value in node.metadata.items() if key.startswith(OURS)}
            for node in nodes
        ]
        done = super()._postprocess_parsed_nodes(nodes, parent_doc_map)
        for node, span, own in zip(done, spans, ours, strict=True):
            assert isinstance(node, TextNode)
            node.start_char_idx, node.end_char_idx = span
            node.metadata = {**foreign(node.metadata), **own}
            hide(node)
        return done

    def _cut(self, document: BaseNode) -> Iterator[TextNode]:
        from epicrag.connectors.llamahub import Given
        from epicrag.connectors.split import split
        from epicrag.types import Unread

        text = document.get_content(metadata_mode=MetadataMode.NONE)
        path = f"reader:nodes/{document.node_id}"
        read = Given(path, text, foreign(document.metadata), self._limits).read()
        if isinstance(read, Unread):
            if read.status != "empty":
                _log.warning("the document %s is left out: %s", document.node_id, read.reason)
            return
        before: str | None = None
        for chunk in split(read, self._counter, chunk_tokens=self.chunk_tokens):
            yield _node(chunk, before, document)
            before = chunk.model_text


class CompileKV(TransformComponent):
    """Computes the KV of nodes and stores it, so that a question over them computes none. Put it last: it takes the
    text that the model will be shown, as it then is.

    Nodes of `EpicragNodeParser` are computed behind the passage before them, others alone. `namespace` keeps this
    KV apart, in the engine's `other_store`. Without one it stands with the KV of the source's own index, whose next
    `ingest` drops what belongs to none of its passages. The pipeline's cache knows the nodes by their texts and the
    model with all that decides its KV, so that unchanged nodes are not looked at again.
    """

    model: str = Field(description="Identity of the model and of what decides its KV.")
    namespace: str = Field(default="", description="Whose the KV is.")

    _engine: Any = PrivateAttr()

    def __init__(self, source: Source, *, namespace: str = "") -> None:
        """The model is loaded when there are nodes to compute."""
        pipeline = _pipeline(source)
        model = pipeline.engine_identity() if pipeline else _engine(source)().profile
        own: dict[str, Any] = {"model": model, "namespace": namespace}
        super().__init__(**own)
        self._engine = _engine(source)

    @classmethod
    def class_name(cls) -> str:
        return "CompileKV"

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Store what is missing. UsageError: the model has nowhere to keep it, so that nothing would be gained."""
        pieces = [self._mark(node) for node in nodes]
        pieces = [piece for piece in pieces if piece.text.strip()]
        if not pieces:
            return nodes
        engine: Engine = self._engine()
        if not engine.keeps(self.namespace):
            where = "namespaces (other_store)" if self.namespace else "it (store)"
            raise UsageError(
                f"{engine.name} has no folder to keep the KV of {where}",
                "open the pipeline with engine_options={'other_store': KVStore(folder)}, or load the engine so",
            )
        done = get_tqdm_iterable(
            engine.compile(pieces), bool(kwargs.get("show_progress")), "Computing KV"
        )
        n_tokens = sum(tokens for _, _, tokens in done)
        _log.info("KV of %d passages, %d tokens computed", len(pieces), n_tokens)
        return nodes

    async def acall(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        return await asyncio.to_thread(self, nodes, **kwargs)

    def _mark(self, node: BaseNode) -> Piece:
        """What the engine will be given for a node; the node says whose its KV is."""
        node.metadata.pop(NAMESPACE_KEY, None)
        if self.namespace:
            node.metadata[NAMESPACE_KEY] = self.namespace
            hide(node, NAMESPACE_KEY)
        return piece_of(Segment.of(NodeWithScore(node=node)).block())


def hide(node: BaseNode, *keys: str) -> None:
    """Keep metadata, all of it unless keys are given, from every text that a model is shown."""
    for hidden in (node.excluded_llm_metadata_keys, node.excluded_embed_metadata_keys):
        hidden.extend(key for key in keys or node.metadata if key not in hidden)


def _node(chunk: Chunk, before: str | None, document: BaseNode) -> TextNode:
    place = chunk.place
    about: dict[str, Any] = {
        "title": chunk.title,
        "page": place.page,
        "lines": list(place.lines) if place.lines else None,
        "heading": place.heading,
        "part": place.part,
        BEFORE_KEY: before,
    }
    name = f"{document.node_id}#{chunk.ordinal}:{chunk.id}"
    return TextNode(
        id_=str(uuid.uuid5(uuid.NAMESPACE_URL, name)),  # some vector stores take nothing but UUIDs
        text=chunk.model_text,
        start_char_idx=chunk.start,
        end_char_idx=chunk.end,
        metadata={key: value for key, value in about.items() if value is not None},
        relationships={NodeRelationship.SOURCE: document.source_node or _related(document)},
    )


def _related(document: BaseNode) -> RelatedNodeInfo:
    return RelatedNodeInfo(
        node_id=document.node_id,
        node_type=ObjectType.DOCUMENT,
        metadata=foreign(document.metadata),
        hash=document.hash,
    )


def _pipeline(source: Any) -> Pipeline | None:
    """The pipeline of a source; None for a bare engine."""
    from epicrag.llamaindex.llm import EpicragLLM
    from epicrag.pipeline import Pipeline

    found = source._pipeline if isinstance(source, EpicragLLM) else source
    return found if isinstance(found, Pipeline) else None


def _engine(source: Any) -> Callable[[], Engine]:
    """What gives the engine, loading it where it must."""
    return lambda: source.engine if hasattr(source, "engine") else source


def _counter(source: Any) -> TokenCounter:
    pipeline = _pipeline(source)
    counter: TokenCounter = pipeline.counter if pipeline else _engine(source)().tokenizer
    return counter
