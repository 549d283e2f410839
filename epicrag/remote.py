"""A running server of this index, found and used in place of a model of one's own: a warm answer starts at once.

Only what Python brings along is imported here. A server is used where nothing would come out otherwise than alone:
its version and its settings are compared first, and what can be said in a request is said there.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import socket
import ssl
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import quote, urlsplit

from epicrag import __version__, errors
from epicrag.config import Config
from epicrag.types import (
    Answer,
    Chunk,
    Found,
    Hit,
    Place,
    Receipt,
    Relevance,
    Source,
    Stage,
    Timings,
    Usage,
)

T = TypeVar("T")

CONNECT_SECONDS = 3.0
READ_SECONDS = 3600.0
"""A server that says nothing for so long is given up: it may have much KV to compute before the first word."""

FIXED = (
    "model",
    "embed_model",
    "device",
    "dtype",
    "quantize",
    "compile",
    "kv_dtype",
    "system_prompt",
)
"""Settings that decide an answer and that no request can change."""


_PORTS = {"http": 80, "https": 443}
LINE_BYTES = 32 << 20
WHOLE_BYTES = 64 << 20
"""What a line of a reply, or a reply in one piece, may take: many times what a thousand passages do."""
_END_BYTES = 1 << 16
_NO_REPLY = (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading a reply raises that was written by something else."""


class ServerGoneError(errors.EpicragError):
    """The server went away, or does not speak as it should. `began`: part of the answer had come by then."""

    exit_code = 9
    code = "server"

    def __init__(self, message: str, hint: str | None = None, *, began: bool = False) -> None:
        super().__init__(message, hint)
        self.began = began


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server is, and what is known of it. `settings` is None where it was named by hand."""

    url: str
    token: str | None = field(default=None, repr=False)
    settings: Mapping[str, Any] | None = None
    file: Path | None = None
    """What it was found by."""

    @property
    def is_own(self) -> bool:
        """Whether it was found beside the index, and not named."""
        return self.settings is not None


# --- finding one -----------------------------------------------------------------------------------


def run_file(home: Path, index: Path) -> Path:
    """Where the server of an index says where it is."""
    digest = hashlib.sha256(os.fsencode(os.path.abspath(index))).hexdigest()
    return home / "run" / f"{digest[:16]}.json"


def named(environ: Mapping[str, str] | None = None) -> Server | None:
    """The server that EPICRAG_SERVER names, with the token of EPICRAG_TOKEN; None where it names none."""
    environ = os.environ if environ is None else environ
    url = environ.get("EPICRAG_SERVER", "").strip()
    if not url:
        return None
    if "@" in url:
        raise errors.UsageError(
            "EPICRAG_SERVER holds a user or a password, or an @",
            "give the address alone, and the server's token in EPICRAG_TOKEN",
        )
    try:
        address = _address(url if "://" in url else f"http://{url}")
    except ValueError:
        raise errors.UsageError(
            f"EPICRAG_SERVER is {url!r}, which is no address of a server",
            "one looks like http://127.0.0.1:8080",
        ) from None
    return Server(address, environ.get("EPICRAG_TOKEN") or None)


def _address(url: str) -> str:
    """The address of a server, as it is used from now on. ValueError: it is none."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host.encode("idna")
    is_path = parts.path.isascii() and parts.path.isprintable()
    if parts.scheme not in _PORTS or not host or parts.port == 0 or not is_path:
        raise ValueError(url)
    if any(sign.isspace() or not sign.isprintable() for sign in url):
        raise ValueError(url)
    return parts._replace(query="", fragment="").geturl().rstrip("/")


def discover(config: Config) -> Server | None:
    """The server that runs over an index on this machine; None where there is none.

    What a server that was killed has left behind is removed.
    """
    file = run_file(config.home, config.index)
    try:
        facts = _facts(file)
        pid = int(facts["pid"])
        server = Server(str(facts["url"]), str(facts["secret"]), dict(facts["settings"]), file)
    except (OSError, *_NO_REPLY):
        return None
    if pid <= 0:
        return None
    if not is_alive(pid):
        # Before anything is sent: another program may have the port by now, and the secret is not for it.
        with suppress(OSError):
            file.unlink()
        return None
    if facts.get("version") != __version__ or facts.get("schema_version") != 1:
        return replace(server, settings={"version": facts.get("version")})
    return server


