"""The house stands as drawn: every room is linked and shipped, and imports run one way."""

import ast
import os
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

MAY_IMPORT = {
    "connectors": {"types", "errors"},
    "index": {"types", "errors"},
    "kernels": set(),
    "serving": {"types", "errors", "index", "kernels"},
    "cli": {
        "types",
        "errors",
        "config",
        "models",
        "pipeline",
        "server",
        "questions",
        "bench",
        "plot",
        "evaluate",
        "project",
        "documents",
        "passages",
        "gc",
        "warm",
        "rebuild",
        "export",
        "restore",
        "checkup",
        "doctor",
        "sessions",
        "condense",
        "history",
        "remote",
    },
}
SOURCES = [path for room in MAY_IMPORT for path in sorted((ROOT / room).rglob("*.py"))]


def imported_rooms(path: Path) -> set[str]:
    """Return the first name after `epicrag.` in each import of a file."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("epicrag.")}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_room_is_linked_into_the_package(room: str):
    assert (ROOT / "epicrag" / room).resolve() == ROOT / room


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_link_and_package_map_agree(room: str):
    link = os.readlink(ROOT / "epicrag" / room)
    assert PYPROJECT["tool"]["setuptools"]["package-dir"][f"epicrag.{room}"] == Path(link).name


def test_every_folder_of_code_is_shipped():
    folders = {path.parent.relative_to(ROOT) for path in SOURCES}
    named = {"epicrag"} | {".".join(("epicrag", *folder.parts)) for folder in folders}
    inner = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "epicrag").glob("*/__init__.py")
        if not path.parent.is_symlink()
    }
    assert named | inner == set(PYPROJECT["tool"]["setuptools"]["packages"])


def test_kernels_is_no_regular_package():
    """A regular package of that name at the root would shadow Hugging Face's own."""
    assert not (ROOT / "kernels" / "__init__.py").exists()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_one_way(path: Path):
    room = path.relative_to(ROOT).parts[0]
    assert imported_rooms(path) <= MAY_IMPORT[room] | {room}
