"""The page: its files and their headers, and in a browser what a person does with it.

The server behind it is a small stage that plays one scene for each question, so that hostile passages, broken
connections and a loading model come when they are called for.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.testclient import TestClient

from epicrag.server import page as page_module
from epicrag.server.page import MEDIA, router

FOLDER = Path(page_module.__file__).with_name("page")
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


# --- the files -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI()
    app.include_router(router)
    return TestClient(app)


def test_every_file_is_sent_as_what_it_is(client: TestClient):
    assert {path.name for path in FOLDER.iterdir()} == set(MEDIA)
    for name, media in MEDIA.items():
        response = client.get(f"/assets/{name}")
        assert response.status_code == 200 and response.headers["content-type"] == media
        assert response.content == (FOLDER / name).read_bytes()
    assert client.get("/").content == (FOLDER / "index.html").read_bytes()


@pytest.mark.parametrize("path", ["/", "/assets/page.js", "/assets/icon.svg"])
def test_headers_let_nothing_else_run_or_load(client: TestClient, path: str):
    headers = client.get(path).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY" and headers["referrer-policy"] == "no-referrer"


def test_page_is_sent_again_only_when_it_changed(client: TestClient):
    tag = client.get("/").headers["etag"]
    again = client.get("/", headers={"If-None-Match": tag})
    assert again.status_code == 304 and not again.content
    assert "content-security-policy" in again.headers
    head = client.head("/")
    assert head.status_code == 200 and not head.content


@pytest.mark.parametrize("name", ["page.py", "..%2fpage.py", "%2e%2e/page.py", "nothing.js", ""])
def test_no_other_file_is_sent(client: TestClient, name: str):
    assert client.get(f"/assets/{name}").status_code in (404, 405)


def test_page_needs_no_token_but_what_it_asks_for_does(make_server: Any):
    from epicrag.server.tenants import load_tenants

    client = make_server(tenants=load_tenants(None, "a-token-that-is-long-enough")).client
    html = client.get("/").text
    for path in ["/", *re.findall(r"assets/[\w.]+", html)]:
        response = client.get(path)
        assert response.status_code == 200
        assert response.headers["content-security-policy"].startswith("default-src 'none'")
    assert client.get("/v1/models").status_code == 401


def test_page_names_no_other_host_and_holds_no_inline_code():
    for path in FOLDER.iterdir():
        text = path.read_text(encoding="utf-8")
        assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}
    html = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"\son\w+=|\sstyle=|<style|<script(?![^>]*\ssrc=)", html)
    scripts = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.js"))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", scripts)


def test_page_is_shipped():
    import tomllib

    data = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    patterns = data["tool"]["setuptools"]["package-data"]["epicrag.server"]
    shipped = {path.name for pattern in patterns for path in FOLDER.parent.glob(pattern)}
    assert shipped >= set(MEDIA)


# --- a stage -------------------------------------------------------------------------------------


@dataclass
class Stage:
    """What the server behind the page does, and what it was asked."""

    url: str = ""
    is_loading: bool = False
    token: str | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    """Questions whose stream has ended, to its end or because its reader left."""


HITS = [
    ("/srv/docs/tern-manual.md", None, (12, 30), "Warranty", "The warranty is **two years**.\n"),
    ("/srv/docs/tern-datasheet.pdf", 2, None, "Range", "The radio reaches 800 metres.\n"),
    ("/srv/more/tern-manual.md", None, (4, 4), None, "Call support for repairs.\n"),
]


def hits(texts: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "rank": n,
            "score": 0.9 - n / 10,
            "path": path + texts.get("path", ""),
            "page": page,
            "lines": lines,
            "heading": texts.get("heading", heading),
            "part": None,
            "cells": None,
            "chunk": f"{n:024x}",
            "text": texts.get("text", text),
        }
        for n, (path, page, lines, heading, text) in enumerate(HITS, 1)
    ]


def whole(question: str, text: str, found: list[dict[str, Any]], policy: str) -> dict[str, Any]:
    sources = [{**hit, "n": hit["rank"], "cited": f"[{hit['rank']}]" in text} for hit in found]
    is_full = policy == "full"
    tokens = {
        "exact": 0 if is_full else 412,
        "stitched": 0 if is_full else 1106,
        "recomputed": 1566 if is_full else 48,
    }
    ms = {"retrieve": 21.4, "wait": 0.0, "load": 3.2, "stitch": 1.1, "select": 0.0}
    link = 4031.0 if is_full else 388.0
    return {
        "question": question,
        "answer": text,
        "answered": bool(found),
        "grounded": True,
        "sources": [{key: s[key] for key in s if key not in ("rank", "text")} for s in sources],
        "receipt": {
            "policy": policy,
            "compile": "neighbour",
            "context_tokens": 1566,
            **tokens,
            "fresh": 57,
            "dropped_chunks": 0,
            "fallback": None,
            "charged": 0.03,
            "ms": {**ms, "link": link, "first_token": link + 26.0, "total": link + 1200.0},
        }
        if found
        else None,
        "usage": {"prompt_tokens": 1623, "completion_tokens": 31},
        "model": "stub-lm",
        "notes": ["check it against the sources"] if "careful" in question else [],
        "relevance": None,
    }


ANSWER = "The warranty is **two years** [1], the radio reaches `800 m` [2].\n\nRepairs: see [1, 3]."
NOTHING = "I found nothing about this in the indexed documents."


async def play(question: str, policy: str) -> AsyncIterator[dict[str, Any]]:
    """One scene: the lines that are sent for a question."""
    if "nothing" in question:
        yield {"hits": []}
        yield {"delta": NOTHING}
        yield whole(question, NOTHING, [], policy)
        return
    if "empty" in question:
        error = {"code": "no_index", "message": "there is no index yet", "exit_code": 3}
        yield {"error": {**error, "hint": "make one with: epicrag ingest FOLDER"}}
        return
    texts = (
        {"path": HOSTILE, "heading": HOSTILE, "text": HOSTILE * 3} if "hostile" in question else {}
    )
    text = f"{HOSTILE} [1] **{HOSTILE}**\n```\n{HOSTILE}\n```" if "hostile" in question else ANSWER
    found = hits(texts)
    yield {"hits": found}
    yield {"notice": "computing the KV of 2 passages"}
    for n, piece in enumerate(re.findall(r"\S+\s*", text)):
        yield {"delta": piece}
        if "slow" in question:
            await asyncio.sleep(0.05 if n < 3 else 60.0)
        if "broken" in question and n == 4:
            raise ConnectionError("the stage breaks off")
    yield whole(question, text, found, policy)


def stage_app(stage: Stage) -> FastAPI:
    app = FastAPI()
    app.include_router(router)

    @app.middleware("http")
    async def guard(request: Request, handler: Any) -> Response:
        wanted = stage.token and request.url.path.startswith("/v1/")
        if wanted and request.headers.get("authorization") != f"Bearer {stage.token}":
            return JSONResponse({"error": {"message": "a token is needed"}}, 401)
        return await handler(request)  # type: ignore[no-any-return]

    @app.get("/healthz")
    def healthz() -> Response:
        return JSONResponse({"status": "loading"}, 503 if stage.is_loading else 200)

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {
            "data": [
                {"id": "epicrag", "root": "stub-lm"},
                {"id": "stub-lm", "root": "stub-lm"},
                {"id": "stub-embedder"},
            ]
        }

    @app.get("/v1/passages/{chunk}")
    def passage(chunk: str) -> Response:
        n = int(chunk, 16)
        if n == 3:
            return JSONResponse({"error": {"message": f"no passage {chunk}"}}, 404)
        last = stage.asked[-1]["question"] if stage.asked else ""
        texts = {"text": HOSTILE * 3, "path": HOSTILE} if "hostile" in last else {}
        hit = hits(texts)[n - 1]
        around = {"title": "Tern", "before_text": "Before it.\n", "after_text": "After it.\n"}
        return JSONResponse({**hit, **around})

    @app.post("/v1/ask")
    async def ask(request: Request) -> Response:
        body = await request.json()
        stage.asked.append(body)
        question, policy = body["question"], body.get("link_policy", "legolink(8)")
        if "busy" in question:
            error = {"message": "4 requests run and 16 wait", "code": "busy"}
            return JSONResponse({"error": error}, 429, headers={"Retry-After": "7"})

        async def lines() -> AsyncIterator[str]:
            try:
                async for line in play(question, policy):
                    yield json.dumps(line) + "\n"
            finally:
                stage.ended.append(question)

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    return app


@contextmanager
def running(app: FastAPI) -> Iterator[str]:
    """An app on a free port of this machine, in a thread; its address."""
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="critical", ws="none", lifespan="off")
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    until = time.monotonic() + 10
    while not server.started and time.monotonic() < until:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)
    listener.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Stage]:
    stage = Stage()
    with running(stage_app(stage)) as stage.url:
        yield stage


@pytest.fixture
def stage(served: Stage) -> Stage:
    served.is_loading, served.token = False, None
    served.asked.clear()
    served.ended.clear()
    return served


# --- a browser -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("the page is not tried in a browser: pip install playwright")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(
            "the page is not tried in a browser: install chromium (apt-get install chromium)"
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            args=[
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
            ],
        )
        yield browser
        browser.close()


class Visit:
    """One look at the page: a tab, and whatever it complained about or asked of anyone else."""

    def __init__(self, browser: Any, stage: Stage, **options: Any) -> None:
        self.stage = stage
        self.context = browser.new_context(
            **{"viewport": {"width": 1000, "height": 800}, **options}
        )
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page = self.context.new_page()
        self.page.set_default_timeout(8000)
        self.complaints: list[str] = []
        self.elsewhere: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._see)

    def open(self) -> Any:
        self.page.goto(self.stage.url)
        return self.page

    def ask(self, question: str) -> Any:
        self.page.get_by_label("Question", exact=True).fill(question)
        self.page.keyboard.press("Enter")
        return self.page.locator(".turn").last

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _see(self, request: Any) -> None:
        if not request.url.startswith(self.stage.url):
            self.elsewhere.append(request.url)


@pytest.fixture
def visit(browser: Any, stage: Stage) -> Iterator[Any]:
    """Makes visits, and looks at the end that none complained or reached elsewhere; `may` is excused."""
    visits: list[Visit] = []
    excused: list[str] = []

    def make(*, may: str = "", **options: Any) -> Visit:
        visits.append(Visit(browser, stage, **options))
        excused.append(may)
        return visits[-1]

    yield make
    for one, may in zip(visits, excused, strict=True):
        complaints = [text for text in one.complaints if not (may and re.search(may, text))]
        one.context.close()
        assert not complaints and not one.elsewhere


def test_answer_streams_with_citations_and_receipt(visit: Any, stage: Stage):
    one = visit()
    page = one.open()
    page.get_by_text("stub-lm").wait_for()
    turn = one.ask("How long is the warranty?")
    turn.get_by_role("button", name="Ask again").wait_for()
    shown = turn.locator(".answer")
    assert shown.inner_text().startswith("The warranty is two years 1, the radio reaches 800 m 2.")
    assert shown.locator("button.cite").all_inner_texts() == ["1", "2", "1", "3"]
    receipt = turn.get_by_role("region", name="What was reused")
    assert "96 % reused of 1,566 context tokens" in receipt.inner_text()
    assert receipt.get_by_role("img").first.get_attribute("aria-label") == (
        "Tokens: 412 exact, 1,106 stitched, 48 recomputed, 57 fresh"
    )
    for figure in ("retrieve", "load", "stitch", "link", "first token", "total", "legolink(8)"):
        assert figure in receipt.inner_text()
    widths = (
        receipt.locator(".bar")
        .first.locator(".part")
        .evaluate_all("parts => parts.map(part => part.getBoundingClientRect().width)")
    )
    assert widths[1] / widths[0] == pytest.approx(1106 / 412, rel=0.1)
    sources = turn.get_by_role("region", name="Sources").get_by_role("button")
    assert [name.split("\n")[0] for name in sources.all_inner_texts()] == [
        "1 docs/tern-manual.md lines 12–30 · Warranty",
        "2 tern-datasheet.pdf page 2 · Range",
    ]  # the third is cited only together with the first: the stage does not count it


def test_page_over_the_real_app(browser: Any, server: Any):
    with running(server.app) as url:
        one = Visit(browser, Stage(url))
        page = one.open()
        turn = one.ask("When does the harbour museum open?")
        turn.get_by_role("button", name="Ask again").wait_for()
        assert "reused" in turn.locator(".receipt").inner_text()
        with page.expect_response("**/v1/passages/*") as passage:
            turn.locator("button.cite, button.source").first.click()
        assert passage.value.status == 200
        panel = page.get_by_role("dialog")
        assert panel.locator(".itself").inner_text().strip()
        assert panel.locator("#passage-place").inner_text()
        one.context.close()
    assert not one.complaints and not one.elsewhere


def test_citation_opens_its_passage_and_gives_the_focus_back(visit: Any):
    one = visit(may="404")
    page = one.open()
    turn = one.ask("How long is the warranty?")
    turn.get_by_role("button", name="Ask again").wait_for()
    cite = turn.get_by_role("button", name="Source 2: tern-datasheet.pdf, page 2").first
    cite.click()
    panel = page.get_by_role("dialog")
    panel.get_by_text("After it.").wait_for()
    text = panel.inner_text()
    assert "The radio reaches 800 metres." in text and "Before it." in text
    assert "page 2" in text and "/srv/docs/tern-datasheet.pdf" in text and "Tern" in text
    page.keyboard.press("ArrowLeft")
    panel.get_by_text("The warranty is **two years**.").wait_for()
    assert "lines 12–30" in panel.inner_text()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    panel.get_by_text("This is the text as it was when the answer was written.").wait_for()
    assert "Call support for repairs." in panel.inner_text()
    page.keyboard.press("Escape")
    assert not panel.is_visible()
    assert cite.evaluate("button => button === document.activeElement")


def test_panel_stands_beside_the_answer_where_there_is_room(visit: Any):
    one = visit(viewport={"width": 1440, "height": 800})
    page = one.open()
    turn = one.ask("How long is the warranty?")
    turn.get_by_role("button", name="Ask again").wait_for()
    turn.locator("button.cite").first.click()
    panel = page.get_by_role("dialog")
    panel.get_by_text("After it.").wait_for()
    left = panel.bounding_box()["x"]
    answer = turn.bounding_box()
    assert answer["x"] + answer["width"] <= left
    turn.locator("button.cite").nth(1).click()  # it is not modal: another citation changes it
    panel.get_by_text("The radio reaches 800 metres.").wait_for()
    page.keyboard.press("Escape")
    assert not panel.is_visible()


def test_page_is_used_by_keyboard_alone(visit: Any, stage: Stage):
    one = visit()
    page = one.open()
    page.get_by_text("stub-lm").wait_for()
    page.keyboard.type("First line")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("second line")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Ask again").wait_for()
    assert stage.asked[0]["question"] == "First line\nsecond line"

    def focused() -> str:
        return str(page.evaluate("document.activeElement.id || document.activeElement.className"))

    assert focused() == "question"
    seen = []
    for _ in range(40):
        page.keyboard.press("Shift+Tab")
        seen.append(focused())
        if seen[-1] == "cite" and seen.count("cite") == 4:
            break
    assert {"quiet", "source", "cite", "quiet again"} <= set(seen)
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_text("After it.").wait_for()
    for _ in range(12):  # the focus stays within
        page.keyboard.press("Tab")
        assert page.evaluate("!document.querySelector('main').contains(document.activeElement)")
    page.keyboard.press("Escape")
    assert focused() == "cite"
    page.keyboard.press("Control+k")
    assert focused() == "question"


def test_conversation_is_sent_along_and_begun_anew(visit: Any, stage: Stage):
    one = visit()
    page = one.open()
    for question in ("One?", "Two?"):
        one.ask(question).get_by_role("button", name="Ask again").wait_for()
    assert stage.asked[0]["history"] == []
    assert stage.asked[1]["history"] == [
        {"role": "user", "text": "One?"},
        {"role": "assistant", "text": ANSWER},
    ]
    page.get_by_role("button", name="New conversation").click()
    assert page.locator(".turn").count() == 0 and page.locator("#welcome").is_visible()
    one.ask("Three?").get_by_role("button", name="Ask again").wait_for()
    assert stage.asked[2]["history"] == []


def test_same_question_by_another_policy_is_drawn_to_one_scale(visit: Any, stage: Stage):
    one = visit()
    page = one.open()
    one.ask("One?").get_by_role("button", name="Ask again").wait_for()
    page.get_by_label("Link policy").select_option("full")
    assert "the reference" in page.locator("#policy-says").inner_text()
    page.get_by_label("Passages").select_option("2")
    page.get_by_role("button", name="Ask again").click()
    page.get_by_text("0 % reused").wait_for()
    again = {key: stage.asked[1].get(key) for key in ("question", "history", "link_policy", "k")}
    assert again == {"question": "One?", "history": [], "link_policy": "full", "k": 2}
    widths = page.locator(".bar.time").evaluate_all("bars => bars.map(bar => bar.offsetWidth)")
    assert widths[0] / widths[1] == pytest.approx((388 + 1200) / (4031 + 1200), rel=0.05)
    one.ask("Two?").locator(".receipt").wait_for()
    sent = [turn["text"] for turn in stage.asked[2]["history"]]
    assert sent == ["One?", ANSWER]  # once, although it was asked twice


def test_stop_ends_the_request_and_keeps_what_came(visit: Any, stage: Stage):
    one = visit()
    page = one.open()
    turn = one.ask("a slow one")
    turn.get_by_text("The warranty").wait_for()
    page.get_by_role("button", name="Stop").click()
    turn.get_by_text("Stopped.").wait_for()
    assert "The warranty" in turn.inner_text()
    until = time.monotonic() + 5
    while not stage.ended and time.monotonic() < until:
        time.sleep(0.02)
    assert stage.ended == ["a slow one"]
    turn = one.ask("another slow one")
    turn.get_by_text("The warranty").wait_for()
    page.keyboard.press("Escape")
    turn.get_by_text("Stopped.").wait_for()
    assert page.get_by_role("button", name="Ask", exact=True).is_visible()


def test_hostile_documents_stay_text(visit: Any, stage: Stage):
    one = visit()
    page = one.open()
    turn = one.ask(f"hostile {HOSTILE}")
    turn.get_by_role("button", name="Ask again").wait_for()
    turn.locator("summary").click()
    assert turn.inner_text().count("<img src=x onerror=") >= 5
    turn.locator("button.cite").first.click()
    panel = page.get_by_role("dialog")
    panel.get_by_text("After it.").wait_for()
    assert panel.inner_text().count("<img src=x onerror=") >= 4
    assert page.locator("main img, dialog img, main script").count() == 0
    assert page.title() == "epicrag"


def test_markup_made_from_text_would_throw(visit: Any):
    page = visit(may="Trusted").open()
    error = page.evaluate(
        "() => { try { document.body.innerHTML = '<b>x</b>' } catch (error) { return error.name } }"
    )
    assert error == "TypeError"


def test_what_went_wrong_is_said_in_words(visit: Any):
    scenes = {
        "nothing": [NOTHING, "Other words may find it"],
        "busy": ["4 requests run and 16 wait", "Try again in 7 seconds."],
        "empty": ["there is no index yet", "epicrag ingest FOLDER"],
        "broken": ["The connection broke off", "The warranty is"],
        "careful": ["Check it against the sources"],
    }
    one = visit(may="429|ERR_|Failed to load")
    one.open()
    for question, says in scenes.items():
        turn = one.ask(f"a {question} question")
        turn.get_by_role("button", name=re.compile("Ask again|Try again")).wait_for()
        text = turn.inner_text()
        assert all(words in text for words in says), text


def test_question_waits_until_the_model_is_loaded(visit: Any, stage: Stage):
    stage.is_loading = True
    one = visit(may="503")
    page = one.open()
    page.get_by_text("The model is loading").wait_for()
    turn = one.ask("How long is the warranty?")
    turn.get_by_text("Waiting until the model is loaded").wait_for()
    assert not stage.asked
    stage.is_loading = False
    turn.get_by_role("button", name="Ask again").wait_for()
    assert len(stage.asked) == 1


def test_token_is_asked_for_and_a_wrong_one_is_said(visit: Any, stage: Stage):
    stage.token = "right"
    one = visit(may="401")
    page = one.open()
    page.get_by_role("heading", name="This server asks for a token").wait_for()
    page.get_by_label("Token", exact=True).fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="The server did not take this token").wait_for()
    page.get_by_label("Token", exact=True).fill("right")
    page.keyboard.press("Enter")
    page.get_by_text("stub-lm").wait_for()
    one.ask("One?").get_by_role("button", name="Ask again").wait_for()
    kept = page.evaluate("[Object.keys(sessionStorage).length, Object.keys(localStorage).length]")
    assert kept == [1, 0]


def test_server_that_is_gone_is_said_and_found_again(visit: Any, stage: Stage):
    one = visit(may="ERR_|Failed to load")
    page = one.open()
    page.get_by_text("stub-lm").wait_for()
    one.context.set_offline(True)
    turn = one.ask("One?")
    turn.get_by_text("The server does not answer.").wait_for()
    one.context.set_offline(False)
    turn.get_by_role("button", name="Try again").click()
    page.locator(".receipt").wait_for()


def test_copy_takes_answer_and_sources(visit: Any):
    one = visit()
    page = one.open()
    turn = one.ask("One?")
    turn.get_by_role("button", name="Copy answer").click()
    turn.get_by_text("Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith(ANSWER)
    assert "[2] /srv/docs/tern-datasheet.pdf, page 2" in copied


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(visit: Any, scheme: str):
    one = visit(color_scheme=scheme)
    page = one.open()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    assert dark == (scheme == "dark")
    low = page.evaluate(CONTRAST)
    turn = one.ask("a careful question")
    turn.get_by_role("button", name="Ask again").wait_for()
    low += page.evaluate(CONTRAST)
    turn.locator("button.cite").first.click()
    page.get_by_role("dialog").get_by_text("After it.").wait_for()
    low += page.evaluate(CONTRAST)
    assert low == []


CONTRAST = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text; (text = walker.nextNode()); ) {
    const node = text.parentElement;
    if (!text.data.trim() || !node.checkVisibility({ visibilityProperty: true })) continue;
    if (node.closest('[disabled]')) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(ground(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(`${node.className} ${text.data.trim().slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return low;
}"""


