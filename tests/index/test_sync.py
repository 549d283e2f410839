"""A plan makes an index equal to a tree, and touches nothing else."""

from __future__ import annotations

import hashlib
import os

import pytest

from epicrag.connectors.base import Limits
from epicrag.connectors.folder import File, file_digest
from epicrag.index.sync import Plan, above, is_most, plan


@pytest.fixture
def tree(catalog, put):
    """A tree of files in memory, ingested and planned like a real one."""
    return Tree(catalog, put)


class Tree:
    def __init__(self, catalog, put):
        self.catalog, self.put, self.files = catalog, put, {}
        self.digested = []

    def ingest(self):
        for path, text in self.files.items():
            self.put(self.catalog, path, text)

    def plan(self, *roots, files=None, **more):
        files = self.files if files is None else files
        below = [
            path
            for path in files
            if any((path + "/").startswith(r.rstrip("/") + "/") for r in roots)
        ]

        entries = [InMemory(path, files[path], self.digested) for path in below]
        return plan(self.catalog, entries, roots, **more)


class InMemory:
    """An entry, and a list of whose digests were asked for."""

    def __init__(self, path, text, digested=None):
        self.path, self.text, self.digested = path, text, [] if digested is None else digested

    def digest(self):
        self.digested.append(self.path)
        if self.text is None:
            raise PermissionError(self.path)
        return hashlib.sha256(self.text.encode()).hexdigest()


def paths(entries):
    return [entry.path for entry in entries]


def test_new_files_are_added(tree):
    tree.files = {"/d/a": "1", "/d/b": "2"}
    assert paths(tree.plan("/d").add) == ["/d/a", "/d/b"]


def test_second_run_has_nothing_to_do(tree):
    tree.files = {"/d/a": "1", "/d/b": "1", "/d/c": "2"}  # two of the same text
    tree.ingest()
    result = tree.plan("/d")
    assert paths(result.unchanged) == ["/d/a", "/d/b", "/d/c"]
    assert result == Plan(unchanged=result.unchanged)


def test_edited_file_is_changed(tree):
    tree.files = {"/d/a": "1", "/d/b": "2"}
    tree.ingest()
    result = tree.plan("/d", files={"/d/a": "1", "/d/b": "3"})
    assert (paths(result.change), paths(result.unchanged)) == (["/d/b"], ["/d/a"])


def test_deleted_file_is_deleted(tree):
    tree.files = {"/d/a": "1", "/d/b": "2"}
    tree.ingest()
    assert tree.plan("/d", files={"/d/a": "1"}).delete == ("/d/b",)


def test_moved_file_is_renamed(tree):
    tree.files = {"/d/a": "1", "/d/b": "2"}
    tree.ingest()
    result = tree.plan("/d", files={"/d/a": "1", "/d/sub/c": "2"})
    assert [(old, entry.path) for old, entry in result.rename] == [("/d/b", "/d/sub/c")]
    assert (result.add, result.delete) == ((), ())


def test_copy_is_added_and_not_renamed(tree):
    tree.files = {"/d/a": "1"}
    tree.ingest()
    result = tree.plan("/d", files={"/d/a": "1", "/d/b": "1"})
    assert (paths(result.add), result.rename) == (["/d/b"], ())


def test_each_old_path_is_renamed_once(tree):
    tree.files = {"/d/a": "1"}
    tree.ingest()
    result = tree.plan("/d", files={"/d/b": "1", "/d/c": "1"})
    assert [(old, entry.path) for old, entry in result.rename] == [("/d/a", "/d/b")]
    assert paths(result.add) == ["/d/c"]


def test_moved_folder_keeps_its_names_apart(tree):
    """Equal texts under different names: each goes to the file of its own name."""
    tree.files = {"/d/old/x": "1", "/d/old/y": "1", "/d/old/z": "1"}
    tree.ingest()
    result = tree.plan("/d", files={"/d/new/z": "1", "/d/new/y": "1", "/d/new/w": "1"})
    assert {(old, entry.path) for old, entry in result.rename} == {
        ("/d/old/z", "/d/new/z"),
        ("/d/old/y", "/d/new/y"),
        ("/d/old/x", "/d/new/w"),
    }


def test_file_that_kept_its_name_is_not_renamed_a_second_time(tree):
    tree.files = {"/d/old/x": "1"}
    tree.ingest()
    result = tree.plan("/d", files={"/d/new/w": "1", "/d/new/x": "1"})
    assert [(old, entry.path) for old, entry in result.rename] == [("/d/old/x", "/d/new/x")]
    assert paths(result.add) == ["/d/new/w"]


def test_swapped_names_are_renames(tree):
    tree.files = {"/d/a": "1", "/d/b": "2", "/d/c": "3"}
    tree.ingest()
    result = tree.plan("/d", files={"/d/a": "2", "/d/b": "1", "/d/c": "3"})
    assert {(old, e.path) for old, e in result.rename} == {("/d/a", "/d/b"), ("/d/b", "/d/a")}
    assert (result.add, result.change, result.delete) == ((), (), ())


def test_names_that_all_moved_on_are_renames(tree):
    tree.files = {"/d/a": "1", "/d/b": "2", "/d/c": "3"}
    tree.ingest()
    result = tree.plan("/d", files={"/d/b": "1", "/d/c": "2", "/d/d": "3"})
    assert {(old, entry.path) for old, entry in result.rename} == {
        ("/d/a", "/d/b"),
        ("/d/b", "/d/c"),
        ("/d/c", "/d/d"),
    }
    assert (result.add, result.change, result.delete) == ((), (), ())


