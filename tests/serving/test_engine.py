"""One request's life: streaming, ends, receipts that add up, damage, refusals and cancellation."""

import logging
from dataclasses import replace

import pytest
import torch

from epicrag.errors import DeviceError, UsageError
from epicrag.index.kvstore import KVStore
from epicrag.serving.engine import Engine
from epicrag.serving.policies import Full, LegoLink, Naive, parse_policy
from epicrag.serving.prompt import Piece, Prompt
from epicrag.serving.sample import Sampling

TEXTS = tuple(f"text number {n} says that the cat sat on mat {n * 7}" for n in range(4))
SHORT = Sampling(max_tokens=6)


def load(checkpoint, tmp_path, family="llama", **options) -> Engine:
    settings = {
        "device": "cpu",
        "dtype": "float32",
        "kv_memory_bytes": 16 << 20,
        "store": KVStore(tmp_path / "kv"),
        **options,
    }
    return Engine.load(checkpoint(family), name=family, **settings)


def prompt(*texts: str) -> Prompt:
    return Prompt("where is the cat", tuple(Piece(text) for text in texts))


def run(engine, asked, policy=None, sampling=SHORT, **options):
    generation = engine.generate(asked, policy=policy or LegoLink(4), sampling=sampling, **options)
    return list(generation), generation


def test_deltas_join_to_the_text_and_come_one_by_one(tiny_engine):
    deltas, generation = run(tiny_engine("llama"), prompt(*TEXTS), sampling=Sampling(max_tokens=12))
    assert "".join(deltas) == generation.text
    assert len(deltas) > 2
    assert generation.usage.completion_tokens == len(generation.token_ids) <= 12
    assert (
        generation.usage.prompt_tokens == tiny_engine("llama").lay_out(prompt(*TEXTS), 12).n_tokens
    )


def test_the_first_delta_comes_before_the_last_token_is_computed(tiny_engine):
    generation = tiny_engine("llama").generate(prompt(*TEXTS), policy=Naive(), sampling=SHORT)
    next(generation)
    assert generation.usage.completion_tokens == 1
    generation.close()


@pytest.mark.parametrize(
    "policy", ["full", "prefix", "none", "legolink(4)", "legolink-0", "damp", "legolink(4)+correct"]
)
@pytest.mark.parametrize("mode", ["isolated", "sink", "prefix", "neighbour"])
def test_every_receipt_adds_up(tiny_engine, policy, mode):
    engine = tiny_engine("llama")
    _, generation = run(engine, prompt(*TEXTS), parse_policy(policy), mode=mode)
    receipt = generation.receipt
    assert receipt.context_tokens == receipt.exact + receipt.stitched + receipt.recomputed
    assert receipt.context_tokens + receipt.fresh == generation.usage.prompt_tokens
    assert receipt.policy == parse_policy(policy).name
    assert receipt.compile == ("sink" if policy == "legolink-0" else mode)
    assert receipt.ms.total >= receipt.ms.first_token >= receipt.ms.link > 0


def test_a_warm_request_reuses_every_chunk_token(tiny_engine):
    engine = tiny_engine("llama")
    run(engine, prompt(*TEXTS), Naive())
    _, generation = run(engine, prompt(*reversed(TEXTS)), Naive())
    assert generation.receipt.recomputed == 0
    assert generation.receipt.fallback is None


def test_a_cold_request_says_what_it_had_to_compile(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path)
    _, cold = run(engine, prompt(*TEXTS), Naive())
    assert cold.receipt.stitched == 0
    assert cold.receipt.recomputed >= engine.tokenizer.count("".join(TEXTS))
    assert "compiled during the request" in (cold.receipt.fallback or "")


def test_warm_and_cold_answers_are_the_same(checkpoint, tmp_path):
    """Also through sixteen bits on disk: a chunk compiled this instant takes the same way."""
    engine = load(checkpoint, tmp_path)
    cold, _ = run(engine, prompt(*TEXTS))
    warm, _ = run(engine, prompt(*TEXTS))
    other = load(checkpoint, tmp_path)
    disk, generation = run(other, prompt(*TEXTS))
    assert cold == warm == disk
    assert generation.receipt.fallback is None


