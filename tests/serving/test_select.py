"""Policies that look before they choose: what they see is right, and what they choose is what they promise."""

import hashlib

import pytest
import torch

from epicrag.serving.attention import _mean
from epicrag.serving.link import run
from epicrag.serving.policies import Depth, Focus, Full, LegoLink, Naive, parse_policy
from epicrag.serving.prompt import Piece, Prompt
from epicrag.serving.sample import Sampling
from epicrag.serving.select import Look, attention_to, deviations

FAMILIES = ("llama", "glm")
TEXTS = (
    "the cat sat on the mat and then said hello to the other cat",
    "a dog said: 42 mats, 17 cats. the mat is by the door",
    "hello hello the third text is about a red hat on the mat",
)
PIECES = (Piece(TEXTS[0]), Piece(TEXTS[1], before=TEXTS[0]), Piece(TEXTS[2], before=TEXTS[0]))
ASKED = Prompt("where is the cat", PIECES)
LOOKING = [
    "focus(10%,0)",
    "focus(5%,4,tokens=3,layers=0%-100%,heads=mean)",
    "reconnect(3)",
    "deviation(15%)",
    "legolink(2)+focus(10%,0)+reconnect(2,edge=2)+deviation(5%)",
    "damp(4,15)+focus(10%,2)+correct(0.5,values=0.25,fade=0.7,depth=1/0.5)",
    "legolink-0+focus(10%,2)",
]


@pytest.fixture(params=FAMILIES)
def engine(request, tiny_engine):
    return tiny_engine(request.param)


@pytest.fixture
def llama(tiny_engine):
    return tiny_engine("llama")


def logits(engine, policy, mode: str = "isolated", asked: Prompt = ASKED) -> torch.Tensor:
    with engine.stitched(asked, policy, mode=mode, n_new=4) as stitched:
        return torch.cat((stitched.linked.link(), stitched.linked.step([5, 6, 7, 8])))


def close(got: torch.Tensor, want: torch.Tensor) -> bool:
    return bool((got - want).abs().max() < 2e-4 * max(1.0, float(want.abs().max())))


def written(engine, policy, mode: str = "isolated"):
    generation = engine.generate(ASKED, policy=policy, sampling=Sampling(max_tokens=8), mode=mode)
    list(generation)
    return generation


def look_at(engine, stitched) -> Look:
    """The look that a selection pass would have of a stitched prompt."""
    recipes = engine.recipes(stitched.layout, ASKED, "isolated")
    resident = {index: engine.pool.acquire(engine.cache.key(r)) for index, r in recipes.items()}
    for recipe in recipes.values():
        engine.cache.release(recipe)
    exact = {index: segment.start == 0 for index, segment in enumerate(stitched.layout.segments)}
    exact = {index: exact[index] for index in recipes}
    return Look(engine.model, engine.pool, engine.layers, stitched.layout, Naive(), exact, resident)


@pytest.mark.parametrize("mode", ["isolated", "neighbour(3)"])
@pytest.mark.parametrize(
    "name",
    [
        "focus(100%)",
        "focus(1,0)+correct(0.5)",
        "deviation(1)",
        "reconnect(1000)",
        "legolink(100%)",
        "spread(4,1000)",
        "damp(4,15)+reconnect(1000)",
    ],
)
def test_gate_1_choosing_everything_equals_full(engine, name, mode):
    policy = parse_policy(name)
    assert close(logits(engine, policy, mode), logits(engine, Full()))


@pytest.mark.parametrize("name", ["focus(100%)", "deviation(1)", "reconnect(1000)"])
def test_gate_1_the_text_is_that_of_full(engine, name):
    done = written(engine, parse_policy(name))
    assert done.token_ids == written(engine, Full()).token_ids
    assert done.receipt.stitched == 0


