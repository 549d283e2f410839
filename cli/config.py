"""`epicrag config`: which settings are in force, where they come from, and whether they can be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from epicrag.cli.common import Common, verb

config = typer.Typer(help="Show, locate and check the settings.")


def show(
    common: Common,
    origin: Annotated[bool, typer.Option("--origin", help="With where each comes from.")] = False,
) -> int:
    """Show every setting that is in force, as epicrag.toml would have it."""
    from epicrag.config import KEYS
    from epicrag.project import toml

    out, settings = common.output, common.load()
    rows = [(key, getattr(settings, key), settings.origins.get(key, "default")) for key in KEYS]
    if out.is_machine:
        found = {key: {"value": _plain(value), "origin": where} for key, value, where in rows}
        out.object({"settings": found})
        return 0
    lines = [(f"{key} = {toml(value, key)}", where) for key, value, where in rows]
    width = min(max(len(line) for line, _ in lines), 48)
    for line, where in lines:
        out.text(f"{line:<{width}}  # {where}" if origin else line)
    return 0


def path(common: Common) -> int:
    """Print the files that settings are read from, the stronger one last, and whether each is there."""
    from epicrag.config import config_files

    out = common.output
    files = config_files(common.flags)
    if out.is_machine:
        out.object({"files": [{"path": str(file), "exists": file.is_file()} for file in files]})
        return 0
    for file in files:
        out.text(str(file) if file.is_file() else f"{file}  (not there)")
    return 0


def check(common: Common) -> int:
    """Check that every setting can be used, and that the models are here. Exits with 2 where one cannot."""
    from epicrag.checkup import settings as checked
    from epicrag.config import config_files
    from epicrag.errors import UsageError
    from epicrag.models import Models

    out, settings = common.output, common.load()
    found = checked(settings)
    if found.state == "fail":
        raise UsageError(found.what, found.fix)
    notes = []
    for name in (settings.model, settings.embed_model):
        if why := Models(settings).lacks(name):
            notes.append(why)
    files = [str(file) for file in config_files(common.flags) if file.is_file()]
    if out.is_machine:
        out.object({"ok": True, "files": files, "notes": notes})
        return 0
    out.text(f"the settings can be used ({', '.join(files) or 'no file: all as by default'})")
    for note in notes:
        out.note(f"note: {note}")
    return 0


def _plain(value: object) -> object:
    """A setting as JSON has it."""
    if isinstance(value, Mapping):
        return dict(value)
    return value if value is None or isinstance(value, bool | int | float) else str(value)


verb(config, "show")(show)
verb(config, "path")(path)
verb(config, "check")(check)
