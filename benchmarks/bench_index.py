"""An index of 100,000 chunks and a KV store of 10,000 entries: what each step takes, in time and in memory.

    python benchmarks/bench_index.py --texts DIR --cache DIR
    python benchmarks/bench_index.py --texts DIR --cache DIR --only choice --only kv
    python benchmarks/bench_index.py --chunks 20000 --embed 5000 --texts DIR --cache DIR

`--texts` are folders of .jsonl and .txt files, cut into passages of about 36 tokens. The first `--embed` of
them, in random order, are embedded with the embedder that is configured, once: `--cache` keeps the vectors. The
others get a mixture of two of those with a little noise, which is as crowded as texts are. Sections:

    choice   flat, lists, and FAISS's flat, IVF and HNSW: building, bytes, latency, recall@10 against flat
    index    catalog and vectors: building, opening, searching, saving after one document, listing, planning
    ingest   `--chunks` over 2,000 files with a stub embedder and no KV: CPU seconds a stage, memory as it grows
    kv       the KV store: put, lookup, get, eviction, gc

Each section is a process of its own. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

UNIT = re.compile(r"[\u3000-\u9fff\u0600-\u06ff]|\w+|[^\w\s]")
UNITS = 29  # about 36 tokens
QUERIES = 300
SECTIONS = ("choice", "index", "ingest", "kv")
Rows = dict[str, Any]


def main() -> None:
    given = _arguments()
    given.cache.mkdir(parents=True, exist_ok=True)
    if given.section:
        print(json.dumps(globals()[given.section](given)))
        return
    chunks(given)
    results: dict[str, Rows] = {}
    for name in given.only or SECTIONS:
        if name in ("choice", "index"):
            vectors(given)
        command = [sys.executable, __file__, *sys.argv[1:], "--section", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        results[name] = json.loads(done.stdout.splitlines()[-1])
        print("\n".join(table(name, results[name])), flush=True)
    print(json.dumps({"chunks": given.chunks, "cores": os.cpu_count(), **results}))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--texts", type=Path, action="append", required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--embed", type=int, default=30_000)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--only", action="append", choices=SECTIONS)
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    return parser.parse_args()


def table(name: str, rows: Rows) -> list[str]:
    """Return the lines of one section: a name and its figures each."""
    lines = [f"| {name} | |", "| --- | --- |"]
    for label, value in rows.items():
        figures = value if isinstance(value, dict) else {"": value}
        text = ", ".join(f"{key} {_figure(number)}".strip() for key, number in figures.items())
        lines.append(f"| {label} | {text} |")
    return [*lines, ""]


def _figure(number: object) -> str:
    return (
        f"{number:,.4g}"
        if isinstance(number, float)
        else f"{number:,}"
        if isinstance(number, int)
        else str(number)
    )


# --- what is indexed ------------------------------------------------------------------------------


def chunks(given: argparse.Namespace) -> list[str]:
    """Return the passages, each once; fewer than asked for are taken again with a number behind."""
    file = given.cache / f"chunks-{given.chunks}.json"
    if not file.exists():
        seen: dict[str, None] = {}
        for text in _texts(given.texts):
            seen.update(dict.fromkeys(_passages(text)))
            if len(seen) >= given.chunks:
                break
        found = list(seen)[: given.chunks]
        found += [f"{found[i % len(found)]} ({i})" for i in range(given.chunks - len(found))]
        file.write_text(json.dumps(found))
    texts: list[str] = json.loads(file.read_text())
    return texts


def _texts(roots: Sequence[Path]) -> Iterator[str]:
    for root in roots:
        for file in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if file.suffix == ".jsonl":
                with file.open(encoding="utf-8") as lines:
                    for line in lines:
                        yield from _strings(json.loads(line))
            elif file.suffix == ".txt":
                yield file.read_text(encoding="utf-8", errors="replace")


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str) and len(value) >= 160:
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def _passages(text: str) -> Iterator[str]:
    ends, at = [match.end() for match in UNIT.finditer(text)], 0
    for i in range(UNITS - 1, len(ends) + UNITS - 1, UNITS):
        end = ends[min(i, len(ends) - 1)]
        if len(passage := text[at:end].strip()) >= 40:
            yield passage
        at = end


def vectors(given: argparse.Namespace) -> Any:
    """Return (chunks + QUERIES, dim) unit rows: real ones, mixtures of them, and real ones as queries."""
    file = given.cache / f"vectors-{given.chunks}-{given.embed}.npy"
    if not file.exists():
        real = embedded(given)
        chance = np.random.default_rng(1)
        real = real[chance.permutation(len(real))]
        base, queries = real[QUERIES:][: given.chunks], real[:QUERIES]
        left = given.chunks - len(base)
        one, two = (base[chance.integers(0, len(base), left)] for _ in range(2))
        weight = chance.uniform(0.6, 0.95, (left, 1)).astype(np.float32)
        mixed = weight * one + (1 - weight) * two
        mixed += chance.standard_normal(mixed.shape).astype(np.float32) * 0.02
        mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
        np.save(file, np.concatenate([base, mixed, queries]))
    return np.load(file)


def embedded(given: argparse.Namespace) -> Any:
    """Return the vectors of `--embed` passages, embedded once and as far as the last run came."""
    file = given.cache / f"embedded-{given.chunks}.npy"
    texts = chunks(given)
    chosen = np.random.default_rng(0).permutation(len(texts))[: given.embed + QUERIES]
    have = np.load(file) if file.exists() else np.zeros((0, 0), np.float32)
    if len(have) < len(chosen):
        from epicrag.config import load_config
        from epicrag.pipeline import Pipeline

        embedder = Pipeline(load_config({})).embedder
        for at in range(len(have), len(chosen), 1024):
            part = embedder.passages([texts[i] for i in chosen[at : at + 1024]])
            rows = np.stack([windows[0] for windows in part])
            have = np.concatenate([have, rows]) if len(have) else rows
            np.save(file, have)
            print(f"embedded {len(have):,} of {len(chosen):,}", file=sys.stderr)
    return have[: len(chosen)]


# --- choice ---------------------------------------------------------------------------------------


def choice(given: argparse.Namespace) -> Rows:
    import faiss

    from epicrag.index.clusters import Lists

    faiss.omp_set_num_threads(1)
    both = vectors(given)
    data, queries = np.ascontiguousarray(both[:-QUERIES]), both[-QUERIES:]
    n, dim = data.shape
    truth = [_best(data @ query) for query in queries]
    rows: Rows = {"vectors": {"n": n, "dim": dim, "MB": round(data.nbytes / 1e6)}}

    def measure(name: str, ask: Callable[[Any], Sequence[int]], **facts: object) -> None:
        times, hits, cpu = [], 0, time.process_time()
        for query, best in zip(queries, truth, strict=True):
            began = time.perf_counter()
            found = ask(query)
            times.append(time.perf_counter() - began)
            hits += len(set(found) & set(best))
        spent = {"cpu_ms": round(1000 * (time.process_time() - cpu) / QUERIES, 2)}
        recall = {"recall@10": round(hits / (10 * QUERIES), 4)}
        rows[name] = {**facts, **_latency(times), **spent, **recall}

    measure("flat (numpy)", lambda query: _best(data @ query))
    flat = faiss.IndexFlatIP(dim)
    flat.add(data)
    measure("flat (FAISS)", lambda query: flat.search(query[None], 10)[1][0].tolist())
    for times_root in (2, 4):
        n_lists = round(times_root * np.sqrt(n))
        began = time.process_time()
        lists, order = Lists.made(lambda places: data[places], n, n_lists)
        clustered = data[order]
        built = round(time.process_time() - began, 1)

        def probe(
            query: Any, share: int, lists: Any = lists, rows: Any = clustered, order: Any = order
        ) -> list[int]:
            chosen = np.argsort(-(lists.centroids @ query))[: lists.count // share]
            spans = [(lists.bounds[i], lists.bounds[i + 1]) for i in chosen]
            scores = np.concatenate([rows[first:last] @ query for first, last in spans])
            places = np.concatenate([order[first:last] for first, last in spans])
            return [int(places[i]) for i in _best(scores)]

        for share in (32, 16, 8):
            measure(
                f"lists {n_lists}, 1 in {share}",
                lambda query, share=share, probe=probe: probe(query, share),
                build_s=built,
            )
    quantizer = faiss.IndexFlatIP(dim)
    n_lists = round(2 * np.sqrt(n))
    ivf = faiss.IndexIVFFlat(quantizer, dim, n_lists, faiss.METRIC_INNER_PRODUCT)
    began = time.process_time()
    ivf.train(data[np.random.default_rng(0).choice(n, min(n, 64 * n_lists), replace=False)])
    ivf.add(data)
    built = round(time.process_time() - began, 1)
    for share in (32, 16, 8):
        ivf.nprobe = n_lists // share
        measure(
            f"IVF {n_lists}, 1 in {share}",
            lambda query: ivf.search(query[None], 10)[1][0].tolist(),
            build_s=built,
        )
    for links in (16, 32):
        graph = faiss.IndexHNSWFlat(dim, links, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = 80
        began = time.process_time()
        graph.add(data)
        built = round(time.process_time() - began, 1)
        size = round(faiss.serialize_index(graph).nbytes / 1e6)
        for breadth in (32, 64, 128, 256):
            graph.hnsw.efSearch = breadth
            measure(
                f"HNSW {links}, ef {breadth}",
                lambda query, graph=graph: graph.search(query[None], 10)[1][0].tolist(),
                build_s=built,
                MB=size,
            )
    return rows


def _best(scores: Any) -> list[int]:
    best = np.argpartition(-scores, 10)[:10]
    places: list[int] = best[np.argsort(-scores[best])].tolist()
    return places


def _latency(times: Sequence[float]) -> Rows:
    p50, p95 = np.quantile(times, [0.5, 0.95]) * 1000
    return {"p50_ms": round(float(p50), 2), "p95_ms": round(float(p95), 2)}


# --- index ----------------------------------------------------------------------------------------


def index(given: argparse.Namespace) -> Rows:
    from epicrag.index.catalog import Catalog
    from epicrag.index.vectors import VectorIndex

    both, texts = vectors(given), chunks(given)
    data, queries = both[:-QUERIES], both[-QUERIES:]
    rows: Rows = {}
    with tempfile.TemporaryDirectory(dir=given.cache) as name:
        folder = Path(name)
        label = f"put {len(data):,} chunks in {given.files:,} documents"
        with Catalog.open(folder, create=True) as catalog, timed(rows, label):
            for i, part in enumerate(np.array_split(np.arange(len(data)), given.files)):
                put(catalog, f"/d/{i:06}.txt", [texts[j] for j in part], data[part])
        rows["catalog, MB"] = round((folder / "catalog.sqlite").stat().st_size / 1e6)
        child(rows, folder, "open, nothing saved yet", "VectorIndex.open(catalog, folder)")
        child(
            rows,
            folder,
            "refresh of the writer (settles)",
            "VectorIndex.open(catalog, folder).refresh()",
        )
        rows["copy on disk, MB"] = round(copy_bytes(folder) / 1e6)
        child(rows, folder, "open, warm", "VectorIndex.open(catalog, folder)")
        cold(folder)
        child(rows, folder, "open, cold", "VectorIndex.open(catalog, folder)")
        cold(folder)
        child(
            rows,
            folder,
            "open and one search, cold",
            "VectorIndex.open(catalog, folder).search(query, 10)",
        )
        for label in ("epicrag search, first", "epicrag search, again"):
            program = "from epicrag.cli.main import run; run()"
            command = [sys.executable, "-c", program, "search", "--index", name, "who ran away"]
            took, done = seconds(
                lambda c=command: subprocess.run(c, check=False, capture_output=True)
            )
            rows[label] = round(took, 2) if done.returncode == 0 else f"exit {done.returncode}"
        with Catalog.open(folder) as catalog:
            found = VectorIndex.open(catalog, folder)
            for k in (10, 50):
                rows[f"search, k {k}"] = _latency(
                    [seconds(lambda q=q, k=k: found.search(q, k))[0] for q in queries]
                )
            rows["stamp check and search, k 10"] = _latency(
                [
                    seconds(lambda q=q: (found.refresh(save=False), found.search(q, 10)))[0]
                    for q in queries
                ]
            )
            listing(rows, catalog)
            before, path = inodes(folder), "/d/one-more.txt"
            put(catalog, path, texts[:50], data[:50])
            with timed(rows, "save after one more document, same process"):
                found.refresh()
            rows["of it written, KB"] = round(new_bytes(folder, before) / 1e3)
            before = inodes(folder)
            put(catalog, path, texts[50:100], data[50:100])
        child(
            rows,
            folder,
            "save after one changed document, new process",
            "VectorIndex.open(catalog, folder).refresh()",
        )
        rows["of it written, KB (changed)"] = round(new_bytes(folder, before) / 1e3)
        with Catalog.open(folder) as catalog:
            put(catalog, path, texts[100:150], data[100:150])
        child(
            rows,
            folder,
            "open after a kill (one commit ahead)",
            "VectorIndex.open(catalog, folder)",
        )
    return rows


def put(catalog: Any, path: str, texts: Sequence[str], data: Any) -> None:
    from epicrag.types import Chunk, Document

    pieces = [Chunk(path, i, 0, len(text), text, n_tokens=36) for i, text in enumerate(texts)]
    catalog.put_document(Document(path, "".join(texts), path), pieces, [row[None] for row in data])


def listing(rows: Rows, catalog: Any) -> None:
    """Time what reads the whole catalog."""
    from epicrag.index.sync import plan

    with timed(rows, "documents()"):
        known = catalog.documents()
    with timed(rows, "counts()"):
        catalog.counts()
    with timed(rows, "all_chunks()"):
        for _ in catalog.all_chunks():
            pass
    with timed(rows, "vector_rows()"):
        catalog.vector_rows()
    entries = [Found(row.path, row.digest) for row in known]
    entries += [Found(f"/d/other-{i}.txt", str(i)) for i in range(10_000 - len(entries))]
    with timed(rows, "plan of 10,000 files"):
        plan(catalog, entries, ["/d"])


@dataclass(frozen=True, slots=True)
class Found:
    """A file as a source gives it, digested already."""

    path: str
    known: str
    size: int = 1

    def digest(self) -> str:
        return self.known


CHILD = """
import json, re, sys, time
from pathlib import Path
import numpy as np
from epicrag.index.catalog import Catalog
from epicrag.index.vectors import VectorIndex
folder, query = Path(sys.argv[1]), np.ones(int(sys.argv[2]), np.float32)
def peak():  # what getrusage says begins with the parent's
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
base = peak()
with Catalog.open(folder) as catalog:
    began, cpu = time.perf_counter(), time.process_time()
    {work}
    took = time.perf_counter() - began, time.process_time() - cpu