def _facts(file: Path) -> dict[str, Any]:
    """Read the file of a server, if it is one that only we can have written."""
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(handle, "rb") as stream:
        mine = os.fstat(stream.fileno())
        if not stat.S_ISREG(mine.st_mode) or mine.st_uid != os.geteuid() or mine.st_mode & 0o022:
            raise OSError(errno.EPERM, "somebody else may have written it")
        facts = json.loads(stream.read(1 << 20))
    if not isinstance(facts, dict):
        raise ValueError("it is no object")  # noqa: TRY004 - as of any other text
    return facts


def other_server(file: Path) -> str | None:
    """The address of the server, another process, that has put this file there and still answers; None: there is none."""
    try:
        facts = _facts(file)
        pid, url = int(facts["pid"]), str(facts["url"])
        if pid == os.getpid() or not is_alive(pid):
            return None
        # Another program may have the number of a server that was killed: whether it is one is asked, without a token.
        parts = urlsplit(url)
        with closing(
            http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=CONNECT_SECONDS)
        ) as connection:
            connection.request("GET", "/healthz")
            said = json.loads(connection.getresponse().read(1000))
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return None
    return url if isinstance(said, dict) and "status" in said else None


def is_alive(pid: int) -> bool:
    """Whether there is a process of this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def differing(server: Server, config: Config) -> list[str]:
    """Say where a server would answer otherwise than this command: each as "model: a there, b here"."""
    if server.settings is None:
        return []
    there = server.settings
    if "version" in there and len(there) == 1:
        return [f"version: {there['version']} there, {__version__} here"]
    found = []
    for key in FIXED:
        mine = as_json(getattr(config, key))
        if key not in there:
            found.append(f"{key}: not said there")
        elif there[key] != mine:
            found.append(f"{key}: {_short(there[key])} there, {_short(mine)} here")
    if config.rerank_model not in (None, there.get("rerank_model")):
        found.append(f"rerank_model: {there.get('rerank_model')} there, {config.rerank_model} here")
    mine, its = _forced_mode(config.link_policy), _forced_mode(str(there.get("link_policy", "")))
    if mine != its:  # the mode that a policy is defined with is that of everything that is compiled
        found.append(f"link_policy: {there.get('link_policy')} there, {config.link_policy} here")
    return found


def policy_named(text: str) -> str:
    """The link policy of a name, as it is written in full. UsageError: there is none."""
    from epicrag.serving.policies import parse_policy

    return parse_policy(text).name


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _forced_mode(policy: str) -> str | None:
    from epicrag.serving.policies import parse_policy

    try:
        return parse_policy(policy).compile_mode
    except errors.EpicragError:
        return "unknown"


def as_json(value: object) -> object:
    """A setting as JSON gives it back."""
    if isinstance(value, Mapping):
        return {str(key): as_json(one) for key, one in value.items()}
    return str(value) if isinstance(value, Path) else value


# --- asking it -------------------------------------------------------------------------------------


_WITHOUT = {"min_score": "auto", "rerank_model": False}
"""How a request says None."""


class Remote:
    """A server, asked as a `Pipeline` is: `find`, `stream` and `sampling`. A context manager.

    Errors are those that the pipeline raises; ServerGoneError where the server itself fails.
    """

    def __init__(
        self,
        server: Server,
        config: Config,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.server = server
        self.config = config
        self._say = say

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def sampling(self, **choices: Any) -> dict[str, Any]:
        """How to choose tokens, as the server is told."""
        return choices

    def find(
        self, query: str, *, k: int | None = None, filter: str | None = None, **more: Any
    ) -> Found:
        """`Pipeline.find`, there."""
        _refuse_blank(query, "query")
        asked = {"query": query, **self._looking(k, filter), **more}
        with _Call(self.server, "POST", "/v1/search", asked) as call:
            found = call.whole()
        with _reading(self.server):
            return Found(
                tuple(map(hit_of, found["hits"])), _relevance(found.get("relevance")) or _UNJUDGED
            )

    def passage(self, chunk: str) -> dict[str, Any]:
        """One passage by its id: `path`, `lines` …, `heading` and `text`."""
        with _Call(self.server, "GET", f"/v1/passages/{quote(chunk, safe='')}", {}) as call:
            found = call.whole()
        with _reading(self.server):
            return {**found, "text": _as(str, found["text"])}

    def stream(
        self,
        question: str,
        *,
        k: int | None = None,
        sampling: Mapping[str, Any] | None = None,
        policy: str | None = None,
        strict: bool = False,
        shuffle_seed: int | None = None,
        filter: str | None = None,
        history: Sequence[Any] = (),
        query: str | None = None,
    ) -> RemoteStream:
        """`Pipeline.stream`, there. `history` are turns with `role` and `text`."""
        _refuse_blank(question, "question")
        chosen = dict(sampling or {})
        if "top_k" in chosen:
            chosen["top_k_tokens"] = chosen.pop("top_k")
        asked = {
            "question": question,
            **self._looking(k, filter),
            "link_policy": policy or self._chosen("link_policy"),
            "min_score": self._chosen("min_score"),
            "max_tokens": self._chosen("max_tokens"),
            "strict": strict,
            "shuffle_seed": shuffle_seed,
            **chosen,
            "history": [{"role": turn.role, "text": turn.text} for turn in history] or None,
            "query": query,
            "stream": True,
        }
        call = _Call(self.server, "POST", "/v1/ask", asked)
        return RemoteStream(call, question, query or question, self._say)

    def _looking(self, k: int | None, filter: str | None) -> dict[str, Any]:
        return {
            "k": k or self._chosen("top_k"),
            "filter": filter,
            "mode": self._chosen("search_mode"),
            "weights": self._chosen("hybrid_weights"),
            "rerank": self._chosen("rerank_model"),
        }

    def _chosen(self, key: str) -> Any:
        """A setting, where the server would not take the same by itself; None where it would.

        A server that was named by hand keeps its own unless somebody here has set another.
        """
        value = as_json(getattr(self.config, key))
        if self.server.settings is None:
            is_said = self.config.origins.get(key, "default") != "default"
        else:
            is_said = key not in self.server.settings or self.server.settings[key] != value
        return _WITHOUT.get(key, value) if is_said and value is None else value if is_said else None


class RemoteStream:
    """An answer that a server writes, read as an `AnswerStream` is. Closing it stops the model there."""

    def __init__(
        self, call: _Call, question: str, query: str, say: Callable[[str], None] | None
    ) -> None:
        self.question = question
        self._query = query
        self.hits: tuple[Hit, ...] = ()
        self.relevance: Relevance | None = None
        self.notes: list[str] = []
        self._conversation: dict[str, object] = {}
        self._call = call
        self._say = say
        self._answer: Answer | None = None
        self._begun = False
        self._lines = call.lines()
        self._waiting: str | None = None
        try:
            self._waiting = self._next()  # what was found is said before the first word
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        delta, self._waiting = self._waiting, None
        if delta is None:
            delta = self._next()
        if delta is None:
            raise StopIteration
        self._begun = True
        return delta

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up: the server notices and stops generating."""
        self._call.close()

    @property
    def answer(self) -> Answer:
        """The whole answer. RuntimeError while the iteration has not ended."""
        if self._answer is None:
            raise RuntimeError("the answer is still being written: iterate to its end first")
        return self._answer

    def conversation(self) -> dict[str, object]:
        """That of `AnswerStream`."""
        return self._conversation

    def finish(self) -> Answer:
        """Read to the end and return the answer."""
        for _ in self:
            pass
        return self.answer

    def _next(self) -> str | None:
        """The next delta; None at the end. Takes in all that comes between."""
        if self._answer is not None:
            return None
        try:
            for line in self._lines:
                if "delta" in line:
                    return str(line["delta"])
                with _reading(self._call.server):
                    if self._is_end(line):
                        return None
        except ServerGoneError as error:
            error.began = self._begun
            raise
        self._gone()

    def _is_end(self, line: Mapping[str, Any]) -> bool:
        """Take in a line that is no word of the answer."""
        if "error" in line:
            self.close()
            raise error_of(_as(dict, line["error"]))
        if "hits" in line:
            self.hits = tuple(map(hit_of, line["hits"]))
            self.relevance = _relevance(line.get("relevance"))
        elif "notice" in line:
            if self._say:
                self._say(str(line["notice"]))
        elif "answer" in line:
            self._end(line)
            return True
        return False

    def _end(self, line: Mapping[str, Any]) -> None:
        answer = answer_of(line)
        self.relevance = answer.relevance
        self.notes = [str(note) for note in line.get("notes", ())]
        self._conversation = {
            "query": str(line.get("query") or self._query),
            "history_tokens": int(line.get("history_tokens") or 0),
            "history_reused": int(line.get("history_reused") or 0),
            "dropped_turns": int(line.get("dropped_turns") or 0),
        }
        self._answer = answer
        self._call.drain()
        self.close()

    def _gone(self) -> NoReturn:
        self.close()
        raise ServerGoneError(
            f"the server at {self._call.server.url} went away before the answer was complete",
            "look at its log, or ask without it: --no-server",
            began=self._begun,
        )


