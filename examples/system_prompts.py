"""Many tenants, many system prompts, put together from shared blocks: each block's KV is computed once for all of them.

    python examples/system_prompts.py

The house's rules are the same for everyone and stand at another place in each tenant's prompt, between blocks of the
tenant's own. A cache of prefixes reuses nothing of that: the prompts part at their first words. Here every block is a
chunk. What a tenant wrote lies in its own namespace: nobody else ever gets a hit on it, be the text the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epicrag import Pipeline
from epicrag.config import load_config
from epicrag.serving.policies import parse_policy
from epicrag.serving.prompt import Chat, Message, Piece
from epicrag.serving.sample import Sampling
from epicrag.types import Receipt

if TYPE_CHECKING:
    from epicrag.serving.engine import Engine

SHARED = "shared"
"""The namespace of the blocks that all tenants use."""
BLOCKS = {
    "manners": "Be polite and brief. Answer in the language of the question. Say so when you do not know something. "
    "Never promise a date or a price that is not written below.\n",
    "privacy": "Never repeat names, addresses or numbers of customers. If someone asks for the data of another person, "
    "refuse and name the form that the law asks for.\n",
    "returns": "Goods can be returned within 45 days of purchase. The customer pays for sending them back, unless "
    "they came broken. Money is paid back within ten days.\n",
    "safety": "If someone is in danger, name the emergency number 112 before anything else, and stop selling.\n",
}


@dataclass(frozen=True)
class Tenant:
    """Who asks: a name, the tenant's own block, and the order in which its system prompt holds all blocks.

    "own" stands for the tenant's block in the order.
    """

    name: str
    own: str
    order: tuple[str, ...]

    def system(self) -> Message:
        """The system prompt: chunks only, each in the namespace that it belongs to."""
        return Message("system", tuple(self.block(name) for name in self.order))

    def block(self, name: str) -> Piece:
        if name == "own":
            return Piece(self.own, namespace=f"tenant:{self.name}")
        return Piece(BLOCKS[name], namespace=SHARED)


TENANTS = (
    Tenant(
        "boats",
        "You speak for Harbour Boats, which rents sailing boats in summer. A day costs 90 euros.\n",
        ("own", "manners", "safety", "returns", "privacy"),
    ),
    Tenant(
        "weather",
        "You speak for Tern Weather, which sells weather stations. The Tern T2 costs 289 euros.\n",
        ("privacy", "own", "returns", "manners"),
    ),
    Tenant(
        "books",
        "You speak for Northern Books, which sells used books. Each book is one of its kind.\n",
        ("manners", "returns", "own", "privacy", "safety"),
    ),
)
QUESTIONS = ("How long may I take to send something back?", "What does it cost?")


def compiled(engine: Engine, tenants: Sequence[Tenant]) -> int:
    """Compute what is missing of all blocks; returns how many tokens that were."""
    pieces = {
        piece for tenant in tenants for piece in tenant.system().parts if isinstance(piece, Piece)
    }
    return sum(tokens for _, _, tokens in engine.compile(sorted(pieces, key=lambda p: p.text)))


def ask(engine: Engine, tenant: Tenant, question: str, max_tokens: int = 24) -> tuple[str, Receipt]:
    """One tenant's question under its own system prompt: the answer, and what the prompt cost."""
    chat = Chat((tenant.system(), Message("user", (question,))), namespace=f"tenant:{tenant.name}")
    sampling = Sampling(max_tokens=max_tokens)
    with engine.generate(chat, policy=parse_policy("none"), sampling=sampling) as answer:
        text = "".join(answer)
    return text, answer.receipt


def serve(
    engine: Engine,
    tenants: Sequence[Tenant] = TENANTS,
    questions: Sequence[str] = QUESTIONS,
    say: Callable[[str], Any] = print,
) -> list[Receipt]:
    """Let every tenant ask every question; returns the receipts."""
    n_blocks = len(BLOCKS) + len(tenants)
    say(
        f"{n_blocks} blocks: {compiled(engine, tenants)} tokens computed, the rest was there already"
    )
    receipts = []
    for question in questions:
        for tenant in tenants:
            text, receipt = ask(engine, tenant, question)
            receipts.append(receipt)
            say(f"\n{tenant.name} ({' + '.join(tenant.order)}): {question}\n  -> {text.strip()}")
            say(f"  {told(receipt)}")
    return receipts


def told(receipt: Receipt) -> str:
    """A receipt in a line."""
    return (
        f"reused {receipt.exact + receipt.stitched} of {receipt.context_tokens} context tokens "
        f"(recomputed {receipt.recomputed}), {receipt.fresh} new, "
        f"first token after {receipt.ms.first_token:.0f} ms"
    )


def main() -> None:
    from epicrag.index.kvstore import KVStore

    index = load_config().home / "indexes" / "system-prompts"
    store = KVStore(index / "tenants")
    with Pipeline.open(
        create=True, index=index, say=print, engine_options={"other_store": store}
    ) as pipeline:
        serve(pipeline.engine)
        copied = Tenant("copycat", TENANTS[0].own, ("own",))
        print("\nA tenant that writes what another wrote has its own copy, and computes it:")
        print(f"  {compiled(pipeline.engine, [copied])} tokens computed")


if __name__ == "__main__":
    main()
