"""Clients that no one here wrote, against a real server on loopback."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from epicrag.chunkbook import ChunkBook
from epicrag.config import DEFAULT_LINK_POLICY

DOOR = "What is the door code of the museum?"
QUESTION: list[Any] = [{"role": "user", "content": DOOR}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "unlock", "parameters": {"type": "object", "properties": {}}},
}
SHORT: dict[str, Any] = {"max_tokens": 8}
LONG: dict[str, Any] = {
    "max_tokens": 400,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "long", "schema": {"type": "string", "minLength": 1000}},
    },
}
"""An answer that the model cannot end early."""


@pytest.fixture
def live(make_live: Callable[..., Any], tmp_path: Path) -> Iterator[Any]:
    """A real server with a book of chunks."""
    made = make_live()
    with ChunkBook.open(tmp_path / "book", made.engine, made.engine.tokenizer, None) as book:
        made.state.chunks = book
        yield made


@pytest.fixture
def client(live: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=live.v1, api_key="none", max_retries=0, timeout=60) as made:
        yield made


def said(answer: Any) -> Any:
    """epicrag's own part of a reply."""
    return answer.model_extra["epicrag"]


# --- the official client -------------------------------------------------------------------------


def test_openai_chat(client: openai.OpenAI):
    raw = client.chat.completions.with_raw_response.create(
        model="epicrag", messages=QUESTION, **SHORT
    )
    answer = raw.parse()
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 8
    assert answer.usage.prompt_tokens_details is not None
    assert said(answer)["sources"][0]["path"].endswith("museum.txt")
    assert f"policy {DEFAULT_LINK_POLICY}" in raw.headers["X-Epicrag-Receipt"]


def test_openai_second_question_finds_the_tokens_cached(client: openai.OpenAI):
    def cached() -> tuple[int, int]:
        answer = client.chat.completions.create(model="epicrag", messages=QUESTION, **SHORT)
        assert answer.usage and answer.usage.prompt_tokens_details
        return answer.usage.prompt_tokens_details.cached_tokens or 0, answer.usage.prompt_tokens

    cached()
    reused, all_of_them = cached()
    assert reused > 0.5 * all_of_them


def test_openai_stream(client: openai.OpenAI):
    whole = client.chat.completions.create(model="tiny", messages=QUESTION, **SHORT)
    stream = client.chat.completions.create(
        model="tiny",
        messages=QUESTION,
        stream=True,
        stream_options={"include_usage": True},
        **SHORT,
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens <= 8
    assert said(chunks[-1])["receipt"]["policy"]


def test_openai_stream_helper(client: openai.OpenAI):
    with client.chat.completions.stream(model="epicrag", messages=QUESTION, **SHORT) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        whole = stream.get_final_completion()
    assert "".join(deltas) == whole.choices[0].message.content


def test_openai_async(live: Any):
    async def go() -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=live.v1, api_key="none", max_retries=0) as client:
            whole, stream = await asyncio.gather(
                client.chat.completions.create(model="tiny", messages=QUESTION, **SHORT),
                client.chat.completions.create(
                    model="tiny", messages=QUESTION, stream=True, **SHORT
                ),
            )
            pieces = [c.choices[0].delta.content or "" async for c in stream if c.choices]
            return whole.choices[0].message.content or "", "".join(pieces)

    whole, streamed = asyncio.run(go())
    assert whole == streamed != ""


def test_openai_tools_are_ignored_with_a_message(client: openai.OpenAI):
    answer = client.chat.completions.create(
        model="epicrag", messages=QUESTION, tools=[TOOL], tool_choice="auto", **SHORT
    )
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content
    assert any("tools" in warning for warning in said(answer)["warnings"])
    with pytest.raises(openai.BadRequestError, match="calls no tools") as caught:
        client.chat.completions.create(
            model="epicrag", messages=QUESTION, tools=[TOOL], tool_choice="required"
        )
    assert caught.value.param == "tool_choice"


def test_openai_extra_body_reaches_the_engine(client: openai.OpenAI):
    client.post(
        "/chunks",
        body={"id": "valve", "text": "The valve opens at nine bar."},
        cast_to=object,
    )
    question: Any = {"role": "user", "content": "When?", "chunk_references": [{"id": "valve"}]}
    answer = client.chat.completions.create(
        model="tiny",
        messages=[question],
        extra_body={"documents": ["The pump needs oil."], "epicrag": {"link_policy": "none"}},
        **SHORT,
    )
    more = said(answer)
    assert more["sources"][0]["chunk"] == "valve"
    assert len(more["sources"]) == 2
    assert more["receipt"]["policy"] == "none"


