"""`ask`, `chat` and `search` through a running server: found, compared, used, and done without."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from epicrag import __version__
from epicrag.ask import Ask
from epicrag.cli.ask import answer_json
from epicrag.cli.search import hit_json
from epicrag.config import load_config
from epicrag.pipeline import AnswerStream
from epicrag.remote import as_json, run_file
from tests.cli.conftest import StubGeneration

ANSWER = "The fee is 5 euros. [1]"


class FakeServer:
    """Answers as the stub pipeline does, in lines; `script` changes that: a function (handler, body)."""

    def __init__(self, pipeline):
        self.pipeline = pipeline
        self.requests = []
        self.script = None
        self.hung_up = threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.requests.append((self.path, body, self.headers.get("Authorization")))
                (fake.script or fake.answer)(self, body)

            def do_GET(self):
                fake.requests.append((self.path, None, self.headers.get("Authorization")))
                fake.whole(self, 200, {"text": "Dogs stay outside."})

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def whole(self, handler, status, value):
        data = json.dumps(value).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def begin(self, handler):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()

    def line(self, handler, value, end="\n"):
        data = (json.dumps(value) + end).encode()
        handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        handler.wfile.flush()

    def answer(self, handler, body):
        pipeline = self.pipeline
        hits = [hit_json(rank, hit) for rank, hit in enumerate(pipeline.hits, 1)]
        if handler.path == "/v1/search":
            found = {"query": body["query"], "hits": hits, "relevance": None}
            self.whole(handler, 200, found)
            return
        self.begin(handler)
        self.line(handler, {"hits": hits})
        self.line(handler, {"notice": "computing the KV of 2 passages first (9 tokens)"})
        facts = Ask(
            body["question"], tuple(pipeline.hits), "stub-lm", 8.0, False, pipeline.relevance
        )
        stream = AnswerStream(facts, StubGeneration(["The fee ", "is 5 euros."]))
        for delta in stream:
            self.line(handler, {"delta": delta})
        self.line(handler, {**answer_json(stream.answer, stream.notes), **stream.conversation()})
        handler.wfile.write(b"0\r\n\r\n")


@pytest.fixture
def server(pipeline, tmp_path):
    fake = FakeServer(pipeline)
    (tmp_path / "home" / "indexes" / "default").mkdir(parents=True)
    yield fake
    fake.http.shutdown()
    fake.http.server_close()


@pytest.fixture
def found(server):
    """The server, where the command line looks for it; a function that changes what is said of it."""
    config = load_config()
    file = run_file(config.home, config.index)
    file.parent.mkdir(parents=True)
    names = [
        name for name in config.__dataclass_fields__ if name not in ("home", "index", "origins")
    ]
    settings = {name: as_json(getattr(config, name)) for name in names}

    def say(**changes):
        facts = {
            "schema_version": 1,
            "pid": os.getpid(),
            "url": server.url,
            "version": __version__,
            "secret": "hush",
            "settings": settings,
            **changes,
        }
        facts["settings"] = {**settings, **facts["settings"]}
        file.write_text(json.dumps(facts))
        file.chmod(0o600)
        return file

    say()
    return say


def alone(pipeline):
    return [verb for verb, *_ in pipeline.calls]


@pytest.mark.parametrize(
    "args",
    [
        ("ask", "What is the fee?"),
        ("ask", "What is the fee?", "-v", "--show-timing", "--show-chunks"),
        ("ask", "What is the fee?", "--json"),
        ("ask", "What is the fee?", "--jsonl"),
        ("ask", "What is the fee?", "--no-stream", "-q"),
        ("search", "fee"),
        ("search", "fee", "--jsonl"),
        ("chat", "What is the fee?", "--json", "--session", "talk", "--no-save"),
    ],
)
def test_the_same_comes_out_with_a_server_and_without(cli, pipeline, found, server, args):
    with_server = cli(*args)
    assert server.requests
    assert alone(pipeline) == []
    without = cli(*args, "--no-server")
    assert len(server.requests) == 1
    assert (with_server.code, with_server.out) == (without.code, without.out)
    said = [
        line
        for line in with_server.err.splitlines()
        if not line.startswith(("asking the server", "computing the KV"))
    ]
    assert said == without.err.splitlines()


def test_the_secret_and_what_was_asked_for_are_sent(cli, found, server):
    flags = (
        "-k 3 --temperature 0.5 --top-k-tokens 40 --seed 7 --stop END --filter year>2 --mode dense"
    )
    more = "--link-policy full --max-tokens 9 --min-score auto --shuffle-seed 5"
    cli("ask", "What is the fee?", *flags.split(), *more.split())
    ((path, body, token),) = server.requests
    assert (path, token) == ("/v1/ask", "Bearer hush")
    assert body == {
        "question": "What is the fee?",
        "k": 3,
        "filter": "year>2",
        "mode": "dense",
        "link_policy": "full",
        "max_tokens": 9,
        "strict": False,
        "shuffle_seed": 5,
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k_tokens": 40,
        "seed": 7,
        "stop": ["END"],
        "stream": True,
    }


def test_what_takes_long_there_is_said_here(cli, found):
    assert "computing the KV of 2 passages first" in cli("ask", "What is the fee?").err


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"settings": {"model": "qwen2.5-1.5b"}}, "model: qwen2.5-1.5b there, smollm2-135m here"),
        ({"settings": {"kv_dtype": "int8"}}, "kv_dtype: int8 there, auto here"),
        ({"settings": {"link_policy": "legolink-0"}}, "link_policy: legolink-0 there"),
        ({"version": "0.0.0"}, "version: 0.0.0 there"),
    ],
)
def test_a_server_with_other_settings_is_not_used_and_v_says_why(
    cli, pipeline, found, server, changes, why
):
    found(**changes)
    assert why in cli("ask", "What is the fee?", "-v").err
    assert alone(pipeline) == ["stream"]
    assert server.requests == []
    assert cli("ask", "What is the fee?", "--model", "qwen2.5-1.5b").code == 0


def test_what_a_dead_server_left_is_removed_and_nothing_is_sent(cli, pipeline, found, server):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    file = found(pid=child.pid)
    assert cli("ask", "What is the fee?").code == 0
    assert not file.exists()
    assert server.requests == []
    assert alone(pipeline) == ["stream"]


def test_a_refused_connection_is_no_server(cli, pipeline, found, server):
    server.http.server_close()
    file = found()
    assert cli("ask", "What is the fee?").out == ANSWER + "\n"
    assert not file.exists()
    assert alone(pipeline) == ["stream"]


def test_a_file_that_others_may_write_is_not_believed(cli, pipeline, found, server):
    found().chmod(0o666)
    assert cli("ask", "What is the fee?").code == 0
    assert server.requests == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"url": 1}', "[" * 100_000])
def test_a_file_that_is_no_such_thing_is_no_server(cli, pipeline, found, text):
    found().write_text(text)
    assert cli("ask", "What is the fee?").code == 0
    assert alone(pipeline) == ["stream"]


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        ({"code": "usage", "message": "no such field", "hint": "h", "exit_code": 2}, 400, 2),
        ({"code": "no_index", "message": "nothing", "exit_code": 3}, 409, 3),
        ({"code": "abstained", "message": "nothing found", "exit_code": 4}, 422, 4),
        ({"code": "mismatch", "message": "another embedder", "exit_code": 6}, 409, 6),
        ({"code": "busy", "message": "too many", "exit_code": 9}, 429, 9),
        ({"message": "as OpenAI says it", "type": "rate_limit_error"}, 429, 9),
        ({"code": "new_one", "message": "of a later version", "exit_code": 8}, 503, 8),
    ],
)
def test_an_error_there_is_the_same_error_here(cli, pipeline, found, server, said, status, code):
    server.script = lambda handler, _: server.whole(handler, status, {"error": said})
    run = cli("ask", "What is the fee?")
    assert run.code == code
    assert f"error: {said['message']}" in run.err
    assert alone(pipeline) == []


def test_an_error_in_the_middle_is_one_too(cli, found, server):
    def script(handler, _):
        server.begin(handler)
        server.line(handler, {"hits": []})
        server.line(handler, {"delta": "The fee"})
        server.line(handler, {"error": {"code": "device", "message": "out of memory"}})

    server.script = script
    run = cli("ask", "What is the fee?")
    assert (run.code, run.out) == (9, "The fee\n")
    assert "out of memory" in run.err


def dies_after(server, *lines, torn=None):
    def script(handler, _):
        server.begin(handler)
        for line in lines:
            server.line(handler, line)
        if torn:
            server.line(handler, torn, end="")
        handler.connection.shutdown(socket.SHUT_RDWR)

    server.script = script


def test_a_server_that_dies_before_the_first_word_is_done_without(cli, pipeline, found, server):
    dies_after(server, {"hits": []}, torn={"delta": "The"})
    run = cli("ask", "What is the fee?", "-v")
    assert (run.code, run.out) == (0, ANSWER + "\n")
    assert "answering without it" in run.err
    assert alone(pipeline) == ["stream"]


def test_a_server_that_dies_within_an_answer_is_an_error(cli, pipeline, found, server):
    dies_after(server, {"hits": []}, {"delta": "The fee"})
    run = cli("ask", "What is the fee?")
    assert (run.code, run.out) == (9, "The fee\n")
    assert "went away before the answer was complete" in run.err
    assert alone(pipeline) == []


def test_where_nothing_was_printed_yet_even_that_is_done_without(cli, pipeline, found, server):
    dies_after(server, {"hits": []}, {"delta": "The fee"})
    assert cli("ask", "What is the fee?", "--json").json["answer"] == ANSWER
    assert alone(pipeline) == ["stream"]


@pytest.mark.parametrize("lines", [["nonsense"], [{"answer": "x"}], [[1]]])
def test_something_else_that_listens_there_is_said(cli, pipeline, found, server, lines):
    def script(handler, _):
        server.begin(handler)
        for line in lines:
            server.line(handler, line)
        handler.wfile.write(b"0\r\n\r\n")

    server.script = script
    assert cli("ask", "What is the fee?").out == ANSWER + "\n"
    assert alone(pipeline) == ["stream"]


SAID = {
    "question": "q",
    "answer": "a",
    "answered": True,
    "sources": [],
    "receipt": None,
    "usage": {"prompt_tokens": 1, "completion_tokens": 1},
    "model": "m",
}
SOURCE = {"n": 1, "path": "p", "page": None, "lines": None, "heading": None, "chunk": "c"}
SOURCE = {**SOURCE, "score": None, "cells": None}


@pytest.mark.parametrize(
    "line",
    [
        {"hits": None},
        {"hits": ["x"]},
        {"hits": [{"text": "a", "path": "p", "score": 1, "lines": "abc"}]},
        {"hits": [], "relevance": "yes"},
        {"error": "boom"},
        {"error": None},
        {**SAID, "notes": 5},
        {**SAID, "history_tokens": float("inf")},
        {**SAID, "usage": [1]},
        {**SAID, "usage": {"prompt_tokens": "x", "completion_tokens": 1}},
        {**SAID, "sources": [{**SOURCE, "lines": [1]}]},
        {**SAID, "sources": [{**SOURCE, "path": 5}]},
        {**SAID, "receipt": {"ms": 3}},
    ],
)
def test_a_reply_that_is_none_ends_in_an_error_of_the_server(cli, named, line):
    def script(handler, _):
        named.begin(handler)
        named.line(handler, line)
        handler.wfile.write(b"0\r\n\r\n")

    named.script = script
    run = cli("chat", "--no-save", stdin=b"one\ntwo\n")
    assert run.code == 9
    assert run.err.count("does not speak as epicrag does") == 2


@pytest.mark.parametrize("text", [b"[" * 200_000, b'{"hits": 5}', b'{"hits": [{}]}', b"\xff\xfe"])
def test_a_search_that_is_answered_with_nonsense_is_an_error_of_the_server(cli, named, text):
    def script(handler, _):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    named.script = script
    run = cli("search", "fee")
    assert (run.code, "does not speak as epicrag does" in run.err) == (9, True)


def test_a_passage_without_a_text_is_an_error_of_the_server(named):
    from epicrag import remote

    named.whole = lambda handler, *_: FakeServer.whole(named, handler, 200, {"text": None})
    with pytest.raises(remote.ServerGoneError):
        remote.Remote(remote.named(), load_config()).passage("abc")


@pytest.mark.parametrize("verb", ["ask", "search"])
def test_a_reply_without_end_is_not_read_to_it(cli, named, monkeypatch, verb):
    from epicrag import remote

    monkeypatch.setattr(remote, "LINE_BYTES", 1 << 16)
    monkeypatch.setattr(remote, "WHOLE_BYTES", 1 << 16)

    def script(handler, _):
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b"x" * (1 << 16))
        except OSError:
            named.hung_up.set()

    named.script = script
    run = cli(verb, "fee")
    assert (run.code, "does not end" in run.err) == (9, True)
    assert named.hung_up.wait(5)


@pytest.mark.parametrize("pid", [float("inf"), 0, -1, 10**30, "x", None])
def test_a_file_with_a_process_that_cannot_be_is_no_reason_to_fail(cli, pipeline, found, pid):
    found(pid=pid, url="http://[::1")
    assert cli("ask", "What is the fee?").out == ANSWER + "\n"
    assert alone(pipeline) == ["stream"]


def test_ctrl_c_hangs_up(cli, found, server, monkeypatch):
    def script(handler, _):
        server.begin(handler)
        server.line(handler, {"hits": []})
        try:
            while True:
                server.line(handler, {"delta": "word "})
                time.sleep(0.005)
        except OSError:
            server.hung_up.set()

    server.script = script
    from epicrag.cli.output import Output

    text = Output.text

    def interrupted(self, part, end="\n"):
        text(self, part, end)
        if part:
            raise KeyboardInterrupt

    monkeypatch.setattr(Output, "text", interrupted)
    assert cli("ask", "What is the fee?").code == 130
    assert server.hung_up.wait(5)


# --- named by hand -------------------------------------------------------------------------------


@pytest.fixture
def named(server, monkeypatch):
    monkeypatch.setenv("EPICRAG_SERVER", server.url)
    monkeypatch.setenv("EPICRAG_TOKEN", "tok")
    return server


def test_a_named_server_keeps_its_own_settings(cli, pipeline, named):
    assert cli("ask", "What is the fee?").out == ANSWER + "\n"
    ((_, body, token),) = named.requests
    assert token == "Bearer tok"
    assert not {"k", "link_policy", "max_tokens", "mode"} & set(body)


def test_flags_that_a_server_cannot_be_told_are_refused(cli, pipeline, named):
    run = cli("ask", "What is the fee?", "--model", "qwen2.5-1.5b")
    assert (run.code, "--no-server" in run.err) == (2, True)
    assert cli("ask", "What is the fee?", "--model", "qwen2.5-1.5b", "--no-server").code == 0


def test_a_named_server_that_is_away_is_an_error(cli, pipeline, named):
    named.http.server_close()
    run = cli("ask", "What is the fee?")
    assert (run.code, "cannot be reached" in run.err) == (9, True)
    assert alone(pipeline) == []


def test_a_wrong_token_says_where_one_is_given(cli, named):
    named.script = lambda handler, _: named.whole(handler, 401, {"error": {"message": "no"}})
    run = cli("ask", "What is the fee?")
    assert (run.code, "EPICRAG_TOKEN" in run.err) == (2, True)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x",
        "http://",
        "http://x:99999",
        "http://x:y",
        "http://[::1",
        "http://a..b:80",
        f"http://{'a' * 70}.de",
        "http://exa mple:80",
        "127.0.0.1:1/a path",
        "http://127.0.0.1/pfäd",
        "http://h\u2100x:80",
    ],
)
def test_an_address_that_is_none_is_refused(cli, pipeline, monkeypatch, url):
    monkeypatch.setenv("EPICRAG_SERVER", url)
    run = cli("ask", "What is the fee?")
    assert (run.code, "which is no address of a server" in run.err) == (2, True)


@pytest.mark.parametrize("port", ["", ":99999"])
def test_a_password_in_an_address_is_refused_and_not_printed(cli, monkeypatch, port):
    monkeypatch.setenv("EPICRAG_SERVER", f"http://me:hunter2@127.0.0.1{port}")
    run = cli("ask", "What is the fee?", "-v")
    assert (run.code, "EPICRAG_TOKEN" in run.err) == (2, True)
    assert "hunter2" not in run.err + run.out


def test_an_ipv6_address_needs_no_port(monkeypatch):
    from epicrag import remote

    asked = []

    def connect(self):
        asked.append((self.host, self.port))
        raise ConnectionRefusedError

    monkeypatch.setattr("http.client.HTTPConnection.connect", connect)
    with pytest.raises(remote.ServerGoneError):
        remote.Remote(remote.named({"EPICRAG_SERVER": "http://[::1]"}), load_config()).find("q")
    assert asked == [("::1", 80)]


# --- a conversation ------------------------------------------------------------------------------


def test_a_conversation_goes_on_alone_where_its_server_dies(cli, pipeline, found, server):
    turns = []

    def script(handler, body):
        turns.append(body)
        if len(turns) == 1:
            server.answer(handler, body)
        else:
            handler.connection.shutdown(socket.SHUT_RDWR)

    server.script = script
    run = cli("chat", "--jsonl", stdin=b"What is the fee?\nAnd for dogs?\n")
    first, second = map(json.loads, run.out.splitlines())
    assert (first["turn"], second["turn"]) == (1, 2)
    assert turns[1]["history"] == [
        {"role": "user", "text": "What is the fee?"},
        {"role": "assistant", "text": "The fee is 5 euros."},
    ]
    assert turns[1]["query"] == "fee? And for dogs?"
    assert alone(pipeline) == ["stream"]


def test_the_model_condenses_where_it_is(cli, pipeline, found, server):
    cli("chat", "--condense", "model", "What is the fee?")
    assert server.requests == []


def test_a_client_of_a_server_imports_nothing_heavy():
    code = (
        "import sys, epicrag.cli.main, epicrag.remote, epicrag.condense\n"
        "print(sorted({'torch', 'numpy', 'transformers', 'fastapi', 'uvicorn'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
