"""Text to token ids, unit by unit, so that no document text can ever become a control token."""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epicrag.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SURROGATE = re.compile("[\ud800-\udfff]")
N_KNOWN = 512
KNOWN_CHARS = 8_192
"""How many texts up to which length are remembered with their ids: some ten megabytes at most."""

_BEFORE = ("\x00", "\n", ".")
"""Characters that a text can be put behind: of the first that stays a token of its own nothing is left in the rest."""

_WINDOW = 16_384
"""Characters tokenised at once: some tokenizers take quadratic time on one very long word."""


MOST_CHARS = 32
"""Characters that one token is taken for at most, where a text is told to be too long without tokenising it."""


class UnitTokenizer:
    """A model's tokenizer, in two voices: `ids` for text of documents and people, `template_ids` for the
    chat template's own text, where control tokens are meant.

    Loads without torch and without the model's weights.
    """

    def __init__(
        self, full: Tokenizer, plain: Tokenizer, special: dict[str, int], digest: str
    ) -> None:
        self._full = full
        self._plain = plain
        self._special = special
        self.fingerprint = digest
        # A passage is tokenised for its key, for its prompt, and behind its neighbour, in prompt after prompt.
        self._known = lru_cache(N_KNOWN)(self._ids)
        self._known_ends = lru_cache(N_KNOWN)(self._ends)
        self._known_tokens = lru_cache(N_KNOWN)(self._tokens)

    @classmethod
    def load(cls, folder: Path) -> UnitTokenizer:
        """Read `tokenizer.json` of a model folder. UsageError when the model has no fast tokenizer."""
        from tokenizers import Tokenizer

        file = folder / "tokenizer.json"
        if not file.is_file():
            raise UsageError(
                f"{folder} has no tokenizer.json",
                "save the model's fast tokenizer there (AutoTokenizer(...).save_pretrained)",
            )
        text = file.read_text(encoding="utf-8")
        full = Tokenizer.from_str(text)
        added = full.get_added_tokens_decoder()
        # Runs of blanks are vocabulary, not control: some models keep them among the added tokens.
        control = {a.content: i for i, a in added.items() if a.special or a.content.strip()}
        plain = _unadded(full) if len(control) == len(added) else _without(text, control)
        return cls(full, plain, control, hashlib.sha256(text.encode()).hexdigest())

    @property
    def special_ids(self) -> frozenset[int]:
        """Every id that text must never yield."""
        return frozenset(self._special.values())

    @property
    def size(self) -> int:
        """How many ids there are, control tokens included."""
        return int(self._full.get_vocab_size(with_added_tokens=True))

    def to_json(self) -> str:
        """The whole tokenizer as `tokenizer.json` writes it, control tokens included."""
        return str(self._full.to_str())

    def ids(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text, tokenised alone, never a control token."""
        return self._known(text) if len(text) <= KNOWN_CHARS else self._ids(text)

    def _ids(self, text: str) -> tuple[int, ...]:
        out: list[int] = []
        for piece in _windows(text):
            ids = self._plain.encode(piece, add_special_tokens=False).ids
            if not self.special_ids.isdisjoint(ids):
                ids = [token for token, _ in self._apart(piece)]
            out.extend(ids)
        return tuple(out)

    def template_ids(self, text: str) -> tuple[int, ...]:
        """Token ids of the chat template's own text: control tokens are parsed, none are added."""
        return tuple(self._full.encode(text, add_special_tokens=False).ids)

    def begins_with(self, token: str) -> bool:
        """True if the tokenizer itself puts this control token before a text."""
        first = self._full.encode("a").ids[:1]
        return bool(token) and first == [self._special.get(token)]

    def count(self, text: str) -> int:
        """Number of tokens of plain text."""
        return len(self.ids(text))

    def ends(self, text: str) -> Sequence[int]:
        """Character end offset of each token of plain text, non-decreasing, the last being its length."""
        return self._known_ends(text) if len(text) <= KNOWN_CHARS else self._ends(text)

    def tokens(self, text: str, *, behind: bool = False) -> Sequence[tuple[int, int]]:
        """`ids` of plain text, each with the character where it ends.

        `behind`: of a text that stands behind other text, without the space that some tokenizers put before one.
        """
        known = self._known_tokens if len(text) <= KNOWN_CHARS else self._tokens
        return known(text, behind)

    def ids_behind(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text that stands behind other text."""
        return tuple(token for token, _ in self.tokens(text, behind=True))

    def _tokens(self, text: str, behind: bool) -> tuple[tuple[int, int], ...]:
        out: list[tuple[int, int]] = []
        base = 0
        for piece in _windows(text):
            found = self._behind(piece) if behind and not base else self._pairs(piece)
            out.extend((token, base + end) for token, end in found)
            base += len(piece)
        if out:
            out[-1] = (out[-1][0], len(text))
        return tuple(out)

    def _behind(self, text: str) -> list[tuple[int, int]]:
        plain = self._pairs(text)
        for before in _BEFORE:
            found = self._pairs(before + text)
            at = bisect_right(found, 1, key=lambda pair: pair[1])
            if 0 < at < len(found) and found[at - 1][1] == 1:
                return [(token, end - 1) for token, end in found[at:]]
        return plain

    def _pairs(self, text: str) -> list[tuple[int, int]]:
        """The tokens of one window, and where they end."""
        encoded = self._plain.encode(text, add_special_tokens=False)
        if not self.special_ids.isdisjoint(encoded.ids):
            return self._apart(text)
        ends = accumulate((end for _, end in encoded.offsets), max)
        return list(zip(encoded.ids, ends, strict=True))

    def cut(self, text: str, low: int, high: int) -> tuple[int, int] | None:
        """Which tokens [first, last) of `ids(text)` are its characters [low, high); None where none are just these."""
        ends = self.ends(text)
        if len(ends) != len(self.ids(text)):
            return None  # it spells a control token, and its ids are told otherwise
        first = bisect_right(ends, low) if low else 0
        last = bisect_right(ends, high)
        begins_there = first == 0 if low == 0 else first > 0 and ends[first - 1] == low
        return (first, last) if begins_there and last > first and ends[last - 1] == high else None

    def _ends(self, text: str) -> array[int]:
        out = array("Q")
        base = 0
        for piece in _windows(text):
            offsets = self._plain.encode(piece, add_special_tokens=False).offsets
            out.extend(base + end for end in accumulate((end for _, end in offsets), max))
            base += len(piece)
        if out:
            out[-1] = len(text)
        return out

    def decode(self, ids: Sequence[int]) -> str:
        """Text of generated ids, without control tokens."""
        return str(self._full.decode(list(ids), skip_special_tokens=True))

    def _apart(self, text: str) -> list[tuple[int, int]]:
        """Encode a text that spells out a control token, by cutting every occurrence in two: ids, and their ends."""
        cuts = {0, len(text)}
        for content in self._special:
            start = text.find(content)
            while start >= 0:
                cuts.add(start + max(1, len(content) // 2))
                start = text.find(content, start + 1)
        edges = sorted(cuts)
        found: list[tuple[int, int]] = []
        for low, high in pairwise(edges):
            encoded = self._plain.encode(text[low:high], add_special_tokens=False)
            ends = accumulate((low + end for _, end in encoded.offsets), max)
            found.extend(zip(encoded.ids, ends, strict=True))
        # What is left are ids that single characters map to; a model without them reads less, safely.
        return [pair for pair in found if pair[0] not in self.special_ids]


def _unadded(full: Tokenizer) -> Tokenizer:
    """The tokenizer without its added tokens; the two share what takes long to read."""
    from tokenizers import Tokenizer

    plain = Tokenizer(full.model)
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if getattr(full, part) is not None:
            setattr(plain, part, getattr(full, part))
    return plain


def _without(text: str, control: dict[str, int]) -> Tokenizer:
    """The tokenizer of a file's text without its control tokens, the other added tokens kept."""
    from tokenizers import Tokenizer

    spec: dict[str, Any] = json.loads(text)
    spec["added_tokens"] = [a for a in spec["added_tokens"] if a["content"] not in control]
    spec["post_processor"] = None
    return Tokenizer.from_str(json.dumps(spec))


def _windows(text: str) -> list[str]:
    """Cut long text at line or word ends, deterministically; lone surrogates are replaced one by one."""
    text = _SURROGATE.sub("\ufffd", text)
    pieces = []
    while len(text) > _WINDOW:
        cut = max(text.rfind("\n", 0, _WINDOW), text.rfind(" ", 0, _WINDOW))
        cut = cut if cut > 0 else _WINDOW
        pieces.append(text[:cut])
        text = text[cut:]
    return [*pieces, text] if text else pieces
