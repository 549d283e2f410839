"""Killed at any moment, the index opens and equals a prefix of the work; the next run resumes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

from epicrag.errors import IndexEmptyError
from epicrag.index.catalog import Catalog
from epicrag.index.lock import WriterLock
from epicrag.index.vectors import VectorIndex

DOCUMENTS, CHUNKS, WINDOWS = 200, 3, 2
INGEST = """
import sys
from pathlib import Path
import numpy as np
from epicrag.index.catalog import Catalog
from epicrag.index.lock import WriterLock
from epicrag.types import Chunk, Document

folder, documents, chunks, windows = Path(sys.argv[1]), *map(int, sys.argv[2:])
print("ready", flush=True)
with WriterLock(folder), Catalog.open(folder, create=True) as catalog:
    known = {row.path for row in catalog.documents()}
    for i in range(documents):
        path = f"/d/{i:03}"
        if path in known:
            continue
        texts = [f"document {i} passage {j} " * 40 for j in range(chunks)]
        vectors = [np.eye(windows, 64, i % 50 + j, dtype=np.float32) for j in range(chunks)]
        pieces = [Chunk(path, j, 0, len(text), text) for j, text in enumerate(texts)]
        catalog.put_document(Document(path, "".join(texts), "digest"), pieces, vectors)
print("done", flush=True)
"""


def start(folder):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    sizes = [str(n) for n in (DOCUMENTS, CHUNKS, WINDOWS)]
    process = subprocess.Popen(
        [sys.executable, "-c", INGEST, str(folder), *sizes], stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout.readline() == b"ready\n"
    return process


def check(folder):
    """Return how many documents are in, after proving that they are the first ones and whole."""
    with WriterLock(folder), Catalog.open(folder) as catalog:
        paths = [row.path for row in catalog.documents()]
        assert paths == [f"/d/{i:03}" for i in range(len(paths))]
        for i, path in enumerate(paths):
            texts = [chunk.text for _, chunk in catalog.chunks(path)]
            assert texts == [f"document {i} passage {j} " * 40 for j in range(CHUNKS)]
        counts, index = catalog.counts(), VectorIndex.open(catalog, folder)
        assert counts.vectors == index.count == len(paths) * CHUNKS * WINDOWS
        assert catalog.generation == len(paths)
        return len(paths)


def test_killed_at_random_points_the_index_is_a_prefix_and_resumes(tmp_path):
    chance = random.Random(7)
    done = [0]
    for n in range(6):
        with start(tmp_path) as process:
            time.sleep(chance.uniform(0, 0.08) * (1 + n))  # longer and longer: machines differ
            process.kill()
        try:
            done.append(check(tmp_path))
        except IndexEmptyError:  # killed before the first commit
            assert done[-1] == 0
            continue
    assert done == sorted(done)
    assert any(0 < n < DOCUMENTS for n in done), done
    with start(tmp_path) as process:
        assert process.stdout.read() == b"done\n"
    assert check(tmp_path) == DOCUMENTS
