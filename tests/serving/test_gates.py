"""The engine's gates: reuse is exact where it must be, on every model family and rotary variant we claim."""

import hashlib
from itertools import permutations

import pytest
import torch

from epicrag.serving.compile import Recipe, compile_batch, relocate
from epicrag.serving.policies import Full, LegoLink, Naive, Prefix, parse_policy
from epicrag.serving.prompt import Piece, Prompt
from epicrag.serving.sample import Sampling

FAMILIES = (
    "llama",
    "llama-llama3",
    "llama-yarn",
    "llama-linear",
    "mistral",
    "mistral-yarn",
    "mistral-sliding",
    "qwen2",
    "qwen2-yarn",
    "qwen2-sliding",
    "qwen3",
    "qwen3-yarn",
    "smollm3",
    "phi3",
    "phi3-sliding",
    "glm",
    "gemma",
    "gemma2",
    "gemma3",
    "mixtral",
    "qwen2-moe",
    "qwen3-moe",
    "deepseek-v2",
    "deepseek-v3",
    "olmo2",
    "granite",
    "cohere",
)
THOROUGH = ("llama", "qwen3-yarn", "glm", "gemma2", "deepseek-v2", "smollm2")
"""Families that go through every variant of every gate; the others take one variant of each, in turn."""


def variants(name, values):
    """Parametrize a gate: all values for some families, one for each of the others."""
    pairs = [
        (family, value)
        for index, family in enumerate((*FAMILIES, "smollm2"))
        for value in (values if family in THOROUGH else [values[index % len(values)]])
    ]
    return pytest.mark.parametrize(("engine", name), pairs, indirect=["engine"])


TEXTS = (
    "the cat sat on the mat and then said hello to the other cat",
    "a dog said: 42 mats, 17 cats. the mat is by the door",
    "hello hello the third text is about a red hat on the mat",
)


@pytest.fixture(params=[*FAMILIES, "smollm2"])
def engine(request, tiny_engine):
    if request.param != "smollm2":
        return tiny_engine(request.param)
    return request.getfixturevalue("smollm2_engine")


@pytest.fixture(scope="module")
def smollm2_engine(smollm2):
    from epicrag.serving.engine import Engine

    return Engine.load(
        smollm2,
        name="smollm2-135m",
        device="cpu",
        dtype="float32",
        kv_dtype="float32",
        kv_memory_bytes=256 << 20,
    )


def prompt(*texts: str, question: str = "where is the cat") -> Prompt:
    return Prompt(question, tuple(Piece(text) for text in texts))


def logits(engine, asked: Prompt, policy, mode: str = "isolated", n: int = 4) -> torch.Tensor:
    """Logits of the prompt's last token and of `n` fixed tokens after it, (1 + n, V)."""
    with engine.stitched(asked, policy, mode=mode, n_new=n) as stitched:
        first = stitched.linked.link()
        return torch.cat((first, stitched.linked.step([5, 6, 7, 8][:n]))) if n else first


def close(engine, got: torch.Tensor, want: torch.Tensor) -> bool:
    return bool((got - want).abs().max() < 2e-4 * max(1.0, float(want.abs().max())))


def written(engine, asked: Prompt, policy, mode: str = "isolated") -> tuple[int, ...]:
    generation = engine.generate(asked, policy=policy, sampling=Sampling(max_tokens=8), mode=mode)
    list(generation)
    return generation.token_ids


def test_every_family_that_is_claimed_is_here(families):
    assert set(FAMILIES) == set(families["accepted"])


def test_gate_6_the_model_is_accepted(engine):
    assert engine.refusal is None


def test_full_prefill_and_the_steps_after_it_equal_transformers(engine):
    """On a prompt of several times the widest sliding window among the tiny models."""
    asked = prompt(*TEXTS)
    ids = (*engine.lay_out(asked, 4).ids, 5, 6, 7, 8)
    want = engine.model.plain_logits(ids, range(len(ids) - 5, len(ids)))
    assert len(ids) > 8 * max(kind.window or 1 for kind in engine.layers.kinds)
    assert close(engine, logits(engine, asked, Full()), want)


