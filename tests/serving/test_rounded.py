"""KV in 8 bits through every tier: what the engine answers is what the widened numbers give, bit for bit everywhere."""

from __future__ import annotations

import logging

import pytest
import torch

from epicrag.index.kvstore import KVStore
from epicrag.kernels import ops
from epicrag.serving.engine import Engine
from epicrag.serving.entry import Entry, rounded
from epicrag.serving.policies import LegoLink, Naive, parse_policy
from epicrag.serving.pool import Pool
from epicrag.serving.prompt import Piece, Prompt
from epicrag.serving.sample import Sampling

TEXTS = tuple(
    f"text number {n} says that the cat sat on mat {n * 7} and hello " * 2 for n in range(4)
)
SHORT = Sampling(max_tokens=6)


def load(checkpoint, tmp_path, family="llama", **options) -> Engine:
    settings = {
        "device": "cpu",
        "dtype": "float32",
        "kv_dtype": "int8",
        "kv_memory_bytes": 16 << 20,
        "store": KVStore(tmp_path / "kv"),
        **options,
    }
    engine = Engine.load(checkpoint(family), name=family, **settings)
    assert engine.refusal is None
    engine.model.eos_ids = frozenset()  # a random model ends its answers at random
    return engine


def prompt(*texts: str) -> Prompt:
    return Prompt("where is the cat", tuple(Piece(text) for text in texts))


def written(engine, asked, policy=None, **options) -> tuple[int, ...]:
    policy = policy or LegoLink(4)
    generation = engine.generate(asked, policy=policy, sampling=SHORT, **options)
    list(generation)
    return generation.token_ids


def logits(engine, asked, policy) -> torch.Tensor:
    with engine.stitched(asked, policy, mode="isolated", n_new=4) as stitched:
        first = stitched.linked.link()
        return torch.cat((first, stitched.linked.step([5, 6, 7, 8])))


@pytest.fixture(scope="module")
def pair(checkpoint, tmp_path_factory):
    """An engine in 8 bits, the same over chunks that were rounded and widened again, and one without rounding."""
    made = {}

    def get(family):
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            eight = load(checkpoint, folder / "8", family, store=None)
            wide = {"store": None, "kv_dtype": "float32", "self_check": False}
            twin = load(checkpoint, folder / "t", family, **wide)
            plain = load(checkpoint, folder / "p", family, **wide)

            def stored(recipe, keys, values):
                if recipe.opens:
                    return Entry(keys, values)
                entry = rounded(keys, values)
                return Entry(
                    ops.widen_rows(entry.keys, entry.key_scales, torch.float32),
                    ops.widen_rows(entry.values, entry.value_scales, torch.float32),
                )

            twin.cache._stored = stored
            # What opens a prompt is in sixteen bits in one, and not in the other: make it alike.
            eight.cache._wide_dtype = torch.float32
            made[family] = eight, twin, plain
        return made[family]

    return get


@pytest.mark.parametrize("family", ["llama", "gemma2", "deepseek-v2", "glm"])
@pytest.mark.parametrize("policy", ["none", "legolink(4)", "legolink(4)+correct(0.5)"])
def test_the_engine_equals_one_over_the_widened_numbers(pair, family, policy):
    eight, twin, plain = pair(family)
    asked, chosen = prompt(*TEXTS), parse_policy(policy)
    got, want, without = (logits(engine, asked, chosen) for engine in (eight, twin, plain))
    scale = max(1.0, float(want.abs().max()))
    assert (got - want).abs().max() < 2e-4 * scale
    assert (got - without).abs().max() > 5e-4 * scale, "nothing was rounded: this proves nothing"


@pytest.mark.parametrize("policy", ["focus(0.2)", "deviation(0.2)", "reconnect(3)", "damp"])
def test_policies_that_look_at_the_stitched_prompt_see_the_widened_numbers(pair, policy):
    eight, twin, _ = pair("llama")
    asked, chosen = prompt(*TEXTS), parse_policy(policy)
    got, want = (logits(engine, asked, chosen) for engine in (eight, twin))
    assert (got - want).abs().max() < 2e-4 * max(1.0, float(want.abs().max()))


def test_full_prefill_and_recomputing_whole_chunks_do_not_know_of_8_bits(pair):
    eight, _, plain = pair("llama")
    asked = prompt(*TEXTS)
    for policy in (parse_policy("full"), LegoLink(1000)):
        assert torch.allclose(logits(eight, asked, policy), logits(plain, asked, policy), atol=1e-4)


