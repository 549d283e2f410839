"""The index equals the files, whatever happens on the way."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import pytest

from epicrag import ingest as module
from epicrag.errors import IndexEmptyError, LockedError, MismatchError, UsageError
from epicrag.index.lock import WriterLock
from epicrag.ingest import MassDeleteError
from epicrag.pipeline import Pipeline
from epicrag.types import Unread


def statuses(result) -> dict[str, str]:
    return {Path(report.path).name: report.status for report in result.files}


def test_every_file_has_a_line_with_its_status(bench):
    bench.write("a.txt", "some words here")
    bench.write("empty.txt", "")
    bench.write("picture.png", "no picture")
    result = bench.ingest()
    assert statuses(result) == {
        "a.txt": "added",
        "empty.txt": "empty",
        "picture.png": "unsupported",
    }
    assert result.counts == {"added": 1, "empty": 1, "unsupported": 1}
    assert (result.chunks, result.tokens, result.kv_chunks) == (1, 3, 1)
    assert result.kv_bytes > 0


def test_a_second_run_computes_nothing(museum):
    museum.embedder.embedded.clear()
    museum.engine.compiled.clear()
    result = museum.ingest()
    assert set(statuses(result).values()) == {"unchanged"}
    assert (museum.embedder.embedded, museum.engine.compiled) == ([], [])
    assert result.chunks == 3


def test_kv_that_finds_no_room_on_disk_is_left_to_first_use_and_said(bench, monkeypatch):
    for name, words in (("a.txt", 3), ("b.txt", 4), ("c.txt", 5)):
        bench.write(name, " ".join(f"{name[0]}{n}" for n in range(words)))
    # Each takes 4 tokens more than its words at most, and a header.
    room = 2 * module.ENTRY_BYTES + (7 + 8) * bench.engine.kv_bytes_per_token
    monkeypatch.setattr(module, "_room_bytes", lambda folder: room)
    result = bench.ingest()
    assert result.counts == {"added": 3}
    assert (result.kv_chunks, len(bench.kv_keys())) == (2, 2)
    assert "the KV of 1 of 3 chunks finds no room on disk" in result.notes[0]
    monkeypatch.undo()
    assert bench.ingest().kv_chunks == 1  # with room, the next run goes on


@pytest.mark.parametrize(
    ("setting", "flag"), [({"max_file_mb": 1}, "--max-file-mb"), ({"max_chars": 10}, "--max-chars")]
)
def test_limits_are_those_of_the_configuration(bench, setting, flag):
    bench.write("long.txt", "many words " * 120_000)
    with bench.open(**setting) as pipeline:
        (report,) = pipeline.ingest([bench.docs]).files
    assert report.status == "skipped"
    assert flag in report.reason


def test_a_second_run_loads_no_library_of_models(museum, tmp_path):
    """Without being given an engine or embedder: it must know by itself that it needs none."""
    for name in ("lm", "embedder"):
        folder = tmp_path / name
        folder.mkdir()
        for file in ("config.json", "model.safetensors", "modules.json"):
            (folder / file).write_text("{}")
    config = replace(
        museum.config, model=str(tmp_path / "lm"), embed_model=str(tmp_path / "embedder")
    )

    class Faked(Pipeline):
        embedder = cached_property(lambda self: museum.embedder)
        engine = cached_property(lambda self: museum.engine)

    with Faked(config, create=True) as pipeline:
        pipeline.ingest([museum.docs])
    script = f"""
import sys
from pathlib import Path
from epicrag.config import Config
from epicrag.pipeline import Pipeline
config = Config(home=Path({str(config.home)!r}), index=Path({str(config.index)!r}),
                model={config.model!r}, embed_model={config.embed_model!r})
result = Pipeline(config).ingest([{str(museum.docs)!r}])
assert result.counts == {{"unchanged": 3}}, result
heavy = {{"torch", "transformers", "sentence_transformers", "faiss", "llama_index"}}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_touching_a_file_changes_nothing(museum):
    museum.embedder.embedded.clear()
    os.utime(museum.docs / "museum.txt", (1, 1))
    assert statuses(museum.ingest())["museum.txt"] == "unchanged"
    assert museum.embedder.embedded == []


