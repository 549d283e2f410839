"""Nodes as segments: a CitableBlock is a text that is cached and reused as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import CitableBlock, TextBlock
from llama_index.core.schema import MetadataMode, NodeWithScore

if TYPE_CHECKING:
    from epicrag.index.catalog import Catalog

OURS = "epicrag_"
"""How metadata keys of ours begin; what a document says under such a key is not looked at."""
ROW_KEY = "epicrag_row"
"""Metadata key of a node's row in the catalog, hidden from every text."""
BEFORE_KEY = "epicrag_before"
"""Metadata key of the passage before a node, which its KV is computed behind; hidden likewise."""
NAMESPACE_KEY = "epicrag_namespace"
"""Metadata key of whose the KV of a node is; hidden likewise."""


class PassageBlock(CitableBlock):
    """A segment that knows by itself what its KV is computed behind, and whose it is."""

    before: str | None = None
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Segment:
    """A passage on its way to the model: its exact text, and the node it comes from if there is one."""

    text: str
    source: str = ""
    title: str = ""
    node: NodeWithScore | None = None
    before: str | None = None
    namespace: str = ""

    @classmethod
    def of(cls, found: NodeWithScore) -> Segment:
        """Any LlamaIndex node: what it shows to an LLM is the text."""
        node = found.node
        row = node.metadata.get(ROW_KEY)
        source = node.node_id if row is None else f"{node.node_id}@{row}"
        title = str(node.metadata.get("file_name") or "")
        return cls(
            node.get_content(metadata_mode=MetadataMode.LLM),
            source,
            title,
            found,
            before=_text(node.metadata.get(BEFORE_KEY)),
            namespace=_text(node.metadata.get(NAMESPACE_KEY)) or "",
        )

    def block(self) -> PassageBlock:
        return PassageBlock(
            title=self.title,
            source=self.source,
            content=[TextBlock(text=self.text)],
            before=self.before,
            namespace=self.namespace,
        )


def foreign(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata without the keys that are ours to write: they say what KV is computed behind, and whose it is."""
    return {key: value for key, value in metadata.items() if not key.startswith(OURS)}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def distinct(segments: Iterable[Segment]) -> list[Segment]:
    """Keep the first of equal texts, in order; what has no text (an image) is left out."""
    first: dict[str, Segment] = {}
    for segment in segments:
        if segment.text.strip():
            first.setdefault(segment.text, segment)
    return list(first.values())


def passage_before(catalog: Catalog, source: str) -> str | None:
    """Return the passage that stands before a segment in its document; None where that is not known.

    `source` is a `Segment.source`. It counts only while it names the very chunk that the catalog holds.
    """
    chunk_id, _, row = source.rpartition("@")
    if not (row.isdecimal() and len(row) <= 18):
        return None
    try:
        if catalog.chunk(int(row)).id != chunk_id:
            return None
    except KeyError:
        return None
    before = catalog.previous(int(row))
    return before.model_text if before else None
