"""Chunks without KV are computed in pieces: nobody else is held up, and nothing comes out differently."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from epicrag.index.kvstore import KVStore
from epicrag.serving import stitched
from epicrag.serving.engine import Engine
from epicrag.serving.policies import Full, LegoLink, Naive
from epicrag.serving.prompt import Chat, Message, Piece, Prompt
from epicrag.serving.sample import Sampling
from epicrag.serving.schedule import Limits

TEXTS = tuple(f"text number {n} says that the cat sat on mat {n * 7}. " * 6 for n in range(4))
PIECES = tuple(
    Piece(text, before=before) for text, before in zip(TEXTS, (None, *TEXTS), strict=False)
)
QUESTION = Prompt("where is the cat", PIECES)
TALK = Chat((Message("user", ("tell me of the dog and the cat",)),))


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """However few tokens are missing."""
    monkeypatch.setattr(stitched, "AT_ONCE", 0)


def load(checkpoint, folder, **options) -> Engine:
    settings = {
        "device": "cpu",
        "kv_memory_bytes": 16 << 20,
        "store": KVStore(folder),
        "limits": Limits(batch_tokens=24, max_unread=1000),
        **options,
    }
    engine = Engine.load(checkpoint("llama"), name="llama", **settings)
    engine.model.eos_ids = frozenset()
    return engine


def swept(engine: Engine) -> None:
    engine.pool.check()
    assert engine.pool.busy_pages == 0


def kv_of(engine: Engine, piece: Piece, mode: str) -> tuple[torch.Tensor, torch.Tensor]:
    entry = engine.cache._load(engine.key_of(piece, mode), engine.recipe_of(piece, mode))
    return entry.keys.float(), entry.values.float()


@pytest.mark.parametrize("mode", ["isolated", "sink", "prefix", "neighbour"])
def test_pieces_make_the_kv_that_one_pass_makes(checkpoint, tmp_path, mode):
    whole, pieces = load(checkpoint, tmp_path / "a"), load(checkpoint, tmp_path / "b")
    assert len(list(whole.compile(PIECES, mode))) == 4
    answer = pieces.generate(
        QUESTION, policy=LegoLink(4), sampling=Sampling(max_tokens=6), mode=mode
    )
    list(answer)
    for piece in PIECES:
        for got, want in zip(kv_of(pieces, piece, mode), kv_of(whole, piece, mode), strict=True):
            assert (got - want).abs().max() < 2e-3 * want.abs().max()
    again = whole.generate(QUESTION, policy=LegoLink(4), sampling=Sampling(max_tokens=6), mode=mode)
    list(again)
    assert answer.token_ids == again.token_ids
    swept(pieces)


def test_the_receipt_says_what_was_computed(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path)
    sampling = Sampling(max_tokens=3)
    cold = engine.generate(QUESTION, policy=Naive(), sampling=sampling)
    list(cold)
    warm = engine.generate(QUESTION, policy=Naive(), sampling=sampling)
    list(warm)
    first, second = cold.receipt, warm.receipt
    assert first.context_tokens == second.context_tokens
    assert (first.exact, first.stitched) == (0, 0)
    assert first.recomputed == first.context_tokens
    assert "were compiled during the request" in first.fallback
    assert (second.recomputed, second.fallback) == (0, None)
    assert first.ms.load > 0
    assert first.ms.wait >= 0
    assert first.ms.first_token >= first.ms.load


def test_others_are_served_meanwhile(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path)
    talk = engine.submit(TALK, policy=Full(), sampling=Sampling(max_tokens=400))
    next(talk)
    asked = engine.submit(QUESTION, policy=Naive(), sampling=Sampling(max_tokens=2))
    written = []
    while not asked.token_ids:
        assert engine.step()
        written.append(len(talk.token_ids))
    assert written[-1] - written[0] > 10  # a token of the other in each step
    assert all(b - a == 1 for a, b in pairwise(written[:-1]))
    list(asked)
    list(talk)
    swept(engine)


def test_given_up_while_it_warms_it_holds_nothing(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path)
    asked = engine.submit(QUESTION, policy=Naive())
    engine.step()
    engine.step()
    assert engine.busy_pages
    asked.close()
    swept(engine)
    assert not engine.scheduler.is_busy
    done = engine.generate(QUESTION, policy=Naive(), sampling=Sampling(max_tokens=2))
    assert list(done)
    swept(engine)


def test_two_that_lack_the_same_both_get_it(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path)
    sampling = Sampling(max_tokens=3)
    both = [engine.submit(QUESTION, policy=Naive(), sampling=sampling) for _ in range(2)]
    ids = []
    for one in both:
        list(one)
        ids.append(one.token_ids)
    assert ids[0] == ids[1]
    swept(engine)


def test_a_pool_that_is_full_lets_them_wait(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path, kv_memory_bytes=640 << 10, self_check=False)
    sampling = Sampling(max_tokens=4)
    some = [
        engine.submit(Prompt("where", PIECES[n:]), policy=Naive(), sampling=sampling)
        for n in range(3)
    ]
    for one in some:
        list(one)
        assert len(one.token_ids) == 4
    swept(engine)


def test_compiling_beside_answers_goes_in_pieces(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("epicrag.serving.engine.PIECE_TOKENS", 16)
    engine, alone = load(checkpoint, tmp_path / "a"), load(checkpoint, tmp_path / "b")
    talk = engine.submit(TALK, policy=Full(), sampling=Sampling(max_tokens=200))
    next(talk)
    before = len(talk.token_ids)
    done = list(engine.compile(PIECES))
    assert len(talk.token_ids) - before > 20
    assert done == list(alone.compile(PIECES))
    for piece in PIECES:
        for got, want in zip(
            kv_of(engine, piece, "neighbour"), kv_of(alone, piece, "neighbour"), strict=True
        ):
            assert (got - want).abs().max() < 2e-3 * want.abs().max()
    assert [n for _, _, n in engine.compile(PIECES)] == [0] * 4
    talk.close()
    swept(engine)
