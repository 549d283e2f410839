"""Killed at any moment, an ingest leaves an index that is whole, and the next run goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from epicrag.index.catalog import Catalog
from epicrag.index.kvstore import KVStore, StoredKV
from epicrag.index.vectors import VectorIndex

FILES, KILLS = 200, 20
WORKER = '''
"""Forks a process for each run, so that what is killed need not import anything first."""
import importlib.util, json, os, signal, sys
from pathlib import Path

spec = importlib.util.spec_from_file_location("stubs", sys.argv[1])
stubs = importlib.util.module_from_spec(spec)
sys.modules["stubs"] = stubs
spec.loader.exec_module(stubs)
import torch
from dataclasses import replace
from epicrag import ingest, watch, sources
from epicrag.connectors import folder, markdown, read, split, text
from epicrag.index import catalog, kvstore, lock, retrieve, sync, vectors
from epicrag.pipeline import Manner, Pipeline
from epicrag.config import Config

torch.set_num_threads(1)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner, name, nth=1, when=lambda *args: True):
    """Let the process die just before the nth call of a function."""
    calls, real = [0], getattr(owner, name)

    def call(*args, **options):
        if when(*args):
            calls[0] += 1
            if calls[0] == nth:
                die()
        return real(*args, **options)

    setattr(owner, name, call)


def run(job):
    exec(job.get("fault", ""))
    index = Path(job["index"])
    config = Config(home=index / "home", index=index, chunk_tokens=32)
    embedder = stubs.StubEmbedder()
    real = embedder.passages

    def passages(texts):
        with open(job["log"], "a") as log:
            log.write("".join(json.dumps(text) + "\\n" for text in texts))
        return real(texts)

    embedder.passages = passages
    engine = stubs.StubEngine(None)
    with Pipeline(config, create=True, embedder=embedder, engine=engine,
                  counter=stubs.WordCounter()) as pipeline:
        engine.store = pipeline.kv_store
        result = pipeline.ingest([job["docs"]], yes=True, wait=5)
        assert not result.counts.get("failed"), result


print("ready", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        try:
            run(json.loads(line))
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(pid, flush=True)
    sys.stdin.readline()  # a dead process keeps its number until it is waited for
    print(os.waitpid(pid, 0)[1], flush=True)
'''


class Worker:
    """Runs ingests in processes of their own."""

    def __init__(self) -> None:
        conftest = Path(__file__).with_name("conftest.py")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(conftest)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self.process.stdout and self.process.stdout.readline() == "ready\n"

    def start(self, docs: Path, index: Path, fault: str = "") -> int:
        log = index.with_suffix(".log")
        job = {"docs": str(docs), "index": str(index), "log": str(log), "fault": fault}
        self._send(json.dumps(job))
        return int(self._line())

    def wait(self) -> int:
        """Return 0, or the signal that ended the run."""
        self._send("")
        return int(self._line())

    def run(self, docs: Path, index: Path, fault: str = "") -> int:
        self.start(docs, index, fault)
        return self.wait()

    def _send(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture(scope="module")
def worker():
    worker = Worker()
    yield worker
    worker.close()


class Tree:
    """A tree of files, and what each of them held before."""

    def __init__(self, folder: Path, files: int = 100) -> None:
        self.folder = folder
        self.now: dict[str, str] = {}
        self.ever: dict[str, set[str]] = {}
        self.round = 0
        for n in range(files):
            self.write(f"{n % 7}/{n:03}.txt")

    def write(self, name: str) -> None:
        self.put(name, "".join(f"{name} {self.round} {part} " * 8 + "\n\n" for part in "abc"))

    def put(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        self.now[name] = text
        self.ever.setdefault(name, set()).add(text)

    def remove(self, name: str) -> str:
        (self.folder / name).unlink()
        return self.now.pop(name)

    def change(self) -> None:
        """Edit, move and delete some, and add some."""
        self.round += 1
        names = sorted(self.now)
        for name in names[:40]:
            self.write(name)
        for name in names[40:60]:
            self.remove(name)
        for name in names[60:90]:
            self.put(f"moved{self.round}/{name}", self.remove(name))
        for n in range(20):
            self.write(f"new{self.round}/{n}.txt")


def check(index: Path, tree: Tree) -> set[str]:
    """Prove that an index is whole and holds versions of these files; return those that are present ones."""
    current = set()
    with Catalog.open(index) as catalog, catalog.snapshot():
        rows = catalog._rows
        assert rows("PRAGMA integrity_check") == [("ok",)]
        assert rows("PRAGMA foreign_key_check") == []
        without = "SELECT count(*) FROM chunks WHERE row NOT IN (SELECT chunk_row FROM vectors)"
        assert rows(without) == [(0,)]
        assert rows("SELECT count(*) FROM words") == rows("SELECT count(*) FROM chunks")
        for document in catalog.documents():
            name = str(Path(document.path).relative_to(tree.folder.resolve()))
            chunks = [chunk for _, chunk in catalog.chunks(document.path)]
            text = "".join(chunk.text for chunk in chunks)
            assert [chunk.ordinal for chunk in chunks] == list(range(len(chunks)))
            assert text in tree.ever[name]
            if tree.now.get(name) == text:
                current.add(name)
        vectors = VectorIndex.open(catalog, index)
        assert vectors.count == catalog.counts().vectors
        store = KVStore(index / "kv")
        noted, there = catalog.kv_keys(), store.keys()
        for _, chunk in catalog.all_chunks():  # no KV of a passage is taken for nobody's
            key = hashlib.sha256(f"profile-1{chunk.model_text}".encode()).hexdigest()
            assert key in noted or key not in there
        assert all(isinstance(store.get(key), StoredKV) for key in sorted(store.keys()))
    return current


def contents(index: Path) -> object:
    """All that an index holds, without what no two runs have in common."""
    with Catalog.open(index) as catalog:
        return {
            document.path: [
                (chunk, catalog.kv_key(row), catalog.vectors_of([chunk.id])[chunk.id].tolist())
                for row, chunk in catalog.chunks(document.path)
            ]
            for document in catalog.documents()
        }, KVStore(index / "kv").keys()


def test_twenty_kills_at_random_points_of_an_ingest_of_two_hundred_files(tmp_path, worker):
    chance, tree, index = random.Random(7), Tree(tmp_path / "docs", FILES), tmp_path / "index"
    began = time.monotonic()
    assert worker.run(tree.folder, tmp_path / "first") == 0
    whole = time.monotonic() - began
    killed, finished, before = 0, 0, set()
    while killed < KILLS:
        pid = worker.start(tree.folder, index)
        time.sleep(chance.uniform(0, whole / 3))
        os.kill(pid, signal.SIGKILL)
        if worker.wait() == 0:  # it was done already
            finished += 1
            assert check(index, tree) == set(tree.now)
            tree.change()
            before = check(index, tree)
            continue
        killed += 1
        if (index / "catalog.sqlite").exists() and (index / "catalog.sqlite").stat().st_size:
            present = check(index, tree)
            assert before <= present  # a prefix of the work, and none of it undone
            before = present
    assert worker.run(tree.folder, index) == 0
    assert check(index, tree) == set(tree.now)
    assert worker.run(tree.folder, tmp_path / "fresh") == 0
    assert contents(index) == contents(tmp_path / "fresh")
    # What was finished was not done again: a kill costs the one document it struck.
    embedded = index.with_suffix(".log").read_text().splitlines()
    per_document = 4
    assert len(embedded) <= len(set(embedded)) + KILLS * per_document


FAULTS = {
    "before a document is committed": "before(catalog.Catalog, 'put_document', 50)",
    "after it": "before(ingest._Run, '_report', 50)",
    "before the vectors are saved": "before(vectors.VectorIndex, 'refresh')",
    "while they are written": "before(os, 'replace', 1, lambda a, b: '/vectors/' in str(b))",
    "while they are written, later": "before(os, 'replace', 2, lambda a, b: '/vectors/' in str(b))",
    "before KV is renamed": "before(os, 'replace', 30, lambda a, b: '.safetensors' in str(b))",
    "before it is noted": "before(catalog.Catalog, 'set_kv', 3)",
    "after it is stored": "before(stubs.StubEngine, 'put', 40)",
    "before it is swept": "before(kvstore.KVStore, 'gc')",
    "while it is swept": "before(kvstore.KVStore, '_remove', 20)",
    "between renames": "before(catalog.Catalog, 'delete_document', 7)",
}


@pytest.mark.parametrize("point", FAULTS)
def test_killed_at_the_points_where_two_files_must_agree(tmp_path, worker, point, two_trees):
    tree, made = two_trees
    index = tmp_path / "index"
    is_first = "swept" not in point and "between" not in point
    if not is_first:  # points of a run that changes an index
        import shutil

        shutil.copytree(made, index)
    status = worker.run(tree.folder, index, FAULTS[point])
    if "later" not in point:
        assert status == signal.SIGKILL
    check(index, tree)
    assert worker.run(tree.folder, index) == 0
    assert check(index, tree) == set(tree.now)


@pytest.fixture(scope="module")
def two_trees(tmp_path_factory, worker):
    """A tree that was changed after the index beside it was made."""
    folder = tmp_path_factory.mktemp("kill")
    tree = Tree(folder / "docs")
    assert worker.run(tree.folder, folder / "index") == 0
    tree.change()
    return tree, folder / "index"


def test_a_lock_is_free_when_its_owner_was_killed(tmp_path, worker):
    tree = Tree(tmp_path / "docs")
    fault = "before(catalog.Catalog, 'put_document', 5)"
    assert worker.run(tree.folder, tmp_path / "index", fault) == signal.SIGKILL
    owner = json.loads((tmp_path / "index" / "writer.lock").read_text())
    assert not Path(f"/proc/{owner['pid']}").exists()
    assert worker.run(tree.folder, tmp_path / "index") == 0


def test_of_two_writers_the_second_waits_and_readers_see_whole_states(tmp_path, worker):
    tree, index = Tree(tmp_path / "docs"), tmp_path / "index"
    assert worker.run(tree.folder, index) == 0
    tree.change()
    other = Worker()
    try:
        worker.start(tree.folder, index)
        other.start(tree.folder, index)
        states = 0
        query = np.ones(256, np.float32)
        with Catalog.open(index) as catalog:
            vectors = VectorIndex.open(catalog, index)
            deadline = time.monotonic() + 60
            while states < 30 and time.monotonic() < deadline:
                with catalog.snapshot():
                    vectors.refresh(save=False)
                    found = [catalog.chunk(row) for row, _ in vectors.search(query, 5)]
                    for chunk in found:
                        parts = [c.text for _, c in catalog.chunks(chunk.document)]
                        name = str(Path(chunk.document).relative_to(tree.folder.resolve()))
                        assert "".join(parts) in tree.ever[name]
                states += 1
        assert (worker.wait(), other.wait()) == (0, 0)
    finally:
        other.close()
    assert check(index, tree) == set(tree.now)
