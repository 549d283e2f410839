"""Conversations whose chunks stand bare, anywhere, in the text: reuse is exact where it must be there too."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from epicrag.errors import UsageError
from epicrag.index.kvstore import KVStore
from epicrag.serving.engine import Engine
from epicrag.serving.policies import Full, LegoLink, Naive, Prefix, parse_policy
from epicrag.serving.pool import NoPagesError
from epicrag.serving.prompt import LEAD, Chat, Message, Piece, Prompt
from epicrag.serving.sample import Sampling

CAT, DOG, HAT = (
    "the cat sat on the mat and then said hello to the other cat",
    "a dog said: 42 mats, 17 cats. the mat is by the door",
    "hello hello the third text is about a red hat on the mat",
)
FAMILIES = ("llama", "qwen3-yarn", "glm", "gemma2", "mistral-sliding", "deepseek-v2")
SHORT = Sampling(max_tokens=6)


def chat(*parts: str | Piece, system: str = "be brief", namespace: str = "") -> Chat:
    return Chat((Message("system", (system,)), Message("user", parts)), namespace)


def without_pieces(message: Message) -> Message:
    """The same text, all of it plain."""
    parts = (part if isinstance(part, str) else part.standing for part in message.parts)
    return Message(message.role, ("".join(parts),))


def logits(engine, asked: Chat, policy, mode: str = "isolated", n: int = 4) -> torch.Tensor:
    with engine.stitched(asked, policy, mode=mode, n_new=n) as stitched:
        first = stitched.linked.link()
        return torch.cat((first, stitched.linked.step([5, 6, 7, 8][:n])))


def close(got: torch.Tensor, want: torch.Tensor) -> bool:
    return bool((got - want).abs().max() < 2e-4 * max(1.0, float(want.abs().max())))


def answered(engine, asked, policy=None, **options):
    generation = engine.generate(asked, policy=policy or Naive(), sampling=SHORT, **options)
    list(generation)
    return generation


def bare_engine(engine) -> Engine:
    """The same engine without a chat template: nothing stands before the first message."""
    other = object.__new__(type(engine))
    other.__dict__.update(engine.__dict__)
    other.chat = replace(engine.chat, renderer=None, bos="")
    return other


@pytest.mark.parametrize("family", FAMILIES)
def test_recomputing_whole_chunks_equals_full(tiny_engine, family):
    engine = tiny_engine(family)
    asked = Chat(
        (
            Message("system", ("rules: ", Piece(CAT), " end of rules")),
            Message("user", ("what of ", Piece(DOG), "?")),
            Message("assistant", ("nothing",)),
            Message("user", (Piece(HAT, before=CAT), Piece(CAT), "\nwhere is the cat")),
        )
    )
    for mode in ("isolated", "neighbour"):
        assert close(logits(engine, asked, LegoLink(1000), mode), logits(engine, asked, Full()))
    plain = Chat(tuple(without_pieces(message) for message in asked.messages))
    assert engine.lay_out(asked, 1).n_tokens >= engine.lay_out(plain, 1).n_tokens
    assert engine.tokenizer.decode(engine.lay_out(asked, 1).ids) == engine.tokenizer.decode(
        engine.lay_out(plain, 1).ids
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_chunk_where_it_was_compiled_equals_full(tiny_engine, family):
    """Its rows in front, cached and not read, must leave the others at their places."""
    engine = bare_engine(tiny_engine(family))
    asked = Chat((Message("user", (LEAD, Piece(CAT), " and a question")),))
    with engine.stitched(asked, Naive(), mode="isolated", n_new=1) as stitched:
        assert stitched.plan.exact == len(engine.tokenizer.ids(CAT))
    for policy in (Naive(), parse_policy("legolink(3)+correct(0.5)")):
        assert close(logits(engine, asked, policy), logits(engine, asked, Full()))


@pytest.mark.parametrize("policy", ["none", "legolink(3)", "spread(4,4)+correct(0.5)", "damp"])
@pytest.mark.parametrize("family", ["llama", "glm", "deepseek-v2"])
def test_places_are_relative(tiny_engine, family, policy):
    """Moved as a whole, a prompt means the same: so keys, recomputed rows and corrections move alike."""
    engine = bare_engine(tiny_engine(family))

    def at(offset: int) -> torch.Tensor:
        asked = Chat((Message("user", (Piece(CAT, offset=offset), Piece(DOG), " question")),))
        return logits(engine, asked, parse_policy(policy))

    assert close(at(7), at(90))
    assert not close(at(7), logits(engine, Chat((Message("user", (Piece(DOG), " x")),)), Naive()))


@pytest.mark.parametrize("policy", ["focus(20%,2)", "deviation(20%)", "reconnect(4)"])
def test_policies_that_look_see_the_rows_that_are_read(tiny_engine, policy):
    engine = bare_engine(tiny_engine("llama"))
    asked = Chat((Message("user", ("so: ", Piece(CAT), Piece(DOG), " question")),))
    everything = parse_policy(policy.replace("20%", "99%").replace("(4)", "(500)"))
    assert (
        close(logits(engine, asked, everything), logits(engine, asked, Full()))
        or "deviation" in policy
    )
    near = (
        (logits(engine, asked, parse_policy(policy)) - logits(engine, asked, Full())).abs().mean()
    )
    far = (logits(engine, asked, Naive()) - logits(engine, asked, Full())).abs().mean()
    assert near <= far * 1.05


def test_offsets_leave_gaps_that_full_prefill_leaves_too(tiny_engine):
    engine = tiny_engine("llama")
    asked = chat("see ", Piece(CAT, offset=40), Piece(DOG, offset=128), " where?")
    layout = engine.lay_out(asked, 4)
    starts = [s.start for s in layout.segments if s.unit.kind == "chunk"]
    assert starts == [40, 128]
    assert layout.n_tokens < layout.end
    assert layout.solid < 40
    assert close(logits(engine, asked, LegoLink(1000)), logits(engine, asked, Full()))
    # What stands in a gap is nothing: two gaps of one size mean the same whatever came before.
    for policy in (Naive(), Full(), Prefix()):
        first = answered(engine, asked, policy)
        again = answered(engine, asked, policy)
        assert first.token_ids == again.token_ids
        assert first.usage.prompt_tokens == layout.n_tokens


def test_gaps_mean_positions_as_transformers_sees_them(tiny_engine):
    engine = tiny_engine("llama")
    asked = chat("see ", Piece(CAT, offset=40), " where?")
    layout = engine.lay_out(asked, 4)
    places = [place for s in layout.segments for place in range(s.start, s.end)]
    with engine.model._attention("eager"):
        out = engine.model.module(
            input_ids=torch.tensor([list(layout.ids)]),
            position_ids=torch.tensor([places]),
            attention_mask=torch.ones(1, len(places), dtype=torch.int64),
            use_cache=False,
        )
    assert close(logits(engine, asked, Full())[:1], out.logits[0, -1:].detach())


@pytest.mark.parametrize(
    ("offsets", "match"), [((2, 90), "offset 2"), ((40, 45), "chunk 2"), ((40, 10**9), "window")]
)
def test_offsets_that_cannot_be_are_refused(tiny_engine, offsets, match):
    asked = chat("see ", Piece(CAT, offset=offsets[0]), Piece(DOG, offset=offsets[1]), " where?")
    with pytest.raises(UsageError, match=match):
        tiny_engine("llama").lay_out(asked, 4)


def test_a_conversation_that_does_not_fit_loses_nothing_in_silence(tiny_engine):
    engine = tiny_engine("llama")
    with pytest.raises(UsageError, match="the conversation needs"):
        engine.lay_out(chat(*[Piece(CAT)] * 500, "?"), 4)


def test_the_entry_is_the_one_that_a_numbered_prompt_uses(checkpoint, tmp_path):
    engine = Engine.load(
        checkpoint("llama"), name="llama", device="cpu", store=KVStore(tmp_path / "kv")
    )
    pieces = [Piece(CAT), Piece(DOG, before=CAT)]
    list(engine.compile(pieces))
    asked = chat("so: ", pieces[1], "\n\n", pieces[0], " where?")
    assert not engine.lacking(asked, Naive())
    receipt = answered(engine, asked).receipt
    n = sum(len(engine.tokenizer.ids(piece.text)) for piece in pieces)
    assert (receipt.stitched, receipt.recomputed, receipt.fallback) == (n, 0, None)


def test_the_beginning_of_a_chunk_is_read_from_the_whole(checkpoint, tmp_path):
    engine = Engine.load(
        checkpoint("llama"), name="llama", device="cpu", store=KVStore(tmp_path / "kv")
    )
    list(engine.compile([Piece(CAT)]))
    beginning = CAT[: CAT.index(" and then")]
    asked = chat("so: ", Piece(CAT, shown=beginning), " where?")
    assert not engine.lacking(asked, Naive())
    assert answered(engine, asked).receipt.stitched == len(engine.tokenizer.ids(beginning))
    text = engine.tokenizer.decode(engine.lay_out(asked, 1).ids)
    assert beginning in text
    assert "and then" not in text
    assert close(logits(engine, asked, LegoLink(1000)), logits(engine, asked, Full()))


@pytest.mark.parametrize("policy", ["none", "legolink(3)", "spread(4,4)+correct(0.5)"])
def test_the_middle_of_a_chunk_is_read_from_the_whole(tiny_engine, policy):
    """Its rows stand where they do behind the whole, so that reading them behind what they were cached behind is exact."""
    engine = bare_engine(tiny_engine("llama"))
    beginning, end = CAT.index(" sat"), CAT.index(" to the other")
    middle = Piece(CAT, shown=CAT[beginning:end], start=beginning)
    asked = Chat((Message("user", (LEAD, CAT[:beginning], middle, " and a question")),))
    with engine.stitched(asked, Naive(), mode="isolated", n_new=1) as stitched:
        assert stitched.plan.exact == len(engine.tokenizer.ids(CAT[beginning:end]))
    assert close(logits(engine, asked, parse_policy(policy)), logits(engine, asked, Full()))
    elsewhere = Chat((Message("user", ("so: ", middle, " where?")),))
    assert close(logits(engine, elsewhere, LegoLink(1000)), logits(engine, elsewhere, Full()))


@pytest.mark.parametrize(("start", "shown"), [(1, "he ca"), (4, "dog"), (0, CAT + "!")])
def test_what_no_tokens_of_a_chunk_make_up_is_plain_text(tiny_engine, start, shown):
    engine = tiny_engine("llama")
    asked = chat("so: ", Piece(CAT, shown=shown, start=start), " where?")
    assert answered(engine, asked).receipt.stitched == 0
    text = engine.tokenizer.decode(engine.lay_out(asked, 1).ids)
    assert f"so: {shown} where?" in text


def test_a_conversation_is_found_again(checkpoint, tmp_path):
    engine = Engine.load(
        checkpoint("llama"), name="llama", device="cpu", store=KVStore(tmp_path / "kv")
    )
    turns = [Message("system", ("be brief and " * 20,)), Message("user", ("where is the cat",))]
    first = answered(engine, Chat(tuple(turns)), LegoLink(8))
    turns += [Message("assistant", (first.text,)), Message("user", ("and the dog",))]
    assert first.receipt.exact == 0
    assert answered(engine, Chat(tuple(turns)), LegoLink(8)).receipt.exact > 40
    assert answered(engine, Chat(tuple(turns), "other"), LegoLink(8)).receipt.exact == 0


def test_namespaces_share_nothing(checkpoint, tmp_path):
    stores = KVStore(tmp_path / "kv"), KVStore(tmp_path / "others")
    engine = Engine.load(
        checkpoint("llama"), name="llama", device="cpu", store=stores[0], other_store=stores[1]
    )
    mine, theirs, index = Piece(CAT, namespace="a"), Piece(CAT, namespace="b"), Piece(CAT)
    assert len({engine.key_of(piece) for piece in (mine, theirs, index)}) == 3
    list(engine.compile([mine]))
    assert stores[1].contains(engine.key_of(mine))
    assert not stores[0].contains(engine.key_of(mine))
    assert set(engine.lacking(chat(mine, theirs, index, "?"), Naive())) == {1, 2}
    asked = Prompt("where", (mine,), system="of a", namespace="a")
    answered(engine, asked, LegoLink(8))
    system = next(s for s in engine.lay_out(asked, 1).segments if s.unit.kind == "system")
    keys = {
        engine.cache.key(engine.recipes(engine.lay_out(p, 1), p, "isolated")[0])
        for p in (asked, replace(asked, namespace="b"), replace(asked, namespace=""))
    }
    assert len(keys) == 3 and system.start == 0
    neutral = Prompt("where", (mine,), namespace="a")
    recipes = engine.recipes(engine.lay_out(neutral, 1), neutral, "isolated")
    assert recipes[0].namespace == ""


def test_a_template_without_a_system_role_still_takes_the_whole_text(tiny_engine):
    engine = tiny_engine("llama")
    other = object.__new__(type(engine))
    other.__dict__.update(engine.__dict__)

    class NoSystem:
        chat_template = "x"

        def apply_chat_template(self, messages, **_):
            if any(m["role"] == "system" for m in messages):
                raise ValueError("no system")
            return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"

    other.chat = replace(engine.chat, renderer=NoSystem())
    text = engine.tokenizer.decode(other.lay_out(chat("see ", Piece(CAT), " ?"), 1).ids)
    assert text == f"<user>be brief\n\nsee {CAT} ?<assistant>"


def test_compiling_waits_for_pages_that_requests_hold(checkpoint, tmp_path):
    engine = Engine.load(
        checkpoint("llama"),
        name="llama",
        device="cpu",
        store=KVStore(tmp_path / "kv"),
        kv_memory_bytes=512 << 10,
        self_check=False,
    )
    engine.model.eos_ids = frozenset()
    room = engine.pool.n_pages * engine.pool.page_size
    n = len(engine.tokenizer.ids("the cat sat " * 64)) / 64
    long = "the cat sat " * int(0.6 * room / n)
    sampling = Sampling(max_tokens=3)
    with engine.submit(Chat((Message("user", (long,)),)), policy=Full(), sampling=sampling) as held:
        next(held)
        with pytest.raises(NoPagesError), engine.scheduler.turn():
            list(engine.cache.ensure_stored([engine.recipe_of(Piece(long), "isolated")]))
        assert [item[0] for item in engine.compile([Piece(long)], "isolated")] == [0]
        assert len(held.token_ids) == 3


def test_raw_text_goes_on_as_it_is(tiny_engine):
    engine = tiny_engine("llama")
    asked = Chat((Message("user", ("The cat said: ", Piece(CAT))),), is_raw=True)
    layout = engine.lay_out(asked, 1)
    begins = engine.tokenizer.template_ids(engine.chat.bos) if engine.chat.bos else ()
    plain = engine.tokenizer.ids
    assert layout.ids == (*begins, *plain("The cat said: "), *plain(CAT))
    assert layout.segments[-1].unit.kind == "question"  # something has to be computed
    with engine.stitched(asked, Naive(), mode="isolated", n_new=1) as stitched:
        assert stitched.plan.stitched == len(plain(CAT)) - 1
    assert close(logits(engine, asked, LegoLink(1000)), logits(engine, asked, Full()))
