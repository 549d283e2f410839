"""Many clients at once against `epicrag serve`, under two link policies by turns: times, throughput, reuse, memory.

Passages of an index are shared by all requests, which put some of them before a question in an order of their
own. One server runs with the policy that is asked about and one with `--link-policy prefix`, both for the whole
run, and each gets the same requests in its turns. As many streams are open as `--streams` says: each sends its
next request when the last one has ended. A request ends with its finish, with a refusal that says so (429, 503),
or it is lost, and the run fails (exit code 1); so it does when a server counts other requests than were sent, or
has some left over. Memory is the resident set of the server's process, once a second.

Printed: a table, and one line of JSON. A turn is bounded by `--seconds` and by `--requests`, a request by
`--timeout`. All traffic is on the loopback address.

    python -m benchmarks.load --index DIR [--home DIR] [--policy 'legolink(8)'] [--against prefix] [--streams 8]
        [--seconds 60] [--requests 200] [--rounds 2] [--via chunks] [--passages 4] [--pool 64] [--max-tokens 24]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import httpx
import psutil

if TYPE_CHECKING:
    from epicrag.config import Config

WARM_UP = 2
"""Requests a stream that are not counted, before a server's first turn."""
FLAT = 0.02
"""Memory counts as flat when its line through the last rounds rises by less than this share of it."""
REFUSED = (429, 503)


# --- what is asked -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Passage:
    id: str
    text: str
    topic: str


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: passages of the pool, in the order in which they stand before the question."""

    question: str
    passages: tuple[Passage, ...]
    seed: int


def pool_of(config: Config, count: int, seed: int) -> list[Passage]:
    """Passages of an index, drawn by the seed; no model is loaded."""
    from epicrag.draw import topic
    from epicrag.pipeline import Pipeline

    with Pipeline.open(config) as pipeline:
        once = {chunk.id: chunk for _, chunk in pipeline.catalog.all_chunks()}
    chosen = random.Random(seed).sample(sorted(once), min(count, len(once)))
    return [Passage(id, once[id].model_text, topic(once[id])) for id in chosen]


def requests_of(pool: Sequence[Passage], passages: int, seed: int) -> Iterator[Asked]:
    """Requests without end: the same seed gives the same ones."""
    rng = random.Random(seed)
    while True:
        chosen = tuple(rng.sample(pool, min(passages, len(pool))))
        topic = rng.choice(chosen).topic
        yield Asked(f"What do the documents say about {topic}?", chosen, rng.randrange(2**31))


def body_of(asked: Asked, via: str, model: str, max_tokens: int) -> tuple[str, dict[str, Any]]:
    """The endpoint and the body of a request: chunks registered before, documents, or a search of the index."""
    if via == "ask":
        shuffled = {"shuffle_seed": asked.seed, "k": len(asked.passages)}
        return "v1/ask", {"question": asked.question, "max_tokens": max_tokens, **shuffled}
    message: dict[str, Any] = {"role": "user", "content": asked.question}
    body: dict[str, Any] = {
        "model": model,
        "messages": [message],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if via == "chunks":
        message["chunk_references"] = [{"id": passage.id} for passage in asked.passages]
    else:
        body["documents"] = [{"text": passage.text} for passage in asked.passages]
    return "v1/chat/completions", body


# --- what became of it ---------------------------------------------------------------------------


@dataclass(slots=True)
class Outcome:
    """One request's end. Times in seconds from when it was sent."""

    state: str = "lost"
    """done, refused, or lost."""
    reason: str = ""
    first: float = 0.0
    whole: float = 0.0
    written: int = 0
    receipt: dict[str, Any] = field(default_factory=dict)


