"""POST /v1/chat/completions over the museum's index."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from epicrag.chunkbook import ChunkBook
from epicrag.history import NOTHING_SAID

PATH = "/v1/chat/completions"
DOOR = "What is the door code of the museum?"


@pytest.fixture
def server(make_server: Callable[..., Any], tmp_path: Path) -> Iterator[Any]:
    """A server with a book of chunks."""
    made = make_server()
    with ChunkBook.open(tmp_path / "book", made.engine, made.pipeline.counter, None) as book:
        made.state.chunks = book
        yield made


def user(text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **fields}


def body(*messages: dict[str, Any], model: str = "epicrag", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": list(messages), **fields}


def asked(server: Any, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    response = server.post(PATH, body(*messages, **fields))
    assert response.status_code == 200, response.text
    said: dict[str, Any] = response.json()
    ChatCompletion.model_validate(said, strict=True)
    return said


def refused(server: Any, *messages: dict[str, Any], status: int = 400, **fields: Any) -> Any:
    response = server.post(PATH, body(*messages, **fields))
    assert response.status_code == status, response.text
    return response.json()["error"]


def events(response: Any) -> list[Any]:
    """The data of each event; the last is "[DONE]"."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n") if line.startswith("data: ")]
    data = [line.removeprefix("data: ") for line in lines]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


def streamed(server: Any, *messages: dict[str, Any], **fields: Any) -> list[Any]:
    return events(server.post(PATH, body(*messages, stream=True, **fields)))


def text_of(chunks: list[Any]) -> str:
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


# --- from the index ------------------------------------------------------------------------------


def test_index_answers_with_markers_and_sources(server: Any):
    said = asked(server, user(DOOR))
    text = said["choices"][0]["message"]["content"]
    assert "4471" in text
    assert "[1]" in text
    more = said["epicrag"]
    assert more["answered"]
    assert more["grounded"]
    assert more["sources"][0]["path"].endswith("museum.txt")
    assert more["sources"][0]["cited"]
    assert more["receipt"]["stitched"] == 70
    assert said["usage"]["prompt_tokens_details"]["cached_tokens"] == 80


def test_receipt_stands_in_the_headers_too(server: Any):
    response = server.post(PATH, body(user(DOOR)))
    assert "reused 80 of 90 context tokens" in response.headers["X-Epicrag-Receipt"]
    assert "first_token;dur=" in response.headers["Server-Timing"]


def test_last_message_is_asked_and_the_others_are_history(
    server: Any, monkeypatch: pytest.MonkeyPatch
):
    # The stub has no tokens: all turns fit.
    monkeypatch.setattr("epicrag.pipeline.fitted", lambda _, prompt, n_new: (prompt, NOTHING_SAID))
    asked(
        server,
        {"role": "system", "content": "Be brief."},
        user("Hello!"),
        {"role": "assistant", "content": "Good day."},
        user(DOOR),
    )
    prompt = server.engine.prompts[-1]
    assert prompt.question == DOOR
    assert prompt.system == "Be brief."
    assert [(turn.role, turn.text) for turn in prompt.history] == [
        ("user", "Hello!"),
        ("assistant", "Good day."),
    ]


def test_without_a_system_message_the_configured_prompt_stands(server: Any):
    asked(server, user(DOOR))
    assert server.engine.prompts[-1].system == server.pipeline.config.system_prompt


def test_nothing_found_is_said_and_no_model_runs(server: Any):
    said = asked(server, user("Quantum chromodynamics lattice gauge?"))
    assert "found nothing" in said["choices"][0]["message"]["content"]
    assert said["choices"][0]["finish_reason"] == "stop"
    assert said["epicrag"]["answered"] is False
    assert said["epicrag"]["receipt"] is None
    assert not server.engine.prompts


def test_strict_question_without_an_answer_is_an_error(server: Any):
    error = refused(server, user("Quantum chromodynamics?"), status=422, epicrag={"strict": True})
    assert error["code"] == "abstained"


def test_strict_stream_shows_nothing_that_the_documents_do_not_say(server: Any):
    server.engine.answer = "Penguins dance tango under violet skies."
    error = refused(server, user(DOOR), status=422, stream=True, epicrag={"strict": True})
    assert error["code"] == "abstained"


def test_settings_of_retrieval_are_heeded(server: Any):
    said = asked(server, user(DOOR), epicrag={"k": 1, "filter": 'path~"*museum.txt"'})
    assert len(said["epicrag"]["sources"]) == 1
    error = refused(server, user(DOOR), epicrag={"filter": "nonsense("})
    assert error["param"] == "epicrag.filter"