def test_compile_stores_what_is_missing_and_nothing_twice(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path)
    pieces = [Piece(text) for text in (*TEXTS, TEXTS[0])]
    first = sorted(engine.compile(pieces))
    assert [index for index, _, _ in first] == list(range(5))
    assert [bool(n) for _, _, n in first] == [True] * 4 + [False]
    assert all(engine.cache._store.contains(key) for _, key, _ in first)
    again = list(load(checkpoint, tmp_path).compile(pieces))
    assert {n for _, _, n in again} == {0}
    assert {key for _, key, _ in again} == {key for _, key, _ in first}
    assert engine.own_keys() <= engine.cache._store.keys()


def test_batched_compiles_equal_single_ones(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path, kv_dtype="float32")
    pieces = [Piece(text) for text in TEXTS]
    for mode in ("isolated", "sink", "prefix", "neighbour"):
        keys = [key for _, key, _ in sorted(engine.compile(pieces, mode))]
        for piece, key in zip(pieces, keys, strict=True):
            alone = load(checkpoint, tmp_path / mode / key[:6], kv_dtype="float32")
            [(_, same, _)] = list(alone.compile([piece], mode))
            assert same == key
            a, b = engine.cache._store.get(key), alone.cache._store.get(key)
            assert torch.allclose(a.keys, b.keys, atol=1e-5)
            assert torch.allclose(a.values, b.values, atol=1e-5)


def test_keys_depend_on_all_that_changes_kv(checkpoint, tmp_path):
    piece = Piece(TEXTS[0], before=TEXTS[1])
    keys = [
        load(checkpoint, tmp_path, **options).key_of(piece)
        for options in (
            {},
            {"compile_mode": "isolated"},
            {"compile_mode": "sink"},
            {"compile_mode": "prefix"},
            {"kv_dtype": "float32"},
            {"family": "llama-yarn"},
            {"family": "mistral"},
        )
    ]
    keys.append(load(checkpoint, tmp_path).key_of(replace(piece, namespace="other")))
    assert len(set(keys)) == len(keys)
    assert load(checkpoint, tmp_path).key_of(piece) == keys[0]


def test_modes_that_compile_behind_the_same_text_share_an_entry(tiny_engine):
    piece = Piece(TEXTS[0])
    engine = tiny_engine("llama")
    assert engine.key_of(piece, "neighbour") == engine.key_of(piece, "prefix")


def test_damaged_kv_is_computed_again_with_a_warning(checkpoint, tmp_path, caplog):
    engine = load(checkpoint, tmp_path)
    want, _ = run(engine, prompt(*TEXTS))
    for file in (tmp_path / "kv").rglob("*.safetensors"):
        data = bytearray(file.read_bytes())
        data[-40] ^= 0xFF
        file.write_bytes(data)
    with caplog.at_level(logging.WARNING, "epicrag"):
        got, generation = run(load(checkpoint, tmp_path), prompt(*TEXTS))
    assert got == want
    assert "damaged KV" in caplog.text
    assert "compiled during the request" in (generation.receipt.fallback or "")
    again, generation = run(load(checkpoint, tmp_path), prompt(*TEXTS))
    assert again == want
    assert generation.receipt.fallback is None


def test_kv_of_another_shape_under_the_same_key_is_not_used(checkpoint, tmp_path, caplog):
    engine = load(checkpoint, tmp_path)
    want, _ = run(engine, prompt(*TEXTS))
    store = KVStore(tmp_path / "kv")
    for key in list(store.keys()):
        store.delete(key)
        store.put(key, torch.zeros(3, 2, 1, 12), torch.zeros(3, 2, 1, 12), {})
    with caplog.at_level(logging.WARNING, "epicrag"):
        got, _ = run(load(checkpoint, tmp_path), prompt(*TEXTS))
    assert got == want
    assert "foreign shape" in caplog.text