print(json.dumps([*took, (peak() - base) / 1000]))
"""


def child(rows: Rows, folder: Path, label: str, work: str) -> None:
    """Time a step in a fresh process, with the memory it adds at most (mapped files count)."""
    command = [sys.executable, "-c", CHILD.format(work=work), str(folder), "384"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    wall, cpu, peak = json.loads(done.stdout)
    rows[label] = {"s": round(wall, 3), "cpu_s": round(cpu, 3), "peak_MB": round(peak)}
    print(f"{label}: {rows[label]}", file=sys.stderr)


def inodes(folder: Path) -> set[int]:
    return {path.stat().st_ino for path in folder.rglob("*") if path.is_file()}


def new_bytes(folder: Path, before: set[int]) -> int:
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum(stat.st_size for stat in files if stat.st_ino not in before)


def copy_bytes(folder: Path) -> int:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files if not path.name.startswith("catalog"))


def cold(folder: Path) -> None:
    """Ask the system to forget what it holds of these files."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


class timed:
    """Context manager that leaves wall and CPU seconds under a name."""

    def __init__(self, rows: Rows, label: str) -> None:
        self._rows, self._label = rows, label

    def __enter__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def __exit__(self, *error: object) -> None:
        wall, cpu = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        self._rows[self._label] = {"s": round(wall, 4), "cpu_s": round(cpu, 4)}
        print(f"{self._label}: {self._rows[self._label]}", file=sys.stderr)


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