class _Call:
    """One request over a connection of its own, and what comes back."""

    def __init__(self, server: Server, verb: str, path: str, body: Mapping[str, Any]) -> None:
        self.server = server
        self._connection = _connect(server)
        sent = {key: value for key, value in body.items() if value is not None}
        headers = {"Content-Type": "application/json", "Accept": "application/x-ndjson"}
        if server.token:
            headers["Authorization"] = f"Bearer {server.token}"
        try:
            base = urlsplit(server.url).path.rstrip("/")
            text = json.dumps(sent).encode("ascii") if sent else None
            self._connection.request(verb, base + path, text, headers)
            self._reply = self._connection.getresponse()
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise _lost(server, error) from error
        except BaseException:
            self.close()
            raise
        if self._reply.status != 200:
            self._refused()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def drain(self) -> None:
        """Read the end of a reply that has said all: who hangs up before it counts as one that left."""
        with suppress(OSError, http.client.HTTPException, ValueError):
            self._reply.read(_END_BYTES)

    def whole(self) -> dict[str, Any]:
        """The reply as one object."""
        try:
            text = self._reply.read(WHOLE_BYTES + 1)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _lost(self.server, error) from error
        if len(text) > WHOLE_BYTES:
            raise _strange(self.server, "the reply does not end")
        with _reading(self.server):
            return _object(text)

    def lines(self) -> Iterator[dict[str, Any]]:
        """The reply line by line, as it comes; it ends where the connection does."""
        while True:
            try:
                line = self._reply.readline(LINE_BYTES + 1)
            except (OSError, http.client.HTTPException, ValueError):
                return
            if len(line) > LINE_BYTES:
                raise _strange(self.server, "a line of the reply does not end")
            if not line.endswith(b"\n"):
                return  # torn: the server died within it
            if line.strip():
                with _reading(self.server):
                    found = _object(line)
                yield found

    def _refused(self) -> NoReturn:
        """Raise what the server says is wrong, as if it had happened here."""
        status = self._reply.status
        try:
            said = json.loads(self._reply.read(1 << 20))["error"]
        except (OSError, http.client.HTTPException, *_NO_REPLY):
            said = None
        finally:
            self.close()
        if status in (401, 403):
            raise errors.UsageError(
                f"the server at {self.server.url} does not let this command in",
                "give its token in EPICRAG_TOKEN, or ask without it: --no-server",
            )
        if isinstance(said, Mapping) and said.get("message"):
            raise error_of(said, status)
        raise _strange(self.server, f"HTTP {status}")


