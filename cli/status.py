"""`epicrag status`: what is in the index, and which models it was made with."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from epicrag.cli.common import Common
from epicrag.cli.output import shown, size

if TYPE_CHECKING:
    from epicrag.pipeline import Status


def status(common: Common) -> int:
    """Show what is in the index. Loads no model."""
    out = common.output
    with common.open() as pipeline:
        found = pipeline.status()
    if out.is_machine:
        out.object(status_json(found))
        return 0
    for name, value in _lines(found):
        out.text(f"{name:<14}{value}")
    return 0


def _lines(status: Status) -> list[tuple[str, str]]:
    per_token = status.kv_bytes_per_text_token or status.kv_bytes_per_token
    rate = f", {size(per_token)} a token of text" if per_token else ""
    kind = f" in {status.kv_dtype}" if per_token and status.kv_dtype else ""
    return [
        ("index", shown(str(status.index))),
        ("generation", str(status.generation)),
        ("last ingest", status.last_ingest or "not yet complete"),
        ("documents", f"{status.documents:,}"),
        ("chunks", f"{status.chunks:,}"),
        ("tokens", f"{status.tokens:,}"),
        ("vectors", f"{status.vectors:,}"),
        ("KV", f"{status.kv_entries:,} entries, {size(status.kv_bytes)}{rate}{kind}"),
        *_other(status),
        *_coverage(status),
        ("model", _model(status)),
        ("embedder", _named(status.embedder, status.embedder_fingerprint)),
    ]


def _other(status: Status) -> list[tuple[str, str]]:
    """KV that is kept for nobody but a question like an earlier one; a line only where there is some."""
    if not status.kv_other_entries:
        return []
    amount = f"{status.kv_other_entries:,} of them, {size(status.kv_other_bytes)}"
    why = "of other models, settings or earlier texts; the next ingest drops it"
    return [("other KV", f"{amount}: {why}")]


def _coverage(status: Status) -> list[tuple[str, str]]:
    """How many chunks have their KV, how much of the budget it takes, and how often it was there when wanted."""
    lines = []
    if status.chunks:
        lines.append(("covered", f"{status.chunks_with_kv:,} of {status.chunks:,} chunks have KV"))
    if status.kv_budget is not None:
        share = status.kv_bytes / status.kv_budget if status.kv_budget else 1.0
        lines.append(("budget", f"{size(status.kv_budget)} for KV, {share:.0%} used"))
    if status.retrievals:
        share = status.retrievals_with_kv / status.retrievals
        lines.append(("retrieved", f"{status.retrievals:,} passages, {share:.0%} with KV"))
    return lines


def _model(status: Status) -> str:
    if status.model is None:
        return f"{status.configured_model} (no KV compiled yet)"
    details = f", {status.dtype}, compile {status.compile}"
    return _named(status.model, status.model_fingerprint) + details


def _named(name: str | None, fingerprint: str | None) -> str:
    return f"{name} ({(fingerprint or '?')[:12]})" if name else "none yet"


def status_json(status: Status) -> dict[str, object]:
    """The shape of `status --json`: fields may be added, never renamed."""
    values = asdict(status)
    kv = {
        "entries": values.pop("kv_entries"),
        "bytes": values.pop("kv_bytes"),
        "bytes_per_token": values.pop("kv_bytes_per_token"),
        "bytes_per_text_token": values.pop("kv_bytes_per_text_token"),
        "chunks": values.pop("chunks_with_kv"),
        "other_entries": values.pop("kv_other_entries"),
        "other_bytes": values.pop("kv_other_bytes"),
        "dtype": values.pop("kv_dtype"),
        "budget": values.pop("kv_budget"),
        "retrievals": values.pop("retrievals"),
        "retrievals_with_kv": values.pop("retrievals_with_kv"),
    }
    model = {
        "name": values.pop("model"),
        "fingerprint": values.pop("model_fingerprint"),
        "dtype": values.pop("dtype"),
        "compile": values.pop("compile"),
        "configured": values.pop("configured_model"),
    }
    embedder = {
        "name": values.pop("embedder"),
        "fingerprint": values.pop("embedder_fingerprint"),
        "configured": values.pop("configured_embedder"),
    }
    return {**values, "index": str(status.index), "kv": kv, "model": model, "embedder": embedder}
