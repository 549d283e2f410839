"""A question, its chunks and the chat template, as units of token ids in prompt order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from epicrag.serving.template import read_template
from epicrag.serving.tokenizer import UnitTokenizer

DEFAULT_SYSTEM = (
    "You answer questions from the given documents. Use only what they say, answer briefly, "
    "and name the document of each fact by its number, like [1]."
)
"""The neutral system prompt: what chunks are compiled behind, and what is used unless another is given."""

ASKING = "\n\nQuestion:"
"""What stands between the documents and the question. A model that writes it has finished its answer."""

LEAD, TAIL = "] ", "\n\n["
"""What stands around a passage's number. Each chunk is cached with the first in front and the second behind it, so
that of its label only the number itself is computed for each prompt."""

UnitKind = Literal["system", "label", "chunk", "history", "question"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk as the engine sees it: its text, and the text of the passage before it in its document.

    `namespace` is whose it is: equal texts of two namespaces are two entries; "" is the index. In a `Chat` a piece
    may have a place, `offset`, the position of its first token, and of its text only `shown` may stand there, which
    begins at its character `start`: the rows of those tokens are read, where whole tokens make it up, and else it is
    plain text.
    """

    text: str
    before: str | None = None
    namespace: str = ""
    offset: int | None = None
    shown: str | None = None
    start: int = 0

    @property
    def standing(self) -> str:
        """The text that stands in the prompt."""
        return self.text if self.shown is None else self.shown


@dataclass(frozen=True, slots=True)
class Turn:
    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one request asks. `labels` numbers the chunks, [1], [2] …; the numbers are outside their cached text."""

    question: str
    pieces: tuple[Piece, ...] = ()
    system: str = DEFAULT_SYSTEM
    history: tuple[Turn, ...] = ()
    labels: bool = True
    namespace: str = ""
    """Whose system prompt and history it is: what is kept of them is found again by their own requests only."""


Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a `Chat`: its text, in which chunks may stand anywhere."""

    role: Role
    parts: tuple[str | Piece, ...]


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation as it is: nothing is put around its chunks, no number, no blank line.

    A chunk's KV is the one that a `Prompt` uses too, without the rows of what joins it to its number.
    """

    messages: tuple[Message, ...]
    namespace: str = ""
    is_raw: bool = False
    """Whether it is a text to go on with: no chat template then, only what every text begins with."""

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Its chunks, in prompt order."""
        parts = (part for message in self.messages for part in message.parts)
        return tuple(part for part in parts if isinstance(part, Piece))


