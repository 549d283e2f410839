"""Many requests at once over one pool: the same answers as alone, shared pages, and nothing left behind."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from epicrag.errors import BusyError, DeviceError, EpicragError
from epicrag.index.kvstore import KVStore
from epicrag.serving import link
from epicrag.serving.engine import Engine
from epicrag.serving.policies import Full, Naive, Prefix, parse_policy
from epicrag.serving.prompt import Piece, Prompt, Turn
from epicrag.serving.sample import Sampling
from epicrag.serving.schedule import Limits

TEXTS = tuple(
    f"text number {n} says that the cat sat on mat {n * 7} and the dog did not. " * (1 + n // 2)
    for n in range(5)
)
POLICY = parse_policy("legolink(4)+correct(0.25)")


def load(checkpoint, tmp_path, family="llama", **options) -> Engine:
    settings = {
        "device": "cpu",
        "dtype": "float32",
        "kv_memory_bytes": 16 << 20,
        "store": KVStore(tmp_path / "kv"),
        **options,
    }
    engine = Engine.load(checkpoint(family), name=family, **settings)
    engine.model.eos_ids = frozenset()  # a random model ends its answers at random
    return engine


def shuffled(seed: int, question: str = "where is the cat") -> Prompt:
    order = list(TEXTS)
    random.Random(seed).shuffle(order)
    return Prompt(f"{question} {seed}", tuple(Piece(text) for text in order[: 3 + seed % 3]))


def swept(engine: Engine) -> None:
    """Every page is accounted for, and none is held."""
    engine.pool.check()
    assert engine.pool.busy_pages == 0
    engine.pool.drop_idle()
    engine.pool.check()
    assert engine.pool.free_pages == engine.pool.n_pages
    assert len(engine.prefixes) == 0


@pytest.mark.parametrize("policy", ["legolink(4)+correct(0.25)", "full", "none", "prefix", "damp"])
def test_eight_requests_at_once_answer_as_each_does_alone(checkpoint, tmp_path, policy):
    engine = load(checkpoint, tmp_path)
    chosen, sampling = parse_policy(policy), Sampling(max_tokens=6)
    alone = []
    for seed in range(8):
        generation = engine.generate(shuffled(seed), policy=chosen, sampling=sampling)
        list(generation)
        alone.append(generation.token_ids)
    engine.pool.drop_idle()
    together = [
        engine.submit(shuffled(seed), policy=chosen, sampling=sampling) for seed in range(8)
    ]
    steps = engine.stats().steps
    texts = ["".join(generation) for generation in together]
    assert [generation.token_ids for generation in together] == alone
    assert texts == [generation.text for generation in together]
    assert engine.stats().steps - steps < 40, "they were not served in one batch"
    swept(engine)


@pytest.mark.parametrize("family", ["llama", "qwen3-yarn", "phi3", "glm"])
def test_gate_5_two_requests_in_one_batch_equal_the_same_two_alone(checkpoint, tmp_path, family):
    """Logits of every piece of the link pass and of every token, whatever rides along."""
    engine = load(checkpoint, tmp_path, family)

    def walked(seeds: list[int], most: int | None) -> dict[int, torch.Tensor]:
        walks = {s: engine.stitched(shuffled(s), POLICY, n_new=4) for s in seeds}
        rows: dict[int, list[torch.Tensor]] = {seed: [] for seed in seeds}
        while any(not walk.linked.is_linked for walk in walks.values()):
            left = [s for s, walk in walks.items() if not walk.linked.is_linked]
            jobs = [walks[s].linked.link_job(most) for s in left]
            for seed, logits in zip(left, link.run(jobs), strict=True):
                rows[seed].append(logits)
        for token in (5, 6, 7):
            jobs = [walks[s].linked.step_job([token + s]) for s in seeds]
            for seed, logits in zip(seeds, link.run(jobs), strict=True):
                rows[seed].append(logits)
        for walk in walks.values():
            walk.close()
        return {seed: torch.cat(parts) for seed, parts in rows.items()}

    both = walked([1, 2], most=8)
    for seed in (1, 2):
        alone = walked([seed], most=None)[seed]
        assert both[seed].shape == alone.shape
        assert (both[seed] - alone).abs().max() < 2e-4 * alone.abs().max()


@pytest.mark.parametrize("policy", ["legolink(5)", "damp(2,15)+legolink(5)", "legolink(5)+correct"])
def test_gate_5_requests_in_one_batch_never_change_a_page_they_share(checkpoint, tmp_path, policy):
    engine = load(checkpoint, tmp_path)
    with engine.stitched(shuffled(3), Naive()) as bystander:
        spans = list(bystander.linked.shared)

        def contents() -> list[torch.Tensor]:
            return [
                block[:, :, span.start : span.start + span.length].clone()
                for span in spans
                for block in (engine.pool.keys, engine.pool.values)
            ]

        before = contents()
        answers = [
            engine.submit(shuffled(n), policy=parse_policy(policy), sampling=Sampling(max_tokens=4))
            for n in range(4)
        ]
        assert [list(answer) for answer in answers]
        assert engine.stats().pages_shared == 0
        assert all(torch.equal(a, b) for a, b in zip(before, contents(), strict=True))
    swept(engine)


def test_running_requests_share_the_pages_of_their_chunks(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path)
    one = engine.submit(shuffled(2), policy=POLICY)
    next(one)
    held = engine.pool.busy_pages
    two = engine.submit(shuffled(2, "why"), policy=POLICY)
    next(two)
    assert engine.stats().running == 2
    assert engine.stats().pages_shared > 0
    assert engine.pool.busy_pages - held < held
    one.close()
    two.close()
    swept(engine)


def test_threads_are_served_in_one_batch_with_the_answers_they_have_alone(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path)
    sampling = [Sampling(max_tokens=8, temperature=t, seed=3) for t in (0.0, 0.8)]

    def answer(seed: int) -> tuple[int, ...]:
        generation = engine.generate(shuffled(seed), policy=POLICY, sampling=sampling[seed % 2])
        list(generation)
        return generation.token_ids

    alone = [answer(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(answer, range(8))) == alone
    swept(engine)


def test_requests_wait_for_pages_and_all_are_answered(checkpoint, tmp_path):
    """Memory for about two of them: the others wait their turn, and no answer changes."""
    roomy = load(checkpoint, tmp_path)
    want = []
    for seed in range(6):
        generation = roomy.generate(shuffled(seed), policy=Full(), sampling=Sampling(max_tokens=6))
        list(generation)
        want.append(generation.token_ids)
    most = max(len(roomy.lay_out(shuffled(seed), 6).ids) + 6 for seed in range(6))
    engine = load(checkpoint, tmp_path, kv_memory_bytes=int(2.3 * most) * roomy.pool.row_bytes)
    answers = [
        engine.submit(shuffled(seed), policy=Full(), sampling=Sampling(max_tokens=6))
        for seed in range(6)
    ]
    assert engine.step()
    assert 0 < engine.stats().running < 6
    list(answers[5])
    assert answers[5].receipt.ms.wait > 0
    assert answers[5].receipt.ms.first_token >= answers[5].receipt.ms.wait
    for answer in answers:
        list(answer)
    assert [answer.token_ids for answer in answers] == want
    swept(engine)


def test_what_never_fits_is_refused_at_once_and_others_go_on(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path, kv_memory_bytes=150_000)
    small = engine.submit(Prompt("hi"), policy=POLICY, sampling=Sampling(max_tokens=20))
    next(small)
    with pytest.raises(DeviceError, match="KV memory"):
        next(engine.submit(shuffled(2), policy=POLICY))
    assert engine.stats().running == 1
    assert list(small)
    swept(engine)


def test_a_full_queue_is_an_error_of_its_own(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path, limits=Limits(max_waiting=1, max_running=1))
    few = Sampling(max_tokens=3)
    first = engine.submit(shuffled(0), policy=POLICY, sampling=few)
    with pytest.raises(BusyError, match="1 are waiting"):
        engine.submit(shuffled(1), policy=POLICY, sampling=few)
    assert next(first) is not None
    second = engine.submit(shuffled(1), policy=POLICY, sampling=few)
    assert list(second)
    assert list(first)


def test_a_model_that_reuse_is_refused_for_has_the_same_queue(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path, "stablelm", limits=Limits(max_waiting=3))
    answers = [
        engine.submit(shuffled(seed), policy=POLICY, sampling=Sampling(max_tokens=5))
        for seed in range(3)
    ]
    with pytest.raises(BusyError):
        engine.submit(shuffled(4), policy=POLICY)
    texts = ["".join(answer) for answer in answers]
    for seed, text in enumerate(texts):
        again = engine.generate(shuffled(seed), policy=POLICY, sampling=Sampling(max_tokens=5))
        assert "".join(again) == text
    assert engine.stats().requests == 6


# --- private prefixes ------------------------------------------------------------------------------


def turns(*texts: str) -> tuple[Turn, ...]:
    return tuple(Turn("assistant" if n % 2 else "user", text) for n, text in enumerate(texts))


HISTORY = (
    "where did the cat sit yesterday, and on which of the mats was it",
    "the cat sat on the mat by the door, and the dog said hello to it",
    "and where is the other cat now, is it on the red mat as well",
    "the other cat is on the red mat, it has been there since the morning",
)


def answered(engine, asked, policy=POLICY, n=6):
    generation = engine.generate(asked, policy=policy, sampling=Sampling(max_tokens=n))
    list(generation)
    return generation


@pytest.mark.parametrize("chunks", [0, 2])
def test_a_follow_up_turn_pays_only_for_what_is_new(checkpoint, tmp_path, chunks):
    engine = load(checkpoint, tmp_path)
    pieces = tuple(Piece(text) for text in TEXTS[:chunks])
    first = Prompt(HISTORY[2], pieces, history=turns(*HISTORY[:2]))
    second = Prompt("why is that", pieces[::-1], history=turns(*HISTORY))
    answered(engine, first)
    warm = answered(engine, second)
    cold_engine = load(checkpoint, tmp_path / "other")
    cold = answered(cold_engine, second)
    warm_receipt, cold_receipt = warm.receipt, answered(cold_engine, second, n=1).receipt
    shared = engine.tokenizer.count("".join(HISTORY[:2]))
    assert warm_receipt.exact >= shared
    assert warm_receipt.fresh < cold.receipt.fresh - shared + 16
    assert cold_receipt.fresh <= warm_receipt.fresh  # the same prompt again: found up to its chunks
    for generation in (warm, cold):
        receipt = generation.receipt
        assert receipt.context_tokens == receipt.exact + receipt.stitched + receipt.recomputed
        assert receipt.context_tokens + receipt.fresh == generation.usage.prompt_tokens
    assert warm.token_ids == cold.token_ids
    swept(engine)


@pytest.mark.parametrize(
    ("chunks", "policy"), [(0, "none"), (2, "legolink(4)+correct"), (2, "focus"), (2, "prefix")]
)
def test_logits_behind_a_found_history_are_those_of_a_computed_one(
    checkpoint, tmp_path, chunks, policy
):
    chosen = parse_policy(policy)
    pieces = tuple(Piece(text) for text in TEXTS[:chunks])
    asked = Prompt("why is that", pieces, history=turns(*HISTORY))
    logits = []
    for found in (False, True):
        engine = load(checkpoint, tmp_path)
        if found:
            earlier = Prompt("what", pieces[:1], history=turns(*HISTORY[:2]))
            answered(engine, earlier, policy=chosen)
        with engine.stitched(asked, chosen, n_new=3) as stitched:
            n = len(stitched.plan.positions)
            logits.append((n, torch.cat((stitched.linked.link(), stitched.linked.step([5, 6])))))
    (cold_n, cold), (warm_n, warm) = logits
    assert warm_n < cold_n - 40
    assert (warm - cold).abs().max() < 2e-4 * cold.abs().max()


def test_an_answer_that_becomes_history_is_found_where_it_is_exact(checkpoint, tmp_path):
    """Without chunks the answer was computed behind exact rows; behind stitched chunks it was not."""
    engine = load(checkpoint, tmp_path)
    question = "tell me at length where the cat sat and what it said to the dog"
    said = answered(engine, Prompt(question), n=40)
    ids = engine.lay_out(Prompt(question), 1).ids
    found = engine.prefixes.match((*ids, *said.token_ids, 5, 5), "chunks:")
    assert found.length == len(ids) + len(said.token_ids) - 1
    engine.prefixes.release(found)

    behind_chunks = Prompt(question, tuple(Piece(text) for text in TEXTS[:2]))
    said = answered(engine, behind_chunks, n=40)
    layout = engine.lay_out(behind_chunks, 1)
    found = engine.prefixes.match((*layout.ids, *said.token_ids, 5, 5), "chunks:")
    assert found.length <= layout.segments[1].start
    engine.prefixes.release(found)


def test_another_system_prompt_is_not_taken_for_the_same(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path)
    history = turns(*HISTORY[:2])
    answered(engine, Prompt("why", history=history, system="you are a cat. " * 4))
    other = Prompt("why", history=history, system="you are a cat. " * 3 + "you are a dog. ")
    warm = answered(engine, other)
    assert warm.token_ids == answered(load(checkpoint, tmp_path / "2"), other).token_ids
    assert warm.receipt.exact == 0


def test_histories_make_room_when_pages_are_needed(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path, kv_memory_bytes=600_000)
    for n in range(12):
        talk = turns(f"number {n} " + HISTORY[0], HISTORY[1])
        answered(engine, Prompt("and", history=talk), policy=Prefix() if n % 2 else POLICY)
        engine.pool.check()
    assert len(engine.prefixes)
    swept(engine)


def test_searching_a_prefix_looks_at_the_prompt_once(checkpoint, tmp_path, monkeypatch):
    """However many prompts are kept: a digest a block, and no comparison with the others."""
    from epicrag.serving import prefixes

    engine = load(checkpoint, tmp_path)
    compared = []
    right = prefixes._common
    monkeypatch.setattr(prefixes, "_common", lambda a, b: compared.append(len(a)) or right(a, b))
    for n in range(20):
        answered(engine, Prompt("and", history=turns(f"{n} " * 9 + HISTORY[0])), n=1)
    compared.clear()
    answered(engine, Prompt("so", history=turns("3 " * 9 + HISTORY[0])), n=1)
    assert len(compared) <= 3


# --- tiers and pins --------------------------------------------------------------------------------


def test_what_leaves_the_pool_comes_back_from_host_memory_bit_for_bit(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path, host_kv_memory_bytes=4 << 20)
    want = answered(engine, shuffled(2)).token_ids
    with engine.stitched(shuffled(2), Naive()) as stitched:
        rows = [
            engine.pool.keys[:, :, s.start : s.start + s.length].clone()
            for s in stitched.linked.shared
        ]
    engine.pool.drop_idle()
    assert engine.stats().host_bytes > 0
    before = engine.stats()
    assert answered(engine, shuffled(2)).token_ids == want
    after = engine.stats()
    assert after.from_host > before.from_host
    assert (after.from_disk, after.compiled) == (before.from_disk, before.compiled)
    with engine.stitched(shuffled(2), Naive()) as stitched:
        for span, row in zip(stitched.linked.shared, rows, strict=True):
            assert torch.equal(engine.pool.keys[:, :, span.start : span.start + span.length], row)
    swept(engine)


def test_host_memory_keeps_its_budget_and_the_latest(checkpoint, tmp_path):
    from epicrag.serving.entry import Entry
    from epicrag.serving.host import HostTier

    host = HostTier(1000)
    entry = Entry(*[torch.zeros(1, 1, 20, 4)] * 2)  # 320 bytes each in float16
    for key in "abcd":
        host.put(key, entry, torch.float16)
        host.get("a")
    assert ["a" in host, "b" in host, "c" in host, "d" in host] == [True, False, True, True]
    assert host.nbytes == 960
    host.put("large", Entry(*[torch.zeros(1, 1, 200, 4)] * 2), torch.float16)
    assert (len(host), "large" in host) == (3, False)


def test_tiers_are_counted(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path)
    answered(engine, shuffled(2))
    cold = engine.stats()
    assert cold.compiled > 0
    answered(engine, shuffled(2))
    warm = engine.stats()
    assert warm.from_pool > cold.from_pool
    assert warm.compiled == cold.compiled
    engine.pool.drop_idle()
    answered(engine, shuffled(2))
    assert engine.stats().from_disk > warm.from_disk
    assert engine.stats().generated > 0


def test_pinned_chunks_stay_while_others_go(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path)
    pieces = [Piece(text) for text in TEXTS[:2]]
    engine.pin(pieces)
    engine.pin(pieces[:1])
    engine.pool.drop_idle()
    keys = [engine.key_of(piece) for piece in pieces]
    assert [engine.pool.has(key) for key in keys] == [True, True]
    assert engine.stats().pages_pinned > 0
    engine.unpin(pieces)
    engine.pool.drop_idle()
    assert [engine.pool.has(key) for key in keys] == [True, False]
    engine.unpin(pieces)  # one of them is not pinned any more
    assert engine.stats().pages_pinned == 0
    assert engine.cache._store._pins == {}
    swept(engine)


def test_pins_that_leave_no_room_are_refused_whole(checkpoint, tmp_path):
    engine = load(checkpoint, tmp_path, kv_memory_bytes=400_000)
    with pytest.raises(DeviceError, match="pins may hold"):
        engine.pin([Piece(text) for text in TEXTS])
    assert engine.stats().pages_pinned == 0
    swept(engine)


# --- soak ------------------------------------------------------------------------------------------


def test_five_hundred_requests_with_cancels_and_pressure_leave_every_page_accounted_for(
    checkpoint, tmp_path
):
    engine = load(
        checkpoint,
        tmp_path,
        kv_memory_bytes=500_000,
        host_kv_memory_bytes=300_000,
        limits=Limits(batch_tokens=128, max_running=8, max_waiting=6, max_unread=4),
    )
    names = ("legolink(4)+correct(0.25)", "none", "full", "prefix", "damp(2,15)+legolink(3)")
    policies = [parse_policy(name) for name in names]
    texts = [f"{n} " + "the cat sat on the mat " * (1 + n % 3) for n in range(20)]
    lock, ends, wrong = threading.Lock(), dict.fromkeys(("read", "cut", "lost", "refused"), 0), []

    def request(dice: random.Random) -> str:
        asked = Prompt(
            dice.choice(["where", "why is the cat there"]),
            tuple(Piece(text) for text in dice.sample(texts, dice.randrange(4))),
            system="be brief",
            history=turns(*HISTORY[: dice.choice([0, 0, 2])]),
        )
        sampling = Sampling(
            max_tokens=dice.randrange(1, 6), temperature=dice.choice([0, 1]), seed=1
        )
        make = dice.choice([engine.generate, engine.submit])
        generation = make(asked, policy=dice.choice(policies), sampling=sampling)
        stop = dice.choice([0, 1, 2, 99, 99, 99])
        if stop == 99:
            list(generation)
            return "read"
        for _ in range(stop):
            next(generation, None)
        if dice.random() < 0.5:
            generation.close()
            return "cut"
        return "lost"  # its last reference goes with this frame

    def client(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(125):
            try:
                end = request(dice)
            except (BusyError, DeviceError):
                end = "refused"
            except EpicragError as error:
                wrong.append(error)
                return
            with lock:
                ends[end] += 1

    def pressure(stop: threading.Event) -> None:
        dice = random.Random(9)
        while not stop.wait(0.02):
            pieces = [Piece(text) for text in dice.sample(texts, 2)]
            try:
                engine.pin(pieces)
            except DeviceError:
                continue
            stop.wait(0.01)
            engine.unpin(pieces)

    stop = threading.Event()
    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(4)]
    threads.append(threading.Thread(target=pressure, args=(stop,)))
    for thread in threads:
        thread.start()
    for thread in threads[:-1]:
        thread.join(120)
    stop.set()
    threads[-1].join(30)
    assert wrong == []
    assert sum(ends.values()) == 500
    assert ends["read"] > 100, ends
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.pages_pinned) == (0, 0, 0)
    swept(engine)
