"""Chat engines that keep segments: passages are reused whole, the conversation is real messages.

No text of a user, a document or an earlier answer ever goes through a template.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import llama_index.core.instrumentation as instrument
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole
from llama_index.core.callbacks import CallbackManager, trace_method
from llama_index.core.chat_engine.types import (
    AgentChatResponse,
    BaseChatEngine,
    StreamingAgentChatResponse,
)
from llama_index.core.instrumentation.events.chat_engine import (
    StreamChatDeltaReceivedEvent,
    StreamChatEndEvent,
    StreamChatErrorEvent,
    StreamChatStartEvent,
)
from llama_index.core.memory import BaseMemory, ChatMemoryBuffer
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.settings import Settings
from llama_index.core.tools import ToolOutput

from epicrag.errors import UsageError
from epicrag.llamaindex.condense import condensed, condensing
from epicrag.llamaindex.llm import EpicragLLM
from epicrag.llamaindex.owner import Owner, checked
from epicrag.llamaindex.synthesizer import EpicragSynthesizer

dispatcher = instrument.get_dispatcher(__name__)  # type: ignore[attr-defined]

NO_LIMIT = 1 << 40
"""Tokens that the default memory keeps: what goes into a prompt is decided when it is laid out."""


@dataclass
class EpicragStreamingChatResponse(StreamingAgentChatResponse):
    """An answer being streamed; `metadata` is the synthesizer's, complete at its end.

    The turn is in the memory when the answer has been read to its end.
    """

    metadata: dict[str, Any] | None = None
    is_writing_to_memory: bool = False


@dataclass(frozen=True, slots=True)
class _Turn:
    """One message of the user: what it was searched with, and what was found."""

    message: str
    query: str
    history: list[ChatMessage]
    nodes: list[NodeWithScore]

    def sources(self) -> list[ToolOutput]:
        return [
            ToolOutput(
                tool_name="retriever",
                content=str(self.nodes),
                raw_input={"message": self.query},
                raw_output=self.nodes,
            )
        ]

    def said(self, answer: str) -> list[ChatMessage]:
        return [
            ChatMessage(role=MessageRole.USER, content=self.message),
            ChatMessage(role=MessageRole.ASSISTANT, content=answer),
        ]


class EpicragContextChatEngine(Owner, BaseChatEngine):
    """Retrieves for each message, and answers it from the passages and the conversation.

    Used as LlamaIndex's `ContextChatEngine` is, with any of its memories. What the prompt has no room for leaves
    it: first the oldest turns of the conversation, whole, then passages. `response.metadata` is that of
    `EpicragSynthesizer`. Where nothing is found it says so, unless `answer_without_nodes`.
    """

    def __init__(
        self,
        retriever: BaseRetriever,
        llm: EpicragLLM,
        memory: BaseMemory,
        prefix_messages: Sequence[ChatMessage] = (),
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        *,
        system_prompt: str | None = None,
        cite: bool = True,
        answer_without_nodes: bool = False,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        """`prefix_messages` (examples, say) stand before the conversation in every prompt, and are kept whole."""
        self._retriever = retriever
        self._llm = llm
        self._memory = memory
        self._prefix = list(prefix_messages)
        self._system_prompt = system_prompt
        self._cite = cite
        self._answer_without_nodes = answer_without_nodes
        self._node_postprocessors = list(node_postprocessors or ())
        self.callback_manager = callback_manager or CallbackManager([])
        for postprocessor in self._node_postprocessors:
            postprocessor.callback_manager = self.callback_manager

    @classmethod
    def from_defaults(
        cls,
        retriever: BaseRetriever,
        llm: EpicragLLM | None = None,
        chat_history: Sequence[ChatMessage] | None = None,
        memory: BaseMemory | None = None,
        system_prompt: str | None = None,
        prefix_messages: Sequence[ChatMessage] | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        callback_manager: CallbackManager | None = None,
        **options: Any,
    ) -> Self:
        """The engine with LlamaIndex's arguments; `options` are those of the class itself.

        UsageError: the model is no EpicragLLM, or an option is none.
        """
        llm = checked(llm, cls.__name__)
        if unknown := options.keys() - cls._options():
            raise UsageError(
                f"{cls.__name__} takes no {', '.join(sorted(unknown))}",
                "passages and messages go to the model as they are: say the rest in system_prompt",
            )
        if system_prompt is not None and prefix_messages and prefix_messages[0].role == "system":
            raise UsageError(
                "there are a system_prompt and a system message in prefix_messages",
                "give one of them",
            )
        if memory is None:
            memory = ChatMemoryBuffer.from_defaults(
                chat_history=list(chat_history or ()),
                token_limit=NO_LIMIT,
                tokenizer_fn=llm.engine.tokenizer.ids,  # type: ignore[arg-type]
            )
        elif chat_history:
            memory.set(list(chat_history))
        return cls(
            retriever,
            llm,
            memory,
            prefix_messages or (),
            node_postprocessors,
            system_prompt=system_prompt,
            callback_manager=callback_manager or Settings.callback_manager,
            **options,
        )

    @classmethod
    def _options(cls) -> set[str]:
        return {"cite", "answer_without_nodes"}

    # --- LlamaIndex's verbs ---

    @trace_method("chat")
    def chat(
        self,
        message: str,
        chat_history: list[ChatMessage] | None = None,
        prev_chunks: list[NodeWithScore] | None = None,
    ) -> AgentChatResponse:
        """Answer a message; `chat_history` replaces the memory, `prev_chunks` are used where nothing is found."""
        turn = self._begin(message, chat_history, prev_chunks)
        response = self._synthesizer(turn).synthesize(turn.message, turn.nodes)
        for said in turn.said(str(response)):
            self._memory.put(said)
        return self._whole(turn, response)

    @trace_method("chat")
    def stream_chat(
        self,
        message: str,
        chat_history: list[ChatMessage] | None = None,
        prev_chunks: list[NodeWithScore] | None = None,
    ) -> EpicragStreamingChatResponse:
        turn = self._begin(message, chat_history, prev_chunks)
        answer: Any = self._synthesizer(turn, streaming=True).synthesize(turn.message, turn.nodes)
        response = self._streaming(turn, answer)
        response.chat_stream = self._told(turn, answer.response_gen, response)
        return response

    @trace_method("chat")
    async def achat(
        self,
        message: str,
        chat_history: list[ChatMessage] | None = None,
        prev_chunks: list[NodeWithScore] | None = None,
    ) -> AgentChatResponse:
        turn = await self._abegin(message, chat_history, prev_chunks)
        response = await self._synthesizer(turn).asynthesize(turn.message, turn.nodes)
        for said in turn.said(str(response)):
            await self._memory.aput(said)
        return self._whole(turn, response)

    @trace_method("chat")
    async def astream_chat(
        self,
        message: str,
        chat_history: list[ChatMessage] | None = None,
        prev_chunks: list[NodeWithScore] | None = None,
    ) -> EpicragStreamingChatResponse:
        turn = await self._abegin(message, chat_history, prev_chunks)
        synthesizer = self._synthesizer(turn, streaming=True)
        answer: Any = await synthesizer.asynthesize(turn.message, turn.nodes)
        response = self._streaming(turn, answer)
        response.achat_stream = self._atold(turn, answer.async_response_gen(), response)
        return response

    def reset(self) -> None:
        self._memory.reset()

    @property
    def chat_history(self) -> list[ChatMessage]:
        return self._memory.get_all()

    # --- the question ---

    def _begin(
        self,
        message: str,
        chat_history: list[ChatMessage] | None,
        instead: list[NodeWithScore] | None,
    ) -> _Turn:
        if chat_history is not None:
            self._memory.set(chat_history)
        history = self._memory.get(input=message)
        query = self._query(message, history)
        nodes = self._retriever.retrieve(query)
        for postprocessor in self._node_postprocessors:
            nodes = postprocessor.postprocess_nodes(nodes, query_bundle=QueryBundle(query))
        return _Turn(message, query, history, nodes or list(instead or ()))

    async def _abegin(
        self,
        message: str,
        chat_history: list[ChatMessage] | None,
        instead: list[NodeWithScore] | None,
    ) -> _Turn:
        if chat_history is not None:
            await self._memory.aset(chat_history)
        history = await self._memory.aget(input=message)
        query = await self._aquery(message, history)
        nodes = await self._retriever.aretrieve(query)
        for postprocessor in self._node_postprocessors:
            nodes = await postprocessor.apostprocess_nodes(nodes, query_bundle=QueryBundle(query))
        return _Turn(message, query, history, nodes or list(instead or ()))

    def _query(self, message: str, history: Sequence[ChatMessage]) -> str:
        """What is searched for."""
        return message

    async def _aquery(self, message: str, history: Sequence[ChatMessage]) -> str:
        return message

    # --- the answer ---

    def _synthesizer(self, turn: _Turn, *, streaming: bool = False) -> EpicragSynthesizer:
        return EpicragSynthesizer(
            self._llm,
            system_prompt=self._system_prompt,
            prefix_messages=self._prefix,
            history=turn.history,
            streaming=streaming,
            cite=self._cite,
            answer_without_nodes=self._answer_without_nodes,
            callback_manager=self.callback_manager,
        )

    @staticmethod
    def _whole(turn: _Turn, response: Any) -> AgentChatResponse:
        return AgentChatResponse(
            response=str(response),
            sources=turn.sources(),
            source_nodes=response.source_nodes,
            metadata=response.metadata,
        )

    @staticmethod
    def _streaming(turn: _Turn, answer: Any) -> EpicragStreamingChatResponse:
        return EpicragStreamingChatResponse(
            sources=turn.sources(), source_nodes=answer.source_nodes, metadata=answer.metadata
        )

    def _told(
        self,
        turn: _Turn,
        deltas: Generator[str, None, None],
        response: EpicragStreamingChatResponse,
    ) -> Generator[ChatResponse, None, None]:
        """The answer as it is read, and the turn into the memory at its end."""
        text = ""
        dispatcher.event(StreamChatStartEvent())
        try:
            for delta in deltas:
                text += delta
                yield _told(text, delta)
        except Exception as error:
            dispatcher.event(StreamChatErrorEvent(exception=error))
            raise
        for said in turn.said(text):
            self._memory.put(said)
        response.is_done = True
        dispatcher.event(StreamChatEndEvent())

    async def _atold(
        self,
        turn: _Turn,
        deltas: AsyncGenerator[str, None],
        response: EpicragStreamingChatResponse,
    ) -> AsyncGenerator[ChatResponse, None]:
        text = ""
        dispatcher.event(StreamChatStartEvent())
        try:
            async for delta in deltas:
                text += delta
                yield _told(text, delta)
        except Exception as error:
            dispatcher.event(StreamChatErrorEvent(exception=error))
            raise
        for said in turn.said(text):
            await self._memory.aput(said)
        response.is_done = True
        dispatcher.event(StreamChatEndEvent())


class EpicragCondensePlusContextChatEngine(EpicragContextChatEngine):
    """Retrieves for what a message asks in the light of the conversation, as the model puts it in one question.

    The model still answers the message itself. `condense_prompt` is a template of yours with {chat_history} and
    {question}; `skip_condense` searches for the message as it is.
    """

    def __init__(
        self,
        *parts: Any,
        condense_prompt: str | BasePromptTemplate | None = None,
        skip_condense: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(*parts, **options)
        if isinstance(condense_prompt, str):
            condense_prompt = PromptTemplate(condense_prompt)
        self._template = condense_prompt
        self._skip_condense = skip_condense

    @classmethod
    def _options(cls) -> set[str]:
        return {*super()._options(), "condense_prompt", "skip_condense"}

    def _query(self, message: str, history: Sequence[ChatMessage]) -> str:
        if self._skip_condense or not history:
            return message
        asked = condensing(self._llm, history, message, self._template)
        return condensed(self._llm.chat(asked.messages, max_tokens=asked.max_tokens), message)

    async def _aquery(self, message: str, history: Sequence[ChatMessage]) -> str:
        if self._skip_condense or not history:
            return message
        asked = await asyncio.to_thread(condensing, self._llm, history, message, self._template)
        response = await self._llm.achat(asked.messages, max_tokens=asked.max_tokens)
        return condensed(response, message)


def _told(text: str, delta: str) -> ChatResponse:
    dispatcher.event(StreamChatDeltaReceivedEvent(delta=delta))
    message = ChatMessage(role=MessageRole.ASSISTANT, content=text)
    return ChatResponse(message=message, delta=delta)