@dataclass(frozen=True, slots=True)
class Unit:
    """Ids that were tokenised alone. `piece` is the index of the chunk in the prompt, -1 for the rest."""

    kind: UnitKind
    ids: tuple[int, ...]
    piece: int = -1
    tail: tuple[int, ...] = ()
    """Ids behind a chunk that lead over to the next one: cached with it, and left out where it is the last."""
    head: tuple[int, ...] = ()
    """Ids in front of a chunk that are cached with it, and do not stand in the prompt."""
    beyond: tuple[int, ...] = ()
    """The same behind it."""
    place: int | None = None
    """The position of its first id; None where it stands behind what is before it."""

    @property
    def stored(self) -> tuple[int, ...]:
        """All that is cached of a chunk."""
        return (*self.head, *self.ids, *self.tail, *self.beyond)


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The chat template's own text, found by rendering it around sentinels.

    `frame(roles)` returns one string more than there are messages: what stands before, between and after
    their contents, generation prompt included.
    """

    tokenizer: UnitTokenizer
    renderer: Any = field(repr=False)
    """An object with transformers' `apply_chat_template` and `chat_template`, or None."""
    bos: str = ""

    @classmethod
    def load(cls, folder: Path, tokenizer: UnitTokenizer) -> ChatFormat:
        """Read the template of a model folder; a model without one gets plain paragraphs."""
        template = read_template(folder)
        if template is not None:
            begins = template.bos_token or ""
            return cls(tokenizer, template, begins if tokenizer.begins_with(begins) else "")
        from transformers import AutoTokenizer

        renderer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        begins = renderer.bos_token or ""
        if begins and renderer.bos_token_id not in renderer("a").input_ids[:1]:
            begins = ""
        return cls(tokenizer, renderer if renderer.chat_template else None, begins)

    def frame(self, roles: Sequence[str]) -> list[str] | None:
        """The template's pieces around these roles; None when it cannot take them as they are."""
        if self.renderer is None:
            return None
        marks = [f"\x02{index}\x03" for index in range(len(roles))]
        messages = [{"role": r, "content": m} for r, m in zip(roles, marks, strict=True)]
        try:
            text = self.renderer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except Exception:  # noqa: BLE001 - a template refuses in its own way, e.g. a system role
            return None
        pieces = []
        for mark in marks:
            before, found, text = text.partition(mark)
            if not found:
                return None
            pieces.append(before)
        return [*pieces, text]

    def units(self, prompt: Prompt | Chat) -> list[Unit]:
        """Lay a prompt out: system, history, label and chunk by turns, question. Every unit stands alone."""
        if isinstance(prompt, Chat):
            return self._chat_units(prompt)
        plain, control = self.tokenizer.ids, self.tokenizer.template_ids
        lead, tail = (plain(LEAD), plain(TAIL)) if prompt.labels else ((), plain("\n\n"))
        opening = ("Documents:" + (TAIL if prompt.labels else "\n\n")) if prompt.pieces else ""
        turns = [turn.role for turn in prompt.history]
        frame = self.frame(["system", *turns, "user"])
        merged = frame is None  # no system role: it opens the first user message instead
        if frame is None:
            frame = self.frame([*turns, "user"])
            frame = ["", *frame] if frame else None
        if frame is None:
            frame = [self.bos, *["\n\n"] * (len(turns) + 1), "\n\nAnswer:"]
            merged = False
        if merged:
            frame[0], frame[1] = frame[1], "\n\n"
        system = [*control(frame[0]), *plain(prompt.system)]
        units: list[Unit] = []
        if turns:
            units.append(Unit("system", tuple(system)))
            for turn, before in zip(prompt.history, frame[1:], strict=False):
                units.append(Unit("history", (*control(before), *plain(turn.text))))
            units.append(Unit("history", (*control(frame[-2]), *plain(opening))))
        else:
            units.append(Unit("system", (*system, *control(frame[1]), *plain(opening))))
        for index, piece in enumerate(prompt.pieces):
            if prompt.labels:
                units.append(Unit("label", plain(str(index + 1)), index))
            units.append(Unit("chunk", (*lead, *plain(piece.text)), index, tail))
        question = f"{ASKING} {prompt.question}" if prompt.pieces else prompt.question
        units.append(Unit("question", (*plain(question), *control(frame[-1]))))
        return [unit for unit in units if unit.ids]

    def _chat_units(self, chat: Chat) -> list[Unit]:
        """Lay a conversation out; what follows its last chunk is the question."""
        control = self.tokenizer.template_ids
        messages, frame = self._framed(chat)
        units: list[Unit] = []
        ids: list[int] = []
        index = 0
        for message, before in zip(messages, frame, strict=False):
            ids.extend(control(before))
            behind = False
            for part in message.parts:
                if isinstance(part, str):
                    ids.extend(
                        self.tokenizer.ids_behind(part) if behind else self.tokenizer.ids(part)
                    )
                    behind = False
                    continue
                units.append(Unit("history", tuple(ids)))
                units.append(self._bare(part, index))
                index, ids, behind = index + 1, [], True
        units.append(Unit("question", (*ids, *control(frame[-1]))))
        units = [unit for unit in units if unit.ids]
        if units and units[-1].kind == "chunk":
            # The answer begins behind the last token, which therefore is computed.
            last = units.pop()
            if len(last.ids) > 1:
                beyond = (last.ids[-1], *last.beyond)
                units.append(replace(last, ids=last.ids[:-1], beyond=beyond))
            units.append(Unit("question", last.ids[-1:]))
        return units

    def _framed(self, chat: Chat) -> tuple[Sequence[Message], list[str]]:
        """The messages as the template takes them, and the frame around them.

        Where it takes no system message, its text opens the message of the user that follows.
        """
        messages = chat.messages
        if chat.is_raw:
            return messages, [self.bos, *[""] * len(messages)]
        frame = self.frame([message.role for message in messages])
        if frame is not None:
            return messages, frame
        merged: list[Message] = []
        opening: tuple[str | Piece, ...] = ()
        for message in messages:
            if message.role == "system":
                opening = (*opening, *message.parts, "\n\n")
            else:
                merged.append(replace(message, parts=(*opening, *message.parts)))
                opening = ()
        if opening:
            merged.append(Message("user", opening))
        frame = self.frame([message.role for message in merged])
        if frame is not None:
            return merged, frame
        return messages, [self.bos, *["\n\n"] * (len(messages) - 1), "\n\nAnswer:"]

    def _bare(self, piece: Piece, index: int) -> Unit:
        """A chunk as it stands in a conversation: its own ids, cached within those of a numbered one."""
        plain = self.tokenizer.ids
        ids, head, rest = plain(piece.text), plain(LEAD), plain(TAIL)
        if piece.standing != piece.text:
            end = piece.start + len(piece.standing)
            cut = self.tokenizer.cut(piece.text, piece.start, end)
            if cut is None or piece.text[piece.start : end] != piece.standing:
                return Unit("history", plain(piece.standing), index, place=piece.offset)
            first, last = cut
            head, ids, rest = (*head, *ids[:first]), ids[first:last], (*ids[last:], *rest)
        return Unit("chunk", ids, index, head=head, beyond=rest, place=piece.offset)

    def chunk_ids(self, text: str, labels: bool = True) -> tuple[int, ...]:
        """The ids that are cached for a chunk: its text, with what joins it to its number and to the next chunk."""
        plain = self.tokenizer.ids
        if labels:
            return (*plain(LEAD), *plain(text), *plain(TAIL))
        return (*plain(text), *plain("\n\n"))