def test_link_policy_that_is_none_is_refused_by_its_field(server: Any):
    assert refused(server, user(DOOR), epicrag={"link_policy": "magic"})["param"] == (
        "epicrag.link_policy"
    )


@pytest.mark.parametrize(
    "messages", [[user(DOOR), {"role": "assistant", "content": "?"}], [user("  ")]]
)
def test_conversation_that_asks_nothing_is_refused(server: Any, messages: Any):
    assert refused(server, *messages)["param"].startswith("messages")


def test_parts_are_read_as_one_text(server: Any):
    parts = [{"type": "text", "text": "What is the door code "}, {"type": "text", "text": "of it?"}]
    server.post(PATH, body({"role": "user", "content": parts}, epicrag={"min_score": -1}))
    assert server.engine.prompts[-1].question == "What is the door code of it?"


# --- the model itself ----------------------------------------------------------------------------


def test_served_model_does_not_retrieve(server: Any):
    server.engine.answer = "Hello to you."
    said = asked(server, {"role": "developer", "content": "Be kind."}, user("Hi"), model="stub-lm")
    assert said["choices"][0]["message"]["content"] == "Hello to you."
    assert said["epicrag"]["sources"] == []
    assert said["epicrag"]["grounded"] is None
    chat = server.engine.prompts[-1]
    assert [(message.role, message.parts) for message in chat.messages] == [
        ("system", ("Be kind.",)),
        ("user", ("Hi",)),
    ]


def test_unknown_model_is_not_found(server: Any):
    error = refused(server, user("Hi"), status=404, model="gpt-9")
    assert error["code"] == "model_not_found"
    assert error["param"] == "model"
    assert "stub-lm" in error["message"]


def test_settings_of_retrieval_mean_nothing_to_the_model(server: Any):
    server.engine.answer = "Hello."
    said = asked(server, user("Hi"), model="stub-lm", epicrag={"k": 3, "strict": True})
    (warning,) = said["epicrag"]["warnings"]
    assert "epicrag.k" in warning
    assert "epicrag.strict" in warning


def test_tools_are_ignored_with_a_warning(server: Any):
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    said = asked(server, user(DOOR), tools=[tool], tool_choice="auto")
    assert any("tools" in warning for warning in said["epicrag"]["warnings"])
    assert refused(server, user(DOOR), tools=[tool], tool_choice="required")["param"] == (
        "tool_choice"
    )


def test_model_that_repeats_itself_is_stopped(server: Any):
    server.engine.answer = "The same words are said again. " * 5
    said = asked(server, user("Hi"), model="stub-lm")
    assert said["choices"][0]["finish_reason"] == "stop"
    assert said["choices"][0]["message"]["content"].count("again") == 2
    assert any("repeat" in note for note in said["epicrag"]["notes"])


def test_limits_and_stops_reach_the_model(server: Any):
    server.engine.answer = "Hello."
    asked(server, user("Hi"), model="stub-lm", max_tokens=9, max_completion_tokens=7, stop="END")
    sampling = server.engine.samplings[-1]
    assert (sampling.max_tokens, sampling.stop, sampling.temperature) == (7, ("END",), 0.0)
    asked(server, user("Hi"), model="stub-lm", temperature=0.5, top_k=-1, seed=-1)
    sampling = server.engine.samplings[-1]
    assert sampling.max_tokens == server.pipeline.config.max_tokens
    assert (sampling.temperature, sampling.top_k, sampling.seed) == (0.5, 0, 2**63 - 1)


# --- what comes along ----------------------------------------------------------------------------


def test_documents_are_numbered_before_the_question(server: Any):
    server.engine.answer = "The pump needs oil."
    documents = ["The pump needs oil each May.", {"title": "Valves", "text": "Valves need none."}]
    said = asked(server, user("What does the pump need?"), model="stub-lm", documents=documents)
    prompt = server.engine.prompts[-1]
    assert prompt.labels
    assert "The pump needs oil each May." in prompt.pieces[0].text
    assert prompt.pieces[0].namespace == "api"
    assert said["choices"][0]["message"]["content"] == "The pump needs oil. [1]"
    first, second = said["epicrag"]["sources"]
    assert first["cited"]
    assert first["score"] is None
    assert second["path"] == "Valves"


def test_documents_take_the_place_of_the_index(server: Any):
    server.engine.answer = "It needs oil."
    said = asked(server, user("What does the pump need?"), documents=["The pump needs oil."])
    assert any("was not searched" in warning for warning in said["epicrag"]["warnings"])


