"""`EpicragSynthesizer`: nodes to an answer, each node one segment that the engine can reuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from itertools import chain
from typing import Any

import llama_index.core.instrumentation as instrument
from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    PydanticResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.callbacks.schema import CBEventType, EventPayload
from llama_index.core.indices import prompt_helper
from llama_index.core.instrumentation.events.synthesis import (
    GetResponseEndEvent,
    GetResponseStartEvent,
    SynthesizeEndEvent,
    SynthesizeStartEvent,
)
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.response_synthesizers.base import BaseSynthesizer
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType

from epicrag.errors import UsageError
from epicrag.llamaindex.blocks import Segment
from epicrag.llamaindex.draft import Draft
from epicrag.llamaindex.llm import EpicragLLM
from epicrag.llamaindex.owner import checked
from epicrag.llamaindex.structured import EpicragStructuredLLM, grammar_of, told, whole
from epicrag.llamaindex.turns import newest

dispatcher = instrument.get_dispatcher(__name__)  # type: ignore[attr-defined]


class EpicragSynthesizer(BaseSynthesizer):
    """Answers from nodes of any retriever, in their order, each text once and byte for byte.

    What does not fit the model's window is dropped whole, from the tail, and leaves `source_nodes`.
    Without nodes it says so and asks no model. `response.metadata` holds `receipt`, `usage`, `policy`,
    `dropped`, `cited` (numbers of the source nodes that the answer comes from), `answered` and `notes` (what
    a reader should know: cut short, stopped as it repeated itself …); of a stream they are complete at its end. `cite` marks each sentence with the numbers of its passages.

    With `output_cls`, or a model made by `as_structured_llm`, the answer is an object of that class
    (`PydanticResponse`), or its JSON as a stream, without citations.

    `prefix_messages` and then `history` stand before the question as they are: of a history that does not fit
    beside the passages, the oldest turns are left out whole. With `answer_without_nodes` the model answers from it where there are none.
    """

    def __init__(
        self,
        llm: EpicragLLM | None = None,
        *,
        system_prompt: str | None = None,
        streaming: bool = False,
        cite: bool = True,
        output_cls: type[BaseModel] | None = None,
        prefix_messages: Sequence[ChatMessage] = (),
        history: Sequence[ChatMessage] = (),
        answer_without_nodes: bool = False,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        """UsageError: the model (by default that of Settings) is none that reads CitableBlocks as segments."""
        if isinstance(llm, EpicragStructuredLLM):
            llm, output_cls = llm.llm, llm.output_cls
        llm = checked(llm, "EpicragSynthesizer")
        super().__init__(
            llm=llm, callback_manager=callback_manager, streaming=streaming, **_helpers(llm)
        )
        self._model = llm
        self._system = system_prompt or llm.system_prompt or llm.documents_prompt
        self._shape = output_cls
        self._cite = cite and output_cls is None  # markers would be no JSON
        self._prefix = list(prefix_messages)
        self._history = list(history)
        self._is_free = answer_without_nodes

    def _get_prompts(self) -> PromptDictType:
        return {}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        if prompts:
            raise UsageError(
                f"EpicragSynthesizer has no prompt template {next(iter(prompts))!r}",
                "text is never put through templates here: give system_prompt=… when you make it",
            )

    # --- nodes to a response ---

    @dispatcher.span
    def synthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        """Answer a query; `response_kwargs` are settings of the model for this call."""
        draft = self._draft(_text_of(query), map(Segment.of, nodes), additional_source_nodes)
        with self._synthesis(query) as finished:
            text = self._write(draft, response_kwargs)
            response = self._response(text, draft, StreamingResponse)
            finished(response)
        return response

    @dispatcher.span
    async def asynthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        draft = self._draft(_text_of(query), map(Segment.of, nodes), additional_source_nodes)
        with self._synthesis(query) as finished:
            text = await self._awrite(draft, response_kwargs)
            response = self._response(text, draft, AsyncStreamingResponse)
            finished(response)
        return response

    # --- texts to text, for callers without nodes ---

    def get_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> str | Generator[str, None, None]:
        return self._write(self._draft(query_str, map(Segment, text_chunks)), response_kwargs)

    async def aget_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> str | AsyncGenerator[str, None]:
        draft = self._draft(query_str, map(Segment, text_chunks))
        return await self._awrite(draft, response_kwargs)

    # --- the work ---

    def _draft(
        self,
        question: str,
        segments: Iterator[Segment],
        extra: Sequence[NodeWithScore] | None = None,
    ) -> Draft:
        return Draft(
            question,
            self._system,
            segments,
            extra or (),
            cite=self._cite,
            prefix=self._prefix,
            history=self._history,
            is_free=self._is_free,
        )

    def _messages(self, draft: Draft, settings: dict[str, Any]) -> list[ChatMessage]:
        """What the model reads: no turn of the history costs a passage its place."""
        if draft.history:

            def room(history: list[ChatMessage]) -> int | None:
                return self._model.segments_in(self._told(draft.messages(history)), **settings)

            most = room([])
            draft.keep(*newest(draft.history, lambda history: room(history) == most))
        return self._told(draft.messages())

    def _told(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        return told(self._shape, messages) if self._shape else messages

    def _settings(self, given: dict[str, Any]) -> dict[str, Any]:
        return {**given, "grammar": grammar_of(self._shape)} if self._shape else given

    def _response(
        self, text: Any, draft: Draft, streaming: type[StreamingResponse | AsyncStreamingResponse]
    ) -> RESPONSE_TYPE:
        """What is returned; an object where a class was given, unless no model was asked."""
        if not isinstance(text, str):
            return streaming(text, draft.nodes, draft.metadata)
        if self._shape is None or not draft.metadata["answered"]:
            return Response(text, draft.nodes, draft.metadata)
        output = whole(self._shape, text, draft.finish_reason, draft.n_tokens)
        return PydanticResponse(output, draft.nodes, draft.metadata)

    def _write(self, draft: Draft, settings: dict[str, Any]) -> str | Generator[str, None, None]:
        """The answer, or its stream. The first token is waited for: what was used is known with it."""
        settings = self._settings(settings)
        with _getting(draft):
            if not draft.is_asking:
                return _stream(draft) if self._streaming else draft.finish()
            if not self._streaming:
                return draft.whole(self._model.chat(self._messages(draft, settings), **settings))
            responses = self._model.stream_chat(self._messages(draft, settings), **settings)
            first = next(responses)
            if not draft.begin(first):
                responses.close()
                return _stream(draft)
            return _stream(draft, chain([first], responses))

    async def _awrite(
        self, draft: Draft, settings: dict[str, Any]
    ) -> str | AsyncGenerator[str, None]:
        settings = self._settings(settings)
        with _getting(draft):
            if not draft.is_asking:
                return _astream(draft) if self._streaming else draft.finish()
            messages = await asyncio.to_thread(self._messages, draft, settings)
            if not self._streaming:
                return draft.whole(await self._model.achat(messages, **settings))
            responses = await self._model.astream_chat(messages, **settings)
            first = await anext(responses)
            if not draft.begin(first):
                await responses.aclose()
                return _astream(draft)
            return _astream(draft, first, responses)

    @contextmanager
    def _synthesis(self, query: QueryType) -> Iterator[Callable[[RESPONSE_TYPE], None]]:
        """The events around a synthesis, of both of LlamaIndex's systems; call the result to end it."""
        responses: list[RESPONSE_TYPE] = []
        dispatcher.event(SynthesizeStartEvent(query=query))
        payload: dict[str, Any] = {EventPayload.QUERY_STR: _text_of(query)}
        with self._callback_manager.event(CBEventType.SYNTHESIZE, payload=payload) as event:
            yield responses.append
            event.on_end(payload={EventPayload.RESPONSE: responses[0]})
        dispatcher.event(SynthesizeEndEvent(query=query, response=responses[0]))


