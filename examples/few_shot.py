"""Few-shot prompting with examples chosen for each question: every example is one cached chunk, in any order.

    python examples/few_shot.py
    python examples/few_shot.py "The hub asks for a password I never set."

A prompt that shows the examples most like the question, the most like one last, has other examples in another order each
time: a cache of prefixes is of no use. Here each example's KV is computed once, and reused wherever it stands. The
answer is held to the names of the teams, so that a small model cannot say anything else. (A model as small as the packaged
one judges worse from examples that never saw each other; `policy="full"` in `few_shot()` shows what it says without reuse.)
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from epicrag import Pipeline
from epicrag.config import load_config
from epicrag.serving.constrain import Grammar
from epicrag.serving.policies import parse_policy
from epicrag.serving.prompt import Chat, Message, Piece
from epicrag.serving.sample import Sampling
from epicrag.types import Receipt

if TYPE_CHECKING:
    from epicrag.index.embed import Embedder
    from epicrag.serving.engine import Engine

TICKETS = (
    ("The rain gauge shows nothing although it pours.", "hardware"),
    ("One of the wind cups broke off in the storm.", "hardware"),
    ("The display of the station stays black after I changed the batteries.", "hardware"),
    ("Water got into the housing and the radio is dead.", "hardware"),
    ("Where do I find the invoice for my order?", "billing"),
    ("I was charged twice for the same mast clamp.", "billing"),
    ("Please send the bill to our new address.", "billing"),
    ("Can I pay the hub by bank transfer?", "billing"),
    ("The app does not find the hub in our network.", "software"),
    ("Since the update the chart of last week is empty.", "software"),
    ("How do I export my readings as CSV?", "software"),
    ("The app says that my password is wrong.", "software"),
)
TEAMS = ("hardware", "billing", "software")
QUESTIONS = (
    "My invoice names the wrong company.",
    "The wind vane does not turn any more.",
    "The app crashes when I open the map.",
    "You took the money for two stations, I ordered one.",
)
INSTRUCTION = "You pass tickets of customers on to the right team: " + ", ".join(TEAMS) + "."


def example(text: str, team: str) -> Piece:
    """A solved ticket as a chunk."""
    return Piece(f"Ticket: {text}\nTeam: {team}\n\n")


def alike(embedder: Embedder, question: str, k: int) -> list[Piece]:
    """The `k` tickets most like a question, the most like one last, where a model heeds it most."""
    vectors = [rows[0] for rows in embedder.passages([text for text, _ in TICKETS])]
    asked = embedder.query(question)
    order = sorted(range(len(TICKETS)), key=lambda n: float(vectors[n] @ asked))
    return [example(*TICKETS[n]) for n in order[-k:]]


def few_shot(
    engine: Engine,
    choose: Callable[[str], Sequence[Piece]],
    questions: Sequence[str],
    say: Callable[[str], Any] = print,
    policy: str = "none",
) -> list[tuple[str, Receipt]]:
    """Answer each question behind its own examples: the team, and what the prompt cost."""
    pieces = [example(*ticket) for ticket in TICKETS]
    computed = sum(tokens for _, _, tokens in engine.compile(pieces))
    say(f"{len(pieces)} examples: {computed} tokens computed, the rest was there already")
    sampling = Sampling(max_tokens=8, grammar=Grammar.choice(TEAMS))
    answers = []
    for question in questions:
        shown = choose(question)
        chat = Chat(
            (
                Message("system", (INSTRUCTION,)),
                Message("user", (*shown, f"Ticket: {question}\nTeam:")),
            )
        )
        with engine.generate(chat, policy=parse_policy(policy), sampling=sampling) as answer:
            team = "".join(answer)
        answers.append((team, answer.receipt))
        say(f"\n{question}\n  -> {team}\n  {told(answer.receipt)}")
    return answers


def told(receipt: Receipt) -> str:
    """A receipt in a line."""
    return (
        f"reused {receipt.exact + receipt.stitched} of {receipt.context_tokens} context tokens "
        f"(recomputed {receipt.recomputed}), {receipt.fresh} new, "
        f"first token after {receipt.ms.first_token:.0f} ms"
    )


def main(questions: Sequence[str]) -> None:
    index = load_config().home / "indexes" / "few-shot"
    with Pipeline.open(create=True, index=index, say=print) as pipeline:
        print("Each question shows the four examples most like it:")
        few_shot(pipeline.engine, lambda asked: alike(pipeline.embedder, asked, 4), questions)
        print("\nThe same with examples drawn at random, in random order:")
        draw = random.Random(7)
        few_shot(
            pipeline.engine,
            lambda asked: [example(*ticket) for ticket in draw.sample(TICKETS, 4)],
            questions,
        )


if __name__ == "__main__":
    main(sys.argv[1:] or QUESTIONS)