@pytest.mark.parametrize("name", LOOKING)
def test_gate_5_looking_changes_no_shared_page_and_keeps_none(engine, name):
    policy = parse_policy(name)
    mode = policy.compile_mode or "isolated"
    with engine.stitched(ASKED, Naive(), mode=mode) as bystander:
        free = engine.pool.free_pages
        before = shared_rows(engine, bystander)
        logits(engine, policy)
        assert shared_rows(engine, bystander) == before
        assert engine.pool.free_pages == free
    engine.pool.check()


def shared_rows(engine, stitched) -> str:
    digest = hashlib.sha256()
    for span in stitched.linked.shared:
        for rows in (engine.pool.keys, engine.pool.values):
            part = rows[:, :, span.start : span.start + span.length]
            digest.update(part.contiguous().numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("name", LOOKING)
def test_gate_7_all_hit_still_looks_and_links(engine, name):
    policy = parse_policy(name)
    logits(engine, policy)
    with engine.stitched(ASKED, policy, mode="isolated") as stitched:
        made = stitched.plan
        assert stitched.computed == 0
        assert made.recomputed > 0
        assert made.selected > 0
        assert made.charged == (made.recomputed + made.selected) / made.context
    assert not close(logits(engine, policy), logits(engine, Naive()))


@pytest.mark.parametrize("name", LOOKING)
def test_the_receipt_adds_up(llama, name):
    receipt = written(llama, parse_policy(name)).receipt
    again = written(llama, parse_policy(name)).receipt
    for one in (receipt, again):
        assert one.exact + one.stitched + one.recomputed == one.context_tokens
        assert one.ms.select > 0
    assert again.fallback is None
    assert again.charged > again.recomputed / again.context_tokens
    assert again.policy == name


@pytest.mark.parametrize(
    ("name", "picked"), [("focus(10%,0)", None), ("deviation(10%)", None), ("reconnect(3)", 9)]
)
def test_as_many_are_picked_as_promised(engine, name, picked):
    with engine.stitched(ASKED, parse_policy(name), mode="isolated") as stitched:
        made = stitched.plan
        assert made.recomputed == (-(-made.context // 10) if picked is None else picked)


def test_what_is_computed_anyway_is_not_chosen_again(llama):
    counts = []
    for name in ("legolink(5)", "focus(10%,0)", "legolink(5)+focus(10%,0)", "focus(10%,5)"):
        with llama.stitched(ASKED, parse_policy(name), mode="isolated") as stitched:
            counts.append(stitched.plan.recomputed)
    assert counts[0] + counts[1] == counts[2] == counts[3]


def test_an_exact_prompt_is_not_looked_at(llama):
    asked = Prompt("where", (Piece(TEXTS[0]),))
    with llama.stitched(asked, parse_policy("focus(50%)"), mode="prefix") as stitched:
        assert stitched.plan.recomputed == stitched.plan.selected == 0


def test_choosing_nothing_costs_nothing(llama):
    for name in ("focus(0,0)", "reconnect(0)", "deviation(0)"):
        with llama.stitched(ASKED, parse_policy(name), mode="isolated") as stitched:
            assert stitched.plan.charged == 0
        assert close(logits(llama, parse_policy(name)), logits(llama, Naive()))


def test_the_cost_is_that_of_the_layers_entered(llama):
    """Three layers: the question in the second alone costs two thirds; the context in the first, too."""
    with llama.stitched(ASKED, parse_policy("focus(10%,0)"), mode="isolated") as stitched:
        question = min(16, stitched.layout.segments[-1].length)
        assert stitched.plan.selected == pytest.approx(question * 2 / 3)
    with llama.stitched(ASKED, parse_policy("deviation(10%)"), mode="isolated") as stitched:
        system = stitched.layout.segments[0].length
        computed = stitched.layout.segments[-1].start - system
        assert stitched.plan.selected == pytest.approx(computed * 2 / 3)


def test_attention_in_the_first_layer_is_that_of_transformers(engine):
    """The first layer's keys depend on no other token: there the stitched prompt and the whole one agree."""
    with engine.stitched(ASKED, LegoLink(), mode="isolated") as stitched:
        layout = stitched.layout
        last = layout.segments[-1]
        asking = range(last.end - 5, last.end)
        selector = Focus(layers=Depth(0, 0.01))
        (got,), cost = attention_to(look_at(engine, stitched), selector, [asking], [])
    assert cost == pytest.approx(5 / 3)
    module = engine.model.module
    before = module.config._attn_implementation
    module.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            out = module(torch.tensor([layout.ids]), output_attentions=True, use_cache=False)
    finally:
        module.set_attn_implementation(before)
    read = torch.zeros(layout.n_tokens, dtype=torch.bool)
    for segment in layout.segments:
        if segment.cacheable:
            read[segment.start : segment.end] = True
    read[asking.start :] = True  # neither the labels nor the head of the question are in the pass
    rows = out.attentions[0][0][:, asking.start :] * read
    want = (rows / rows.sum(-1, keepdim=True)).sum(1).amax(0)
    assert (got - want).abs().max() < 1e-4


def test_deviation_is_that_of_the_whole_prompts_second_layer(engine):
    with engine.stitched(ASKED, Full(), n_new=1) as whole:
        whole.linked.link()
        rows = whole.linked.rows[: whole.layout.n_tokens]
        values = engine.pool.values[1][:, rows].clone()
    with engine.stitched(ASKED, Naive(), mode="isolated") as stitched:
        look = look_at(engine, stitched)
        free = [p for _, s in look.stitched() for p in range(s.start, s.end)]
        got, _ = deviations(look, free)
        cached = {
            segment.start + n: row
            for index, segment in look.stitched()
            for n, row in enumerate(
                r for run in look.resident[index] for r in range(run.start, run.start + run.length)
            )
        }
        there = engine.pool.values[1][:, [cached[p] for p in free]]
        want = (values[:, free] - there).square().sum((0, 2))
    assert (got - want).abs().max() < 1e-3 * want.max()


@pytest.mark.parametrize(
    "name", [*LOOKING, "spread(2,5)+correct(0.5,fade=0.7)", "spread(2,5)+correct(auto)"]
)
def test_a_link_in_pieces_is_the_link_at_once(llama, name):
    """Rows between a chunk's probes must not be computed before its change is known."""
    policy = parse_policy(name)
    with llama.stitched(ASKED, policy, mode="isolated") as stitched:
        want = stitched.linked.link()
    for most in (1, 5):
        with llama.stitched(ASKED, policy, mode="isolated") as stitched:
            for span in stitched.linked.shared:
                if span.change >= 0:
                    llama.pool.keys[:, :, span.change] = float("nan")
            while not stitched.linked.is_linked:
                got = run([stitched.linked.link_job(most)])[0]
            assert close(got, want)


def test_the_same_prompt_is_chosen_from_alike(llama):
    picks = []
    for _ in range(2):
        with llama.stitched(ASKED, parse_policy("focus(10%,0)"), mode="isolated") as stitched:
            picks.append(stitched.plan.again)
    assert picks[0] == picks[1]


def test_a_mean_is_shrunk_by_what_its_changes_do_not_share():
    """Alike changes are kept, pure noise vanishes, and each chunk is judged alone."""
    torch.manual_seed(0)
    shared = torch.randn(2, 1, 64).expand(2, 8, 64)
    noise = torch.randn(2, 8, 64)
    changes = torch.cat((shared, noise, shared + noise), 1)
    weights = torch.block_diag(*[torch.full((1, 8), 0.5 / 8)] * 3)
    kept, gone, part = _mean(weights, changes, shrink=True).unbind(1)
    assert kept.allclose(shared[:, 0] / 2, atol=1e-6)
    assert gone.norm() < 0.3 * noise.mean(1).norm() / 2
    want = shared.square().mean() / (shared.square().mean() + 1 / 8)
    assert part.norm() / (shared + noise).mean(1).norm() * 2 == pytest.approx(float(want), abs=0.05)
    one = _mean(torch.ones(1, 1), shared[:, :1], shrink=True)
    assert one.allclose(shared[:, :1])
