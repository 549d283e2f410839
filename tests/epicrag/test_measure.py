"""Fidelity in numbers: what is no number is not called perfect."""

import math

import torch

from epicrag.measure import divergence


def test_the_same_distribution_is_no_divergence():
    logits = torch.randn(3, 11, dtype=torch.float64).log_softmax(-1)
    assert divergence(logits, logits) == (0.0, 1.0)


def test_it_is_the_mean_over_the_tokens():
    want = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64).log()
    got = torch.tensor([[0.5, 0.5], [0.1, 0.9]], dtype=torch.float64).log()
    kl, same = divergence(want, got)
    assert math.isclose(kl, (0.9 * math.log(9) + 0.1 * math.log(1 / 9)) / 2)
    assert same == 0.5


def test_what_is_no_number_is_not_perfect():
    logits = torch.randn(3, 11, dtype=torch.float64).log_softmax(-1)
    kl, same = divergence(logits, torch.full_like(logits, math.nan))
    assert math.isnan(kl) and math.isnan(same)
