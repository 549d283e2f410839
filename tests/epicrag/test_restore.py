"""Out and in again: the same passages, the same scores, the same KV, on whatever machine."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from epicrag import restore as restoring
from epicrag.errors import DeviceError, IndexEmptyError, MismatchError, UsageError
from epicrag.export import export
from epicrag.restore import restore


@pytest.fixture
def archive(museum, tmp_path):
    path = tmp_path / "museum.zip"
    with museum.open() as pipeline:
        done = export(pipeline, path, kv=True)
    assert (done.documents, done.chunks, done.vectors, done.kv, done.left_out) == (3, 3, 3, 4, 0)
    return path


@pytest.fixture
def elsewhere(tmp_path):
    return tmp_path / "elsewhere"


def content(bench, index, query="harbour island museum purchase"):
    """All that an index holds, and what a search makes of it."""
    with bench.open(index=index) as pipeline:
        catalog = pipeline.catalog
        found = pipeline.vectors.search(bench.embedder.query(query), 10)
        kept = pipeline.kv_store.keys()
        return {
            "documents": [replace(row, row=0) for row in catalog.documents()],
            "chunks": [chunk for _, chunk in catalog.all_chunks()],
            "hits": [(catalog.chunk(row).id, score) for row, score in found],
            "kv": sorted((path, key) for path, _, key in catalog.kv_rows()),
            "files": {key: pipeline.kv_store.file(key).read_bytes() for key in kept},
            "sizes": catalog.setting("chunk_tokens"),
        }


def test_a_round_trip_is_exact(museum, archive, elsewhere):
    with museum.open(index=elsewhere) as pipeline:
        done = restore(pipeline, archive)
    assert (done.documents, done.chunks, done.vectors, done.kv, done.notes) == (3, 3, 3, 4, ())
    assert content(museum, elsewhere) == content(museum, museum.config.index)


def test_equal_scores_are_ranked_as_before(bench, elsewhere, tmp_path):
    for name in ("z.txt", "a.txt", "m.txt"):
        bench.ingest(bench.write(name, f"tides tides{' ' * ord(name[0])}x\n"))
    with bench.open() as pipeline:
        export(pipeline, tmp_path / "a.zip")
    with bench.open(index=elsewhere) as pipeline:
        restore(pipeline, tmp_path / "a.zip")
    before, after = (content(bench, at, "tides x") for at in (bench.config.index, elsewhere))
    assert before["hits"] == after["hits"]
    assert len({score for _, score in after["hits"]}) == 1


def test_nothing_is_computed_again_after_an_import(museum, archive, elsewhere):
    with museum.open(index=elsewhere) as pipeline:
        restore(pipeline, archive)
        n = len(museum.engine.compiled), len(museum.embedder.embedded)
        assert pipeline.ingest([museum.docs]).counts == {"unchanged": 3}
        assert (len(museum.engine.compiled), len(museum.embedder.embedded)) == n


def test_paths_are_relabelled_for_another_machine(museum, archive, elsewhere):
    with museum.open(index=elsewhere) as pipeline:
        restore(pipeline, archive, maps=[(str(museum.docs), "/srv/docs"), ("/srv", "/never")])
        assert [row.path for row in pipeline.catalog.documents()] == [
            "/srv/docs/museum.txt",
            "/srv/docs/returns.md",
            "/srv/docs/sub/ferry.txt",
        ]
        assert json.loads(pipeline.catalog.setting("chunk_tokens")) == {"/srv/docs": 512}


def test_two_documents_under_one_path_are_refused(museum, archive, elsewhere):
    maps = [(str(museum.docs / name), "/srv/one") for name in ("museum.txt", "returns.md")]
    with museum.open(index=elsewhere) as pipeline, pytest.raises(UsageError, match="called"):
        restore(pipeline, archive, maps=maps)


def test_an_index_with_documents_takes_it_only_when_asked(museum, archive):
    path = museum.write("museum.txt", "The harbour museum is closed for ever.\n")
    new = museum.write("new.md", "A document that the archive does not know.\n")
    museum.ingest()
    with museum.open() as pipeline:
        with pytest.raises(UsageError, match="holds documents"):
            restore(pipeline, archive)
        done = restore(pipeline, archive, merge=True)
        assert (done.documents, done.replaced) == (3, 3)
        paths = [row.path for row in pipeline.catalog.documents()]
        assert {str(path), str(new)} <= set(paths)
        assert len(paths) == 4
        texts = "".join(chunk.text for _, chunk in pipeline.catalog.chunks(str(path)))
    assert "4471" in texts


def test_another_embedder_is_refused_by_name_or_embeds_again(museum, archive, elsewhere):
    museum.embedder = replace(museum.embedder, name="other", fingerprint="o", dim=16, embedded=[])
    with museum.open(index=elsewhere) as pipeline:
        with pytest.raises(MismatchError) as told:
            restore(pipeline, archive)
        assert "stub" in told.value.message
        assert "other" in told.value.message
        assert "--re-embed" in told.value.hint
        assert not elsewhere.exists()
        done = restore(pipeline, archive, re_embed=True)
        assert done.reembedded.embedded == 3
        assert pipeline.catalog.vectors().data.shape == (3, 16)


def test_vectors_of_two_embedders_are_never_merged(museum, archive, elsewhere):
    museum.embedder = replace(museum.embedder, name="other", fingerprint="o", dim=16, embedded=[])
    with museum.open(index=elsewhere) as pipeline:
        pipeline.ingest([museum.docs / "returns.md"], kv=False)
        for re_embed in (False, True):
            with pytest.raises(MismatchError):
                restore(pipeline, archive, merge=True, re_embed=re_embed)


def test_kv_of_another_model_is_left_out_and_said(museum, archive, elsewhere):
    museum.engine.fingerprint = "lm-2"
    with museum.open(index=elsewhere) as pipeline:
        done = restore(pipeline, archive)
        assert done.kv == 0
        assert "lm-1"[:8] in done.notes[0]
        assert not pipeline.kv_store.keys()
        assert not pipeline.catalog.kv_keys()
        assert pipeline.catalog.counts().chunks == 3


def test_kv_stays_out_when_told_so_and_within_the_budget(museum, archive, elsewhere, tmp_path):
    with museum.open(index=elsewhere) as pipeline:
        assert restore(pipeline, archive, kv=False).kv == 0
    with museum.open(index=tmp_path / "small", kv_disk=700) as pipeline:
        done = restore(pipeline, archive)
        assert 0 < done.kv < 4
        assert "budget" in done.notes[0]


def test_export_is_whole_or_not_there(museum, archive, tmp_path, monkeypatch):
    with museum.open() as pipeline:
        with pytest.raises(UsageError, match="exists"):
            export(pipeline, archive)
        export(pipeline, archive, force=True)
        monkeypatch.setattr(type(pipeline.kv_store), "look", lambda self, key: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            export(pipeline, tmp_path / "new.zip", kv=True)
        with pytest.raises(DeviceError):
            export(pipeline, tmp_path / "no" / "folder" / "new.zip")
    assert sorted(path.name for path in tmp_path.glob("*.zip*")) == ["museum.zip"]
    assert not list(tmp_path.glob(".*"))


def test_kv_that_is_damaged_or_gone_is_left_out_of_the_export(museum, tmp_path):
    with museum.open() as pipeline:
        one, two, *_ = sorted(pipeline.catalog.kv_keys())
        pipeline.kv_store.delete(one)
        file = pipeline.kv_store.file(two)
        file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
        done = export(pipeline, tmp_path / "a.zip", kv=True)
        assert (done.kv, done.left_out) == (2, 2)
        assert file.exists()  # looking changes nothing


def test_without_an_index_there_is_nothing_to_export(bench, tmp_path):
    with bench.open() as pipeline, pytest.raises(IndexEmptyError):
        export(pipeline, tmp_path / "a.zip")


def test_a_disk_without_room_is_said_before_anything_is_written(
    museum, archive, elsewhere, monkeypatch
):
    usage = type("Usage", (), {"free": 1 << 20})
    monkeypatch.setattr(restoring.shutil, "disk_usage", lambda folder: usage)
    with museum.open(index=elsewhere) as pipeline, pytest.raises(DeviceError, match="MiB"):
        restore(pipeline, archive)
    assert not elsewhere.exists()


@pytest.mark.parametrize("step", ["_take_kv", "_settings", "load"])
def test_a_crash_at_any_step_leaves_an_empty_index_and_the_next_import_works(
    museum, archive, elsewhere, monkeypatch, step
):
    def dies(*args, **kwargs):
        raise SystemExit  # what no handler of ours may take for an error

    if step == "load":
        monkeypatch.setattr("epicrag.index.catalog.step", dies)
    else:
        monkeypatch.setattr(restoring, step, dies)
    with museum.open(index=elsewhere) as pipeline, pytest.raises(SystemExit):
        restore(pipeline, archive)
    monkeypatch.undo()
    with museum.open(index=elsewhere) as pipeline:
        assert pipeline.catalog.counts().documents == 0
        restore(pipeline, archive)
    assert content(museum, elsewhere) == content(museum, museum.config.index)


def test_an_archive_names_no_time_or_place_but_its_own(archive):
    """What a machine alone knows, identities of its files, is not carried to another."""
    import zipfile

    with zipfile.ZipFile(archive) as file:
        manifest = json.loads(file.read("manifest.json"))
    assert not {"embedder_identity", "kv_identity"} & set(manifest["settings"])
    assert os.fspath(archive) not in json.dumps(manifest)
