"""A request of OpenAI's being answered: pieces of text, then what there is to know of them.

All of this runs in a thread of its own (`answering.run`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from epicrag.ask import AnswerStream, Ask, notes_on
from epicrag.errors import UsageError
from epicrag.repeats import UntilRepeat
from epicrag.server import shelf
from epicrag.server.asked import Passage, as_chat, as_prompt, conversation, form_of, references_of
from epicrag.server.errors import ApiError, not_found, status_of
from epicrag.server.openai_replies import Refused, Written
from epicrag.server.openai_types import ChatRequest, CompletionRequest, Message
from epicrag.server.state import INDEX_MODEL, State
from epicrag.server.wishes import Wishes, pointless, wishes_of
from epicrag.types import Chunk, Hit

if TYPE_CHECKING:
    from epicrag.server.jobs import Job
    from epicrag.server.tenants import Tenant
    from epicrag.serving.generation import Generation
    from epicrag.serving.prompt import Chat, Prompt

T = TypeVar("T")
Item: TypeAlias = str | Refused | Written

ANSWER_SHARE = 2
"""Of the window at most one in so many tokens is for an answer whose length was not asked for."""


def retrieves(state: State, tenant: Tenant, model: str) -> bool:
    """Whether a model of this name answers from the index. ApiError 404 for a name that is not known."""
    if model == state.model_name:
        return False
    if model != INDEX_MODEL:
        known = " or ".join(state.models_for(tenant))
        raise not_found("model", model, f"ask {known}", param="model")
    state.refuse_index(tenant)
    return True


@dataclass(frozen=True, slots=True)
class Writer:
    """Answers requests of one tenant, under one job."""

    state: State
    tenant: Tenant
    job: Job

    def chat(self, request: ChatRequest) -> Iterator[Item]:
        """Answer a conversation, from the index, from what came with it, or as it is."""
        wishes = wishes_of(request)
        from_index = retrieves(self.state, self.tenant, request.model)
        given = request.documents or any(m.chunk_references for m in request.messages)
        if from_index and not given:
            return self._from_index(request.messages, wishes)
        what = "passages came with the request" if from_index else f"{request.model} searches none"
        warned = replace(
            wishes,
            warnings=(
                *wishes.warnings,
                *(["the index was not searched: " + what] if from_index else []),
                *pointless(wishes.settings, what),
            ),
        )
        if form_of(request.messages, bool(request.documents)) == "prompt":
            return self._from_given(request, warned)
        return self._conversing(request.messages, warned)

    def completion(self, request: CompletionRequest, prompt: str) -> Iterator[Item]:
        """Go on with one prompt of a request, as it is; from the index, where it is a question for that."""
        wishes = wishes_of(request)
        messages = [Message(role="user", content=prompt)]
        if retrieves(self.state, self.tenant, request.model):
            return self._from_index(messages, wishes, "prompt")
        why = f"{request.model} searches none"
        warnings = (*wishes.warnings, *pointless(wishes.settings, why))
        return self._conversing(messages, replace(wishes, warnings=warnings), is_raw=True)

    # --- three ways to an answer ---

    def _from_index(
        self, messages: Sequence[Message], wishes: Wishes, field: str = "messages"
    ) -> Iterator[Item]:
        """Passages found by the last message, with those before it as the conversation so far."""
        pipeline, said, settings = self.state.pipeline, conversation(messages), wishes.settings
        # Earlier turns are left out where they do not fit.
        self.state.refuse_long(len(said.question) + len(said.system), field)
        stream = pipeline.stream(
            said.question,
            k=settings.k,
            policy=wishes.chosen_policy(pipeline.config.link_policy),
            sampling=wishes.sampling(self._most(wishes)),
            strict=settings.strict,
            filter=settings.filter,
            mode=settings.mode,
            min_score=settings.min_score,
            history=said.turns,
            namespace=self.tenant.namespace,
            system=said.system or None,
            cite=not wishes.is_json,
        )
        return self._cited(stream, wishes)

    def _from_given(self, request: ChatRequest, wishes: Wishes) -> Iterator[Item]:
        """Passages that the client gave, numbered before its question."""
        said = conversation(request.messages)
        self.state.refuse_long(_length(request.messages), "messages")
        passages = self._passages(request)
        config = self.state.pipeline.config
        prompt = as_prompt(
            said, passages, system=config.system_prompt, namespace=self.tenant.namespace
        )
        generation = self._generate(prompt, wishes, self._most(wishes))
        ask = Ask(
            said.question,
            tuple(_hit(n, passage) for n, passage in enumerate(passages)),
            self.state.model_name,
            strict=wishes.settings.strict,
            cite=not wishes.is_json,
        )
        return self._cited(AnswerStream(ask, generation), wishes, passages)

    def _conversing(
        self, messages: Sequence[Message], wishes: Wishes, *, is_raw: bool = False
    ) -> Iterator[Item]:
        """A conversation as it is: the model's own words, without markers."""
        self.state.refuse_long(_length(messages), "prompt" if is_raw else "messages")
        chat = as_chat(
            messages,
            lambda name, where: shelf.chunk(self.state, self.tenant, name, where),
            lambda text: shelf.parts(self.state, self.tenant, text),
            namespace=self.tenant.namespace,
            is_raw=is_raw,
        )
        most = wishes.max_tokens or self._fitting(chat)
        with closing(self._generate(chat, wishes, most)) as generation:
            self.job.on_cancel(generation.close)
            deltas = generation if wishes.is_json else UntilRepeat(generation)
            is_blank = True
            for delta in deltas:
                if delta:
                    is_blank = False
                    yield delta
            notes = notes_on(
                deltas.finish_reason,
                dropped=0,
                given=0,
                is_blank=is_blank,
                citer=None,
                limit="max_tokens",
            )
            yield Written(
                deltas.finish_reason,
                generation.usage,
                generation.receipt,
                notes=tuple(notes),
                warnings=wishes.warnings,
                answered=not is_blank,
            )

    # --- their parts ---

    def _cited(
        self, stream: AnswerStream, wishes: Wishes, given: Sequence[Passage] = ()
    ) -> Iterator[Item]:
        """An answer with its markers; what says that there is none is a refusal where JSON was asked for."""
        self.job.on_cancel(stream.cancel)
        with stream:
            # Under `strict` nothing is shown before it is known whether the documents say so.
            for delta in list(stream) if wishes.settings.strict else stream:
                yield Refused(delta) if wishes.is_json and stream.abstains else delta
            answer = stream.answer
            sources = answer.sources
            if given:
                sources = tuple(
                    replace(source, chunk=given[source.n - 1].id, score=None) for source in sources
                )
            yield Written(
                stream.finish_reason,
                answer.usage,
                answer.receipt,
                sources=sources,
                notes=tuple(note.replace("--max-tokens", "max_tokens") for note in stream.notes),
                warnings=wishes.warnings,
                answered=answer.answered,
                grounded=answer.grounded,
            )

    def _passages(self, request: ChatRequest) -> list[Passage]:
        """What the last message refers to, then the documents."""
        n = len(request.messages) - 1
        referred = [
            shelf.chunk(self.state, self.tenant, reference.id, where)
            for reference, where in references_of(request.messages[n], n)
        ]
        brought = shelf.documents(
            self.state, self.tenant, request.documents or [], self.job.refuse_cancelled
        )
        return [*referred, *brought]

    def _generate(self, prompt: Prompt | Chat, wishes: Wishes, most: int) -> Generation:
        pipeline = self.state.pipeline
        policy = wishes.chosen_policy(pipeline.config.link_policy)
        return pipeline.engine.generate(prompt, policy=policy, sampling=wishes.sampling(most))

    def _most(self, wishes: Wishes) -> int:
        """Most tokens of an answer from passages, which make room for it."""
        pipeline = self.state.pipeline
        if wishes.max_tokens is not None:
            return wishes.max_tokens
        return max(
            1, min(pipeline.config.max_tokens, pipeline.engine.context_window // ANSWER_SHARE)
        )

    def _fitting(self, chat: Chat) -> int:
        """What is configured, or what a conversation leaves of the window."""
        pipeline = self.state.pipeline
        left = pipeline.engine.context_window - pipeline.engine.lay_out(chat, 1).end
        return max(1, min(pipeline.config.max_tokens, left))


def _length(messages: Sequence[Message]) -> int:
    return sum(len(message.text) for message in messages)


def _hit(n: int, passage: Passage) -> Hit:
    """A passage as one that was found; it stands in no index."""
    text = passage.piece.text
    name = passage.title or passage.id
    return Hit(-1 - n, Chunk(name, n, 0, len(text), text), 0.0)


def speaking_http(work: Callable[[], Iterator[T]], field: str) -> Iterator[T]:
    """Say of what the engine refuses which field it was, in the words of the API; `field` holds the text."""
    try:
        yield from work()
    except UsageError as error:
        if status_of(error) != 400:
            raise
        hint = error.hint.replace("--max-tokens", "max_tokens") if error.hint else None
        if "the window of" in error.message:
            raise ApiError(
                400, error.message, hint, param=field, code="context_length_exceeded"
            ) from error
        raise ApiError(400, error.message, hint, param=_blame(error)) from error


def _blame(error: UsageError) -> str | None:
    """The setting that an error of retrieval speaks of."""
    return "epicrag.filter" if "filter" in f"{error.message} {error.hint}" else None
