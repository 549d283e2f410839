"""What OpenAI's clients send: the fields that are understood, and with which values.

The models are strict, so that the OpenAPI document says what is really taken: a number is no string, and what
would change the answer and cannot be done is refused by its name. Fields that are not listed are ignored, as
OpenAI-compatible servers do. A list is read up to its first mistake: a large body may hold a million.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
)
from pydantic_core import PydanticCustomError

MOST = 2**31 - 1

JsonObject: TypeAlias = dict[str, Any]


class Lax(BaseModel):
    """A part of OpenAI's API: what is not listed is ignored."""

    model_config = ConfigDict(
        strict=True, extra="ignore", allow_inf_nan=False, use_attribute_docstrings=True
    )


class Exact(BaseModel):
    """A part of our own: a name that is not listed is a mistake."""

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


# --- values --------------------------------------------------------------------------------------


def refused(reason: str, *taken: object) -> BeforeValidator:
    """Take these values only, and say of any other why not."""

    def check(value: object) -> object:
        if not any(type(value) is type(one) and value == one for one in taken):
            raise PydanticCustomError("unsupported", "{reason}", {"reason": reason})
        return value

    return BeforeValidator(check)


def _integral(value: object) -> object:
    """JSON has one kind of number: 8.0 is an integer there."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _unicode(text: str) -> str:
    """Refuse half a character: JSON can write one (\\ud800), and no tokenizer can read it."""
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise PydanticCustomError("unicode", "half a surrogate pair is no text") from None
    return text


def _shape(value: object) -> str:
    """What stands there: an error then names what is wrong with that, and not all that might have stood there."""
    if isinstance(value, list):
        return "(list)"
    return "(object)" if isinstance(value, dict | BaseModel) else "(text)"


Count: TypeAlias = Annotated[int, Field(ge=1, le=MOST), BeforeValidator(_integral)]
Offset: TypeAlias = Annotated[int, Field(ge=0, le=MOST), BeforeValidator(_integral)]
Seed: TypeAlias = Annotated[int, BeforeValidator(_integral)]
TopK: TypeAlias = Annotated[int, Field(ge=-1, le=MOST), BeforeValidator(_integral)]
Passages: TypeAlias = Annotated[int, Field(ge=1, le=1000), BeforeValidator(_integral)]
Penalty: TypeAlias = Annotated[float, Field(ge=-2, le=2)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Heat: TypeAlias = Annotated[float, Field(ge=0, le=2)]
Cosine: TypeAlias = Annotated[float, Field(ge=-1, le=1)]
Identifier: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]
Text: TypeAlias = Annotated[str, AfterValidator(_unicode)]
Words: TypeAlias = Annotated[str, Field(min_length=1)]
One: TypeAlias = Annotated[
    Literal[1] | None, refused("this server makes one choice: leave it out, or give 1", None, 1)
]
NoBias: TypeAlias = Annotated[
    Annotated[JsonObject, Field(max_length=0)] | None,
    refused("this server biases no tokens: leave it out", None, {}),
]
Stop: TypeAlias = Annotated[
    Annotated[Words, Tag("(text)")]
    | Annotated[list[Words], Field(fail_fast=True, max_length=16), Tag("(list)")],
    Discriminator(_shape),
]


# --- messages ------------------------------------------------------------------------------------


def _text_only(value: object) -> object:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind != "text":
        raise PydanticCustomError(
            "unsupported",
            "this server reads text only, no part of type {kind}",
            {"kind": repr(kind[:40])},
        )
    return value


def _no_tools(value: object) -> object:
    if value in ("tool", "function"):
        raise PydanticCustomError(
            "unsupported",
            "this server calls no tools: leave out messages of the roles tool and function",
        )
    return value


class TextPart(Lax):
    """A part of a message. Images, sound and files are not read."""

    type: Literal["text"]
    text: Text


Part: TypeAlias = Annotated[TextPart, BeforeValidator(_text_only)]
Content: TypeAlias = Annotated[
    Annotated[Text, Tag("(text)")]
    | Annotated[list[Part], Field(fail_fast=True, min_length=1, max_length=1024), Tag("(list)")],
    Discriminator(_shape),
]


class ChunkReference(Exact):
    """A registered chunk, standing before the text of its message."""

    id: Identifier
    offset: Offset | None = None
    """The absolute position of its first token; without it, where it comes to stand."""


class Message(Lax):
    role: Annotated[Literal["system", "developer", "user", "assistant"], BeforeValidator(_no_tools)]
    content: Content
    chunk_references: (
        Annotated[list[ChunkReference], Field(fail_fast=True, max_length=1024)] | None
    ) = None
    """Chunks registered at /v1/chunks, in the order in which they are to stand."""

    @property
    def text(self) -> str:
        """The text of the message; its parts are joined as they are, with nothing between them."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class GivenDocument(Exact):
    id: Identifier | None = None
    title: Annotated[str, Field(max_length=1024)] | None = None
    text: Words


Given: TypeAlias = Annotated[
    Annotated[Words, Tag("(text)")] | Annotated[GivenDocument, Tag("(object)")],
    Discriminator(_shape),
]