def test_a_deleted_file_is_no_longer_found_and_its_kv_is_gone(museum):
    before = museum.kv_keys()
    (museum.docs / "museum.txt").unlink()
    assert statuses(museum.ingest())["museum.txt"] == "deleted"
    assert "4471" not in museum.found("door code 4471")
    assert len(before - museum.kv_keys()) == 1


def test_without_kv_the_kv_of_deleted_text_goes_as_well(museum):
    before = museum.kv_keys()
    (museum.docs / "museum.txt").unlink()
    museum.ingest(kv=False)
    assert len(before - museum.kv_keys()) == 1


def test_of_an_edited_file_only_the_new_text_is_found(museum):
    before = museum.kv_keys()
    museum.write("museum.txt", "The harbour museum opens at ten. Its door code is 8820.\n")
    assert statuses(museum.ingest())["museum.txt"] == "changed"
    assert "8820" in museum.found("door code")
    assert "4471" not in museum.found("door code 4471")
    assert len(before - museum.kv_keys()) == 1


def test_a_renamed_file_is_relabelled_and_nothing_is_computed(museum):
    museum.embedder.embedded.clear()
    museum.engine.compiled.clear()
    (museum.docs / "museum.txt").rename(museum.docs / "harbour.txt")
    result = museum.ingest()
    assert statuses(result)["harbour.txt"] == "renamed"
    assert "museum.txt" not in statuses(result)
    assert (museum.embedder.embedded, museum.engine.compiled) == ([], [])
    with museum.open() as pipeline:
        assert pipeline.search("door code", k=1)[0].chunk.document.endswith("/harbour.txt")


def test_the_same_bytes_under_another_extension_are_read_again(museum):
    museum.write("a.txt", "<p>Fee is <b>5</b></p>")
    museum.ingest()
    (museum.docs / "a.txt").rename(museum.docs / "a.html")
    assert statuses(museum.ingest())["a.html"] == "renamed"
    assert "<b>" not in museum.found("Fee is 5")


def test_a_failing_document_keeps_its_old_version_and_stops_nothing(museum):
    museum.embedder.poison = "POISON"
    museum.write("museum.txt", "POISON. The door code is 8820.\n")
    museum.write("zoo.txt", "The zoo has two tigers.\n")
    result = museum.ingest()
    assert statuses(result)["museum.txt"] == "failed"
    assert statuses(result)["zoo.txt"] == "added"
    assert "4471" in museum.found("door code")
    museum.embedder.poison = ""
    assert statuses(museum.ingest())["museum.txt"] == "changed"
    assert "8820" in museum.found("door code")


def test_a_file_that_cannot_be_read_keeps_its_old_version(museum, monkeypatch):
    museum.write("museum.txt", "other bytes")
    monkeypatch.setattr(
        "epicrag.connectors.read.read", lambda path, **more: Unread("failed", "broken")
    )
    report = next(r for r in museum.ingest().files if r.status == "failed")
    assert "kept" in report.reason
    monkeypatch.undo()
    assert "4471" in museum.found("door code")


def test_a_folder_that_cannot_be_opened_is_not_taken_for_deleted(museum, monkeypatch):
    real = os.scandir

    def scandir(path):
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    result = museum.ingest()
    assert statuses(result)["sub"] == "failed"
    monkeypatch.undo()
    assert "ferry" in museum.found("ferry island")


def test_a_file_that_became_empty_is_no_longer_found(museum):
    museum.write("museum.txt", "  \n")
    report = next(r for r in museum.ingest().files if r.status == "empty")
    assert "removed" in report.reason
    assert "4471" not in museum.found("door code 4471")


