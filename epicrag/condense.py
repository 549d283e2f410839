"""A follow-up question made to stand alone, for retrieval: "and at the fast interval?" finds nothing by itself.

What the model reads stays the question as it was asked, with the conversation before it; only what is searched for
changes. A question that stands alone is left as it is: words of an old topic would spoil the search for a new one.

Two ways: `words` puts the words of the question before in front of a question that leans on them, `model` lets the
served model rewrite it, and takes `words` where the rewriting lost something or made something up. `words` is the
default, for it found more (docs/log/chat.md). What a question leans by is English; of other languages only very short
questions are known to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from epicrag.index.words import words_of

if TYPE_CHECKING:
    from epicrag.serving.engine import Engine
    from epicrag.serving.prompt import Turn
    from epicrag.sessions import Exchange

Rewriter = Callable[[str, Sequence["Exchange"]], str]
"""A question and the turns before it to a question that is meant to stand alone."""

_STANDING_IN = """
    it its itself they them their theirs themselves he him his she her hers
    these those former latter ones another others both neither either such
"""
_PRONOUNS = frozenset(_STANDING_IN.split())
"""Words that stand for something said before, wherever they stand."""
_THAT = re.compile(
    r"""
    \b(?:do|does|did|is|are|was|were|has|have|had|can|could|will|would|should|may|might|must)\s+(?:that|this)\b
    | \b(?:that|this|then|one|so|else|too|instead|otherwise|same)\W*$
    | (?<!\bis\ )(?<!\bare\ )(?<!\bwas\ )(?<!\bwere\ )(?<!\bup\ )(?<!\bout\ )(?<!\bdown\ )(?<!\bover\ )\bthere\W*$
    | \bsame\s+(?:one|thing|way|for|if|when|true|go|goes|hold|holds|apply|applies|happen|happens|work|works)\b
    | \b(?:for|of|to|with|from|in|on|about|by|at|after|before|without|like|than|changes?|mean)\s+(?:that|this|there)\b(?!\s+\w+\s+\w+)
    | \b(?:that|this)\s+(?:one|case|way|time|page|file|thing|setting|value|year|place|number|part|question|answer)\b
    """,
    re.VERBOSE,
)
_IS_THERE = re.compile(
    r"\b(?:is|are|was|were|if|whether|how|when)\s+(?:it|there)\b.{0,200}\b(?:to|that)\b"
)
_SAID_HERE = re.compile(
    r"""
    \b(?:these|those)\s+days\b
    | \b(?:both|either|neither)\b(?=\s+(?!of\b|have\b|are\b|were\b|do\b|can\b|will\b|need\b)(?:[^\s,]+\s+){1,4}?n?(?:and|or)\b)
    | \b(?:another|others?)\b(?=.{0,120}\b(?:besides|except|than|apart\s+from|instead\s+of)\s+\w)
    """,
    re.VERBOSE,
)
"""Words that would stand for something said before, had the question not said it itself."""
_WHAT_THERE_IS = re.compile(
    r"\b(?:what|which|how\s+many|how\s+much)\s+(.+)\s+(?:is|are|was|were)\s+there\W*$"
)
_WHO_IS = re.compile(r"(?:who|what|where)(?:\s+(?:is|are|was|were)\b|'s\b)")
_OPENINGS = re.compile(
    r"""
    (?:ok|okay|yes|no|hm+|well|thanks|thank\ you|i\ see|sure|right)?[\s,.!]*
    (?:and|but|or|also|so|then|what\ about|how\ about|what\ if|why\ not|how\ come|how\ so|i\ meant?|you\ mean
       |what\ else|who\ else|where\ else|which\ one|for\ example|such\ as|more\ on|tell\ me\ more)\b(?!-\w)
    """,
    re.VERBOSE,
)
_FEW = 1
"""A question of no more words than this, stop words aside, is taken for the rest of one."""
_MOST_WORDS = 24
"""Words that are taken over from before: of a long chain of questions the latest."""
_REWRITTEN_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Condensed:
    """What to search for, and why it is not the question itself ("" where it is)."""

    query: str
    reason: str = ""

    @property
    def is_changed(self) -> bool:
        return bool(self.reason)


def leans_on(question: str) -> str:
    """Say by what a question can be told to lean on what was said before; "" where it stands alone."""
    plain = " ".join(_without_names(question).replace("’", "'").split())
    text = _SAID_HERE.sub(" ", plain.lower())
    if opening := _OPENINGS.match(text):
        return f"it begins with “{opening.group().strip()}”"
    for word in re.findall(r"[^\W\d_]+(?:-[^\W_]+)*(?:'[a-z]+)?", text):
        if word.split("'")[0] in _PRONOUNS and not (
            word.startswith("it") and _IS_THERE.search(text)
        ):
            return f"“{word}” stands for something said before"
    if found := _THAT.search(text):
        return f"“{found.group().strip()}” points at something said before"
    if len(set(words_of(question))) <= _FEW and not _names_its_own(question):
        return "it has hardly a word of its own"
    return ""


def _without_names(question: str) -> str:
    """The question without words in capitals, where it is not all in capitals: IT is no “it”."""
    if question.upper() == question:
        return question
    return re.sub(r"\b[A-Z]{2,}\b", "…", question)


def _names_its_own(question: str) -> bool:
    """Whether a question of one word says all that is asked for: who somebody is, or which of something there are."""
    text = question.strip().lower().replace("’", "'")
    if found := _WHAT_THERE_IS.match(text):
        return bool(words_of(found[1]))
    _, *others = question.split()
    return bool(_WHO_IS.match(text)) and any(
        word[:1].isupper() and words_of(word) for word in others
    )


def condense(
    question: str,
    turns: Sequence[Exchange],
    way: str = "auto",
    rewriter: Rewriter | None = None,
) -> Condensed:
    """Return what to search for when a question comes after some turns.

    `way`: "auto", "words", "model" (needs a `rewriter`) or "off".
    """
    reason = leans_on(question) if turns and way != "off" else ""
    if not reason:
        return Condensed(question)
    if way == "model" and rewriter is not None:
        written = rewriter(question, turns)
        if is_faithful(written, question, turns):
            return Condensed(written, reason)
    asked = set(words_of(question))
    before = [
        word
        for word in re.findall(r"\S+", turns[-1].query or turns[-1].question)
        if not asked.issuperset(words_of(word))
    ]
    return Condensed(" ".join([*before[-_MOST_WORDS:], question]), reason)


def along(
    question: str, turns: Sequence[Turn], way: str = "auto", rewriter: Rewriter | None = None
) -> Condensed:
    """`condense` for a conversation as messages: each question of it is condensed in its turn."""
    if way == "off" or not leans_on(question):
        return Condensed(question)  # the questions before it are not needed
    from epicrag.sessions import Exchange

    said: list[Exchange] = []
    for turn in turns:
        if turn.role == "user":
            said.append(Exchange(turn.text, "", query=condense(turn.text, said, way).query))
        elif said:
            said[-1] = replace(said[-1], answer=turn.text)
    return condense(question, said, way, rewriter)


def is_faithful(written: str, question: str, turns: Sequence[Exchange]) -> bool:
    """Whether a rewritten question kept the words of the question, and added none but the conversation's."""
    kept, said = set(words_of(question)), set(words_of(written))
    known = kept.union(*(words_of(f"{turn.question} {turn.answer}") for turn in turns))
    return bool(said - kept) and kept <= said <= known


