"""The plan of a prompt: positions and counts add up for every policy, whatever the sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epicrag.serving.compose import Reused, compose, plan
from epicrag.serving.policies import Full, parse_policy
from epicrag.serving.prompt import Unit

POLICIES = [
    "full",
    "none",
    "legolink(3)",
    "legolink(1000)",
    "damp(4,15)",
    "damp(4,15)+legolink(2)",
    "legolink(5)+correct(0.5)",
    "legolink(10%)",
    "spread(2,5)",
    "legolink(3)+spread(2,5)",
    "damp(4,15)+spread(2,5)+correct(0.5,fade=0.7)",
    "damp(4,15)+focus(5%,2)+correct(0.5,fade=0.7)",
]


def units(sizes: list[int], system: int = 5, question: int = 4) -> list[Unit]:
    out = [Unit("system", tuple(range(system)))]
    for index, size in enumerate(sizes):
        out.append(Unit("label", (1, 2), index))
        out.append(Unit("chunk", tuple(range(100, 100 + size)), index))
    return [*out, Unit("question", tuple(range(question)))]


@given(
    st.lists(st.integers(1, 40), max_size=6), st.sampled_from(POLICIES), st.booleans(), st.data()
)
def test_every_position_is_computed_or_read_exactly_once(sizes, policy, first_exact, data):
    layout = compose(units(sizes), 10_000)
    exact = {
        index: segment.unit.kind == "system" or (first_exact and index == 2)
        for index, segment in enumerate(layout.segments)
        if segment.cacheable
    }
    policy = parse_policy(policy)
    exact = exact if policy.reuse == "chunks" else {}
    chosen = {
        index: data.draw(st.sets(st.integers(0, layout.segments[index].length - 1)))
        for index in exact
        if not exact[index]
    }
    made = plan(layout, policy, exact, chosen, selected=3.0)
    read = [
        layout.segments[part.segment].start + row
        for part in made.reused
        for row in range(part.low, part.high)
        if row not in part.holes
    ]
    assert sorted([*made.positions, *read]) == list(range(layout.n_tokens))
    assert list(made.positions) == sorted(made.positions)
    context = sum(s.length for s in layout.segments if s.unit.kind in ("system", "chunk"))
    assert made.context == made.exact + made.stitched + made.recomputed == context
    assert made.context + made.fresh == layout.n_tokens
    assert made.exact + made.stitched == len(read) == sum(part.n_rows for part in made.reused)
    assert made.charged == pytest.approx((made.recomputed + 3) / context)
    for part in made.reused:
        assert all(part.low < row < part.high - 1 for row in part.holes)
        assert list(part.holes) == sorted(part.holes)
    assert {
        index: {p - layout.segments[index].start for p in made.positions}
        & set(range(layout.segments[index].length))
        for index in made.again
    } == {index: set(rows) for index, rows in made.again.items()}


def test_chosen_rows_join_those_the_policy_knows():
    layout = compose(units([10, 10]), 1000)
    made = plan(layout, parse_policy("legolink(3)"), {0: True, 2: False, 4: False}, {4: [2, 5, 6]})
    assert made.again == {2: (0, 1, 2), 4: (0, 1, 2, 5, 6)}
    assert [(r.segment, r.low, r.high, r.holes) for r in made.reused[1:]] == [
        (2, 3, 10, ()),
        (4, 3, 10, (5, 6)),
    ]


def test_a_correction_that_falls_cuts_a_chunk_into_steps():
    layout = compose(units([40]), 1000)
    policy = parse_policy("legolink(4)+correct(1,fade=0.5,values=0.5)")
    made = plan(layout, policy, {0: True, 2: False})
    parts = [r for r in made.reused if r.segment == 2]
    assert [(r.low, r.high) for r in parts] == [(4, 16), (16, 32), (32, 40)]
    assert [r.alpha.keys for r in parts] == pytest.approx([1, 2.263**-0.5, 4.525**-0.5], rel=1e-3)
    assert [r.alpha.values for r in parts] == pytest.approx([r.alpha.keys / 2 for r in parts])


def test_a_chunk_without_probes_is_not_corrected():
    layout = compose(units([10, 10]), 1000)
    policy = parse_policy("focus(10%,0)+correct(0.5)")
    made = plan(layout, policy, {0: True, 2: False, 4: False}, {4: [3]})
    assert {r.segment for r in made.reused if r.corrected} == {4}


def test_full_is_charged_everything_and_none_nothing():
    layout = compose(units([10, 10]), 1000)
    assert plan(layout, Full(), {}).charged == 1
    assert plan(layout, parse_policy("none"), {0: True, 2: False, 4: False}).charged == 0


def test_legolink_skips_the_system_prompt_and_counts_the_first_chunk():
    layout = compose(units([10, 10]), 1000)
    made = plan(layout, parse_policy("legolink(3)"), {0: True, 2: False, 4: False})
    assert made.recomputed == 6
    assert {7, 8, 9} <= set(made.positions)  # 5 system + 2 label, then the first chunk
    assert not set(range(5)) & set(made.positions)


def test_damping_spares_the_first_chunk():
    layout = compose(units([10, 10]), 1000)
    made = plan(layout, parse_policy("damp(4,15)"), {0: True, 2: False, 4: False})
    assert [(part.segment, part.low, part.high) for part in made.reused if part.bias] == [(4, 0, 4)]
    assert all(part.bias in (0.0, -15.0) for part in made.reused)


def test_whole_chunks_are_dropped_from_the_tail_until_it_fits():
    layout = compose(units([10, 10, 10]), 5 + 4 + 2 * 12)
    assert layout.dropped == 1
    assert [s.unit.piece for s in layout.segments if s.unit.kind == "chunk"] == [0, 1]
    assert layout.n_tokens == 33


def test_a_window_that_is_too_small_drops_every_chunk_and_says_so():
    layout = compose(units([10, 10]), 3)
    assert layout.dropped == 2
    assert [s.unit.kind for s in layout.segments] == ["system", "question"]


def test_segments_stand_one_after_another():
    layout = compose(units([3, 7]), 1000)
    ends = [0]
    for segment in layout.segments:
        assert segment.start == ends[-1]
        ends.append(segment.end)
    assert len(layout.ids) == layout.n_tokens == ends[-1]


def test_an_exact_chunk_is_read_as_it_is():
    layout = compose(units([10, 10]), 1000)
    policy = parse_policy("damp(4,15)+legolink(4)+correct(0.5)")
    made = plan(layout, policy, {0: True, 2: False, 4: True})
    assert [r for r in made.reused if r.segment == 4] == [Reused(4, 0, 10)]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_question_is_always_fresh(policy):
    layout = compose(units([8]), 1000)
    chosen = parse_policy(policy)
    made = plan(layout, chosen, {0: True, 2: False} if chosen.reuse == "chunks" else {})
    assert set(range(15, 19)) <= set(made.positions)


def test_full_computes_everything():
    layout = compose(units([8, 9]), 1000)
    assert plan(layout, Full(), {}).positions == tuple(range(layout.n_tokens))