def _connect(server: Server) -> http.client.HTTPConnection:
    connection: http.client.HTTPConnection
    try:
        parts = urlsplit(server.url)
        # Without a port the end of an IPv6 address would be taken for one.
        host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        if parts.scheme == "https":
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                host, port, timeout=CONNECT_SECONDS, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=CONNECT_SECONDS)
    except (OSError, http.client.HTTPException, KeyError, ValueError) as error:
        raise _lost(server, error) from error
    try:
        connection.connect()
        if connection.sock is not None:
            connection.sock.settimeout(READ_SECONDS)
            with suppress(OSError):
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        connection.close()
        if isinstance(error, ConnectionRefusedError) and server.file is not None:
            with suppress(OSError):  # of a server that was killed, and whose process id lives on
                server.file.unlink()
        raise _lost(server, error) from error
    return connection


def _lost(server: Server, error: Exception) -> ServerGoneError:
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return ServerGoneError(
        f"the server at {server.url} cannot be reached: {why}",
        "start it, or ask without it: --no-server",
    )


def _strange(server: Server, what: object) -> ServerGoneError:
    return ServerGoneError(
        f"what answers at {server.url} does not speak as epicrag does: {what}",
        "ask without it: --no-server",
    )


@contextmanager
def _reading(server: Server) -> Iterator[None]:
    """Whatever a reply raises while it is read, it is the server that is wrong."""
    try:
        yield
    except _NO_REPLY as error:
        raise _strange(server, f"{type(error).__name__}: {error}"[:200]) from error


def _refuse_blank(text: str, what: str) -> None:
    if not text.strip():
        raise errors.UsageError(f"the {what} is empty", f'give it as text: epicrag ask "{what} …"')


# --- JSON to the nouns -----------------------------------------------------------------------------