@pytest.mark.parametrize("size", [(320, 640), (640, 320)])
def test_narrow_page_needs_no_scrolling_sideways(visit: Any, size: tuple[int, int]):
    one = visit(viewport={"width": size[0], "height": size[1]})
    page = one.open()
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) <= 0
    turn = one.ask(f"hostile {'x' * 200}")
    turn.get_by_role("button", name="Ask again").wait_for()
    turn.locator("summary").click()
    assert page.evaluate(wide) <= 0
    turn.locator("button.cite").first.click()
    panel = page.get_by_role("dialog")
    panel.get_by_text("After it.").wait_for()
    assert panel.evaluate("panel => panel.scrollWidth - panel.clientWidth") <= 0
    box = panel.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= size[0]
    panel.get_by_role("button", name="Close the passage").click()
    assert not panel.is_visible()


def test_every_control_has_a_name_and_a_size(visit: Any):
    one = visit()
    page = one.open()
    turn = one.ask("One?")
    turn.get_by_role("button", name="Ask again").wait_for()
    turn.locator("summary").click()
    turn.locator("button.cite").first.click()
    page.get_by_role("dialog").get_by_text("After it.").wait_for()
    session = one.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    controls = {"button", "textbox", "combobox", "link", "dialog", "img", "region", "form"}
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node.get("ignored") and node["role"]["value"] in controls
    ]
    assert len(named) >= 6 and all(name for _, name in named), named
    page.keyboard.press("Escape")
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    roles = {node["role"]["value"] for node in nodes if not node.get("ignored")}
    assert {"banner", "main", "form", "heading", "status"} <= roles
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node.get("ignored") and node["role"]["value"] in controls
    ]
    assert len(named) >= 15 and all(name for _, name in named), named
    small = page.locator("button:visible, select:visible, summary:visible").evaluate_all(
        "all => all.map(one => [one.outerHTML.slice(0, 60), one.getBoundingClientRect()])"
        ".filter(([, box]) => box.width < 24 || box.height < 24).map(([html]) => html)"
    )
    assert small == []


def test_screen_reader_hears_sentences_and_the_end(visit: Any):
    one = visit()
    page = one.open()
    page.evaluate(
        """() => {
          window.heard = [];
          const live = document.getElementById('live');
          new MutationObserver(() => { if (live.textContent) window.heard.push(live.textContent); })
            .observe(live, { childList: true, characterData: true, subtree: true });
        }"""
    )
    turn = one.ask("One?")
    turn.get_by_role("button", name="Ask again").wait_for()
    page.wait_for_function("window.heard.some(text => text.includes('End of the answer'))")
    heard = page.evaluate("window.heard")
    assert len(heard) <= 4  # not a word at a time
    assert "(source 1)" in " ".join(heard) and "2 sources cited" in heard[-1]
    assert page.locator("#live").get_attribute("aria-live") == "polite"
    assert page.locator("html").get_attribute("lang") == "en"


def test_nothing_moves_for_those_who_asked_for_that(visit: Any):
    one = visit(reduced_motion="reduce")
    page = one.open()
    one.ask("a slow one").get_by_text("The warranty").wait_for()
    assert page.evaluate("document.getAnimations().length") == 0
    page.get_by_role("button", name="Stop").click()
