"""Embedded again beside the old vectors: the index answers throughout, and a kill at any moment loses nothing."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from epicrag import rebuild as rebuilding
from epicrag.errors import DeviceError, IndexEmptyError, MismatchError
from epicrag.index.catalog import Catalog
from epicrag.index.staging import Staging
from epicrag.index.vectors import VectorIndex
from epicrag.rebuild import misfits, rebuild, reembed


@pytest.fixture
def other(museum):
    """Another embedder, which the museum is opened with from now on."""
    museum.embedder = replace(museum.embedder, name="other", fingerprint="o-1", dim=32, embedded=[])
    return museum.embedder


def nearest(bench, query):
    with bench.open() as pipeline:
        found = pipeline.vectors.search(bench.embedder.query(query), 3)
        return [(pipeline.catalog.chunk(row).text, score) for row, score in found]


def test_all_passages_are_embedded_again_from_stored_text(museum, other):
    for file in museum.docs.rglob("*.txt"):
        file.unlink()  # nothing is read again
    keys = museum.kv_keys()
    events = []
    with museum.open() as pipeline:
        done = reembed(pipeline, progress=events.append)
    assert (done.chunks, done.embedded, done.resumed, done.interrupted) == (3, 3, 0, False)
    assert (done.old, done.new) == ("stub", "other")
    assert [(event.stage, event.done, event.total) for event in events] == [("reembed", 3, 3)]
    assert "4471" in nearest(museum, "museum door code")[0][0]
    assert museum.kv_keys() == keys


def test_another_embedder_is_refused_until_then_and_accepted_after(museum, other):
    with museum.open() as pipeline:
        with pytest.raises(MismatchError) as told:
            pipeline.ingest([museum.write("new.md", "Something new.\n")])
        assert "stub" in told.value.message
        assert "other" in told.value.message
        assert "epicrag rebuild --embed-only --embed-model other" in told.value.hint
        assert not other.embedded
        reembed(pipeline)
        assert pipeline.ingest([museum.docs]).counts["added"] == 1


def test_an_interrupt_leaves_the_old_vectors_and_the_next_run_goes_on(museum, other, monkeypatch):
    monkeypatch.setattr(rebuilding, "EMBED_BATCH", 1)
    other.poison = "^C"
    passages = type(other).passages

    def interrupted(self, texts):
        if len(self.embedded) == 2:
            raise KeyboardInterrupt
        return passages(self, texts)

    other.poison = ""
    monkeypatch.setattr(type(other), "passages", interrupted)
    with museum.open() as pipeline:
        done = reembed(pipeline)
        assert (done.embedded, done.interrupted) == (2, True)
        assert pipeline.catalog.vectors().data.shape[1] == 256
    monkeypatch.setattr(type(other), "passages", passages)
    with museum.open() as pipeline:
        done = reembed(pipeline)
        assert (done.embedded, done.resumed) == (1, 2)
        assert pipeline.catalog.vectors().data.shape[1] == 32


def test_a_crash_within_the_switch_undoes_it(museum, other, monkeypatch):
    from epicrag.index import staging

    monkeypatch.setattr(staging, "step", lambda connection: 1 / 0)
    with museum.open() as pipeline, pytest.raises(ZeroDivisionError):
        reembed(pipeline)
    monkeypatch.undo()
    with museum.open() as pipeline:
        assert pipeline.catalog.vectors().data.shape[1] == 256
        assert json.loads(pipeline.catalog.setting("embedder"))["name"] == "stub"
        assert reembed(pipeline).resumed == 3


def test_the_embedder_in_use_has_nothing_to_do_and_drops_what_was_begun(museum):
    with museum.open() as pipeline:
        staging = Staging(pipeline.catalog)
        staging.begin(replace(museum.embedder, fingerprint="other"))
        done = reembed(pipeline)
        assert (done.new, done.vectors) == (None, 3)
        assert staging.embedder is None


def test_passages_that_lost_their_vectors_get_them_again(museum):
    museum.embedder.embedded.clear()
    with museum.open() as pipeline:
        before = pipeline.catalog.windows(2)
        pipeline.catalog.database.rows("DELETE FROM vectors WHERE chunk_row = 2")
        done = reembed(pipeline)
        assert (done.new, done.embedded, done.vectors) == (None, 1, 3)
        assert (pipeline.catalog.windows(2) == before).all()
        assert reembed(pipeline).embedded == 0
    assert museum.found("ferry island")


def test_vectors_of_other_passages_are_made_again_by_the_same_embedder(museum):
    with museum.open() as pipeline, pipeline.catalog.database.writing() as connection:
        connection.execute(
            "UPDATE vectors SET data = (SELECT data FROM vectors WHERE chunk_row = 1)"
        )
    with museum.open() as pipeline:
        assert misfits(pipeline)[0] == 3 and len(misfits(pipeline)[1]) == 2
        assert reembed(pipeline).embedded == 3
        assert misfits(pipeline)[1] == []


def test_a_disk_without_room_is_said_before_anything_is_written(museum, other, monkeypatch):
    usage = type("Usage", (), {"free": 1 << 20})
    monkeypatch.setattr(rebuilding.shutil, "disk_usage", lambda folder: usage)
    with museum.open() as pipeline:
        with pytest.raises(DeviceError, match="MiB"):
            reembed(pipeline)
        assert Staging(pipeline.catalog).embedder is None


def test_an_empty_index_has_nothing_to_rebuild(bench):
    with bench.open() as pipeline, pytest.raises(IndexEmptyError):
        reembed(pipeline)


def test_damaged_copies_are_made_again_from_the_catalog(museum):
    before = nearest(museum, "ferry")
    for file in (museum.config.index / "vectors").iterdir():
        file.write_bytes(b"nonsense")
    with museum.open() as pipeline:
        pipeline.catalog.database.rows("DELETE FROM words")
        assert VectorIndex.fault(pipeline.catalog, museum.config.index) is not None
        assert rebuild(pipeline).vectors == 3
        assert VectorIndex.fault(pipeline.catalog, museum.config.index) is None
        assert pipeline.catalog.database.rows("SELECT count(*) FROM words") == [(3,)]
    assert nearest(museum, "ferry") == before


REEMBED = """
import sys, time
from pathlib import Path
import numpy as np
from epicrag import rebuild
from epicrag.config import Config
from epicrag.pipeline import Pipeline

