"""Answers whose readers go away, that take too long, or are too many."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from epicrag.errors import BusyError
from epicrag.server.jobs import Job, Jobs

LONG = {"question": "What is the door code of the harbour museum?", "max_tokens": 400}


def until(is_so: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)


class Slow:
    """Stands for a model that writes a word whenever it is let, and notices that it is stopped."""

    def __init__(self, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.more, self.closed, self.waits = threading.Semaphore(0), threading.Event(), 0
        generation = type(server.engine.generate(_Prompt(), policy=None, sampling=None))
        slow = self

        def following(self: Any) -> str:
            slow.waits += 1
            while not slow.more.acquire(timeout=0.01):
                if slow.closed.is_set():
                    raise StopIteration
            slow.waits -= 1
            return next(iter([self.deltas.pop(0)])) if self.deltas else _stop()

        def close(self: Any) -> None:
            slow.closed.set()

        monkeypatch.setattr(generation, "__next__", following)
        monkeypatch.setattr(generation, "close", close)
        server.engine.prompts.clear()


class _Prompt:
    pieces = (type("Piece", (), {"text": "a b"})(),)


def _stop() -> str:
    raise StopIteration


def test_a_reader_that_goes_away_frees_the_pages(live: Any):
    """Streamed: the connection is dropped in the middle of the answer."""
    with httpx.stream("POST", live.url + "/v1/ask", json=LONG) as answer:
        lines = answer.iter_lines()
        while '"delta"' not in next(lines):
            pass
        assert live.engine.busy_pages > 0
    until(lambda: live.engine.busy_pages == 0 and not live.state.jobs)
    assert live.engine.stats().running == 0
    assert live.state.metrics.cancelled.labels("disconnect")._value.get() == 1


def test_a_reader_that_waits_for_the_whole_may_go_away_too(live: Any):
    address = urlsplit(live.url)
    body = b'{"question": "What is the door code of the harbour museum?", "max_tokens": 400, "stream": false}'
    head = b"POST /v1/ask HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection((address.hostname, address.port)) as wire:
        wire.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        until(lambda: live.engine.busy_pages > 0)
    until(lambda: live.engine.busy_pages == 0 and not live.state.jobs)
    until(lambda: counted(live, "/v1/ask"))
    assert counted(live, "/v1/ask") == {"499": 1}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/ask", {"question": LONG["question"]}),
    ],
)
def test_who_leaves_before_an_answer_begins_is_counted_as_that(
    live: Any, monkeypatch: pytest.MonkeyPatch, path: str, body: Any, stream: bool
):
    begun, left = threading.Event(), threading.Event()
    generate = type(live.engine).generate

    def waiting(self: Any, *args: Any, **options: Any) -> Any:
        begun.set()
        assert left.wait(20)
        return generate(self, *args, **options)

    monkeypatch.setattr(type(live.engine), "generate", waiting)
    name = {} if path == "/v1/ask" else {"model": live.engine.name}
    encoded = json.dumps({**body, **name, "stream": stream}).encode()
    address = urlsplit(live.url)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection((address.hostname, address.port)) as wire:
        wire.sendall(f"{head}Content-Length: {len(encoded)}\r\n\r\n".encode() + encoded)
        assert begun.wait(20)
    until(lambda: live.state.metrics.cancelled.labels("disconnect")._value.get() == 1)
    left.set()
    until(lambda: counted(live, path) and not live.state.jobs)
    assert counted(live, path) == {"499": 1}


def counted(live: Any, path: str) -> dict[str, float]:
    """Requests to an endpoint, by their status."""
    (family,) = live.state.metrics.requests.collect()
    return {
        sample.labels["code"]: sample.value
        for sample in family.samples
        if sample.labels.get("endpoint") == path and sample.name.endswith("_total")
    }


def test_an_answer_that_takes_too_long_is_stopped(
    make_server: Any, monkeypatch: pytest.MonkeyPatch
):
    server = make_server(request_timeout_s=0.2)
    slow = Slow(server, monkeypatch)
    answer = server.post("/v1/ask", {**LONG, "stream": False})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
    assert slow.closed.wait(5)
    until(lambda: not server.state.jobs)
    slow.closed.clear()
    lines = server.post("/v1/ask", LONG).text.splitlines()
    assert '"timeout"' in lines[-1]


def test_too_many_answers_are_refused_with_a_time_to_come_again(
    make_server: Any, monkeypatch: pytest.MonkeyPatch
):
    server = make_server(max_running=1, max_waiting=1)
    slow = Slow(server, monkeypatch)
    threads = [
        threading.Thread(target=server.post, args=("/v1/ask", {**LONG, "stream": False}))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    until(lambda: len(server.state.jobs) == 2)
    answer = server.post("/v1/ask", LONG)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert server.client.get("/healthz").status_code == 200
    for _ in range(200):
        slow.more.release()
    for thread in threads:
        thread.join(10)
    assert not server.state.jobs
    assert server.post("/v1/ask", LONG).status_code == 200


def test_what_is_asked_at_the_end_gets_503(server: Any):
    server.state.phase = "stopping"
    for path in ("/v1/ask", "/v1/search"):
        assert server.post(path, {"question": "x", "query": "x"}).status_code == 503
    assert server.client.get("/v1/models").json()["error"]["code"] == "stopping"
    assert server.client.get("/healthz").json() == {"status": "stopping"}


def test_answers_to_many_at_once_are_those_to_each_alone(live: Any):
    bodies = [
        {"question": question, "max_tokens": 12, "stream": False, "min_score": -1}
        for question in ("harbour museum door code", "island ferry pier", "goods returned days")
    ] * 3
    alone = [httpx.post(live.url + "/v1/ask", json=body).json()["answer"] for body in bodies[:3]]

    async def together() -> list[str]:
        async with httpx.AsyncClient(timeout=60) as client:
            asked = [client.post(live.url + "/v1/ask", json=body) for body in bodies]
            return [answer.json()["answer"] for answer in await asyncio.gather(*asked)]

    assert asyncio.run(together()) == alone * 3
    assert live.engine.busy_pages == 0


def test_a_job_that_is_cancelled_first_is_told_at_once():
    job, told = Job(), []
    job.cancel()
    job.on_cancel(lambda: told.append(1))
    assert told == [1]
    job.cancel()
    assert told == [1]


def test_jobs_are_bounded_and_all_can_be_stopped():
    jobs, told = Jobs(2), []
    first, second = jobs.enter(), jobs.enter()
    with pytest.raises(BusyError):
        jobs.enter()
    jobs.leave(first)
    third = jobs.enter()
    for job in (second, third):
        job.on_cancel(lambda: told.append(1))
    jobs.cancel_all()
    assert told == [1, 1]
    assert not first.is_cancelled


def test_what_a_generator_raises_while_it_is_cancelled_is_nobodys(server: Any):
    from epicrag.server.answering import _working

    job = server.state.jobs.enter()

    def work(job: Job) -> Iterator[int]:
        yield 1
        job.cancel()
        raise AssertionError("there is no receipt")

    assert list(_working(server.state, job, work)) == [1]
    assert not server.state.jobs
