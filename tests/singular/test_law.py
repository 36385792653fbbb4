"""Laws of the limit: Aoyagi's for deep linear networks, and power counting for networks with heads."""

import re

import numpy as np
import pytest

import bayesattn as ba
from bayesattn.questions.singular import attention_law, deep_linear_law


def architecture(heads, widths, outputs=1, skips=()):
    return ba.Architecture(heads, widths, (1.0,) * (len(heads) + 2), skips=skips, outputs=outputs)


@pytest.mark.parametrize(
    ("sizes", "rank", "expected"),
    [
        ((5, 3, 3, 2), 0, (2.5, 1)),  # docs/learning-coefficient.md
        ((4, 2, 4, 3), 0, (3, 3)),
        ((3, 2, 2, 2, 2), 0, (1.5, 3)),
        ((1, 1), 0, (0.5, 1)),
        ((1, 1, 1), 0, (0.5, 2)),  # (a b)^2
        ((1, 1, 1, 1), 0, (0.5, 3)),
        ((3, 5, 4), 3, (6, 1)),  # A teacher of full rank: half of the entries of the product, a regular model.
        # (2 (3 6 + 3 5 + 6 5) - 3^2 - 6^2 - 5^2) / 8 (Aoyagi and Watanabe 2005)
        ((6, 3, 5), 0, (7, 1)),
    ],
)
def test_deep_linear(sizes, rank, expected):
    assert deep_linear_law(sizes, rank) == pytest.approx(expected)


def test_power_counting_of_one_head_is_aoyagis_law():
    rng = np.random.default_rng(0)
    multiplicities = set()
    for _ in range(60):
        depth = rng.integers(1, 4)
        features, *widths = rng.integers(1, 7, depth + 2).tolist()
        outputs = int(rng.integers(1, 5))
        found = attention_law(architecture((1,) * depth, widths, outputs), features)
        assert found == pytest.approx(deep_linear_law([features, *widths, outputs])), (widths, features, outputs)
        multiplicities.add(found.multiplicity)
    assert {1, 2, 3} <= multiplicities


def test_power_counting_of_one_layer_and_output():
    """S = |a|^2 |B V_0|^2 with B Gaussian, one row for each head, independent of |a|: the least of two coefficients."""
    rng = np.random.default_rng(1)
    for _ in range(40):
        heads, first, last, features = map(int, rng.integers(1, 6, 4))
        scale, product = (last / 2, 1), deep_linear_law((heads, first, features))
        equal = scale[0] == product.coefficient
        expected = min(scale[0], product.coefficient), (1 + product.multiplicity if equal else min([scale, product])[1])
        assert attention_law(architecture((heads,), (first, last)), features) == pytest.approx(expected)


def test_power_counting_of_two_layers_that_meet_in_one_neuron():
    """N_2 = 1: |g|^2 is a product of two independent norms, of reduced-rank products before and after the neuron."""
    rng = np.random.default_rng(3)
    ties = 0
    for _ in range(40):
        after, before, first, last, features, outputs = map(int, rng.integers(1, 5, 6))
        parts = deep_linear_law((outputs, last, after)), deep_linear_law((before, first, features))
        least, most = sorted(parts)
        tie = least.coefficient == most.coefficient
        ties += tie
        expected = least.coefficient, least.multiplicity + (most.multiplicity if tie else 0)
        found = attention_law(architecture((before, after), (first, 1, last), outputs), features)
        assert found == pytest.approx(expected)
    assert ties > 2


def test_power_counting_from_either_end():
    """A network read from the inputs to the outputs has the same loss."""
    rng = np.random.default_rng(4)
    for _ in range(40):
        depth = int(rng.integers(1, 4))
        heads, widths = rng.integers(1, 4, depth).tolist(), rng.integers(1, 5, depth + 1).tolist()
        features, outputs = map(int, rng.integers(1, 5, 2))
        forwards = attention_law(architecture(heads, widths, outputs), features)
        assert forwards == pytest.approx(attention_law(architecture(heads[::-1], widths[::-1], features), outputs))


def test_bad_input():
    for call, text in (
        (lambda: deep_linear_law((3,)), "sizes must be two or more sizes of layers, got (3,)"),
        (lambda: deep_linear_law((3, 0)), "sizes must be a whole number of at least 1, got 0"),
        (lambda: deep_linear_law((3, 2), 3), "rank must be a whole number of at most 2, got 3"),
        (lambda: attention_law(architecture((1,), (2, 2)), 0), "features must be a whole number"),
        (lambda: attention_law(architecture((1,), (2, 2), 1, (1.0,)), 3), "arch must have no skips, for which no law"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            call()