@variants("mode", ["isolated", "sink", "prefix", "neighbour"])
def test_gate_1_recomputing_whole_chunks_equals_full(engine, mode):
    pieces = (Piece(TEXTS[0]), Piece(TEXTS[1], before=TEXTS[0]), Piece(TEXTS[2], before=TEXTS[1]))
    asked = Prompt("where is the cat", pieces)
    policy = LegoLink(1000)
    assert close(engine, logits(engine, asked, policy, mode), logits(engine, asked, Full()))
    assert written(engine, asked, policy, mode) == written(engine, asked, Full())


@variants("policy", [Naive(), LegoLink(3), parse_policy("legolink(3)+correct(0.5)")])
def test_gate_2_a_chunk_at_its_own_place_equals_full(engine, policy):
    asked = prompt(TEXTS[0])
    with engine.stitched(asked, policy, mode="prefix") as stitched:
        assert stitched.plan.stitched == stitched.plan.recomputed == 0
    assert close(engine, logits(engine, asked, policy, "prefix"), logits(engine, asked, Full()))


def test_gate_2_a_chunk_behind_its_own_neighbour_equals_full(engine):
    asked = Prompt("where", (Piece(TEXTS[0]), Piece(TEXTS[1], before=TEXTS[0])))
    with engine.stitched(asked, Naive(), mode="neighbour") as stitched:
        assert stitched.plan.stitched == 0
    assert close(engine, logits(engine, asked, Naive(), "neighbour"), logits(engine, asked, Full()))


@variants("delta", [1, 100, 700])
def test_gate_3_relocated_keys_equal_keys_computed_there(engine, delta):
    """All layers: the keys of a token that sees itself alone depend on the token and its position only."""
    ids = engine.tokenizer.ids(TEXTS[0])[:9]
    recipes = [Recipe((token,)) for token in ids]
    pairs = compile_batch(engine.model, engine.pool, engine.layers, recipes)
    moved = relocate(torch.cat([keys for keys, _ in pairs], 2), delta, engine.layers)
    there = engine.model.keys_alone(ids, [delta] * len(ids))
    for layer in range(len(there)):
        error = (moved[layer] - there[layer]).abs().max()
        assert error < 1e-3 * there[layer].abs().max()


def test_gate_3_dropped_text_in_front_leaves_keys_at_zero(engine):
    """A chunk compiled behind text holds, at layer 0, the keys it has alone at position 0."""
    ids = engine.tokenizer.ids(TEXTS[0])
    behind = engine.tokenizer.ids(TEXTS[1])
    alone, after = (
        compile_batch(engine.model, engine.pool, engine.layers, [recipe])[0][0][0]
        for recipe in (Recipe(ids), Recipe(ids, behind))
    )
    assert (alone - after).abs().max() < 1e-3 * alone.abs().max()


@variants("policy", [LegoLink(3), parse_policy("legolink(5)+correct(0.5)"), Full()])
def test_gate_5_requests_in_one_batch_equal_the_same_alone(engine, policy):
    """Three prompts share chunks at other positions; linked in pieces, side by side, then decoded together."""
    from epicrag.serving.link import run

    asked = [prompt(*TEXTS), prompt(*TEXTS[::-1], question="who"), prompt(TEXTS[1])]
    want = [logits(engine, one, policy) for one in asked]
    with (
        engine.stitched(asked[0], policy, mode="isolated", n_new=4) as first,
        engine.stitched(asked[1], policy, mode="isolated", n_new=4) as second,
        engine.stitched(asked[2], policy, mode="isolated", n_new=4) as third,
    ):
        before = [shared_rows(engine, one) for one in (first, second, third)]
        walks = [one.linked for one in (first, second, third)]
        got = [[] for _ in walks]
        while not all(walk.is_linked for walk in walks):
            jobs = [walk.link_job(7) for walk in walks if not walk.is_linked]
            for job, rows in zip(jobs, run(jobs), strict=True):
                got[walks.index(job.linked)].append(rows)
        for token in (5, 6, 7, 8):
            for rows, mine in zip(run([w.step_job([token]) for w in walks]), got, strict=True):
                mine.append(rows)
        assert [shared_rows(engine, one) for one in (first, second, third)] == before
    for mine, theirs in zip(got, want, strict=True):
        assert close(engine, torch.cat(mine), theirs)


