"""The examples run, and their receipts say that all but what is new was reused."""

from __future__ import annotations

import random
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from epicrag.index.kvstore import KVStore

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def engine(checkpoint: Callable[[str], Path], tmp_path: Path) -> Any:
    from epicrag.serving.engine import Engine

    return Engine.load(
        checkpoint("llama"),
        name="tiny",
        device="cpu",
        dtype="float32",
        kv_memory_bytes=32 << 20,
        store=KVStore(tmp_path / "kv"),
        other_store=KVStore(tmp_path / "other"),
        self_check=False,
    )


def is_all_reused(receipt: Any) -> bool:
    reused = receipt.exact + receipt.stitched
    return (
        receipt.recomputed == 0
        and receipt.fallback is None
        and 0 < reused == receipt.context_tokens
    )


def test_shuffled_examples_are_all_reused_and_the_answer_is_a_team(engine: Any) -> None:
    few_shot = runpy.run_path(str(EXAMPLES / "few_shot.py"))
    tickets, said = few_shot["TICKETS"], list[str]()
    draw = random.Random(3)

    def choose(question: str) -> list[Any]:
        return [few_shot["example"](*ticket) for ticket in draw.sample(tickets, 3)]

    answers = few_shot["few_shot"](engine, choose, few_shot["QUESTIONS"][:3], said.append)
    assert {team for team, _ in answers} <= set(few_shot["TEAMS"])
    assert all(is_all_reused(receipt) for _, receipt in answers)
    question = engine.tokenizer.count(f"Ticket: {few_shot['QUESTIONS'][2]}\nTeam:")
    assert answers[2][1].fresh < question + 40  # and what the chat template puts around it
    assert "0 tokens computed" not in said[0]


def test_the_examples_most_like_a_question_are_chosen() -> None:
    few_shot = runpy.run_path(str(EXAMPLES / "few_shot.py"))

    class Letters:
        """Texts are alike that begin with the same letter."""

        def query(self, text: str) -> Any:
            import numpy as np

            return np.eye(128)[ord(text[0])]

        def passages(self, texts: Any) -> Any:
            return [self.query(text)[None] for text in texts]

    [piece] = few_shot["alike"](Letters(), "Please help", 1)
    assert piece.text.startswith("Ticket: Please send")


def test_system_prompts_of_shared_blocks_are_all_reused(engine: Any) -> None:
    example = runpy.run_path(str(EXAMPLES / "system_prompts.py"))
    said: list[str] = []
    receipts = example["serve"](engine, questions=example["QUESTIONS"][:1], say=said.append)
    assert len(receipts) == len(example["TENANTS"])
    assert all(is_all_reused(receipt) for receipt in receipts)
    assert example["compiled"](engine, example["TENANTS"]) == 0
    copied = example["Tenant"]("copycat", example["TENANTS"][0].own, ("own",))
    assert example["compiled"](engine, [copied]) > 0  # another's text is no hit