# --- ingest ---------------------------------------------------------------------------------------


class StubEmbedder:
    """Random unit vectors, at once: what is left is the pipeline."""

    name, fingerprint, dim = "stub", "stub", 384

    def __init__(self) -> None:
        self._chance = np.random.default_rng(0)

    def query(self, text: str) -> Any:
        return self.passages([text])[0][0]

    def passages(self, texts: Sequence[str]) -> list[Any]:
        data = self._chance.standard_normal((len(texts), self.dim), dtype=np.float32)
        data /= np.linalg.norm(data, axis=1, keepdims=True)
        return [row[None] for row in data]


def ingest(given: argparse.Namespace) -> Rows:
    import psutil

    from epicrag.config import load_config
    from epicrag.connectors import read, split
    from epicrag.index.catalog import Catalog
    from epicrag.index.vectors import VectorIndex
    from epicrag.pipeline import Pipeline

    process, stages = psutil.Process(), {}
    for owner, name in (
        (read, "read"),
        (split, "split"),
        (StubEmbedder, "passages"),
        (Catalog, "put_document"),
        (VectorIndex, "refresh"),
        (VectorIndex, "open"),
    ):
        watch(stages, owner, name)
    texts, rows = chunks(given), {}
    with tempfile.TemporaryDirectory(dir=given.cache) as name:
        docs = Path(name) / "docs"
        docs.mkdir()
        for i, part in enumerate(np.array_split(np.arange(len(texts)), given.files)):
            (docs / f"{i:06}.txt").write_text("\n\n".join(texts[j] for j in part), encoding="utf-8")
        del texts
        config = load_config({"index": str(Path(name) / "index"), "chunk_tokens": 48})
        memory: list[float] = []
        for run in ("first run", "run without change", "run with one file changed"):
            if run.endswith("changed"):
                (docs / "000000.txt").write_text("something else", encoding="utf-8")
            with Pipeline(config, create=True, embedder=StubEmbedder()) as pipeline:
                _ = pipeline.counter
                stages.clear()
                began, cpu = time.perf_counter(), time.process_time()
                result = pipeline.ingest(
                    docs,
                    kv=False,
                    progress=lambda event: (
                        memory.append(process.memory_info().rss / 1e6)
                        if event.stage == "file"
                        else None
                    ),
                )
                took, cpu = time.perf_counter() - began, time.process_time() - cpu
            rows[run] = {
                "s": round(took, 2),
                "cpu_s": round(cpu, 2),
                **{stage: round(spent, 2) for stage, spent in stages.items()},
            }
            if run == "first run":
                rows["chunks"] = result.chunks
                rows["CPU ms a chunk"] = round(1000 * cpu / result.chunks, 3)
                shares = [
                    memory[int(share * (len(memory) - 1))] for share in (0, 0.1, 0.25, 0.5, 0.75, 1)
                ]
                rows["RSS in MB after 0, 10, 25, 50, 75 and 100 % of the files"] = " ".join(
                    f"{share:.0f}" for share in shares
                )
                rows["RSS in MB at the end, with the vectors saved"] = round(
                    process.memory_info().rss / 1e6
                )
                import resource

                rows["peak RSS, MB"] = round(
                    resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
                )
        index = Path(name) / "index"
        rows["WAL left, MB"] = round(sum(p.stat().st_size for p in index.glob("*-wal")) / 1e6, 1)
    return rows


