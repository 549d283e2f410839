"""`epicrag list`: the documents in the index, and what is there of each."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from epicrag.cli.common import Common
from epicrag.cli.complete import Names
from epicrag.cli.output import Output, count, line_of, shown, size

if TYPE_CHECKING:
    from epicrag.documents import Listed


def list_documents(
    common: Common,
    names: Names = None,
) -> int:
    """List the documents in the index: id, passages, tokens, KV, path. Loads no model."""
    from epicrag.documents import listing

    out = common.output
    with common.open() as pipeline:
        found = listing(pipeline, names or ())
    if out.jsonl:
        for document in found:
            out.object(document_json(document))
    elif out.json:
        out.object({"documents": [document_json(document) for document in found]})
    else:
        _show(out, found)
    return 0


def _show(out: Output, found: list[Listed]) -> None:
    for row in found:
        kv = f"{row.chunks_with_kv} of {row.chunks}" if row.chunks_with_kv < row.chunks else "all"
        out.text(
            f"{row.id}  {row.chunks:>5} {'chunk ' if row.chunks == 1 else 'chunks'}  "
            f"{row.tokens:>8,} tokens  KV {kv:<9} {size(row.kv_bytes):>9}  {line_of(shown(row.path))}"
        )
    chunks, tokens = sum(row.chunks for row in found), sum(row.tokens for row in found)
    out.note(f"{count(len(found), 'document')}, {count(chunks, 'chunk')}, {count(tokens, 'token')}")


def document_json(document: Listed) -> dict[str, object]:
    """One document of `list --json`: fields may be added, never renamed."""
    values = asdict(document)
    kv = {"chunks": values.pop("chunks_with_kv"), "bytes": values.pop("kv_bytes")}
    return {**values, "kv": kv}