def test_every_tier_gives_the_same_bytes(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path, host_kv_memory_bytes=1 << 20)
    asked = prompt(*TEXTS)
    recipe = engine.recipe_of(asked.pieces[0], "isolated")

    def held() -> Entry:
        runs, _ = engine.cache.acquire(recipe)
        entry = engine.pool.entry(runs).narrowed()
        engine.cache.release(recipe)
        return entry

    compiled = held()
    assert compiled.is_rounded and compiled.keys.dtype == torch.int8
    engine.pool.drop_idle()
    assert engine.cache.host.get(engine.cache.key(recipe)).is_rounded
    from_host = held()
    engine.pool.drop_idle()
    engine.cache.host.clear()
    from_disk = held()
    assert engine.cache.hits == {"compiled": 1, "host": 1, "disk": 1}
    for other in (from_host, from_disk):
        for mine, theirs in zip(compiled.tensors(), other.tensors(), strict=True):
            assert torch.equal(mine, theirs)


def test_warm_and_cold_answers_are_the_same(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path)
    cold, warm = written(engine, prompt(*TEXTS)), written(engine, prompt(*TEXTS))
    assert cold == warm == written(load(checkpoint, tmp_path), prompt(*TEXTS))


def test_what_opens_a_prompt_stays_in_16_bits(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path)
    written(engine, prompt(TEXTS[0]))
    (own,) = engine.own_keys()
    store = engine.cache._store
    kinds = {key == own: store.get(key).keys.dtype for key in sorted(store.keys())}
    assert kinds == {True: torch.float16, False: torch.int8}


def test_8_and_16_bits_are_never_mixed_up_in_one_store(checkpoint, tmp_path):
    sixteen = load(checkpoint, tmp_path, kv_dtype=None)
    eight = load(checkpoint, tmp_path)
    piece = Piece(TEXTS[0])
    assert sixteen.profile != eight.profile
    assert sixteen.key_of(piece) != eight.key_of(piece)
    first = written(sixteen, prompt(*TEXTS))
    written(eight, prompt(*TEXTS))
    assert written(load(checkpoint, tmp_path, kv_dtype=None), prompt(*TEXTS)) == first
    assert eight.kv_dtype == "int8" and sixteen.kv_dtype == "float16"


def test_bytes_of_a_token_are_what_the_file_takes(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path)
    piece = Piece(TEXTS[0] * 3)
    list(engine.compile([piece]))
    key = engine.key_of(piece)
    found = engine.cache._store.get(key)
    tensors = (found.keys, found.values, *found.scales)
    n_tokens = found.keys.shape[2]
    assert sum(x.nbytes for x in tensors) == n_tokens * engine.kv_bytes_per_token
    half = load(checkpoint, tmp_path / "16", kv_dtype=None).kv_bytes_per_token
    assert (
        engine.kv_bytes_per_token == half // 2 + 3 * 2 * 2 * 2
    )  # the scales of 3 layers, 2 groups


