"""What was deleted, edited, moved or interrupted is never answered from, and never lost."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from epicrag.errors import EpicragError, MismatchError


def statuses(result) -> dict[str, str]:
    return {Path(file.path).name: file.status for file in result.files}


def test_a_deleted_document_is_gone_everywhere(bench):
    bench.write("keep.md", "the museum opens at ten")
    path = bench.write("a.md", "the door code is 4471")
    bench.ingest()
    assert bench.ask("door code").answered
    kept = bench.kv_keys()
    path.unlink()
    result = bench.ingest()
    assert statuses(result)["a.md"] == "deleted"
    assert "4471" not in bench.found("door code 4471")
    assert len(bench.kv_keys()) == len(kept) - 1
    with bench.open() as pipeline:
        counts = pipeline.catalog.counts()
        assert (counts.documents, counts.chunks, counts.vectors, pipeline.vectors.count) == (
            1,
            1,
            1,
            1,
        )
    assert "4471" not in bench.ask("door code").text


def test_an_edited_document_is_answered_from_its_new_text_only(bench):
    bench.write("a.md", "the door code is 4471")
    bench.ingest()
    old = bench.kv_keys()
    bench.write("a.md", "the door code is 8820")
    bench.ingest()
    assert "8820" in bench.ask("door code").text
    assert "4471" not in bench.found("door code 4471")
    assert not old & bench.kv_keys()


def test_the_same_question_after_an_edit_has_a_new_answer(bench):
    for code in ("4471", "8820"):
        bench.write("a.md", f"the door code is {code}")
        bench.ingest()
        assert code in bench.ask("door code").text


def test_touching_a_file_embeds_nothing(bench):
    path = bench.write("a.md", "the door code is 4471")
    bench.ingest()
    bench.embedder.embedded.clear()
    os.utime(path, (1, 1))
    assert statuses(bench.ingest())["a.md"] == "unchanged"
    assert bench.embedder.embedded == []


def test_a_version_that_fails_leaves_the_one_before_answerable_and_can_be_retried(bench):
    bench.write("b.md", "the museum opens at ten")
    bench.write("a.md", "v1: the door code is 4471")
    bench.ingest()
    bench.embedder.poison = "v2"
    bench.write("a.md", "v2: the door code is 8820")
    assert statuses(bench.ingest())["a.md"] == "failed"
    assert "4471" in bench.found("door code")
    bench.write("a.md", "v1: the door code is 4471")
    assert statuses(bench.ingest())["a.md"] == "unchanged"
    bench.embedder.poison = ""
    bench.write("a.md", "v2: the door code is 8820")
    assert statuses(bench.ingest())["a.md"] == "changed"
    assert "8820" in bench.found("door code")


def test_one_name_in_two_folders_is_two_documents(bench):
    bench.write("x/readme.md", "the first is red")
    bench.write("y/readme.md", "the second is blue")
    bench.ingest()
    with bench.open() as pipeline:
        (red,) = [hit for hit in pipeline.search("red") if "red" in hit.chunk.text]
        (blue,) = [hit for hit in pipeline.search("blue") if "blue" in hit.chunk.text]
    assert red.chunk.document.endswith("x/readme.md")
    assert blue.chunk.document.endswith("y/readme.md")


def test_two_files_with_one_text_are_both_kept_and_never_uploaded_again(bench):
    bench.write("a.md", "the same text in both")
    bench.write("b.md", "the same text in both")
    assert bench.ingest().counts == {"added": 2}
    bench.embedder.embedded.clear()
    assert bench.ingest().counts == {"unchanged": 2}
    assert bench.embedder.embedded == []
    (bench.docs / "a.md").unlink()
    bench.ingest()
    assert "the same text" in bench.found("same text")


def test_vectors_that_a_crash_left_behind_the_catalog_are_made_equal(bench, monkeypatch):
    from epicrag.index.vectors import VectorIndex

    bench.write("a.md", "the museum opens at ten")
    bench.ingest()
    bench.write("b.md", "the ferry leaves at noon")

    def die(*args, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(VectorIndex, "refresh", die)
        bench.ingest()
    with bench.open() as pipeline:
        assert pipeline.vectors.count == pipeline.catalog.counts().vectors == 2
        assert "ferry" in pipeline.search("ferry")[0].chunk.text


def test_every_text_is_found_under_its_own_id_after_deletes_and_adds(bench):
    words = [f"topic{n}" for n in range(12)]
    for n in range(10):
        bench.write(f"{n}.md", f"{words[n]} is described here")
    bench.ingest()
    (bench.docs / "3.md").unlink()
    bench.ingest()
    for n in (10, 11):
        bench.write(f"{n}.md", f"{words[n]} is described here")
    bench.ingest()
    for n in [*range(3), *range(4, 12)]:
        with bench.open() as pipeline:
            assert pipeline.search(words[n])[0].chunk.text == f"{words[n]} is described here"


def test_a_score_is_a_cosine(bench):
    bench.write("a.md", "harbour museum")
    bench.write("b.md", "entirely other words stand here")
    bench.ingest()
    with bench.open() as pipeline:
        hits = pipeline.search("harbour museum", k=5)
    assert hits[0].score == pytest.approx(1, abs=1e-3)
    assert all(-1 <= hit.score <= 1 for hit in hits)


@pytest.mark.parametrize("changes", [{"dim": 16, "fingerprint": "b"}, {"fingerprint": "weights-2"}])
def test_another_embedder_is_refused_by_name_and_nothing_is_written(bench, changes):
    bench.write("a.md", "the door code is 4471")
    bench.ingest()
    with bench.open() as pipeline:
        stamp = pipeline.catalog.stamp
    for name, value in {"name": "another", **changes}.items():
        setattr(bench.embedder, name, value)
    bench.write("b.md", "new words")
    for act in (bench.ingest, lambda: bench.ask("door code")):
        with pytest.raises(MismatchError) as raised:
            act()
        assert raised.value.exit_code == 6
        assert "stub" in raised.value.message and "another" in raised.value.message
        assert "rebuild --embed-only" in raised.value.hint
    with bench.open() as pipeline:
        assert pipeline.catalog.stamp == stamp


def test_readers_see_old_or_new_and_never_both(bench):
    def write(version: str) -> None:
        for n in range(4):
            bench.write(f"{n}.md", f"{version} fact {n}")

    write("old")
    bench.ingest()
    seen: list[set[str]] = []
    errors: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                with bench.open() as pipeline:
                    hits = pipeline.search("fact", k=20)
                for hit in hits:
                    name = Path(hit.chunk.document).stem
                    assert hit.chunk.text.endswith(f"fact {name}")
                seen.append({Path(hit.chunk.document).stem for hit in hits})
        except BaseException as error:  # noqa: BLE001 - told to the main thread
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    for version in ("new", "newer"):
        write(version)
        bench.ingest()
    stop.set()
    thread.join(60)
    assert not errors
    assert seen and all(names == {"0", "1", "2", "3"} for names in seen)


def test_a_run_that_was_stopped_goes_on_where_it_stopped(bench):
    for n in range(10):
        bench.write(f"{n}.md", f"document {n} stands here" + (" ^C" if n == 5 else ""))
    bench.embedder.poison = "^C"
    assert bench.ingest().interrupted
    with bench.open() as pipeline:
        assert pipeline.catalog.counts().documents == 5
    bench.embedder.poison = ""
    bench.embedder.embedded.clear()
    result = bench.ingest()
    assert result.counts == {"unchanged": 5, "added": 5}
    assert len(bench.embedder.embedded) == 5


def test_a_full_disk_is_said_and_what_was_there_answers(bench, monkeypatch):
    import errno

    from epicrag.index import kvfile

    bench.write("a.md", "the door code is 4471")
    bench.ingest()
    bench.write("b.md", "the ferry leaves at noon")

    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(kvfile, "write", full)
        with pytest.raises(EpicragError, match="disk is full") as raised:
            bench.ingest()
    assert raised.value.exit_code == 9
    assert "4471" in bench.ask("door code").text
    assert bench.ingest().kv_chunks == 1


def test_pages_are_exact_and_never_borrowed(bench, lay, make_pdf_of):
    lay("manual.pdf", make_pdf_of("Opening remarks", "Safety rules", "The torque is 47 Nm"))
    lay("notes.txt", b"The pressure is 9 bar")
    bench.ingest()
    with bench.open() as pipeline:
        torque = pipeline.search("torque 47")[0].chunk
        pressure = pipeline.search("pressure 9 bar")[0].chunk
    assert (torque.place.page, pressure.place.page) == (3, None)


def test_weights_of_the_fusion_decide_the_order(bench):
    bench.write("words.md", "zyxwvut appears once among many other words " + "filler " * 30)
    bench.write("dense.md", "harbour museum harbour museum")
    bench.ingest()
    real = bench.embedder.query
    # For the embedder the question is about the museum; by its words it is not.
    bench.embedder.query = lambda text: real("harbour museum" if text == "zyxwvut" else text)
    found = {}
    for weights in ((1.0, 0.0), (0.0, 1.0)):
        with bench.open(
            hybrid_weights=dict(zip(("dense", "words"), weights, strict=True))
        ) as pipeline:
            found[weights] = pipeline.search("zyxwvut")
    dense, words = found.values()
    assert dense[0].chunk.document.endswith("dense.md")
    assert words[0].chunk.document.endswith("words.md")


def test_damaged_kv_is_computed_again_and_said(bench, caplog):
    bench.write("a.md", "the door code is 4471")
    bench.ingest()
    with bench.open() as pipeline:
        (key,) = bench.kv_keys()
        path = pipeline.kv_store._path(key)
        data = bytearray(path.read_bytes())
        data[-3] ^= 255
        path.write_bytes(data)
        missing = pipeline.kv_store.get(key)
    assert missing.reason == "damaged"
    assert "computed again" in caplog.text
    assert bench.ingest().kv_chunks == 1


def test_vectors_of_a_dozen_files_are_of_unit_length(bench):
    for n in range(12):
        bench.write(f"{n}.md", "word " * (n + 1))
    bench.ingest()
    with bench.open() as pipeline:
        lengths = np.linalg.norm(pipeline.catalog.vectors().data, axis=1)
    assert lengths == pytest.approx(np.ones(12), abs=1e-3)
