"""Changes are taken over while they happen: real files, and waiting until something is so."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from epicrag import watch as module
from epicrag.errors import IndexEmptyError, UsageError
from epicrag.index.catalog import Catalog
from epicrag.index.lock import WriterLock
from epicrag.ingest import Event, Manner

PATIENCE = 30.0


class Follower:
    """A watch in a thread of its own, and what it has said."""

    def __init__(self, bench: Any, *paths: Path, **manner: Any) -> None:
        self.bench, self.paths = bench, paths or (bench.docs,)
        self.manner = Manner(**{"kv": False, **manner})
        self.events: list[Event] = []
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with self.bench.open() as pipeline:
                pipeline.watch(
                    self.paths, self.manner, self.events.append, stop=self.stop, debounce=0.05
                )
        except BaseException as error:  # noqa: BLE001 - for the thread that waits
            self.error = error

    def said(self) -> list[tuple[str, str]]:
        """What was reported of files since the watch began, but for those that are as they were."""
        reports = [event.report for event in self.events if event.report]
        return [(Path(r.path).name, r.status) for r in reports if r.status != "unchanged"]

    def notes(self) -> str:
        return "\n".join(event.message for event in self.events if event.message)

    def known(self) -> dict[str, str]:
        """The documents in the index by name, and their text."""
        with Catalog.open(self.bench.config.index) as catalog:
            return {
                Path(row.path).name: "".join(c.text for _, c in catalog.chunks(row.path))
                for row in catalog.documents()
            }

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.error is None, self.error
            assert time.monotonic() < deadline, (self.said(), self.notes(), self.known())
            time.sleep(0.02)

    def clear(self) -> None:
        self.events.clear()


@contextmanager
def following(bench: Any, *paths: Path, **manner: Any) -> Iterator[Follower]:
    follower = Follower(bench, *paths, **manner)
    follower.thread.start()
    try:
        follower.until(lambda: "watching" in follower.notes())
        follower.clear()
        yield follower
    finally:
        follower.stop.set()
        follower.thread.join(PATIENCE)
    assert follower.error is None


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_SECONDS", 0.1)
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.1)


def test_new_changed_moved_and_deleted_files_are_taken_over(museum):
    with following(museum) as follower:
        museum.write("new.txt", "brand new words")
        follower.until(lambda: follower.known().get("new.txt") == "brand new words")
        museum.write("new.txt", "other words")
        follower.until(lambda: follower.known().get("new.txt") == "other words")
        (museum.docs / "new.txt").rename(museum.docs / "sub" / "moved.txt")
        follower.until(lambda: "moved.txt" in follower.known())
        (museum.docs / "sub" / "moved.txt").unlink()
        follower.until(lambda: len(follower.known()) == 3)
        said = follower.said()
    assert ("new.txt", "added") in said and ("moved.txt", "renamed") in said
    assert said[-1] == ("moved.txt", "deleted")


def test_an_editors_way_of_saving_is_one_change(museum):
    path = museum.docs / "museum.txt"
    with following(museum) as follower:
        draft = museum.docs / ".museum.txt.swp"
        draft.write_text("The door code is 8820.")
        os.replace(draft, path)
        follower.until(lambda: "8820" in follower.known()["museum.txt"])
        assert follower.said() == [("museum.txt", "changed")]


def test_a_folder_that_was_moved_in_comes_whole(museum, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    for n in range(5):
        (outside / f"{n}.txt").write_text(f"number {n}")
    with following(museum) as follower:
        outside.rename(museum.docs / "inside")
        follower.until(lambda: len(follower.known()) == 8)
        (museum.docs / "inside").rename(museum.docs / "renamed")
        follower.until(lambda: [s for _, s in follower.said()].count("renamed") == 5)


def test_a_newly_ignored_file_goes_and_the_reason_is_said(museum):
    with following(museum) as follower:
        museum.write(".epicragignore", "museum.*\n")
        follower.until(lambda: "museum.txt" not in follower.known())
        (report,) = [e.report for e in follower.events if e.report and e.report.status == "deleted"]
        assert "ignore rule" in report.reason
        (museum.docs / ".epicragignore").unlink()
        follower.until(lambda: "museum.txt" in follower.known())


def test_hidden_and_ignored_files_are_no_change(museum):
    museum.write(".gitignore", "*.log\n")
    with following(museum) as follower:
        museum.write("x.log", "noise")
        museum.write(".hidden.txt", "noise")
        museum.write("last.txt", "words")
        follower.until(lambda: "last.txt" in follower.known())
        assert set(follower.known()) == {"returns.md", "museum.txt", "ferry.txt", "last.txt"}


def test_an_index_among_the_files_is_not_watched(bench):
    bench.config = replace(bench.config, index=bench.docs / "index", home=bench.docs / "home")
    bench.write("a.txt", "some words")
    with following(bench, kv=True) as follower:
        bench.write("b.txt", "other words")
        follower.until(lambda: "b.txt" in follower.known())
        with Catalog.open(bench.config.index) as catalog:
            before = catalog.setting("last_ingest"), catalog.generation
        time.sleep(0.5)  # for what must not happen there is nothing to wait for
        with Catalog.open(bench.config.index) as catalog:
            assert (catalog.setting("last_ingest"), catalog.generation) == before
        assert set(follower.known()) == {"a.txt", "b.txt"}


def test_losing_most_of_the_files_pauses_and_says_so(museum):
    with following(museum) as follower:
        shutil.rmtree(museum.docs)
        follower.until(lambda: "paused" in follower.notes())
        assert len(follower.known()) == 3
        museum.docs.mkdir()
        museum.write("returns.md", "Goods can be returned within 45 days of purchase.\n")
        museum.write("museum.txt", "The harbour museum opens at ten. Its door code is 4471.\n")
        museum.write(
            "sub/ferry.txt", "The ferry to the island leaves every hour from pier three.\n"
        )
        museum.write("new.txt", "a new file in the new folder")
        follower.until(lambda: "new.txt" in follower.known())
        follower.until(lambda: "no longer paused" in follower.notes())
        museum.write("later.txt", "and the new folder is watched")
        follower.until(lambda: "later.txt" in follower.known())
    assert not [status for _, status in follower.said() if status == "deleted"]


def test_losing_them_one_after_another_is_one_loss(bench):
    for n in range(8):
        bench.write(f"{n}.txt", f"number {n}")
    with following(bench) as follower:
        for n in range(8):
            (bench.docs / f"{n}.txt").unlink()
            follower.until(lambda n=n: f"{n}.txt" not in follower.known() or follower.notes())
            if follower.notes():
                break
        assert "paused" in follower.notes()
        assert len(follower.known()) == 4


def test_emptying_most_of_the_files_pauses_too(bench):
    for n in range(8):
        bench.write(f"{n}.txt", f"number {n}")
    with following(bench) as follower:
        for n in range(8):
            bench.write(f"{n}.txt", "")
        follower.until(lambda: "paused" in follower.notes())
        assert len(follower.known()) >= 4


def test_with_yes_they_are_forgotten(museum):
    with following(museum, yes=True) as follower:
        shutil.rmtree(museum.docs / "sub")
        (museum.docs / "museum.txt").unlink()
        follower.until(lambda: len(follower.known()) == 1)


def test_a_single_file_is_followed_through_its_replacement(museum):
    path = museum.docs / "museum.txt"
    with following(museum, path) as follower:
        for code in ("1111", "2222"):
            draft = museum.docs / "draft"
            draft.write_text(f"The door code is {code}.")
            os.replace(draft, path)
            follower.until(lambda code=code: code in follower.known()["museum.txt"])


def test_others_write_between_two_changes_and_a_change_waits_for_them(museum):
    with following(museum, wait=0.0) as follower:
        with WriterLock(museum.config.index):
            museum.write("new.txt", "brand new words")
            follower.until(lambda: "trying again" in follower.notes())
            assert "new.txt" not in follower.known()
        follower.until(lambda: "new.txt" in follower.known())


def test_models_stay_loaded_from_change_to_change(museum):
    with following(museum) as follower:
        museum.embedder.embedded.clear()
        for n in range(3):
            museum.write("new.txt", f"words number {n}")
            follower.until(lambda n=n: follower.known().get("new.txt") == f"words number {n}")
        assert museum.embedder.embedded[-1] == "words number 2"
        assert len(museum.embedder.embedded) <= 4


def test_a_sweep_finds_what_was_never_told(museum, monkeypatch):
    museum.config = replace(museum.config, sweep_minutes=0.005)
    monkeypatch.setattr(module, "_filter", lambda config, roots: lambda path: False)
    with following(museum) as follower:
        museum.write("new.txt", "brand new words")
        follower.until(lambda: "new.txt" in follower.known())


def test_addresses_cannot_be_watched(bench):
    with bench.open() as pipeline, pytest.raises(UsageError, match="cannot be watched"):
        pipeline.watch(["https://docs.example/"], Manner(), lambda event: None)


def test_a_link_is_followed_where_it_leads_now(bench):
    bench.write("v1/a.txt", "first words")
    bench.write("v2/a.txt", "second words")
    link = bench.docs / "current"
    link.symlink_to("v1")
    with following(bench, link) as follower:
        draft = bench.docs / "draft"
        draft.symlink_to("v2")
        os.replace(draft, link)
        follower.until(lambda: follower.known() == {"a.txt": "second words"})
        bench.write("v2/b.txt", "later words")
        follower.until(lambda: "b.txt" in follower.known())


def test_an_index_that_is_removed_ends_the_watch(museum):
    follower = Follower(museum)
    follower.thread.start()
    follower.until(lambda: "watching" in follower.notes())
    shutil.rmtree(museum.config.index)
    museum.write("new.txt", "brand new words")
    follower.thread.join(PATIENCE)
    assert isinstance(follower.error, IndexEmptyError)
    assert "removed" in follower.error.message
    assert ("new.txt", "added") not in follower.said()
    assert not museum.config.index.exists()
