"""Command lines over a stub pipeline: what is tested here is what a person or a program sees."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from epicrag.ask import Ask as AskFacts
from epicrag.cli.main import main
from epicrag.pipeline import AnswerStream, IngestResult, Pipeline, Status
from epicrag.types import (
    Chunk,
    FileReport,
    Found,
    Hit,
    Place,
    Receipt,
    Relevance,
    Timings,
    Usage,
)

SERVER = ("EPICRAG_SERVER", "EPICRAG_TOKEN")
RECEIPT = Receipt(
    policy="legolink(16)",
    compile="isolated",
    context_tokens=4180,
    exact=212,
    stitched=3700,
    recomputed=268,
    fresh=31,
    ms=Timings(load=3.2, stitch=0.4, link=61, first_token=66, total=900),
)


@dataclass
class StubGeneration:
    deltas: list[str]
    pieces_used: int = 2
    is_constrained: bool = False
    finish_reason: str = "stop"
    receipt: Receipt = RECEIPT
    usage: Usage = field(default_factory=lambda: Usage(4211, 7))
    error: BaseException | None = None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if not self.deltas:
            if self.error:
                raise self.error
            raise StopIteration
        return self.deltas.pop(0)

    def close(self) -> None:
        self.deltas = []


class StubPipeline:
    """Gives canned results, and remembers how it was asked."""

    def __init__(self, docs: Path) -> None:
        self.config: Any = None
        self.calls: list[tuple[str, Any, dict[str, Any]]] = []
        self.error: BaseException | None = None
        self.generation: StubGeneration | None = StubGeneration(["The fee ", "is 5 euros."])
        places = (Place(None, (3, 9), "Fees > Entry"), Place(2, None, None))
        texts = ("The fee is 5 euros.\nPay at the door.", "Dogs stay outside.")
        self.hits = [
            Hit(row, Chunk(str(docs / name), 0, 0, len(text), text, None, place, 6), score)
            for row, name, text, place, score in zip(
                (1, 2), ("fees.md", "dogs.pdf"), texts, places, (0.83, 0.31), strict=True
            )
        ]
        self.relevance = Relevance(True, 0.9, 0.5, "auto", {"cosine": 0.83}, "it is near")
        self.result = IngestResult(
            files=(
                FileReport(str(docs / "a.md"), "added", None, 2, 90),
                FileReport(str(docs / "b.md"), "unchanged", None, 1, 10),
            ),
            kv_bytes=2048,
            ms=1500.0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def _called(self, verb: str, subject: Any, options: dict[str, Any]) -> None:
        self.calls.append((verb, subject, options))
        if self.error is not None:
            raise self.error

    def sampling(self, **choices: Any) -> dict[str, Any]:
        return choices

    def ingest(self, paths: list[Path], **options: Any) -> IngestResult:
        self._called("ingest", paths, options)
        from epicrag.pipeline import Event

        for report in self.result.files:
            options["progress"](Event("file", 1, 1, report))
        return self.result

    def find(self, query: str, **options: Any) -> Found:
        self._called("find", query, options)
        return Found(tuple(self.hits), self.relevance)

    def stream(self, question: str, **options: Any) -> AnswerStream:
        self._called("stream", question, options)
        strict = options["strict"]
        facts = AskFacts(question, tuple(self.hits), "stub-lm", 8.0, strict, self.relevance)
        return AnswerStream(facts, self.generation)

    def status(self) -> Status:
        self._called("status", None, {})
        return Status(
            index=Path("/data/index"),
            generation=7,
            last_ingest="2026-01-02T03:04:05+00:00",
            documents=3,
            chunks=12,
            tokens=1024,
            vectors=13,
            kv_entries=13,
            kv_bytes=2048 * 1024,
            kv_bytes_per_token=2048,
            kv_dtype="float16",
            kv_budget=None,
            retrievals=0,
            retrievals_with_kv=0,
            chunks_with_kv=12,
            kv_other_entries=3,
            kv_other_bytes=4096,
            model="stub-lm",
            model_fingerprint="0123456789abcdef",
            dtype="float32",
            compile="prefix",
            embedder="stub",
            embedder_fingerprint="fedcba9876543210",
            configured_model="stub-lm",
            configured_embedder="stub",
        )


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of whoever runs the tests, and none left behind."""
    for name in ("EPICRAG_INDEX", "EPICRAG_MODEL", "EPICRAG_CONFIG", "NO_COLOR", *SERVER):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EPICRAG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)
    logger = logging.getLogger("epicrag")  # the command line takes it over: give it back
    for name in ("handlers", "propagate", "level"):
        monkeypatch.setattr(logger, name, getattr(logger, name))


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StubPipeline:
    stub = StubPipeline(tmp_path / "docs")

    def opened(config: Any, **options: Any) -> StubPipeline:
        stub.config = config
        return stub

    monkeypatch.setattr(Pipeline, "open", opened)
    return stub


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command line: `cli("ask", "…")`; `stdin` are bytes."""

    def run(*args: str, stdin: bytes | None = None) -> Run:
        if stdin is not None:
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main(args)
        captured = capsys.readouterr()
        return Run(code, captured.out, captured.err)

    return run