def error_of(said: Mapping[str, Any], status: int = 200) -> errors.EpicragError:
    """The error that a server speaks of: of its own class, by its code, else by its exit code or HTTP status."""
    message = str(said.get("message") or "the server gives no reason")
    hint = said.get("hint")
    kinds = _kinds(errors.EpicragError)
    by_code = {kind.code: kind for kind in kinds}
    kind = by_code.get(str(said.get("code")))
    if kind is None and isinstance(said.get("exit_code"), int):
        kind = next((one for one in kinds if one.exit_code == said["exit_code"]), None)
    if kind is None:
        kind = _BY_STATUS.get(status, errors.EpicragError)
    error = errors.EpicragError.__new__(kind)
    errors.EpicragError.__init__(error, message, str(hint) if hint else None)
    return error


_BY_STATUS: Mapping[int, type[errors.EpicragError]] = {
    400: errors.UsageError,
    404: errors.UsageError,
    409: errors.IndexEmptyError,
    413: errors.UsageError,
    429: errors.BusyError,
    503: errors.DeviceError,
    504: errors.BusyError,
}


def _kinds(kind: type[errors.EpicragError]) -> list[type[errors.EpicragError]]:
    """The errors of `errors.py`: not those that are a room's own."""
    return [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, kind)]


def hit_of(found: Mapping[str, Any]) -> Hit:
    """One hit of `search --json`."""
    text = _as(str, found["text"])
    chunk = Chunk(
        document=str(found["path"]),
        ordinal=0,
        start=0,
        end=len(text),
        text=text,
        title=_text_or_none(found.get("title")),
        place=_place(found),
        n_tokens=int(found.get("tokens") or 0),
        table=_text_or_none(found.get("table")),
    )
    stages = {
        name: Stage(int(stage["rank"]), float(stage["score"]))
        for name, stage in (found.get("stages") or {}).items()
    }
    return Hit(-1, chunk, float(found["score"]), stages, tuple(map(str, found.get("also") or ())))


def _place(found: Mapping[str, Any]) -> Place:
    values = _known(Place, found)
    return Place(**{**values, **{key: _pair(values.get(key)) for key in ("lines", "cells")}})


def _pair(value: Any) -> Any:
    return tuple(value) if value is not None else None


def _relevance(found: Mapping[str, Any] | None) -> Relevance | None:
    if found is None:
        return None
    return Relevance(
        bool(found["relevant"]),
        float(found["score"]),
        float(found["threshold"]),
        str(found["rule"]),
        {str(name): float(value) for name, value in (found.get("features") or {}).items()},
        str(found.get("reason") or ""),
    )


_UNJUDGED = Relevance(True, 0.0, 0.0, "auto")


def answer_of(said: Mapping[str, Any]) -> Answer:
    """The object of `ask --json`."""
    receipt = said.get("receipt")
    return Answer(
        question=str(said["question"]),
        text=str(said["answer"]),
        answered=bool(said["answered"]),
        sources=tuple(map(_source, said["sources"])),
        receipt=_receipt(receipt) if receipt else None,
        usage=Usage(**_known(Usage, said["usage"])),
        model=str(said["model"]),
        grounded=bool(said.get("grounded")),
        relevance=_relevance(said.get("relevance")),
    )


def _source(said: Mapping[str, Any]) -> Source:
    values = _known(Source, said)
    return Source(**{**values, "lines": _pair(values["lines"]), "cells": _pair(values["cells"])})


def _receipt(said: Mapping[str, Any]) -> Receipt:
    values = _known(Receipt, said)
    return Receipt(**{**values, "ms": Timings(**_known(Timings, said["ms"]))})


def _known(kind: Any, said: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a noun: a server may say more. TypeError: one is not what it has to be."""
    hints = get_type_hints(kind)
    known = {name: said[name] for name in kind.__dataclass_fields__ if name in said}
    for name, value in known.items():
        if not _fits(value, hints[name]):
            raise TypeError(f"{name} is no {hints[name]}")
    return known


def _fits(value: object, hint: Any) -> bool:
    """Whether a value of JSON may stand for a field of a noun."""
    if kinds := get_args(hint):
        if get_origin(hint) is not tuple:
            return any(_fits(value, kind) for kind in kinds)
        return (
            isinstance(value, list) and len(value) == len(kinds) and all(map(_fits, value, kinds))
        )
    if hint in (int, float):
        kind = int if hint is int else (int, float)
        return isinstance(value, kind) and not isinstance(value, bool)
    return not isinstance(hint, type) or is_dataclass(hint) or isinstance(value, hint)


def _as(kind: type[T], value: object) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} in place of {kind.__name__}")
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _as(str, value)


def _object(text: bytes) -> dict[str, Any]:
    return _as(dict, json.loads(text))