def test_damage_is_computed_again(checkpoint, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    engine = load(checkpoint, tmp_path)
    first = written(engine, prompt(*TEXTS))
    store = engine.cache._store
    key = engine.key_of(Piece(TEXTS[1]), "isolated")
    written(engine, prompt(*TEXTS), mode="isolated")
    path = store.file(key)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1  # in the scales of the values
    path.write_bytes(bytes(raw))
    again = load(checkpoint, tmp_path)
    written(again, prompt(*TEXTS), mode="isolated")
    assert again.stats().compiled == 1
    assert "unusable" in caplog.text
    assert written(again, prompt(*TEXTS)) == first
    assert store.get(key).keys.dtype == torch.int8


def test_kv_in_16_bits_is_rounded_without_the_model(checkpoint, tmp_path):
    pieces = [Piece(text) for text in TEXTS]
    list(load(checkpoint, tmp_path, kv_dtype=None).compile(pieces))
    engine = load(checkpoint, tmp_path)
    assert {n for _, _, n in engine.compile(pieces)} == {0}
    answer = written(engine, prompt(*TEXTS), mode=engine.compile_mode)
    fresh = load(checkpoint, tmp_path / "fresh")
    list(fresh.compile(pieces))
    assert len(answer) == len(written(fresh, prompt(*TEXTS), mode=fresh.compile_mode))
    mine, theirs = (e.cache._store.get(e.key_of(pieces[0])) for e in (engine, fresh))
    # Rounded twice, to 16 bits and to 8: no number is more than one step from where rounding once puts it.
    assert (mine.keys.int() - theirs.keys.int()).abs().max() <= 1


def test_a_chunk_that_8_bits_cannot_hold_stays_in_16(checkpoint, tmp_path, monkeypatch):
    import epicrag.serving.cache as module

    def refuse(keys, values):
        raise ValueError("too large")

    monkeypatch.setattr(module, "rounded", refuse)
    engine = load(checkpoint, tmp_path)
    answer = written(engine, prompt(*TEXTS))
    assert answer == written(load(checkpoint, tmp_path / "16", kv_dtype=None), prompt(*TEXTS))
    monkeypatch.undo()
    assert written(load(checkpoint, tmp_path), prompt(*TEXTS)) == answer  # read as it is stored


def test_many_more_tokens_fit_into_the_same_memory(checkpoint, tmp_path):
    eight, plain = load(checkpoint, tmp_path), load(checkpoint, tmp_path / "16", kv_dtype=None)
    text = "the cat sat on the mat and said hello " * 12

    def held(engine) -> float:
        """Tokens of one chunk for each byte of the pool that it takes."""
        recipe = engine.recipe_of(Piece(text), "isolated")
        engine.cache.acquire(recipe)
        pages = engine.pool.pages_of(engine.cache.key(recipe))
        engine.cache.release(recipe)
        return len(recipe.ids) / (pages * engine.pool.page_size * engine.pool.row_bytes)

    # Heads of 12 numbers, tiny as they are: 4 * 12 bytes against 12 + 4.
    assert held(eight) > 2.4 * held(plain)


def test_a_prompt_is_served_in_memory_that_its_chunks_would_not_fit_in_wide(checkpoint, tmp_path):
    texts = [f"number {n} of the texts, and the cat sat on the mat " * 4 for n in range(5)]
    asked = prompt(*texts)
    engine = load(checkpoint, tmp_path)
    list(engine.compile(asked.pieces, "isolated"))
    answer = written(engine, asked, Naive(), mode="isolated")
    n_tokens = engine.lay_out(asked, 6).n_tokens
    small = load(checkpoint, tmp_path, kv_memory_bytes=n_tokens * engine.pool.row_bytes * 2 // 3)
    assert written(small, asked, Naive(), mode="isolated") == answer
    small.pool.check()


def test_nothing_is_left_behind(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path, kv_memory_bytes=400_000, host_kv_memory_bytes=50_000)
    for seed in range(6):
        written(engine, prompt(*TEXTS[seed % 4 :], *TEXTS[: seed % 4]))
    engine.pool.check()
    assert engine.pool.busy_pages == 0
    engine.pool.drop_idle()
    engine.pool.check()
    assert engine.pool.free_pages == engine.pool.n_pages


# --- the pool -----------------------------------------------------------------------------------


def make_pool(dtype=torch.float32, pages=8) -> Pool:
    ratio = dtype.itemsize
    row_bytes = 2 * 1 * (8 * dtype.itemsize + ratio * 8)
    page_size = 16 // ratio
    return Pool(
        layers=2,
        groups=1,
        head_dim=4,
        budget_bytes=pages * page_size * row_bytes,
        dtype=dtype,
        device=torch.device("cpu"),
        rounded=True,
    )


def entry(rows: int, seed: int = 0) -> Entry:
    generator = torch.Generator().manual_seed(seed)
    return rounded(*(torch.randn(2, 1, rows, 4, generator=generator) for _ in range(2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_rounded_rows_share_the_memory_of_the_others_and_never_a_byte(dtype):
    pool = make_pool(dtype, pages=12)
    assert pool.n_pages == 12
    plain = Entry(torch.randn(2, 1, 10, 4).to(dtype), torch.randn(2, 1, 10, 4).to(dtype))
    pool.fill("a", entry(21, 1))
    pool.fill("b", plain)
    pool.fill("c", entry(33, 2))
    for key, put in (("a", entry(21, 1)), ("b", plain), ("c", entry(33, 2))):
        runs = pool.acquire(key)
        assert all((run.start >= pool.n_rows) == put.is_rounded for run in runs)
        got = pool.entry(runs).narrowed()
        for mine, theirs in zip(got.tensors(), put.tensors(), strict=True):
            assert torch.equal(mine, theirs)
        pool.unpin(key)
    assert [pool.pages_of(key) for key in "abc"] == [2, -(-10 * dtype.itemsize // 16), 3]
    pool.check()


def test_any_rows_of_a_layer_can_be_read_widened():
    pool = make_pool()
    plain = Entry(torch.randn(2, 1, 5, 4), torch.randn(2, 1, 5, 4))
    pool.fill("a", plain)
    pool.fill("b", entry(9))
    (a,), (b,) = pool.acquire("a"), pool.acquire("b")
    rows = torch.tensor([b.start + 8, a.start + 2, b.start])
    keys, values = pool.layer_rows(1, rows)
    wide = ops.widen_rows(entry(9).keys, entry(9).key_scales, torch.float32)[1]
    want = torch.stack([wide[:, 8], plain.keys[1][:, 2], wide[:, 0]], 1)
    assert torch.equal(keys, want)
    assert values.shape == (1, 3, 4)


def test_a_pool_without_room_for_8_bits_says_so():
    pool = Pool(
        layers=2,
        groups=1,
        head_dim=4,
        budget_bytes=1 << 16,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    with pytest.raises(ValueError, match="8 bits"):
        pool.fill("a", entry(3))
    pool.check()
    assert pool.free_pages == pool.n_pages