def test_losing_most_of_the_files_is_refused_until_somebody_says_yes(museum):
    for name in ("returns.md", "museum.txt"):
        (museum.docs / name).unlink()
    with pytest.raises(MassDeleteError) as refusal:
        museum.ingest()
    assert (refusal.value.deleted, refusal.value.known, refusal.value.exit_code) == (2, 3, 2)
    assert "4471" in museum.found("door code")
    museum.ingest(yes=True)
    assert "4471" not in museum.found("door code 4471")


@pytest.mark.parametrize("text", ["", " \n"])
def test_files_that_were_emptied_count_as_lost(bench, text):
    for n in range(6):
        bench.write(f"{n}.txt", f"number{n} words")
    bench.ingest()
    for n in range(6):
        bench.write(f"{n}.txt", text)
    if text:  # known only by reading: half of them go, and no more
        result = bench.ingest()
        assert result.counts == {"empty": 3, "failed": 3} and (result.removed, result.held) == (
            3,
            3,
        )
        assert "--yes" in next(r.reason for r in result.files if r.status == "failed")
    else:
        assert bench.ingest(dry_run=True).counts == {"empty": 6}
        with pytest.raises(MassDeleteError, match=r"6 of the 6 .* empty"):
            bench.ingest()
    assert "number5" in bench.found("number5 words")
    bench.ingest(yes=True)
    with bench.open() as pipeline:
        assert pipeline.catalog.counts().documents == 0


def test_files_that_are_gone_and_files_that_are_empty_are_one_loss(bench):
    for n in range(6):
        bench.write(f"{n}.txt", f"number{n} words")
    bench.ingest()
    for n in range(2):
        (bench.docs / f"{n}.txt").unlink()
        bench.write(f"{n + 2}.txt", "")
    with pytest.raises(MassDeleteError):
        bench.ingest()


@pytest.mark.parametrize("setting", [{"max_file_mb": 1}, {"max_chars": 10}])
def test_a_known_file_that_is_over_a_limit_now_keeps_its_old_version(bench, setting):
    bench.write("long.txt", "4471")
    bench.ingest()
    bench.write("long.txt", "many words " * 120_000)
    with bench.open(**setting) as pipeline:
        (report,) = pipeline.ingest([bench.docs]).files
    assert report.status == "skipped" and "kept" in report.reason
    assert "4471" in bench.found("4471")


def test_what_older_readers_read_is_read_again_and_computes_nothing(museum, monkeypatch):
    from epicrag.connectors import formats, read

    newer = formats.READING + 1
    for room in (formats, read):
        monkeypatch.setattr(room, "READING", newer)
    museum.embedder.embedded.clear()
    museum.engine.compiled.clear()
    for dry_run in (True, False):
        result = museum.ingest(dry_run=dry_run)
        assert {(r.status, r.reason) for r in result.files} == {
            ("changed", "read anew by a newer epicrag")
        }
    assert (museum.embedder.embedded, museum.engine.compiled) == ([], [])
    assert museum.ingest().counts == {"unchanged": 3}


def test_a_dry_run_tells_the_plan_and_writes_nothing(bench):
    bench.write("a.txt", "some words")
    bench.write("b.png", "no picture")
    result = bench.ingest(dry_run=True)
    assert statuses(result) == {"a.txt": "added", "b.png": "unsupported"}
    assert not bench.config.index.exists()


def test_a_dry_run_over_an_index_changes_nothing(museum):
    (museum.docs / "museum.txt").unlink()
    museum.write("returns.md", "New rules.")
    result = museum.ingest(dry_run=True)
    assert statuses(result) == {
        "museum.txt": "deleted",
        "returns.md": "changed",
        "ferry.txt": "unchanged",
    }
    assert "4471" in museum.found("door code")


def test_a_run_over_a_part_touches_only_that_part(museum):
    (museum.docs / "museum.txt").unlink()
    result = museum.ingest(museum.docs / "sub")
    assert statuses(result) == {"ferry.txt": "unchanged"}
    assert "4471" in museum.found("door code")


def test_a_path_nobody_has_heard_of_is_refused(museum):
    with pytest.raises(UsageError, match="no such file"):
        museum.ingest(museum.docs / "nowhere")