def watch(stages: dict[str, float], owner: Any, name: str) -> None:
    """Add up the CPU seconds that a function takes."""
    real = getattr(owner, name)

    def timed_call(*arguments: Any, **more: Any) -> Any:
        began = time.process_time()
        try:
            return real(*arguments, **more)
        finally:
            stages[name] = stages.get(name, 0.0) + time.process_time() - began

    setattr(owner, name, timed_call)


# --- kv -------------------------------------------------------------------------------------------


def kv(given: argparse.Namespace) -> Rows:
    import hashlib

    import torch

    from epicrag.index.kvstore import KVStore

    n, rows = given.entries, {}
    keys = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(2 * n)]
    small = (
        torch.zeros(2, 1, 8, 32, dtype=torch.float16),
        torch.ones(2, 1, 8, 32, dtype=torch.float16),
    )
    with tempfile.TemporaryDirectory(dir=given.cache) as name:
        store = KVStore(Path(name) / "small")
        each(
            rows,
            f"put, {n:,} entries",
            keys[:n],
            lambda key: size.append(store.put(key, *small, {})),
            size := [],
        )
        rows["bytes an entry"] = size[0]
        store = KVStore(store.root)
        each(rows, "contains, there", keys[:n], store.contains)
        each(rows, "contains, not there", keys[n:], store.contains)
        each(rows, "get", keys[:n], store.get)
        each(rows, "put again", keys[:n], lambda key: store.put(key, *small, {}))
        for label, work in (
            ("keys()", store.keys),
            ("sizes()", store.sizes),
            ("nbytes()", store.nbytes),
        ):
            with timed(rows, label):
                work()
        bounded = KVStore(store.root, budget_bytes=n * size[0])
        some = keys[n : n + n // 10]
        each(
            rows,
            f"put, full budget, {len(some):,} evictions",
            some,
            lambda key: bounded.put(key, *small, {}),
        )
        rows["entries then"] = len(bounded.keys())
        held = bounded.keys()
        with timed(rows, "gc, nothing to remove"):
            bounded.gc(held)
        with timed(rows, "gc, half to remove"):
            bounded.gc(set(sorted(held)[::2]))
        mixed(rows, Path(name) / "mixed", keys)
    return rows


def mixed(rows: Rows, folder: Path, keys: Sequence[str]) -> None:
    """A realistic mix: questions over 300 chunks of a megabyte under a budget of 100, some asked for often."""
    import torch

    from epicrag.index.kvstore import KVStore, Missing

    pair = (
        torch.zeros(30, 3, 96, 64, dtype=torch.float16),
        torch.ones(30, 3, 96, 64, dtype=torch.float16),
    )
    size = KVStore(folder).put(keys[0], *pair, {})
    share = 1 / np.arange(1, 301) ** 0.8
    wanted = np.random.default_rng(0).choice(300, 3000, p=share / share.sum())
    uses: dict[str, int] = {}
    for label, value_of in (
        ("least recent goes", None),
        ("least used goes", lambda key: uses.get(key, 0)),
    ):
        store = KVStore(folder, budget_bytes=100 * size, value_of=value_of)
        hits, began = 0, time.perf_counter()
        for i in wanted.tolist():
            uses[keys[i]] = uses.get(keys[i], 0) + 1
            if isinstance(store.get(keys[i]), Missing):
                store.put(keys[i], *pair, {})
            else:
                hits += 1
        took = time.perf_counter() - began
        rows[f"mix of {size / 1e6:.1f} MB entries, {label}"] = {
            "hit_rate": round(hits / len(wanted), 3),
            "ms": round(1000 * took / len(wanted), 2),
        }
        store.gc(set())
        uses.clear()


def each(
    rows: Rows, label: str, keys: Sequence[str], work: Callable[[str], Any], _: object = None
) -> None:
    began, cpu = time.perf_counter(), time.process_time()
    for key in keys:
        work(key)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    rows[label] = {"us": round(1e6 * wall / len(keys)), "cpu_us": round(1e6 * cpu / len(keys))}


if __name__ == "__main__":
    main()
