"""Files in every odd way that files come in: the index equals them, and computes nothing twice."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from epicrag.errors import DeviceError, LockedError, UsageError
from epicrag.index.catalog import Catalog
from epicrag.index.lock import WriterLock
from epicrag.ingest import MassDeleteError

WORDS = "the passcode of the north gate is 4471"


def statuses(result) -> dict[str, str]:
    return {Path(report.path).name: report.status for report in result.files}


def reasons(result) -> dict[str, str]:
    return {Path(report.path).name: report.reason or "" for report in result.files}


def forget(bench) -> None:
    bench.embedder.embedded.clear()
    bench.engine.compiled.clear()


def computed(bench) -> tuple[int, int]:
    return len(bench.embedder.embedded), len(bench.engine.compiled)


def place_of(bench, query: str) -> str:
    with bench.open() as pipeline:
        return Path(pipeline.search(query, k=1)[0].chunk.document).name


# --- moves ---


@pytest.mark.parametrize(
    "moves",
    [
        [("museum.txt", "Museum.TXT")],
        [("museum.txt", "x"), ("sub/ferry.txt", "museum.txt"), ("x", "sub/ferry.txt")],
        [("sub", "other")],
        [("museum.txt", "sub/museum.txt"), ("returns.md", "sub/returns.md")],
        [("museum.txt", "sub/ferry.txt.new"), ("sub/ferry.txt.new", "ferry2.txt")],
    ],
    ids=["case only", "swap", "folder", "two", "twice"],
)
def test_what_only_moved_computes_nothing(museum, moves):
    forget(museum)
    for old, new in moves:
        (museum.docs / old).rename(museum.docs / new)
    result = museum.ingest()
    assert set(statuses(result).values()) <= {"renamed", "unchanged"}
    assert computed(museum) == (0, 0)
    held = {p.relative_to(museum.docs).as_posix() for p in museum.docs.rglob("*") if p.is_file()}
    with museum.open() as pipeline:
        documents = {d.path for d in pipeline.catalog.documents()}
        for hit in pipeline.search("door code", k=50):
            text = Path(hit.chunk.document).read_text()
            assert hit.chunk.text in text  # each name leads to its own text
    assert documents == {str(museum.docs / name) for name in held}


def test_a_file_moved_over_another_takes_its_place(museum):
    forget(museum)
    os.replace(museum.docs / "museum.txt", museum.docs / "sub" / "ferry.txt")
    assert statuses(museum.ingest()) == {"ferry.txt": "renamed", "returns.md": "unchanged"}
    assert computed(museum) == (0, 0)
    assert "ferry to the island" not in museum.found("ferry island")


def test_of_a_moved_and_edited_file_only_the_new_passage_is_computed(bench):
    parts = [f"{word} part. " * 20 + "\n\n" for word in ("first", "second", "third")]
    bench.write("a.txt", "".join(parts))
    with bench.open(chunk_tokens=48) as pipeline:
        pipeline.ingest([bench.docs])
        forget(bench)
        (bench.docs / "a.txt").unlink()
        bench.write("b.txt", "".join([*parts, "fourth part. " * 20]))
        result = pipeline.ingest([bench.docs])
    assert statuses(result) == {"a.txt": "deleted", "b.txt": "added"}
    assert computed(bench) == (1, 1)


def test_logs_that_were_rotated_compute_the_new_one_only(bench):
    for name, text in (("log.txt", "newest"), ("log.1.txt", "older"), ("log.2.txt", "oldest")):
        bench.write(name, f"{text} words")
    bench.ingest()
    forget(bench)
    for old, new in (("log.2", "log.3"), ("log.1", "log.2"), ("log", "log.1")):
        (bench.docs / f"{old}.txt").rename(bench.docs / f"{new}.txt")
    bench.write("log.txt", "fresh words")
    assert set(statuses(bench.ingest()).values()) <= {"added", "changed", "renamed"}
    assert computed(bench) == (1, 1)
    assert place_of(bench, "oldest words") == "log.3.txt"


def test_a_copy_is_a_document_of_its_own_and_computes_nothing(museum):
    forget(museum)
    museum.write("copy.txt", (museum.docs / "museum.txt").read_text())
    assert statuses(museum.ingest())["copy.txt"] == "added"
    assert computed(museum) == (0, 0)
    assert set(statuses(museum.ingest()).values()) == {"unchanged"}
    (museum.docs / "museum.txt").unlink()
    assert statuses(museum.ingest())["museum.txt"] == "deleted"
    assert place_of(museum, "door code") == "copy.txt"
    assert museum.kv_keys() and "4471" in museum.found("door code")


# --- names ---

NAMES = {
    "not UTF-8": b"bad\xff.txt",
    "emoji": "\U0001f680.txt".encode(),
    "composed": "caf\u00e9.txt".encode(),
    "decomposed": "cafe\u0301.txt".encode(),
    "240 bytes": b"x" * 236 + b".txt",
    "an extension with a space": b"space.txt ",
    "a space before": b" a.txt",
    "signs of addresses": b"a&b#c%20.md",
    "a line end": b"new\nline.txt",
    "a backslash": b"back\\slash.txt",
    "an archive's mark": b"odd!.txt",
    "a quote": b"'quoted\".txt",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_any_name_is_ingested_found_moved_and_deleted(bench, name, capsysbinary):
    from epicrag.cli.output import Output
    from epicrag.cli.progress import file_line

    path = os.path.join(os.fsencode(bench.docs), name)
    with open(path, "w") as file:
        file.write(WORDS)
    bench.write("other.txt", "something else entirely")
    bench.write("third.txt", "and a third thing")
    (report,) = [r for r in bench.ingest().files if os.fsencode(r.path) == path]
    if name.endswith(b" "):  # not the extension .txt
        assert report.status == "unsupported"
        return
    assert report.status == "added"
    with bench.open() as pipeline:
        hit = pipeline.search("passcode north gate", k=1)[0]
        assert os.fsencode(hit.chunk.document) == path
    Output(json=True).object({"path": report.path, "line": file_line(report)})
    written = json.loads(capsysbinary.readouterr().out)
    assert "\n" not in written["line"]
    os.rename(path, path + b".md")
    assert "renamed" in statuses(bench.ingest()).values()
    os.unlink(path + b".md")
    assert "deleted" in statuses(bench.ingest()).values()
    assert "4471" not in bench.found("passcode north gate")


def test_both_forms_of_an_accent_are_two_documents(bench):
    bench.write("caf\u00e9.txt", "composed words")
    bench.write("cafe\u0301.txt", "decomposed words")
    assert bench.ingest().counts == {"added": 2}
    assert bench.ingest().counts == {"unchanged": 2}


# --- links, rules and roots ---


def test_links_are_said_and_change_nothing(museum, tmp_path):
    (tmp_path / "outside.txt").write_text("a secret outside")
    (museum.docs / "broken").symlink_to("nowhere")
    (museum.docs / "loop").symlink_to(".")
    (museum.docs / "alias.txt").symlink_to("museum.txt")
    (museum.docs / "out.txt").symlink_to(tmp_path / "outside.txt")
    for _ in range(2):
        result = museum.ingest()
        told = reasons(result)
        assert result.counts == {"skipped": 4, "unchanged": 3}
        assert "broken link" in told["broken"] and "not twice" in told["alias.txt"]
        assert "out of the given folders" in told["out.txt"]
    assert "secret" not in museum.found("secret outside")


def test_links_may_lead_to_what_is_hidden_and_never_outside(bench, tmp_path):
    (tmp_path / "outside.txt").write_text("a secret outside")
    bench.write(".store/a.txt", "hidden words")
    bench.write(".store/.b.txt", "hidden within")
    bench.write("plain.txt", "plain words")
    (bench.docs / "shown").symlink_to(".store")
    (bench.docs / "out.txt").symlink_to(tmp_path / "outside.txt")
    bench.config = replace(bench.config, follow_symlinks=True)
    for status in ("added", "unchanged"):
        result = bench.ingest()
        assert statuses(result) == {
            "a.txt": status,
            "plain.txt": status,
            "shown": "skipped",
            "out.txt": "skipped",
        }


def test_a_file_that_is_ignored_from_now_on_goes_and_the_reason_is_said(museum):
    museum.write(".gitignore", "museum.*\n")
    result = museum.ingest()
    assert statuses(result)["museum.txt"] == "deleted"
    assert "ignore rule" in reasons(result)["museum.txt"]
    assert str(museum.docs) in reasons(result)["museum.txt"]
    museum.config = replace(museum.config, ignore_files=False)
    assert statuses(museum.ingest())["museum.txt"] == "added"


def test_hidden_files_are_taken_when_asked_for_and_go_when_no_longer(bench):
    bench.write(".notes/a.txt", "hidden words")
    bench.write("b.txt", "plain words")
    bench.write("c.txt", "more words")
    plain, bench.config = bench.config, replace(bench.config, hidden=True)
    assert statuses(bench.ingest())["a.txt"] == "added"
    bench.config = plain
    result = bench.ingest()
    assert statuses(result)["a.txt"] == "deleted" and reasons(result)["a.txt"] == "it is hidden"


def test_a_file_and_then_its_folder_is_read_once(bench):
    path = bench.write("a.txt", "some words")
    bench.write("b.txt", "other words")
    assert statuses(bench.ingest(path)) == {"a.txt": "added"}
    assert statuses(bench.ingest()) == {"a.txt": "unchanged", "b.txt": "added"}
    assert statuses(bench.ingest(path)) == {"a.txt": "unchanged"}


def test_the_index_itself_is_no_document(bench):
    bench.config = replace(bench.config, index=bench.docs / "index", home=bench.docs / "home")
    bench.write("a.txt", "some words")
    for status in ("added", "unchanged"):
        assert statuses(bench.ingest()) == {"a.txt": status}


def test_a_dry_run_says_why_a_file_would_not_be_read_and_what_would_go(museum):
    museum.write("picture.png", "no picture")
    (museum.docs / "museum.txt").unlink()
    result = museum.ingest(dry_run=True)
    assert "image" in reasons(result)["picture.png"]
    assert statuses(result)["museum.txt"] == "deleted"
    assert (result.ignored, result.dry_run) == (0, True)


@pytest.fixture
def current(bench):
    """A link to the first of two versions, ingested: most of the second is as it was."""
    for version in ("v1", "v2"):
        bench.write(f"{version}/same.txt", "same words in both")
        bench.write(f"{version}/{version}.txt", "moved words in both")
        bench.write(f"{version}/edited.txt", f"passcode {version}")
    link = bench.docs / "current"
    link.symlink_to("v1")
    assert bench.ingest(link).counts == {"added": 3}
    return link


def switch(link: Path, target: str) -> None:
    link.unlink()
    link.symlink_to(target)


def paths_in(bench) -> set[str]:
    with Catalog.open(bench.config.index) as catalog:
        return {row.path.removeprefix(f"{bench.docs}/") for row in catalog.documents()}


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_link_that_was_switched_leaves_no_old_text(bench, current, is_removed):
    forget(bench)
    switch(current, "v2")
    if is_removed:
        shutil.rmtree(bench.docs / "v1")
    assert bench.ingest(current, dry_run=True).counts == {"renamed": 2, "deleted": 1, "added": 1}
    assert bench.ingest(current).counts == {"renamed": 2, "deleted": 1, "added": 1}
    assert computed(bench) == (1, 1)
    assert paths_in(bench) == {"v2/same.txt", "v2/v2.txt", "v2/edited.txt"}
    assert "passcode v1" not in bench.found("passcode v1")
    assert bench.ingest(current).counts == {"unchanged": 3}


def test_what_is_replaced_by_a_switched_link_needs_no_yes(bench, current):
    for name in ("same", "v2", "edited"):
        bench.write(f"v2/{name}.txt", f"all new {name}")
    (bench.docs / "v2" / "v2.txt").rename(bench.docs / "v2" / "v1.txt")
    switch(current, "v2")
    assert bench.ingest(current).counts == {"deleted": 3, "added": 3}


def test_a_switched_link_to_less_than_half_is_asked_about(bench, current):
    (bench.docs / "v3").mkdir()
    switch(current, "v3")
    with pytest.raises(MassDeleteError):
        bench.ingest(current)
    assert len(paths_in(bench)) == 3
    assert bench.ingest(current, yes=True).counts == {"deleted": 3}


def test_what_another_name_leads_to_stays_when_a_link_is_switched(bench, current):
    bench.ingest(bench.docs / "v1")
    switch(current, "v2")
    bench.ingest(current)
    assert len(paths_in(bench)) == 6


def test_a_link_that_leads_nowhere_for_now_loses_nothing(bench, current):
    switch(current, "later")
    bench.ingest(current)
    assert len(paths_in(bench)) == 3
    switch(current, "v2")
    bench.ingest(current)
    assert paths_in(bench) == {"v2/same.txt", "v2/v2.txt", "v2/edited.txt"}


# --- what fails ---


def test_vectors_that_are_no_numbers_never_enter_the_index(bench):
    parts = [f"{word} part. " * 20 + "\n\n" for word in ("first", "second", "third")]
    bench.write("a.txt", "".join(parts))
    real = bench.embedder.passages

    def passages(texts):
        found = real(texts)
        return [v * np.nan if "second" in t else v for t, v in zip(texts, found, strict=True)]

    bench.embedder.passages = passages
    with bench.open(chunk_tokens=48) as pipeline:
        assert pipeline.ingest([bench.docs]).counts == {"added": 1}
        counts = pipeline.catalog.counts()
        assert (counts.chunks, counts.vectors) == (3, 2)
        assert np.isfinite(pipeline.catalog.vectors().data).all()


@pytest.mark.parametrize("text", ["", " \n\t\n", "\u200b\u200b", "\ufeff"])
def test_files_without_a_word_are_empty(bench, text):
    bench.write("a.txt", text)
    bench.write("b.txt", "some words")
    result = bench.ingest()
    assert statuses(result) == {"a.txt": "empty", "b.txt": "added"}
    assert bench.ingest().counts == {"empty": 1, "unchanged": 1}


def test_line_ends_change_no_passage(bench):
    text = "# Title\n\nfirst words\n\n" + "second words\n" * 3
    bench.write("a.md", text)
    (bench.docs / "b.md").write_bytes(text.replace("\n", "\r\n").encode())
    bench.ingest()
    assert len(bench.engine.compiled) == 1 and len(bench.embedder.embedded) == 1
    with bench.open() as pipeline:
        lines = {chunk.place.lines for _, chunk in pipeline.catalog.all_chunks()}
        assert len(lines) == 1


def test_a_full_disk_is_said_and_the_index_is_as_it_was(museum):
    museum.write("big.txt", " ".join(f"word{n}" for n in range(60_000)))
    with museum.open() as pipeline:
        connection: sqlite3.Connection = pipeline.catalog._database._connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 4}")
        with pytest.raises(DeviceError, match="disk is full") as refusal:
            pipeline.ingest([museum.docs])
        assert refusal.value.exit_code == 9
    assert "4471" in museum.found("door code")
    assert statuses(museum.ingest())["big.txt"] == "added"


def test_a_disk_that_is_full_for_kv_is_said_and_the_next_run_goes_on(bench, monkeypatch):
    for name in "abc":
        bench.write(f"{name}.txt", f"{name} words")
    from epicrag.index import kvfile

    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kvfile, "write", full)
    with pytest.raises(DeviceError, match="disk is full"):
        bench.ingest()
    monkeypatch.undo()
    assert "a words" in bench.found("a words")
    result = bench.ingest()
    assert (result.counts, result.kv_chunks) == ({"unchanged": 3}, 3)


def test_an_index_that_cannot_be_written_to_says_so(museum, read_only):
    museum.write("new.txt", "new words")
    copy = read_only(museum.docs.parent)
    museum.config = replace(museum.config, index=copy / "index")
    with pytest.raises(UsageError, match="cannot be used"):
        museum.ingest(copy / "docs")


def test_a_second_writer_waits_and_says_for_whom(museum):
    import threading

    lock, events = WriterLock(museum.config.index), []
    lock.__enter__()
    timer = threading.Timer(0.5, lock.__exit__, (None, None, None))
    timer.start()
    museum.write("new.txt", "new words")
    assert statuses(museum.ingest(wait=20, progress=events.append))["new.txt"] == "added"
    timer.join()
    (note,) = [event.message for event in events if event.stage == "note"]
    assert f"pid {os.getpid()}" in note and "waiting" in note


def test_a_second_writer_that_waited_in_vain_exits_with_seven(museum):
    with WriterLock(museum.config.index), pytest.raises(LockedError) as refusal:
        museum.ingest(wait=0.2)
    assert refusal.value.exit_code == 7


def test_origins_of_forgotten_pages_count_for_nothing(bench):
    from epicrag.types import Origin

    with Catalog.open(bench.config.index, create=True) as catalog:
        catalog.origins.note([Origin("https://a.example/x", "r", "https://a.example/x", "1", "e")])
        assert catalog.origins.of(["r"]) == []