@contextmanager
def _getting(draft: Draft) -> Iterator[None]:
    texts = [segment.text for segment in draft.segments]
    dispatcher.event(GetResponseStartEvent(query_str=draft.question, text_chunks=texts))
    yield
    dispatcher.event(GetResponseEndEvent())


def _stream(draft: Draft, responses: Iterable[ChatResponse] = ()) -> Generator[str, None, None]:
    for response in responses:
        if text := draft.feed(response):
            yield text
    if text := draft.finish():
        yield text


async def _astream(
    draft: Draft,
    first: ChatResponse | None = None,
    rest: AsyncGenerator[ChatResponse, None] | None = None,
) -> AsyncGenerator[str, None]:
    if first and (text := draft.feed(first)):
        yield text
    if rest:
        async for response in rest:
            if text := draft.feed(response):
                yield text
    if text := draft.finish():
        yield text


def _text_of(query: QueryType) -> str:
    return query.query_str if isinstance(query, QueryBundle) else query


def _helpers(llm: EpicragLLM) -> dict[str, Any]:
    """The base class's budget helpers, counting with the model's own tokenizer. Nothing here repacks."""
    taken = signature(BaseSynthesizer.__init__).parameters
    names = {"PromptHelper": "prompt_helper", "ChatPromptHelper": "chat_prompt_helper"}
    return {
        argument: getattr(prompt_helper, name).from_llm_metadata(
            llm.metadata, tokenizer=llm.engine.tokenizer.ids
        )
        for name, argument in names.items()
        if argument in taken  # the second came with 0.14.22
    }