def test_a_known_path_that_is_gone_means_deleted_once_somebody_says_yes(museum):
    """One document of three is not most of the index: but it was named, and is not there."""
    path = museum.docs / "museum.txt"
    path.unlink()
    with pytest.raises(MassDeleteError, match=r"museum\.txt is not there") as refusal:
        museum.ingest(path)
    assert f"epicrag ingest {path} --yes" in refusal.value.hint
    assert "4471" in museum.found("door code")
    told = museum.ingest(path, dry_run=True)
    assert statuses(told) == {"museum.txt": "deleted"} and "--yes" in told.notes[0]
    assert statuses(museum.ingest(path, yes=True)) == {"museum.txt": "deleted"}


@pytest.mark.parametrize("is_mount_point", [False, True])
def test_a_share_that_is_not_mounted_is_never_deleted_unasked(museum, is_mount_point):
    import shutil

    shutil.rmtree(museum.docs / "sub")
    if is_mount_point:
        (museum.docs / "sub").mkdir()
    with pytest.raises(MassDeleteError, match="sub is not there, or empty: this would delete 1 of"):
        museum.ingest(museum.docs / "sub")
    with pytest.raises(MassDeleteError):
        museum.ingest(museum.docs, museum.docs / "sub")
    assert (
        museum.ingest(museum.docs).counts["deleted"] == 1
    )  # the folder named is there: it is told


def test_a_named_path_that_moved_below_another_is_no_loss(museum):
    (museum.docs / "sub").rename(museum.docs / "moved")
    result = museum.ingest(museum.docs, museum.docs / "sub")
    assert result.counts == {"renamed": 1, "unchanged": 2}


def test_an_interrupted_run_keeps_what_was_done_and_the_next_one_resumes(bench):
    bench.write("a.txt", "first words")
    bench.write("b.txt", "^C other words")
    bench.write("c.txt", "last words")
    bench.embedder.poison = "^C"
    result = bench.ingest()
    assert result.interrupted
    assert statuses(result) == {"a.txt": "added"}
    bench.embedder.poison = ""
    resumed = bench.ingest()
    assert not resumed.interrupted
    assert statuses(resumed) == {"a.txt": "unchanged", "b.txt": "added", "c.txt": "added"}
    assert len(bench.kv_keys()) == 3


def test_an_interrupted_compile_computes_only_what_is_left(museum, monkeypatch):
    monkeypatch.setattr(module, "KV_BATCH", 2)
    museum.engine.profile = "profile-2"
    museum.engine.compiled.clear()
    museum.engine.interrupt_at = 1
    assert museum.ingest().interrupted
    museum.engine.interrupt_at = None
    result = museum.ingest()
    assert (result.kv_chunks, len(museum.engine.compiled)) == (2, 3)


def test_only_one_writes_at_a_time(museum):
    with WriterLock(museum.config.index), pytest.raises(LockedError):
        museum.ingest()


def test_another_embedder_is_refused_before_anything_is_written(museum):
    museum.write("new.txt", "new words")
    museum.embedder.fingerprint = "stub-2"
    with pytest.raises(MismatchError):
        museum.ingest()
    museum.embedder.fingerprint = "stub-1"
    assert "new words" not in museum.found("new words")


def test_another_embedder_is_refused_even_if_every_file_is_unchanged(museum):
    museum.embedder.fingerprint = "stub-2"
    with pytest.raises(MismatchError):
        museum.ingest()


def test_a_refused_first_run_leaves_no_index_to_ask(bench):
    with pytest.raises(IndexEmptyError):
        Pipeline.open(bench.config)


def test_without_kv_no_engine_is_touched(bench):
    bench.write("a.txt", "some words")
    result = bench.ingest(kv=False)
    assert (result.kv_chunks, bench.engine.compiled, bench.kv_keys()) == (0, [], set())