def shared_rows(engine, stitched) -> str:
    """Digest of all pool rows that the prompt reads but does not own."""
    digest = hashlib.sha256()
    for span in stitched.linked.shared:
        for rows in (engine.pool.keys, engine.pool.values):
            part = rows[:, :, span.start : span.start + span.length]
            digest.update(part.contiguous().numpy().tobytes())
    return digest.hexdigest()


@variants("policy", [Naive(), LegoLink(4)])
def test_gate_4_order_and_earlier_requests_change_nothing(engine, policy):
    """[A, B], then [B, A], then [B]: each equals its own reference, made with a pool of its own."""
    orders = [(0, 1), (1, 0), (1,)]
    fresh = []
    for order in orders:
        engine.pool.drop_idle()
        fresh.append(logits(engine, prompt(*(TEXTS[i] for i in order)), policy))
    engine.pool.drop_idle()
    for order, want in zip(orders, fresh, strict=True):
        assert torch.equal(logits(engine, prompt(*(TEXTS[i] for i in order)), policy), want)


@variants("policy", ["legolink(5)", "damp(2,15)+legolink(5)", "legolink(5)+correct(0.5)"])
def test_a_request_never_changes_the_pages_it_shares(engine, policy):
    asked = prompt(*TEXTS)
    with engine.stitched(asked, Naive(), mode="isolated") as bystander:
        before = shared_rows(engine, bystander)
        logits(engine, asked, parse_policy(policy))
        assert shared_rows(engine, bystander) == before


def test_gate_7_the_link_runs_when_every_chunk_hits(engine):
    """All-hit is not an exact prefix: recomputation still changes what naive stitching gives."""
    asked = prompt(*TEXTS[::-1])  # the last chunk is in reach of a sliding window
    logits(engine, asked, Naive())
    with engine.stitched(asked, LegoLink(6), mode="isolated") as stitched:
        assert stitched.computed == 0
        assert stitched.plan.recomputed > 0
        assert stitched.plan.fresh > 0
    assert not close(engine, logits(engine, asked, LegoLink(6)), logits(engine, asked, Naive()))


def test_the_prefix_policy_is_exact_and_reuses_an_earlier_prompt(engine):
    first, second = prompt(*TEXTS), prompt(*TEXTS[:2], "another text")
    written(engine, first, Prefix())
    generation = engine.generate(second, policy=Prefix(), sampling=Sampling(max_tokens=8))
    list(generation)
    assert generation.receipt.exact > len(engine.tokenizer.ids(TEXTS[0] + TEXTS[1]))
    assert generation.token_ids == written(engine, second, Full())


def test_every_order_of_chunks_hits_in_full(engine):
    for order in permutations(TEXTS):
        with engine.stitched(prompt(*order), Naive(), mode="isolated") as stitched:
            plan = stitched.plan
            assert plan.recomputed == 0
            assert plan.exact + plan.stitched + plan.fresh == stitched.layout.n_tokens


def test_damping_and_correction_do_change_the_answer(engine):
    """A policy that silently did nothing would pass every gate above."""
    asked = prompt(*TEXTS[::-1])
    base = logits(engine, asked, LegoLink(6))
    for name in ("damp(2,15)+legolink(0)", "legolink(6)+correct(0.5)"):
        assert not close(engine, logits(engine, asked, parse_policy(name)), base)
    assert close(engine, logits(engine, asked, parse_policy("legolink(6)+correct(0)")), base)