# --- the shape of the answer -----------------------------------------------------------------------


class TextFormat(Lax):
    type: Literal["text"]


class JsonFormat(Lax):
    type: Literal["json_object"]


class NamedSchema(Lax):
    name: Annotated[str, Field(min_length=1, max_length=64)]
    schema_: Annotated[JsonObject, Field(alias="schema")] = Field(default_factory=dict)
    strict: bool | None = None


class SchemaFormat(Lax):
    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat: TypeAlias = Annotated[
    TextFormat | JsonFormat | SchemaFormat, Field(discriminator="type")
]


class StreamOptions(Lax):
    include_usage: bool | None = None
    """Send one piece more at the end, with the usage and no choices."""


# --- requests ------------------------------------------------------------------------------------


class Settings(Exact):
    """epicrag's own settings of a request."""

    link_policy: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """What of reused passages is computed again: full, prefix, none, legolink(16) …"""
    k: Passages | None = None
    """Passages to retrieve."""
    filter: Annotated[str, Field(min_length=1, max_length=10_000)] | None = None
    """Which passages may be found: year>=2020 and path~"manual/*"."""
    mode: Literal["hybrid", "dense", "words"] | None = None
    min_score: Cosine | Literal["auto"] | None = None
    """When to say that nothing was found: auto, or the cosine that a passage must reach."""
    strict: bool = False
    """Fail where the documents do not hold the answer."""


class Request(Lax):
    """What both kinds of completions take."""

    model: Annotated[str, Field(min_length=1, max_length=512)]
    """`epicrag` answers from the index; the name of the served model does not retrieve."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    """Most tokens of the answer; without it, what the server is configured to, or what fits."""
    temperature: Heat | None = None
    """0, the default, always takes the likeliest token."""
    top_p: Share | None = None
    top_k: TopK | None = None
    """Draw from so many tokens; 0 and -1: from all."""
    seed: Seed | None = None
    stop: Stop | None = None
    n: One = None
    presence_penalty: Penalty | None = None
    """Not applied, which is said in `epicrag.warnings`."""
    frequency_penalty: Penalty | None = None
    """Not applied, which is said in `epicrag.warnings`."""
    logit_bias: NoBias = None
    epicrag: Settings | None = None


_TOOL_CHOICE = "this server calls no tools: leave it out, or give auto or none"
_NO_LOGPROBS = "this server returns no log probabilities: leave it out"
_TEXT_ONLY = "this server writes text only: leave it out"


class ChatRequest(Request):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=4096)]
    max_completion_tokens: Count | None = None
    """As `max_tokens`, and before it."""
    response_format: ResponseFormat | None = None
    documents: Annotated[list[Given], Field(fail_fast=True, max_length=256)] | None = None
    """Texts that are chunked, cached and put before the last question as numbered passages."""
    tools: Annotated[list[JsonObject], Field(fail_fast=True)] | None = None
    """Ignored, which is said in `epicrag.warnings`."""
    functions: Annotated[list[JsonObject], Field(fail_fast=True)] | None = None
    """Ignored, which is said in `epicrag.warnings`."""
    tool_choice: Annotated[
        Literal["auto", "none"] | None, refused(_TOOL_CHOICE, None, "auto", "none")
    ] = None
    function_call: Annotated[
        Literal["auto", "none"] | None, refused(_TOOL_CHOICE, None, "auto", "none")
    ] = None
    logprobs: Annotated[Literal[False] | None, refused(_NO_LOGPROBS, None, False)] = None
    top_logprobs: Annotated[Literal[0] | None, refused(_NO_LOGPROBS, None, 0)] = None
    modalities: Annotated[
        Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None,
        refused(_TEXT_ONLY, None, ["text"]),
    ] = None
    audio: Annotated[None, refused(_TEXT_ONLY, None)] = None
    web_search_options: Annotated[
        None, refused("this server searches no web: leave it out", None)
    ] = None


def _prompts(value: object) -> object:
    """Refuse arrays of tokens by what they are: which ids they would be depends on a tokenizer."""
    if isinstance(value, list) and any(not isinstance(one, str) for one in value):
        raise PydanticCustomError(
            "unsupported", "arrays of tokens are not taken: give the prompt as text"
        )
    return value


Prompts: TypeAlias = Annotated[
    Annotated[Words, Tag("(text)")]
    | Annotated[list[Words], Field(fail_fast=True, min_length=1, max_length=64), Tag("(list)")],
    Discriminator(_shape),
    BeforeValidator(_prompts),
]


class CompletionRequest(Request):
    """The body of POST /v1/completions."""

    prompt: Prompts
    """A text, or several: a choice for each. The model goes on with it as it is."""
    best_of: One = None
    echo: Annotated[
        Literal[False] | None, refused("the prompt is not echoed: leave it out", None, False)
    ] = None
    suffix: Annotated[
        Literal[""] | None, refused("text is not inserted before another: leave it out", None, "")
    ] = None
    logprobs: Annotated[None, refused(_NO_LOGPROBS, None)] = None

    @property
    def prompts(self) -> list[str]:
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt
