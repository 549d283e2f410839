"""Structured output: a pydantic class becomes a grammar, and the model can write nothing but its JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import llama_index.core.instrumentation as instrument
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CitableBlock,
    MessageRole,
    TextBlock,
)
from llama_index.core.bridge.pydantic import BaseModel, ValidationError
from llama_index.core.instrumentation.events.llm import (
    LLMStructuredPredictEndEvent,
    LLMStructuredPredictInProgressEvent,
    LLMStructuredPredictStartEvent,
)
from llama_index.core.llms.callbacks import llm_chat_callback
from llama_index.core.llms.structured_llm import StructuredLLM
from llama_index.core.program.utils import FlexibleModel, create_flexible_model
from llama_index.core.prompts.base import BasePromptTemplate, ChatPromptTemplate
from pydantic_core import from_json

from epicrag.errors import UsageError
from epicrag.llamaindex.shape import schema_of
from epicrag.serving.constrain import Grammar, subschemas

if TYPE_CHECKING:
    from epicrag.llamaindex.llm import EpicragLLM

dispatcher = instrument.get_dispatcher(__name__)  # type: ignore[attr-defined]

M = TypeVar("M", bound=BaseModel)
Settings: TypeAlias = "dict[str, Any] | None"


class StructuredVerbs:
    """What LlamaIndex asks of an LLM that fills pydantic classes, by constrained decoding.

    Of a prompt's messages the CitableBlocks stay segments, to the byte; what the class looks like is said behind
    the question. `llm_kwargs` are settings of the model for this call. All verbs raise UsageError for a class that
    no grammar can follow and for an answer that was cut short, and pydantic's ValidationError where a validator
    of the class refuses what its schema allows.
    """

    @dispatcher.span
    def structured_predict(
        self,
        output_cls: type[M],
        prompt: BasePromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> M:
        llm, messages = _begun(self, output_cls, prompt, prompt_args)
        output = filled(output_cls, ask(llm, output_cls, messages, llm_kwargs))
        dispatcher.event(LLMStructuredPredictEndEvent(output=output))
        return output

    @dispatcher.span
    async def astructured_predict(
        self,
        output_cls: type[M],
        prompt: BasePromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> M:
        llm, messages = _begun(self, output_cls, prompt, prompt_args)
        output = filled(output_cls, await aask(llm, output_cls, messages, llm_kwargs))
        dispatcher.event(LLMStructuredPredictEndEvent(output=output))
        return output

    @dispatcher.span
    def stream_structured_predict(
        self,
        output_cls: type[M],
        prompt: BasePromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Generator[M | FlexibleModel, None, None]:
        """Yield the object as far as it is written, each time it has grown; the last one is whole and valid."""
        llm, messages = _begun(self, output_cls, prompt, prompt_args)
        growing = Growing(output_cls)
        with closing(stream(llm, output_cls, messages, llm_kwargs)) as responses:
            for response in responses:
                for partial in growing.take(response):
                    dispatcher.event(LLMStructuredPredictInProgressEvent(output=partial))
                    yield partial
        dispatcher.event(LLMStructuredPredictEndEvent(output=growing.latest))

    @dispatcher.span
    async def astream_structured_predict(
        self,
        output_cls: type[M],
        prompt: BasePromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> AsyncGenerator[M | FlexibleModel, None]:
        async def partials() -> AsyncGenerator[M | FlexibleModel, None]:
            llm, messages = _begun(self, output_cls, prompt, prompt_args)
            growing = Growing(output_cls)
            async for response in await astream(llm, output_cls, messages, llm_kwargs):
                for partial in growing.take(response):
                    dispatcher.event(LLMStructuredPredictInProgressEvent(output=partial))
                    yield partial
            dispatcher.event(LLMStructuredPredictEndEvent(output=growing.latest))

        return partials()

    def as_structured_llm(self, output_cls: type[BaseModel], **kwargs: Any) -> EpicragStructuredLLM:
        """This model as one whose every answer is an object of a class."""
        llm: Any = self
        return EpicragStructuredLLM(llm=llm, output_cls=output_cls, **kwargs)


class EpicragStructuredLLM(StructuredLLM):
    """An `EpicragLLM` whose answers are objects: `response.raw` is the object, `response.message` its JSON.

    The messages are given on as they are, no template is applied to them. `response.additional_kwargs` holds what
    `raw` of the model itself does: `usage`, `receipt` and the rest.
    """

    @classmethod
    def class_name(cls) -> str:
        return "EpicragStructuredLLM"

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        said = ask(self.llm, self.output_cls, messages, kwargs)
        return _with_object(filled(self.output_cls, said), said)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        said = await aask(self.llm, self.output_cls, messages, kwargs)
        return _with_object(filled(self.output_cls, said), said)

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        def partials() -> ChatResponseGen:
            growing: Growing[Any] = Growing(self.output_cls)
            with closing(stream(self.llm, self.output_cls, messages, kwargs)) as responses:
                for response in responses:
                    for partial in growing.take(response):
                        yield _with_object(partial, response)

        return partials()

    @llm_chat_callback()
    async def astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> ChatResponseAsyncGen:
        async def partials() -> ChatResponseAsyncGen:
            growing: Growing[Any] = Growing(self.output_cls)
            async for response in await astream(self.llm, self.output_cls, messages, kwargs):
                for partial in growing.take(response):
                    yield _with_object(partial, response)

        return partials()


class Growing(Generic[M]):
    """An object being written: as much of it as its JSON tells so far, and the whole of it at the end."""

    def __init__(self, output_cls: type[M]) -> None:
        self._output_cls = output_cls
        self._flexible = create_flexible_model(output_cls)
        self._shown: Any = None
        self.latest: M | FlexibleModel | None = None

    def take(self, response: ChatResponse) -> list[M | FlexibleModel]:
        """The object, if this response tells more of it than those before did."""
        if "receipt" in _raw(response):
            self.latest = filled(self._output_cls, response)
            return [self.latest]
        try:
            data = from_json(response.message.content or "", allow_partial="trailing-strings")
        except ValueError:
            return []
        if not isinstance(data, dict) or not data or data == self._shown:
            return []
        self._shown = data
        try:
            self.latest = self._output_cls.model_validate(data)
        except ValidationError:
            self.latest = self._flexible.model_validate(data)
        return [self.latest]


# --- what is asked -------------------------------------------------------------------------------


def ask(
    llm: Any, output_cls: type[BaseModel], messages: Sequence[ChatMessage], settings: Settings
) -> ChatResponse:
    """The model's answer as JSON of a class."""
    said: ChatResponse = llm.chat(told(output_cls, messages), **_constrained(output_cls, settings))
    return said