class Embedder:
    name, dim = sys.argv[2], 16
    fingerprint = name
    def query(self, text):
        return np.eye(1, 16, len(text) % 16, dtype=np.float32)[0]
    def passages(self, texts):
        time.sleep(0.002)
        return [self.query(text)[None] for text in texts]

rebuild.EMBED_BATCH = 2
config = Config(home=Path(sys.argv[1]), index=Path(sys.argv[1]) / "index")
with Pipeline(config, embedder=Embedder()) as pipeline:
    pipeline.embedder_identity = lambda: sys.argv[2]
    print("ready", flush=True)
    print(rebuild.reembed(pipeline).new, flush=True)
"""


def start(folder, name):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", REEMBED, str(folder), name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert process.stdout.readline() == b"ready\n"
    return process


def test_killed_at_random_points_it_holds_the_old_vectors_or_the_new(museum, tmp_path):
    for n in range(60):
        museum.write(f"more/{n}.txt", f"Note {n} of the harbour master on the tides.\n")
    museum.ingest(kv=False)
    chance = random.Random(3)
    for name in ("one", "two"):
        for _ in range(3):
            with start(tmp_path, name) as process:
                time.sleep(chance.uniform(0, 0.12))
                process.kill()
            with Catalog.open(museum.config.index) as catalog:
                held = json.loads(catalog.setting("embedder"))
                vectors = catalog.vectors()
                assert vectors.data.shape == (63, held["dim"])
                assert len(set(vectors.chunk_rows.tolist())) == 63
                assert VectorIndex.open(catalog, museum.config.index).count == 63
        with start(tmp_path, name) as process:
            assert process.stdout.read().decode().strip() in (name, "None")
        with Catalog.open(museum.config.index) as catalog:
            assert json.loads(catalog.setting("embedder"))["name"] == name
            assert catalog.vectors().data.shape == (63, 16)
