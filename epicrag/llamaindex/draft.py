"""An answer being written from segments: which of them went in, what is cited, what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole, TextBlock
from llama_index.core.schema import NodeWithScore

from epicrag.ask import NO_ROOM, NOTHING_FOUND, notes_on
from epicrag.citations import Citer
from epicrag.llamaindex.blocks import Segment, distinct
from epicrag.llamaindex.messages import SYSTEM

NO_WORDS = "The model wrote no answer."


class Draft:
    """One synthesis: `messages` for the model, its responses in (`begin`, `feed`), text out (`finish`).

    `prefix` opens the conversation, behind the system prompt unless it brings one; `history` follows it, and
    `keep` says how much of it. `is_free`: without segments
    the model answers all the same, from the conversation.

    `nodes` and `metadata` go into the response at once, and are brought up to date in place: nodes that
    did not fit leave with the first token, the receipt comes with the last.
    """

    def __init__(
        self,
        question: str,
        system: str,
        segments: Iterable[Segment],
        extra: Sequence[NodeWithScore],
        *,
        cite: bool,
        prefix: Sequence[ChatMessage] = (),
        history: Sequence[ChatMessage] = (),
        is_free: bool = False,
    ) -> None:
        self.question = question
        self.history = list(history)
        self.segments = distinct(segments)
        self.nodes: list[NodeWithScore] = []
        self.metadata: dict[str, Any] = {
            "answered": False,
            "receipt": None,
            "usage": {"prompt_tokens": 0, "completion_tokens": 0},
            "policy": None,
            "dropped": 0,
            "dropped_turns": 0,
            "cited": [],
            "notes": [],
        }
        own = [ChatMessage(role=MessageRole.SYSTEM, content=system)]
        is_told = bool(prefix) and prefix[0].role in SYSTEM
        self._opening = [*([] if is_told else own), *prefix]
        self._extra = list(extra)
        self._cite = cite
        self._is_free = is_free and not self.segments
        self._citer: Citer | None = None
        self._is_blank = True
        self._instead = NOTHING_FOUND  # said where the model says nothing
        self.finish_reason = ""  # none, where no model was asked
        self._use(len(self.segments))

    @property
    def n_tokens(self) -> int:
        """How many tokens the model wrote, as far as that has been told."""
        return int(self.metadata["usage"]["completion_tokens"])

    @property
    def is_asking(self) -> bool:
        """Whether there is anything for a model to answer from."""
        return bool(self.segments) or self._is_free

    def messages(self, history: Sequence[ChatMessage] | None = None) -> list[ChatMessage]:
        """The question behind its segments, each text as it is, and the conversation before them."""
        segments = [segment.block() for segment in self.segments]
        return [
            *self._opening,
            *(self.history if history is None else history),
            ChatMessage(role=MessageRole.USER, blocks=[*segments, TextBlock(text=self.question)]),
        ]

    def keep(self, history: Sequence[ChatMessage], dropped_turns: int) -> None:
        """Go on with this part of the history."""
        self.history = list(history)
        self.metadata["dropped_turns"] = dropped_turns

    def begin(self, first: ChatResponse) -> bool:
        """Note how many segments went in; False when none did, and no answer is to be had."""
        if self._is_free:
            self._instead = NO_WORDS
            return True
        used = len(self.segments)
        if isinstance(first.raw, dict):
            used -= first.raw["dropped"]
        self._use(used)
        self._instead = NO_WORDS if used else NO_ROOM
        if used and self._cite:
            self._citer = Citer([s.text for s in self.segments[:used]], self.question)
        return bool(used)

    def feed(self, response: ChatResponse) -> str:
        """Take the next response of a stream; return the text that can be shown now."""
        self._note(response)
        return self._take(response.delta or "")

    def finish(self) -> str:
        """Return the rest of the text; `metadata` is complete then."""
        rest = self._citer.finish() if self._citer else ""
        self._is_blank = self._is_blank and not rest.strip()
        self.metadata["cited"] = sorted(self._citer.cited) if self._citer else []
        self.metadata["answered"] = not self._is_blank
        if self.finish_reason and self._instead != NO_ROOM:
            self.metadata["notes"] = notes_on(
                self.finish_reason,
                dropped=self.metadata["dropped"],
                given=len(self.segments),
                is_blank=self._is_blank,
                citer=self._citer,
                limit="max_tokens",
            )
            if turns := self.metadata["dropped_turns"]:
                self.metadata["notes"].append(
                    f"{turns} earlier turn{'' if turns == 1 else 's'} did not fit into the model's window"
                )
        return self._instead if self._is_blank else rest

    def whole(self, response: ChatResponse) -> str:
        """The text of an answer that came at once."""
        text = ""
        if self.begin(response):
            text = self._take(response.message.content or "")
        self._note(response)
        return text + self.finish()

    def _use(self, used: int) -> None:
        kept = [segment.node for segment in self.segments[:used] if segment.node]
        self.nodes[:] = [*kept, *self._extra]
        for found in self.nodes:
            self.metadata[found.node.node_id] = found.node.metadata
        for segment in self.segments[used:]:
            if segment.node:
                self.metadata.pop(segment.node.node.node_id, None)
        self.metadata["dropped"] = len(self.segments) - used

    def _take(self, text: str) -> str:
        shown = self._citer.feed(text) if self._citer else text
        self._is_blank = self._is_blank and not shown.strip()
        return shown

    def _note(self, response: ChatResponse) -> None:
        raw = response.raw if isinstance(response.raw, dict) else {}
        if "receipt" in raw:
            self.metadata["receipt"] = raw["receipt"]
            self.metadata["usage"] = raw["usage"]
            self.metadata["policy"] = raw["receipt"]["policy"]
            self.finish_reason = raw["finish_reason"]
