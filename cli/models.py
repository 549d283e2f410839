"""`epicrag models`: which models there are, where they lie, and fetching them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from epicrag.cli.common import Common, verb

if TYPE_CHECKING:
    from epicrag.models import ModelInfo

models = typer.Typer(help="List, fetch and locate models.")

Name = Annotated[str, typer.Argument(help="Name or alias of a model, as `models list` shows it.")]


def list_models(common: Common) -> int:
    """List the models that epicrag knows by name. Any other of Hugging Face works by its name."""
    from epicrag.models import Models

    out = common.output
    found = Models(common.load()).list()
    if out.jsonl:
        for info in found:
            out.object(model_json(info))
    elif out.json:
        out.object({"models": [model_json(info) for info in found]})
    else:
        width = max((len(info.name) for info in found), default=0)
        for info in found:
            out.text(_line(info, width))
    return 0


def _line(info: ModelInfo, width: int) -> str:
    state = "here" if info.present else "packaged" if info.packaged else "not here"
    return f"{info.name:<{width}}  {info.kind:<8}  {state:<8}  {info.size:>8}  {info.licence}"


def model_json(info: ModelInfo) -> dict[str, object]:
    """One model of `models list --json`: fields may be added, never renamed."""
    return {**asdict(info), "path": str(info.path) if info.path else None}


def pull(common: Common, name: Name) -> int:
    """Fetch a model, and make it ready to be used offline."""
    from epicrag.models import Models

    out = common.output
    path = Models(common.load()).pull(name, progress=out.note)
    if out.is_machine:
        out.object({"name": name, "path": str(path)})
    else:
        out.text(str(path))
    return 0


def path(common: Common, name: Name) -> int:
    """Print the folder of a model that is here."""
    from epicrag.models import Models

    out = common.output
    found = Models(common.load()).path(name)
    if out.is_machine:
        out.object({"name": name, "path": str(found)})
    else:
        out.text(str(found))
    return 0


verb(models, "list")(list_models)
verb(models, "pull")(pull)
verb(models, "path")(path)