def test_references_are_numbered_where_no_place_is_given(server: Any):
    register(server, "valve", "The valve opens at nine bar.")
    server.engine.answer = "At nine bar."
    question = user("When does the valve open?", chunk_references=[{"id": "valve"}])
    said = asked(server, question, model="stub-lm")
    prompt = server.engine.prompts[-1]
    assert [piece.text for piece in prompt.pieces] == ["The valve opens at nine bar."]
    assert said["epicrag"]["sources"][0]["chunk"] == "valve"


def test_references_with_offsets_stand_where_they_are_told(server: Any):
    register(server, "valve", "The valve opens at nine bar.")
    server.engine.answer = "At nine bar."
    asked(
        server,
        user("When?", chunk_references=[{"id": "valve", "offset": 64}]),
        model="stub-lm",
    )
    piece, text = server.engine.prompts[-1].messages[0].parts
    assert (piece.text, piece.offset, text) == ("The valve opens at nine bar.", 64, "When?")


def test_unknown_reference_is_not_found_by_its_id(server: Any):
    question = user("When?", chunk_references=[{"id": "nowhere"}])
    error = refused(server, question, model="stub-lm", status=404)
    assert "nowhere" in error["message"]
    assert error["param"] == "messages[0].chunk_references[0].id"


def test_documents_and_placed_references_do_not_go_together(server: Any):
    question = user("When?", chunk_references=[{"id": "valve", "offset": 64}])
    error = refused(server, question, model="stub-lm", documents=["a text"])
    assert error["param"] == "documents"


def register(server: Any, name: str, text: str) -> None:
    response = server.post("/v1/chunks", {"id": name, "text": text})
    assert response.status_code == 200, response.text


# --- streams -------------------------------------------------------------------------------------


def test_stream_is_the_whole_answer_in_pieces(server: Any):
    *chunks, done = streamed(server, user(DOOR))
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    whole = asked(server, user(DOOR))
    assert text_of(chunks) == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["epicrag"]["sources"] == whole["epicrag"]["sources"]
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_stream_ends_with_the_usage_where_asked(server: Any):
    *chunks, _ = streamed(server, user(DOOR), stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 80
    assert chunks[-1]["epicrag"]["receipt"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_stream_options_without_a_stream_are_refused(server: Any):
    assert refused(server, user(DOOR), stream_options={"include_usage": True})["param"] == (
        "stream_options"
    )


def test_what_goes_wrong_before_the_first_word_has_a_status(server: Any):
    error = refused(server, user("Hi"), status=404, model="gpt-9", stream=True)
    assert error["code"] == "model_not_found"


def test_abstention_is_a_refusal_where_json_was_asked_for(server: Any):
    said = asked(
        server,
        user("Quantum chromodynamics lattice gauge?"),
        response_format={"type": "json_object"},
    )
    assert said["choices"][0]["message"]["content"] is None
    assert "found nothing" in said["choices"][0]["message"]["refusal"]


def test_json_gets_no_markers_and_a_schema_that_cannot_be_is_refused(server: Any):
    server.engine.answer = '{"code": [4471], "text": "Its door code is 4471."}'
    said = asked(server, user(DOOR), response_format={"type": "json_object"})
    assert said["choices"][0]["message"]["content"] == server.engine.answer
    assert server.engine.samplings[-1].grammar is not None
    bad = {"name": "a", "schema": {"type": "nonsense"}}
    error = refused(server, user(DOOR), response_format={"type": "json_schema", "json_schema": bad})
    assert error["param"] == "response_format.json_schema.schema"


# --- too much ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["epicrag", "stub"])
def test_text_that_no_window_holds_is_refused_before_it_is_tokenised(
    server: Any, model: str, monkeypatch: pytest.MonkeyPatch
):
    most = server.engine.context_window * 32
    counted: list[int] = []
    monkeypatch.setattr(type(server.engine), "generate", lambda *_, **__: counted.append(1))
    name = server.engine.name if model == "stub" else model
    error = refused(server, user("a " * most), model=name)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert f"{most:,}" in error["message"]
    parts = [user("a" * (most // 4)), {"role": "assistant", "content": "b" * most}, user("c")]
    if model == "stub":
        assert refused(server, *parts, model=name)["code"] == "context_length_exceeded"
    for path, field in (("/v1/completions", "prompt"), ("/v1/ask", "question")):
        asked = {"model": name, field: "a " * most}
        if field == "question":
            del asked["model"]
        error = server.post(path, asked).json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", field)
    assert not counted


def test_more_documents_than_are_cut_are_refused(make_server: Callable[..., Any]):
    server = make_server(max_document_chars=1000)
    error = refused(server, user(DOOR), documents=["a " * 300, "b " * 300], status=413)
    assert (error["code"], error["param"]) == ("too_large", "documents")
    assert "1,000" in error["message"]