def test_what_lacks_kv_is_found_by_the_next_run(bench):
    bench.write("a.txt", "some words")
    bench.ingest(kv=False)
    assert bench.ingest().kv_chunks == 1


def test_kv_that_was_lost_from_disk_is_computed_again(museum):
    with museum.open() as pipeline:
        pipeline.kv_store.delete(next(iter(museum.kv_keys())))
    assert museum.ingest().kv_chunks == 1


def test_another_model_gets_its_own_kv_and_the_old_one_goes(museum):
    before = museum.kv_keys()
    museum.engine.profile = "profile-2"
    assert museum.ingest().kv_chunks == 3
    assert not before & museum.kv_keys()
    with museum.open() as pipeline:
        assert museum.engine.own_keys() <= pipeline.kv_store.keys()


def test_a_model_that_reuse_is_refused_for_is_told_once_and_not_loaded_again(bench):
    bench.write("a.txt", "some words")
    bench.engine.refusal = "no rotary embedding"
    assert bench.ingest().notes == ("no rotary embedding",)
    bench.engine.refusal = None  # to be seen only by loading it
    assert bench.ingest().notes == ("no rotary embedding",)
    assert bench.kv_keys() == set()


def test_another_chunk_size_splits_again_what_is_below_the_path(bench):
    bench.write("a/long.txt", "word " * 90)
    bench.write("b/long.txt", "other " * 90)
    with bench.open(chunk_tokens=64) as pipeline:
        assert pipeline.ingest([bench.docs]).chunks == 4
    with bench.open(chunk_tokens=128) as pipeline:
        result = pipeline.ingest([bench.docs / "a"])
        assert [(r.status, r.chunks) for r in result.files] == [("changed", 1)]
        assert pipeline.ingest([bench.docs / "a"]).counts == {"unchanged": 1}
    with bench.open(chunk_tokens=64) as pipeline:
        assert pipeline.ingest([bench.docs]).counts == {"changed": 1, "unchanged": 1}


def test_a_chunk_is_compiled_with_the_passage_before_it(bench):
    bench.write("long.txt", "one two three. " * 30)
    bench.write("other.txt", "four five six. " * 3)
    with bench.open(chunk_tokens=48) as pipeline:
        pipeline.ingest([bench.docs])
    befores = [piece.before for piece in bench.engine.compiled]
    texts = [piece.text for piece in bench.engine.compiled]
    assert befores[0] is None
    assert befores[-1] is None
    assert befores[1] == texts[0]


def test_progress_tells_files_and_tokens(museum):
    museum.write("new.txt", "some new words")
    events = []
    museum.ingest(progress=events.append)
    files = [e for e in events if e.stage == "file" and e.report.status == "added"]
    assert [(e.done, e.total) for e in files] == [(1, 1)]
    kv = [e for e in events if e.stage == "kv"]
    assert [(e.done, e.total, e.computed) for e in kv] == [(3, 3, 3)]


def test_a_folder_of_ignored_files_only_says_so(bench):
    bench.write(".hidden.txt", "words")
    result = bench.ingest()
    assert result.files == ()
    assert "hidden" in result.notes[0]


def test_a_single_path_may_be_given_as_text(bench):
    bench.write("a.txt", "some words")
    with bench.open() as pipeline:
        assert pipeline.ingest(str(bench.docs)).counts == {"added": 1}


def test_a_long_document_tells_how_far_its_embedding_is(bench, monkeypatch):
    monkeypatch.setattr(module, "EMBED_BATCH", 2)
    bench.write("long.txt", " ".join(f"one two {n}." for n in range(90)))
    events = []
    with bench.open(chunk_tokens=64) as pipeline:
        pipeline.ingest([bench.docs], progress=events.append)
    told = [(e.done, e.total) for e in events if e.stage == "embed"]
    assert told[0] == (2, told[-1][1])
    assert told[-1][0] == told[-1][1] > 2