def model_rewriter(engine: Engine) -> Rewriter:
    """Let the served model rewrite questions: greedily, one line, no longer than a question is."""
    from epicrag.serving.policies import parse_policy
    from epicrag.serving.prompt import Prompt, Turn
    from epicrag.serving.sample import Sampling

    policy = parse_policy("prefix")  # the examples before it are found again by every question
    sampling = Sampling(max_tokens=_REWRITTEN_TOKENS, stop=("\n",))
    examples = tuple(
        turn
        for talk, written in _EXAMPLES
        for turn in (Turn("user", talk), Turn("assistant", written))
    )

    def rewrite(question: str, turns: Sequence[Exchange]) -> str:
        last = turns[-1]
        talk = _talk(last.query or last.question, last.answer, question)
        prompt = Prompt(system=_REWRITE, history=examples, question=talk)
        with engine.generate(prompt, policy=policy, sampling=sampling) as generation:
            return "".join(generation).strip().strip('"')

    return rewrite


def _talk(question: str, answer: str, follow_up: str) -> str:
    return f"First: {question} ({answer})\nThen: {follow_up}"


_REWRITE = (
    "Two questions are asked one after the other. Write the second so that it can be understood "
    "without the first. Write only the question."
)
_EXAMPLES = (
    (
        _talk("How high is the tower in Ulm?", "It is 161 metres high.", "And who built it?"),
        "Who built the tower in Ulm?",
    ),
    (
        _talk("Do ferries run on Sundays?", "Yes, every two hours.", "What about holidays?"),
        "Do ferries run on holidays?",
    ),
)
