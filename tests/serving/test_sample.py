"""Choosing tokens, and streaming text that is never half a character or part of a stop string."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from epicrag.errors import UsageError
from epicrag.serving.sample import Sampler, Sampling, TextStream


class Bytes:
    """A tokenizer whose ids are bytes."""

    def decode(self, ids):
        return bytes(ids).decode("utf-8", "replace")


def streamed(text: str, stop: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    stream = TextStream(Bytes(), stop)
    out = []
    for byte in text.encode():
        out.append(stream.push(byte))
        if stream.stopped:
            break
    return [*out, stream.end()], stream


def test_temperature_zero_is_greedy():
    assert Sampler(Sampling())(torch.tensor([0.1, 3.0, 2.0])) == 1


def test_a_seed_gives_the_same_tokens_and_another_seed_others():
    logits = torch.randn(1000)

    def draw(seed):
        sampler = Sampler(Sampling(temperature=2.0, seed=seed))
        return [sampler(logits) for _ in range(20)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_top_k_draws_only_from_the_best():
    sampler = Sampler(Sampling(temperature=5.0, top_k=2, seed=0))
    logits = torch.tensor([1.0, 4.0, 3.9, 0.0])
    assert {sampler(logits) for _ in range(100)} == {1, 2}


def test_top_p_draws_from_the_smallest_set_that_reaches_it():
    sampler = Sampler(Sampling(temperature=1.0, top_p=0.6, seed=0))
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    assert {sampler(logits) for _ in range(200)} == {0, 1}


def test_sampling_follows_the_probabilities():
    sampler = Sampler(Sampling(temperature=1.0, seed=3))
    logits = torch.tensor([0.7, 0.3]).log()
    share = sum(sampler(logits) == 0 for _ in range(2000)) / 2000
    assert 0.65 < share < 0.75


@pytest.mark.parametrize(
    "bad",
    [
        {"max_tokens": 0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"stop": ("",)},
        {"seed": 2**70},
        {"seed": -1},
    ],
)
def test_values_that_mean_nothing_are_refused(bad):
    with pytest.raises(UsageError):
        Sampling(**bad)


@given(st.text(max_size=60))
def test_the_pieces_join_to_the_text(text):
    pieces, _ = streamed(text)
    assert "".join(pieces) == text


def test_no_piece_holds_half_a_character():
    pieces, _ = streamed("né 今日 🚀")
    assert not any("\ufffd" in piece for piece in pieces)


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=2))
def test_text_ends_before_the_first_stop_string_and_never_shows_part_of_it(text, stop):
    pieces, stream = streamed(text, tuple(stop))
    ends = [text.find(s) for s in stop if s in text]
    # Pushed byte by byte, the stop string that is complete first ends the text.
    first = min((text.find(s) + len(s) for s in stop if s in text), default=None)
    shown = "".join(pieces)
    assert stream.stopped == bool(ends)
    if first is None:
        assert shown == text
    else:
        assert text.startswith(shown)
        assert len(shown) == min(text[:first].find(s) for s in stop if s in text[:first])


def test_text_is_shown_as_it_comes():
    stream = TextStream(Bytes(), ("STOP",))
    assert stream.push(ord("a")) == "a"
    assert stream.push(ord("S")) == ""
    assert stream.push(ord("b")) == "Sb"


@pytest.mark.parametrize(
    "choices",
    [
        {"temperature": 1e-40},
        {"temperature": 1.0, "top_p": 1e-300},
        {"top_p": 5e-324, "temperature": 100.0},
    ],
)
def test_the_smallest_numbers_are_greedy(choices):
    sampler = Sampler(Sampling(seed=0, **choices))
    assert {sampler(torch.tensor([-80.0, 30.0, 29.0])) for _ in range(20)} == {1}
