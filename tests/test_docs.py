"""The pages say what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STRUCTURE = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
ROOMS = (
    "cli",
    "connectors",
    "epicrag",
    "index",
    "kernels",
    "serving",
    "epicrag/llamaindex",
    "epicrag/server",
)
FILES = [path for room in ROOMS for path in sorted((ROOT / room).glob("*.py"))]
NAMED = set(re.findall(r"`(?:\w+/)*(\w+\.py)`", STRUCTURE))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_structure_has_a_sentence_for_every_file(path: Path):
    assert path.name in NAMED


def test_structure_names_no_file_that_is_gone():
    around = [path for room in ("tests", "benchmarks") for path in (ROOT / room).glob("*.py")]
    gone = NAMED - {path.name for path in [*FILES, *around]}
    assert gone == {"make_datasheet.py"}


def test_example_data_sheet_is_what_its_script_writes():
    import runpy

    script = runpy.run_path(str(ROOT / "examples" / "make_datasheet.py"))
    written = (ROOT / "examples" / "docs" / "tern-datasheet.pdf").read_bytes()
    assert script["pdf"]() == written


def test_readme_shows_every_setting_with_its_default(tmp_path: Path):
    import tomllib

    from epicrag.config import KEYS, load_config

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```toml\n(.*?)```", readme, re.DOTALL)
    (tmp_path / "epicrag.toml").write_text(block, encoding="utf-8")
    bare = load_config(environ={}, cwd=tmp_path / "elsewhere")
    assert load_config(environ={}, cwd=tmp_path) == bare
    assert set(tomllib.loads(block)) | {"home", "index", "system_prompt"} == set(KEYS)


def test_readme_lists_every_exit_code():
    from epicrag import errors

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", readme, re.MULTILINE)}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = {kind.exit_code for kind in kinds if issubclass(kind, errors.EpicragError)}
    assert codes | {0, 130} == listed
