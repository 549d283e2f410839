"""A folder made ready says every setting, and is read as it says."""

from __future__ import annotations

import tomllib

import pytest

from epicrag.config import KEYS, load_config
from epicrag.errors import UsageError
from epicrag.project import init, toml


def test_the_settings_are_the_defaults_but_for_the_index(tmp_path):
    made = init(tmp_path)
    bare = load_config(environ={}, cwd=tmp_path / "elsewhere")
    found = load_config(environ={}, cwd=tmp_path)
    assert found.index == made.index == tmp_path / ".epicrag" / "index"
    assert all(getattr(found, key) == getattr(bare, key) for key in KEYS if key != "index")


def test_every_key_is_in_it_and_its_comment_can_be_taken_away(tmp_path):
    init(tmp_path)
    lines = (tmp_path / "epicrag.toml").read_text(encoding="utf-8").splitlines()
    bare = "\n".join(line.removeprefix("# ") for line in lines[3:])
    found = tomllib.loads(bare.replace("= …", '= "."'))
    assert set(found) == set(KEYS)
    (tmp_path / "epicrag.toml").write_text(bare.replace("= …", '= "."'), encoding="utf-8")
    settings, default = load_config(environ={}, cwd=tmp_path), load_config(environ={})
    for key in set(KEYS) - {"home", "index"}:
        assert getattr(settings, key) == getattr(default, key)


def test_what_was_given_is_in_force(tmp_path):
    init(tmp_path, {"model": 'odd "name"', "device": "cpu"})
    found = load_config(environ={}, cwd=tmp_path)
    assert (found.model, found.device) == ('odd "name"', "cpu")


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / ".epicragignore").write_text("mine\n")
    made = init(tmp_path)
    assert made.kept == (tmp_path / ".epicragignore",)
    assert (tmp_path / ".epicragignore").read_text() == "mine\n"
    before = (tmp_path / "epicrag.toml").read_text()
    with pytest.raises(UsageError, match="exists already"):
        init(tmp_path)
    assert (tmp_path / "epicrag.toml").read_text() == before


def test_neither_git_nor_ingest_see_the_index(tmp_path):
    from epicrag.connectors.folder import walk

    made = init(tmp_path)
    made.index.mkdir()
    (made.index / "catalog.md").write_text("x")
    (tmp_path / "a.md").write_text("x")
    assert (tmp_path / ".epicrag" / ".gitignore").read_text() == "*\n"
    found = walk([tmp_path])
    names = {entry.path.rsplit("/", 1)[1] for entry in found.entries}
    assert names == {"a.md"}


def test_a_place_that_cannot_be_written_to_is_said(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError):
        init(tmp_path / "file" / "folder")


@pytest.mark.parametrize("value", ["a\nb", 'quote "', "back\\slash", "é\x7f", 1.5, True, 12])
def test_any_value_is_written_as_toml_reads_it(value):
    assert tomllib.loads(f"key = {toml(value)}")["key"] == value