def test_openai_structured_output(client: openai.OpenAI):
    schema = {
        "type": "object",
        "properties": {"code": {"enum": ["4471", "none"]}},
        "required": ["code"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="epicrag",
        messages=QUESTION,
        response_format={"type": "json_schema", "json_schema": {"name": "code", "schema": schema}},
        max_tokens=64,
    )
    assert answer.choices[0].finish_reason == "stop"
    assert set(json.loads(answer.choices[0].message.content or "")) == {"code"}


def test_openai_completions(client: openai.OpenAI):
    answer = client.completions.create(model="tiny", prompt=["Say A", "Say B"], **SHORT)
    assert [choice.index for choice in answer.choices] == [0, 1]
    stream = client.completions.create(model="tiny", prompt="Say A", stream=True, **SHORT)
    assert "".join(c.choices[0].text for c in stream) == answer.choices[0].text


def test_openai_models_and_embeddings(client: openai.OpenAI):
    names = [model.id for model in client.models.list()]
    assert {"epicrag", "tiny"} <= set(names)
    assert client.models.retrieve("epicrag").id == "epicrag"
    vectors = client.embeddings.create(model=names[-1], input=["one text", "another"])
    assert len(vectors.data) == 2
    assert sum(x * x for x in vectors.data[0].embedding) == pytest.approx(1, abs=1e-3)


def test_openai_errors_are_of_its_own_kinds(client: openai.OpenAI):
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-9'"):
        client.chat.completions.create(model="gpt-9", messages=QUESTION)
    image: Any = {"type": "image_url", "image_url": {"url": "data:,"}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": [image]}]
        )
    assert caught.value.param == "messages[0].content[0]"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=10**6)
    assert caught.value.code == "context_length_exceeded"


def test_openai_sees_what_goes_wrong_in_a_stream(
    client: openai.OpenAI, live: Any, monkeypatch: pytest.MonkeyPatch
):
    from epicrag.errors import DeviceError
    from epicrag.serving.generation import Generation

    read = Generation.__next__

    def failing(self: Any) -> str:
        if len(self.token_ids) > 3:
            raise DeviceError("no memory is left", "ask for less")
        return read(self)

    monkeypatch.setattr(Generation, "__next__", failing)
    stream = client.chat.completions.create(model="tiny", messages=QUESTION, stream=True, **LONG)
    with pytest.raises(openai.APIError, match="no memory is left"):
        list(stream)


def test_openai_going_away_cancels_the_answer(client: openai.OpenAI, live: Any):
    from time import monotonic, sleep

    stream = client.chat.completions.create(model="tiny", messages=QUESTION, stream=True, **LONG)
    next(iter(stream))
    stream.close()
    deadline = monotonic() + 20
    while live.engine.stats().running or len(live.state.jobs):
        assert monotonic() < deadline, "the answer was not cancelled"
        sleep(0.01)


# --- LlamaIndex ----------------------------------------------------------------------------------


@pytest.fixture
def like(live: Any) -> Callable[..., Any]:
    from llama_index.llms.openai_like import OpenAILike

    def make(**options: Any) -> Any:
        options |= {"api_base": live.v1, "api_key": "none", "max_retries": 0, "timeout": 60}
        return OpenAILike(max_tokens=8, temperature=0, **options)

    return make


def test_openai_like_chats_and_streams(like: Callable[..., Any]):
    from llama_index.core.llms import ChatMessage

    llm = like(model="epicrag", is_chat_model=True)
    messages = [ChatMessage(role="system", content="Be brief."), ChatMessage(content=DOOR)]
    answer = llm.chat(messages)
    assert answer.message.content
    assert answer.raw.model_extra["epicrag"]["sources"]
    *_, last = llm.stream_chat(messages)
    assert last.message.content == answer.message.content
    assert llm.complete(DOOR).text
    assert "".join(piece.delta for piece in llm.stream_complete(DOOR))


def test_openai_like_completes_without_chat(like: Callable[..., Any]):
    llm = like(model="tiny", is_chat_model=False)
    answer = llm.complete("Say A")
    assert answer.text
    assert "".join(piece.delta for piece in llm.stream_complete("Say A")) == answer.text


def test_openai_like_async(like: Callable[..., Any]):
    from llama_index.core.llms import ChatMessage

    llm = like(model="epicrag", is_chat_model=True)

    async def go() -> list[str]:
        answer = await llm.achat([ChatMessage(content=DOOR)])
        stream = await llm.astream_chat([ChatMessage(content=DOOR)])
        pieces = [piece.delta or "" async for piece in stream]
        completed = await llm.acomplete(DOOR)
        await llm._get_aclient().close()
        return [answer.message.content, "".join(pieces), completed.text]

    whole, streamed, completed = asyncio.run(go())
    assert whole == streamed == completed != ""


# --- curl ----------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_streams(live: Any):
    body = {"model": "epicrag", "messages": QUESTION, "stream": True, "max_tokens": 8}
    command = ["curl", "-sSN", "--fail-with-body", f"{live.v1}/chat/completions"]
    command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    *_, last, end = [line for line in done.stdout.split("\n") if line]
    assert end == "data: [DONE]"
    assert json.loads(last.removeprefix("data: "))["epicrag"]["receipt"]