def test_a_stop_string_ends_the_answer_before_it(tiny_engine):
    engine = tiny_engine("llama")
    texts = (prompt(*TEXTS), prompt(*TEXTS[::-1]), prompt(TEXTS[0]), prompt(TEXTS[1]))
    free = {asked: run(engine, asked, sampling=Sampling(max_tokens=30))[1].text for asked in texts}
    asked = max(free, key=lambda one: len(free[one]))
    text = free[asked]
    assert len(text) > 6
    stop = text[3:5]
    _, generation = run(engine, asked, sampling=Sampling(max_tokens=30, stop=(stop,)))
    assert generation.text == text[: text.find(stop)]
    assert generation.finish_reason == "stop"


def test_a_model_that_asks_itself_the_next_question_is_stopped(tiny_engine, monkeypatch):
    """Small models go on with the pattern of the prompt; what they ask themselves is no answer."""
    from epicrag.serving import answer as module

    engine = tiny_engine("llama")
    said = list(engine.tokenizer.ids("The mat.\n\nQuestion: why?"))

    class Says:
        is_complete = is_endless = False

        def __init__(self, *_: object) -> None: ...

        def __call__(self, logits: torch.Tensor) -> int:
            return said.pop(0)

    monkeypatch.setattr(module, "Sampler", Says)
    _, generation = run(engine, prompt(*TEXTS), sampling=Sampling(max_tokens=30))
    assert generation.text == "The mat."
    assert generation.finish_reason == "stop"


def test_max_tokens_ends_the_answer(tiny_engine):
    _, generation = run(tiny_engine("qwen2"), prompt(*TEXTS), sampling=Sampling(max_tokens=3))
    assert generation.usage.completion_tokens <= 3


def test_seeded_sampling_repeats(tiny_engine):
    engine = tiny_engine("llama")
    texts = [
        run(engine, prompt(*TEXTS), sampling=Sampling(max_tokens=8, temperature=1.5, seed=seed))[
            1
        ].text
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_closing_early_gives_every_page_back(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path)
    generation = engine.generate(prompt(*TEXTS), policy=LegoLink(2), sampling=SHORT)
    next(generation)
    generation.close()
    engine.pool.drop_idle()
    engine.pool.check()
    assert engine.pool.free_pages == engine.pool.n_pages
    assert run(engine, prompt(*TEXTS))[1].text  # and the next request has its turn


def test_answers_read_side_by_side_are_those_read_alone(tiny_engine):
    """In one thread: a half-read answer must not block the next, nor change it."""
    engine = tiny_engine("llama")
    asked = [prompt(*TEXTS), prompt(*reversed(TEXTS)), prompt(*TEXTS[:2])]
    alone = [run(engine, one)[1].token_ids for one in asked]
    open_ones = [engine.generate(one, policy=LegoLink(4), sampling=SHORT) for one in asked]
    pending = list(open_ones)
    while pending:
        pending = [one for one in pending if next(one, None) is not None]
    assert [one.token_ids for one in open_ones] == alone


def test_answers_in_several_threads_are_those_read_alone(tiny_engine):
    from concurrent.futures import ThreadPoolExecutor

    engine = tiny_engine("llama")
    asked = [prompt(*TEXTS[n:], *TEXTS[:n]) for n in range(4)] * 2
    alone = [run(engine, one)[1].token_ids for one in asked]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda one: run(engine, one)[1].token_ids, asked)) == alone


def test_chunks_that_do_not_fit_are_dropped_from_the_tail(tiny_engine):
    engine = tiny_engine("llama")
    long = tuple(f"{n} " + "cat mat hello " * 60 for n in range(12))
    _, generation = run(engine, prompt(*long))
    assert 0 < generation.pieces_used < 12
    assert generation.receipt.dropped_chunks == 12 - generation.pieces_used
    assert generation.usage.prompt_tokens + 6 <= engine.context_window


def test_a_question_that_does_not_fit_is_refused(tiny_engine):
    engine = tiny_engine("llama")
    asked = Prompt("why " * 2000, (Piece("a"),))
    with pytest.raises(UsageError, match="the question alone needs"):
        run(engine, asked)