def test_passages_that_an_edit_leaves_alone_keep_their_kv(bench):
    first, second = "one two three. " * 15, "four five six. " * 15
    bench.write("long.txt", f"{first}\n\n{second}\n")
    with bench.open(chunk_tokens=48) as pipeline:
        assert pipeline.ingest([bench.docs]).kv_chunks == 2
        before = bench.kv_keys()
        bench.write("long.txt", f"{first}\n\n{second} seven.\n")
        pipeline.ingest([bench.docs], kv=False)
        assert len(before & bench.kv_keys()) == 1
        assert pipeline.ingest([bench.docs]).kv_chunks == 1


def test_kv_that_an_answer_computed_goes_with_its_text_also_without_kv(bench):
    path = bench.write("secret.txt", "the passcode is 998877")
    bench.ingest(kv=False)
    with bench.open() as pipeline:
        row, chunk = next(pipeline.catalog.all_chunks())
        bench.engine.put(bench.engine.key_of(chunk))  # as an answer leaves it
        pipeline.catalog.set_kv([(row, bench.engine.key_of(chunk))])
    path.unlink()
    bench.write("other.txt", "something else")
    bench.ingest(kv=False, yes=True)
    assert bench.kv_keys() == set()


def test_kv_of_a_run_that_was_killed_before_noting_it_is_swept(bench):
    bench.write("a.txt", "some words")
    bench.ingest(kv=False)
    bench.engine.put("a" * 64)
    bench.ingest(kv=False)
    assert bench.kv_keys() == set()


def test_kv_of_a_run_that_was_killed_is_nobody_elses(museum, monkeypatch):
    """Killed after a passage was stored, before the next: what was computed is covered, and gc keeps it."""
    from epicrag.gc import collect

    museum.engine.profile = "profile-2"
    stored, put = [], museum.engine.put

    def dies(key):
        if len(stored) == 3:  # the engine's own, and two passages
            raise SystemExit("killed")
        put(key)
        stored.append(key)

    def is_dead(*_):
        raise SystemExit("killed")

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(museum.engine, "put", dies)
        patch.setattr(museum.engine, "compile", _until_killed(museum.engine, patch, is_dead))
        museum.ingest()
    with museum.open() as pipeline:
        status = pipeline.status()
        assert (status.chunks_with_kv, status.kv_other_entries) == (2, 4)  # of profile-1
        collect(pipeline)
        assert pipeline.kv_store.keys() == set(stored)
    assert museum.ingest().kv_chunks == 1


def _until_killed(engine, patch, is_dead):
    """A compile that nobody can note anything after: the process has ended."""
    from epicrag.index.catalog import Catalog

    compile_ = engine.compile

    def compiling(pieces):
        try:
            yield from compile_(pieces)
        except SystemExit:
            patch.setattr(Catalog, "set_kv", is_dead)
            raise

    return compiling


def test_kv_that_an_answer_noted_is_kept_by_a_run_without_kv(bench):
    bench.write("a.txt", "some words")
    bench.ingest(kv=False)
    with bench.open() as pipeline:
        row, chunk = next(pipeline.catalog.all_chunks())
        bench.engine.put(bench.engine.key_of(chunk))
        pipeline.catalog.set_kv([(row, bench.engine.key_of(chunk))])
    bench.ingest(kv=False)
    assert len(bench.kv_keys()) == 1


def test_an_interrupted_change_of_mode_is_undone_whole(museum):
    """Two kinds of KV must never stand in one index, whichever run was stopped."""
    first = museum.kv_keys()
    museum.engine.profile, museum.engine.interrupt_at = "profile-2", 4
    assert museum.ingest().interrupted
    museum.engine.profile, museum.engine.interrupt_at = "profile-1", None
    museum.ingest()
    with museum.open() as pipeline:
        rows = [row for row, _ in pipeline.catalog.all_chunks()]
        assert {pipeline.catalog.kv_key(row) for row in rows} == first
    assert museum.kv_keys() == first


def test_a_missing_path_makes_no_index(bench):
    with pytest.raises(UsageError, match="no such file"):
        bench.ingest(bench.docs / "nowhere")
    assert not bench.config.index.exists()