async def send(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Outcome:
    """Send one request and read it to its end, whatever that is."""
    outcome, began = Outcome(), time.perf_counter()
    try:
        async with client.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                said = (await response.aread()).decode("utf-8", "replace")[:200]
                outcome.reason = f"{response.status_code} {said}"
                if response.status_code in REFUSED:
                    outcome.state = "refused"
                return outcome
            async for item in items_of(response):
                take(outcome, item, time.perf_counter() - began)
    except (httpx.HTTPError, ValueError) as error:
        outcome.reason = f"{type(error).__name__}: {error}"
    outcome.whole = time.perf_counter() - began
    return outcome


async def items_of(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The objects of a stream, whether they are lines of JSON or server-sent events."""
    is_events = response.headers["content-type"].startswith("text/event-stream")
    async for line in response.aiter_lines():
        data = line.removeprefix("data:").strip() if is_events else line
        if not data or (is_events and not line.startswith("data:")):
            continue
        yield {"end": True} if data == "[DONE]" else json.loads(data)


def take(outcome: Outcome, item: dict[str, Any], now: float) -> None:
    """Note what one object of a stream says, of either kind of stream."""
    if error := item.get("error"):
        outcome.reason = str(error.get("message"))
        outcome.state = "lost"
        return
    choice = next(iter(item.get("choices") or ()), {})
    text = item.get("delta") if "delta" in item else (choice.get("delta") or {}).get("content")
    if text and not outcome.first:
        outcome.first = now
    whole = item if "answer" in item else item.get("epicrag") or {}
    if receipt := whole.get("receipt"):
        outcome.receipt = receipt
    if usage := item.get("usage"):
        outcome.written = usage["completion_tokens"]
    is_finished = "answer" in item or choice.get("finish_reason")
    if is_finished:
        outcome.reason = "finished"
    if "answer" in item or ("end" in item and outcome.reason == "finished"):
        outcome.state = "done"


# --- a server ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Server:
    """A server under one policy, and all that was seen of it."""

    policy: str
    url: str
    process: psutil.Process
    model: str = ""
    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0
    memory: list[tuple[int, float, int]] = field(default_factory=list)
    """(round, seconds under load so far, bytes)."""
    troubles: list[str] = field(default_factory=list)


@contextmanager
def serving(policy: str, index: Path, home: Path, log: Path) -> Iterator[Server]:
    """A real server of its own process, on a free port; ended whatever happens."""
    command = "from epicrag.cli.main import run; run()"
    flags = ["serve", "--json", "--port", "0", "--link-policy", policy]
    flags += ["--home", str(home), "--index", str(index)]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", command, *flags], stdout=subprocess.PIPE, stderr=errors
        )
        try:
            assert process.stdout is not None
            told = told_by(process.stdout, log)
            yield Server(policy, told["url"], psutil.Process(process.pid))
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()


def told_by(stream: Any, log: Path) -> dict[str, Any]:
    """What a server says on its standard output first: one JSON object, over one line or several."""
    text = ""
    for line in stream:
        text += line.decode("utf-8", "replace")
        with suppress(ValueError):
            told = json.loads(text)
            if "url" in told:
                return dict(told)
            break
    sys.exit(f"the server did not start: {text.strip() or log.read_text(errors='replace')[-2000:]}")


async def ready(client: httpx.AsyncClient, server: Server, seconds: float = 600) -> None:
    """Wait until the model is loaded, and learn its name."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with suppress(httpx.HTTPError):
            if (await client.get("healthz")).status_code == 200:
                models = (await client.get("v1/models")).json()["data"]
                named = [model for model in models if model["id"] != "epicrag"]
                server.model = next((m for m in named if m.get("root")), named[0])["id"]
                return
        if not server.process.is_running():
            break
        await asyncio.sleep(0.3)
    sys.exit(f"the server with {server.policy} did not get ready")


async def register(client: httpx.AsyncClient, pool: Sequence[Passage]) -> None:
    """Put the pool into the server's book of chunks, one after the other."""
    for passage in pool:
        response = await client.post("v1/chunks", json={"id": passage.id, "text": passage.text})
        if response.status_code not in (200, 201):
            sys.exit(f"a chunk was refused: {response.status_code} {response.text[:300]}")


async def counts(client: httpx.AsyncClient) -> dict[str, float]:
    """What the server has counted: requests that were answered or refused, and what is open now."""
    from prometheus_client.parser import text_string_to_metric_families

    found: Counter[str] = Counter()
    for family in text_string_to_metric_families((await client.get("metrics")).text):
        for sample in family.samples:
            endpoint = sample.labels.get("endpoint", "")
            if sample.name == "epicrag_requests_total" and (
                "ask" in endpoint or "chat" in endpoint
            ):
                found["requests"] += sample.value
            if sample.name == "epicrag_queue":
                found["open"] += sample.value
    return dict(found)


# --- a turn --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    via: str
    streams: int
    seconds: float
    requests: int
    passages: int
    max_tokens: int
    timeout: float


async def turn(server: Server, pool: Sequence[Passage], plan: Plan, number: int) -> None:
    """One server's turn of a round: as many streams as the plan says, until its time or its requests are over."""
    async with client_of(server, plan) as client:
        if number == 0:
            await prepare(client, server, pool, plan)
        before = await counts(client)
        asked, sent = requests_of(pool, plan.passages, seed=number), 0
        began = time.perf_counter()
        watching = asyncio.create_task(watch(server, number))
        outcomes: list[Outcome] = []

        async def stream() -> None:
            nonlocal sent
            while sent < plan.requests and time.perf_counter() - began < plan.seconds:
                sent += 1
                path, body = body_of(next(asked), plan.via, server.model, plan.max_tokens)
                outcomes.append(await send(client, path, body))

        await asyncio.gather(*(stream() for _ in range(plan.streams)))
        watching.cancel()
        server.seconds += time.perf_counter() - began
        server.outcomes += outcomes
        await settle(client, server, before, sent)


def client_of(server: Server, plan: Plan) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=plan.streams + 2)
    # No proxy of the environment: nothing leaves this machine.
    return httpx.AsyncClient(
        base_url=server.url, timeout=plan.timeout, limits=limits, trust_env=False
    )


async def prepare(
    client: httpx.AsyncClient, server: Server, pool: Sequence[Passage], plan: Plan
) -> None:
    """Wait for the model, register the pool, and send what is not counted."""
    await ready(client, server)
    if plan.via == "chunks":
        await register(client, pool)
    asked = requests_of(pool, plan.passages, seed=-1)
    for _ in range(WARM_UP):
        bodies = [
            body_of(next(asked), plan.via, server.model, plan.max_tokens)
            for _ in range(plan.streams)
        ]
        for outcome in await asyncio.gather(*(send(client, *body) for body in bodies)):
            if outcome.state == "lost":
                sys.exit(f"the server with {server.policy} fails: {outcome.reason}")


async def settle(
    client: httpx.AsyncClient, server: Server, before: dict[str, float], sent: int
) -> None:
    """Compare the server's own counts with ours, once it has noted the last request."""
    for _ in range(40):
        now = await counts(client)
        counted = now.get("requests", 0) - before.get("requests", 0)
        if counted == sent and not now.get("open"):
            return
        await asyncio.sleep(0.25)
    server.troubles.append(
        f"{sent} requests were sent, {counted:.0f} counted, {now.get('open', 0):.0f} are still open"
    )


async def watch(server: Server, number: int) -> None:
    began = time.perf_counter()
    while True:
        with suppress(psutil.Error):
            at = server.seconds + time.perf_counter() - began
            server.memory.append((number, at, server.process.memory_info().rss))
        await asyncio.sleep(1.0)


# --- what is reported ----------------------------------------------------------------------------


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of them do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the straight line through points (x, y): y a unit of x; 0 of fewer than two."""
    if len(points) < 2:
        return 0.0
    mean_x, mean_y = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def memory_of(server: Server) -> dict[str, Any]:
    """Resident memory under load: at first, at most, at last, and whether it still rises in the second half."""
    sizes = [size for _, _, size in server.memory]
    if not sizes:
        return {}
    half = [(at, float(size)) for _, at, size in server.memory][len(sizes) // 2 :]
    by_second = slope(half)
    rises = by_second * (half[-1][0] - half[0][0]) / sizes[-1]
    rounds = sorted({number for number, _, _ in server.memory})
    last = {number: [s for n, _, s in server.memory if n == number][-1] for number in rounds}
    return {
        "first_mib": round(sizes[0] / 2**20, 1),
        "most_mib": round(max(sizes) / 2**20, 1),
        "last_mib": round(sizes[-1] / 2**20, 1),
        "by_round_mib": [round(last[number] / 2**20, 1) for number in rounds],
        "mib_per_minute": round(by_second * 60 / 2**20, 2),
        "is_flat": rises < FLAT,
        "samples": len(sizes),
    }


def row_of(server: Server) -> dict[str, Any]:
    """All that is reported of one server."""
    states = Counter(outcome.state for outcome in server.outcomes)
    done = [outcome for outcome in server.outcomes if outcome.state == "done"]
    receipts = [outcome.receipt for outcome in done if outcome.receipt]
    context = sum(receipt["context_tokens"] for receipt in receipts)
    kinds = {kind: sum(r[kind] for r in receipts) for kind in ("exact", "stitched", "recomputed")}
    reused = kinds["exact"] + kinds["stitched"]
    first = [outcome.first for outcome in done if outcome.first]
    seconds = server.seconds or 1.0
    return {
        "policy": server.policy,
        "sent": len(server.outcomes),
        "done": states["done"],
        "refused": states["refused"],
        "lost": states["lost"],
        "ttft_ms": {"p50": _ms(quantile(first, 0.5)), "p95": _ms(quantile(first, 0.95))},
        "whole_ms": {
            "p50": _ms(quantile([outcome.whole for outcome in done], 0.5)),
            "p95": _ms(quantile([outcome.whole for outcome in done], 0.95)),
        },
        "requests_per_s": round(len(done) / seconds, 3),
        "tokens_per_s": round(sum(outcome.written for outcome in done) / seconds, 2),
        "context_tokens": context,
        "reused": round(reused / context, 4) if context else None,
        **kinds,
        "memory": memory_of(server),
        "troubles": [
            *server.troubles,
            *sorted({o.reason for o in server.outcomes if o.state == "lost"}),
        ],
    }


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)


HEAD = (
    "policy",
    "done",
    "refused",
    "lost",
    "TTFT p50",
    "p95",
    "answer p50",
    "requests/s",
    "tokens/s",
    "reused",
    "RSS by round, MiB",
    "MiB/min",
)


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [HEAD, tuple("---" for _ in HEAD)]
    for row in rows:
        memory, reused = row["memory"], row["reused"]
        lines.append(
            (
                f"`{row['policy']}`",
                *(str(row[key]) for key in ("done", "refused", "lost")),
                f"{row['ttft_ms']['p50']:,.0f} ms",
                f"{row['ttft_ms']['p95']:,.0f} ms",
                f"{row['whole_ms']['p50']:,.0f} ms",
                f"{row['requests_per_s']:.2f}",
                f"{row['tokens_per_s']:.1f}",
                "–" if reused is None else f"{reused:.1%}",
                " ".join(f"{size:,.0f}" for size in memory.get("by_round_mib", [])),
                f"{memory.get('mib_per_minute', 0):+.1f}",
            )
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# --- the run -------------------------------------------------------------------------------------


def main() -> None:
    from epicrag.config import load_config

    args = _arguments()
    # Whatever ends this run ends its servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    given = {"index": args.index, "home": args.home}
    config = load_config({key: value for key, value in given.items() if value is not None})
    pool = pool_of(config, args.pool, args.seed)
    if len(pool) < 2:
        sys.exit("the index has fewer than two passages: epicrag ingest DOCUMENTS")
    plan = Plan(
        args.via,
        args.streams,
        args.seconds,
        args.requests,
        args.passages,
        args.max_tokens,
        args.timeout,
    )
    rows = [row_of(server) for server in run(config, args, pool, plan)]
    print(table(rows))
    facts = {"cpus": os.cpu_count(), "pool": len(pool), "rounds": args.rounds, "via": args.via}
    facts |= {name: getattr(plan, name) for name in ("streams", "passages", "max_tokens")}
    print(json.dumps({"schema_version": 1, **facts, "rows": rows}))
    if any(row["lost"] or row["troubles"] or not row["done"] for row in rows):
        sys.exit(1)


def run(
    config: Config, args: argparse.Namespace, pool: Sequence[Passage], plan: Plan
) -> list[Server]:
    """Both servers side by side, and by turns under load."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epicrag-load-")))
        servers = []
        for number, policy in enumerate((args.policy, args.against)):
            home = home_in(folder / str(number), config.home)
            log = folder / f"{number}.log"
            servers.append(stack.enter_context(serving(policy, config.index, home, log)))
        for number in range(args.rounds):
            # The one that begins changes from round to round.
            for server in servers if number % 2 == 0 else servers[::-1]:
                asyncio.run(turn(server, pool, plan, number))
                print(
                    f"round {number + 1}, {server.policy}: {len(server.outcomes)} so far",
                    file=sys.stderr,
                )
        return servers


def home_in(folder: Path, home: Path) -> Path:
    """A home of a server's own, so that neither finds what the other has stored; the models are the user's."""
    folder.mkdir()
    if (home / "models").is_dir():
        (folder / "models").symlink_to((home / "models").resolve())
    if (home / "cache").is_dir():  # what has been proven about the model need not be proven again
        shutil.copytree(home / "cache", folder / "cache")
    return folder


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--index", help="the index whose passages are shared")
    parser.add_argument("--home", help="where the models are; as for epicrag")
    parser.add_argument("--policy", default="legolink(8)")
    parser.add_argument("--against", default="prefix")
    parser.add_argument("--via", choices=("chunks", "documents", "ask"), default="chunks")
    parser.add_argument("--streams", type=int, default=8, help="requests that are open at once")
    parser.add_argument("--seconds", type=float, default=60.0, help="a turn's longest")
    parser.add_argument("--requests", type=int, default=200, help="a turn's most")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each server")
    parser.add_argument("--passages", type=int, default=4, help="before each question")
    parser.add_argument("--pool", type=int, default=64, help="passages that are shared")
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one request")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