def test_kv_memory_that_runs_out_is_an_error_and_nothing_leaks(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path, kv_memory_bytes=200_000)
    with pytest.raises(DeviceError, match="KV memory"):
        run(engine, prompt(*(f"{n} " + "cat mat " * 100 for n in range(3))))
    engine.pool.drop_idle()
    engine.pool.check()
    assert engine.pool.free_pages == engine.pool.n_pages


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("llama-dynamic", "depend on the prompt's length"),
        ("stablelm", "keyword arguments"),
        ("gpt2", "not rotary"),
        ("bloom", "arithmetic of its own"),
        ("phi3-longrope", "depend on the prompt's length"),
        ("gpt-oss", "learned sinks"),
        ("llama4", "neither causal nor a sliding window"),
        ("qwen3.5", "M-RoPE"),
        ("lfm2", "recurrent or hybrid"),
        ("mamba", "can be exchanged"),
    ],
)
def test_a_model_that_reuse_is_wrong_for_is_served_in_full(checkpoint, tmp_path, family, why):
    engine = load(checkpoint, tmp_path, family)
    assert why in (engine.refusal or "")
    assert list(engine.compile([Piece("a")])) == []
    _, generation = run(engine, prompt(*TEXTS))
    assert generation.receipt.policy == "full"
    assert why in (generation.receipt.fallback or "")
    assert generation.receipt.recomputed == generation.receipt.context_tokens
    ids = engine.lay_out(prompt(*TEXTS), 6).ids
    want = engine.model.module.generate(
        torch.tensor([ids]), max_new_tokens=6, do_sample=False, pad_token_id=0
    )[0, len(ids) :]
    assert list(generation.token_ids) == want.tolist()


def test_a_kernel_that_is_wrong_is_caught_at_load(checkpoint, tmp_path, monkeypatch):
    from epicrag.kernels import ops

    right = ops.segment_attention
    wrong = lambda q, k, v, p, s, *more: right(q, k, v, p, s * 1.2, *more)
    monkeypatch.setattr(ops, "segment_attention", wrong)
    engine = load(checkpoint, tmp_path)
    assert "differs from transformers" in (engine.refusal or "")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounding_that_sends_tokens_to_other_experts_is_no_reason_to_refuse(
    checkpoint, tmp_path, monkeypatch, dtype
):
    """Transformers' own attentions are as far from each other; a wrong kernel is still further."""
    from epicrag.kernels import ops

    assert load(checkpoint, tmp_path, "qwen2-moe", dtype=dtype).refusal is None
    right = ops.segment_attention
    wrong = lambda q, k, v, p, s, *more: right(q, k, v, p, s * 1.2, *more)
    monkeypatch.setattr(ops, "segment_attention", wrong)
    served = load(checkpoint, tmp_path, "qwen2-moe", dtype=dtype)
    assert "differs from transformers" in (served.refusal or "")


def test_a_wrong_rotation_is_caught_at_load(checkpoint, tmp_path, monkeypatch):
    from epicrag.kernels import ops
    from epicrag.serving.model import ServedModel

    right = ServedModel.kinds

    def wrong(self):
        (kind,), of_layer = right(self)
        rotary = ops.Rotary(kind.rotary.inv_freq * 1.01, kind.rotary.dim)
        return ops.Layers((ops.LayerKind(rotary),), of_layer)

    monkeypatch.setattr(ServedModel, "kinds", wrong)
    engine = load(checkpoint, tmp_path)
    assert "relocated keys differ" in (engine.refusal or "")


@pytest.mark.parametrize("change", [{"window": 33}, {"window": None}, {"softcap": 6.0}])
def test_a_wrong_kind_is_caught_at_load(checkpoint, tmp_path, monkeypatch, change):
    """A window one token too wide, none at all, another cap: each changes the probe's logits."""
    from dataclasses import replace

    from epicrag.kernels import ops
    from epicrag.serving.model import ServedModel

    right = ServedModel.kinds

    def wrong(self):
        (sliding, full), of_layer = right(self)
        return ops.Layers((replace(sliding, **change), full), of_layer)

    monkeypatch.setattr(ServedModel, "kinds", wrong)
    engine = load(checkpoint, tmp_path, "gemma2")
    assert "differs from transformers" in (engine.refusal or "")


