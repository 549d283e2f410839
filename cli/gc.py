"""`epicrag gc`: free what the index keeps for nobody."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from epicrag.cli.common import Common
from epicrag.cli.output import count, size


def gc(
    common: Common,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be freed; write nothing.")
    ] = False,
) -> int:
    """Free KV that no passage refers to, leftovers of killed runs, and empty pages. Loads no model."""
    from epicrag.gc import collect

    out = common.output
    with common.open() as pipeline:
        freed = collect(pipeline, dry_run=dry_run)
    total = sum(one.bytes for one in freed)
    if out.is_machine:
        out.object({"freed": [asdict(one) for one in freed], "bytes": total, "dry_run": dry_run})
        return 0
    for one in freed:
        files = f" in {count(one.files, 'entry').replace('entrys', 'entries')}" if one.files else ""
        out.text(f"{one.what}: {size(one.bytes)}{files}")
    verb = "would be freed" if dry_run else "freed"
    out.note(f"{verb}: {size(total)}" if freed else "nothing to free")
    return 0