def test_a_file_over_another_takes_its_place(tree):
    tree.files = {"/d/a": "1", "/d/b": "2"}
    tree.ingest()
    result = tree.plan("/d", files={"/d/b": "1"})
    assert [(old, entry.path) for old, entry in result.rename] == [("/d/a", "/d/b")]
    assert (result.change, result.delete) == ((), ())


def test_a_copy_of_what_a_file_held_before_its_edit_is_no_rename(tree):
    tree.files = {"/d/a": "1"}
    tree.ingest()
    result = tree.plan("/d", files={"/d/a": "2", "/d/backup": "1"})
    assert (paths(result.change), paths(result.add), result.rename) == (["/d/a"], ["/d/backup"], ())


def test_what_is_new_is_not_read_twice_to_compare_it_with_nothing(tree):
    tree.files = {"/d/a": "1"}
    tree.ingest()
    tree.plan("/d", files={"/d/a": "1", "/d/b": "2"})
    assert tree.digested == ["/d/a"]


def test_what_is_held_may_lie_anywhere(tree):
    tree.files = {"https://a.example/x": "1", "https://a.example/y": "2"}
    tree.ingest()
    assert tree.plan(files={}, held={"https://a.example/x"}).delete == ("https://a.example/x",)


def test_above_knows_archives():
    assert list(above("/d/a.zip!/b/c")) == [
        "/", "/d/a.zip!/b/c", "/d/a.zip!/b", "/d/a.zip", "/d/a.zip!", "/d",
    ]  # fmt: skip
    assert "/" not in list(above("https://a.example/x"))


def test_run_over_a_subset_touches_only_that_subset(tree):
    tree.files = {"/d/a/1": "1", "/d/b/2": "2", "/d/ab": "3"}
    tree.ingest()
    result = tree.plan("/d/a", files={})
    assert result.delete == ("/d/a/1",)


def test_file_outside_the_subset_is_never_renamed_away(tree):
    tree.files = {"/d/a/1": "1", "/d/b/2": "2"}
    tree.ingest()
    result = tree.plan("/d/a", files={"/d/a/1": "1", "/d/a/2": "2"})
    assert (paths(result.add), result.rename, result.delete) == (["/d/a/2"], (), ())


def test_file_can_be_a_root(tree):
    tree.files = {"/d/a": "1", "/d/ab": "2"}
    tree.ingest()
    assert tree.plan("/d/a", files={}).delete == ("/d/a",)


def test_top_folder_can_be_a_root(tree):
    tree.files = {"/d/a": "1"}
    tree.ingest()
    assert tree.plan("/", files={}).delete == ("/d/a",)


def test_overlapping_roots_count_a_file_once(tree):
    entries = [InMemory("/d/a", "1")] * 2
    assert paths(plan(tree.catalog, entries, ["/d", "/d/a"]).add) == ["/d/a"]


def test_what_could_not_be_looked_at_is_not_deleted(tree):
    tree.files = {"/d/a": "1", "/d/locked/b": "2", "/d/c": "3"}
    tree.ingest()
    result = tree.plan("/d", files={"/d/new": "2"}, spare=["/d/locked"])
    assert (result.delete, result.rename, paths(result.add)) == (("/d/a", "/d/c"), (), ["/d/new"])


def test_file_that_cannot_be_read_is_left_to_the_reader_to_report(tree):
    tree.files = {"/d/a": "1"}
    tree.ingest()

    result = tree.plan("/d", files={"/d/a": None, "/d/b": None})
    assert (paths(result.change), paths(result.add), result.delete) == (["/d/a"], ["/d/b"], ())


@pytest.mark.parametrize(
    ("deleted", "known", "expected"),
    [(0, 0, False), (1, 1, False), (2, 2, True), (2, 4, False), (3, 5, True), (50, 100, False)],
)
def test_losing_more_than_half_is_a_mass_delete(deleted, known, expected):
    assert is_most(deleted, known) is expected


def test_digest_is_of_the_bytes_and_not_of_the_times(tmp_path):
    file = tmp_path / "bad\udcff name"
    file.write_bytes(b"abc" * 1000)
    before = file_digest(str(file))
    os.utime(file, (1, 1))
    assert file_digest(str(file)) == before == hashlib.sha256(b"abc" * 1000).hexdigest()
    file.write_bytes(b"abd" * 1000)
    assert file_digest(str(file)) != before


def test_touched_file_is_unchanged(catalog, make, tmp_path):
    file = tmp_path / "a.md"
    file.write_text("text")
    document, _ = make(str(file), "text")
    catalog.put_document(document, [], [])
    os.utime(file, (1, 1))
    result = plan(catalog, [File(str(file), 4, Limits())], [str(tmp_path)])
    assert paths(result.unchanged) == [str(file)]


@pytest.mark.parametrize("error", [TypeError, RecursionError, AssertionError])
def test_whatever_a_digest_raises_is_said_when_the_document_is_read(tree, error):
    def fault():
        raise error

    tree.files = {"/d/a": "1"}
    tree.ingest()
    entry = InMemory("/d/a", "1")
    entry.digest = fault
    assert plan(tree.catalog, [entry], ["/d"]).change == (entry,)


def test_of_entries_with_one_path_none_is_dropped_unsaid(tree):
    one, two = InMemory("/d/a", "1"), InMemory("/d/a", "2")
    planned = plan(tree.catalog, [one, two], ["/d"])
    assert planned.add == (two,) and planned.twice == ((one, two),)
    assert plan(tree.catalog, [one, one], ["/d"]).twice == ()