def test_latent_attention_is_stored_and_read_back(checkpoint, tmp_path):
    """Values are narrower than keys: on disk, in the pool, and after a restart."""
    asked = prompt(*TEXTS)
    cold = load(checkpoint, tmp_path, "deepseek-v2")
    assert cold.refusal is None
    assert cold.kv_bytes_per_token == 3 * 4 * (24 + 12) * 2
    first, _ = run(cold, asked)
    warm = load(checkpoint, tmp_path, "deepseek-v2")
    second, generation = run(warm, asked)
    assert second == first
    assert generation.receipt.stitched > 0 and generation.receipt.fallback is None


def test_full_is_full_whatever_is_cached(tiny_engine):
    engine = tiny_engine("llama")
    run(engine, prompt(*TEXTS), Naive())
    _, generation = run(engine, prompt(*TEXTS), Full())
    assert generation.receipt.exact == generation.receipt.stitched == 0


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"compile_mode": "fast"}, "unknown compile mode"),
        ({"device": "tpu"}, "tpu"),
        ({"dtype": "int3"}, "unknown dtype"),
    ],
)
def test_bad_options_are_refused(checkpoint, tmp_path, options, match):
    with pytest.raises(UsageError, match=match):
        load(checkpoint, tmp_path, **options)


def test_a_missing_device_is_refused(checkpoint, tmp_path):
    with pytest.raises(DeviceError, match="not there"):
        load(checkpoint, tmp_path, device="cuda:7")


def test_a_folder_that_is_no_model_is_refused(checkpoint, tmp_path, tokenizer_maker):
    with pytest.raises(UsageError):
        Engine.load(tmp_path, name="nothing")
    tokenizer_maker(tmp_path)
    with pytest.raises(UsageError, match=r"config\.json"):
        Engine.load(tmp_path, name="nothing")


def test_an_answer_does_not_need_a_disk_that_can_be_written(
    checkpoint, tmp_path, monkeypatch, caplog
):
    engine = load(checkpoint, tmp_path)

    def full(*_: object, **__: object) -> int:
        raise DeviceError("the disk is full")

    monkeypatch.setattr(KVStore, "put", full)
    with caplog.at_level(logging.WARNING, "epicrag"):
        deltas, _ = run(engine, prompt(*TEXTS))
    assert "".join(deltas)
    assert "not kept" in caplog.text
    with pytest.raises(DeviceError, match="full"):
        list(engine.compile([Piece("something new")]))


def test_a_question_that_is_not_utf8_is_answered(tiny_engine):
    asked = Prompt("why \udcff", (Piece(TEXTS[0]),))
    assert run(tiny_engine("llama"), asked)[1].usage.completion_tokens


def test_a_digest_that_cannot_be_remembered_is_computed_again(checkpoint, tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    first = load(checkpoint, tmp_path, cache_folder=tmp_path / "cache").fingerprint
    assert load(checkpoint, tmp_path, cache_folder=tmp_path / "cache").fingerprint == first


def test_of_a_chunk_compiled_in_the_request_only_what_is_read_counts_as_late(tiny_engine):
    engine = tiny_engine("llama")
    known, new = Piece(TEXTS[0]), Piece("mats and cats and hats by the red door said hello 42")
    run(engine, Prompt("who", (known,)), LegoLink(3), mode="isolated")
    _, late = run(engine, Prompt("who", (known, new)), LegoLink(3), mode="isolated")
    _, warm = run(engine, Prompt("who", (known, new)), LegoLink(3), mode="isolated")
    first, second = late.receipt, warm.receipt
    n_new = len(engine.chat.chunk_ids(new.text)) - len(engine.tokenizer.ids("\n\n["))
    assert first.context_tokens == second.context_tokens
    assert second.stitched - first.stitched == first.recomputed - second.recomputed == n_new - 3
    assert first.exact + first.stitched + first.recomputed == first.context_tokens