async def aask(
    llm: Any, output_cls: type[BaseModel], messages: Sequence[ChatMessage], settings: Settings
) -> ChatResponse:
    said: ChatResponse = await llm.achat(
        told(output_cls, messages), **_constrained(output_cls, settings)
    )
    return said


def stream(
    llm: Any, output_cls: type[BaseModel], messages: Sequence[ChatMessage], settings: Settings
) -> Generator[ChatResponse, None, None]:
    responses: Generator[ChatResponse, None, None] = llm.stream_chat(
        told(output_cls, messages), **_constrained(output_cls, settings)
    )
    return responses


async def astream(
    llm: Any, output_cls: type[BaseModel], messages: Sequence[ChatMessage], settings: Settings
) -> AsyncGenerator[ChatResponse, None]:
    responses: AsyncGenerator[ChatResponse, None] = await llm.astream_chat(
        told(output_cls, messages), **_constrained(output_cls, settings)
    )
    return responses


def grammar_of(output_cls: type[BaseModel]) -> Grammar:
    """JSON that the class takes. UsageError, with the place, for what no grammar can follow."""
    schema = schema_of(output_cls)
    for _, part in subschemas(schema, "#"):
        if "properties" in part:
            part.setdefault("additionalProperties", False)  # pydantic would pass over them
    return Grammar.json_schema(schema)


def told(output_cls: type[BaseModel], messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The messages, with the class's schema as the last text: behind all segments, whose KV it leaves alone."""
    if not messages:
        raise UsageError("there is no message to answer", "give at least one")
    *before, last = messages
    schema = json.dumps(_untitled(output_cls.model_json_schema()), ensure_ascii=False)
    text = TextBlock(text=f"Answer with JSON that follows this schema: {schema}")
    return [*before, last.model_copy(update={"blocks": [*last.blocks, text]})]


def messages_of(
    llm: EpicragLLM, prompt: BasePromptTemplate, prompt_args: dict[str, Any]
) -> list[ChatMessage]:
    """A prompt's messages, formatted; its segments are left as they are, whatever braces they hold."""
    messages = prompt.format_messages(llm=llm, **prompt_args)
    if isinstance(prompt, ChatPromptTemplate):
        pairs = zip(messages, prompt.message_templates, strict=False)
        messages = [_unformatted(message, template) for message, template in pairs]
    return llm._extend_messages(messages)


def _unformatted(message: ChatMessage, template: ChatMessage) -> ChatMessage:
    if len(message.blocks) != len(template.blocks):
        return message
    blocks = [
        given if isinstance(given, CitableBlock) else block
        for block, given in zip(message.blocks, template.blocks, strict=True)
    ]
    return message.model_copy(update={"blocks": blocks})


def _begun(
    llm: Any,
    output_cls: type[BaseModel],
    prompt: BasePromptTemplate,
    prompt_args: dict[str, Any],
) -> tuple[Any, list[ChatMessage]]:
    dispatcher.event(
        LLMStructuredPredictStartEvent(
            output_cls=output_cls, template=prompt, template_args=prompt_args
        )
    )
    return llm, messages_of(llm, prompt, prompt_args)


def _constrained(output_cls: type[BaseModel], settings: Settings) -> dict[str, Any]:
    return {**(settings or {}), "grammar": grammar_of(output_cls)}


def _untitled(part: Any) -> Any:
    """A schema without the titles that pydantic makes of names."""
    if isinstance(part, dict):
        return {
            key: _untitled(value)
            for key, value in part.items()
            if not (key == "title" and isinstance(value, str))
        }
    return [_untitled(value) for value in part] if isinstance(part, list) else part


# --- what is answered ----------------------------------------------------------------------------


def filled(output_cls: type[M], said: ChatResponse) -> M:
    """The object of a whole answer. UsageError when it was cut short."""
    raw = _raw(said)
    n_tokens = raw.get("usage", {}).get("completion_tokens", 0)
    return whole(output_cls, said.message.content or "", raw.get("finish_reason", ""), n_tokens)


def whole(output_cls: type[M], text: str, finish_reason: str, n_tokens: int) -> M:
    """The object that a text is the JSON of. UsageError when the text ends before it does."""
    if finish_reason == "length":
        raise UsageError(
            f"the answer was cut off after {n_tokens} tokens, before the {output_cls.__name__} was whole",
            "raise max_tokens, or bound the texts and lists of the class (max_length)",
        )
    return output_cls.model_validate_json(text)


def _with_object(output: BaseModel, said: ChatResponse) -> ChatResponse:
    message = ChatMessage(role=MessageRole.ASSISTANT, content=output.model_dump_json())
    return ChatResponse(message=message, raw=output, additional_kwargs=_raw(said))


def _raw(response: ChatResponse) -> dict[str, Any]:
    return response.raw if isinstance(response.raw, dict) else {}
