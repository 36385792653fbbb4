"""Finite latents by enumeration, each against something that does not use it."""

import itertools

import numpy as np
import pytest

from reproductions.tokens.finite_latents import (
    FiniteLatent,
    cells,
    least_loss,
    mutual_information,
    transfer,
    type_classes,
)


@pytest.mark.parametrize(("tokens", "vocabulary"), [(4, 3), (1, 5), (6, 2)])
def test_type_classes_are_multisets(tokens, vocabulary):
    sequences = itertools.product(range(vocabulary), repeat=tokens)
    assert type_classes(tokens, vocabulary) == len({tuple(sorted(sequence)) for sequence in sequences})


def test_mutual_information():
    assert mutual_information(np.outer([0.2, 0.8], [0.5, 0.5])) == pytest.approx(0, abs=1e-15)
    assert mutual_information(np.diag([0.25, 0.75])) == pytest.approx(-0.25 * np.log(0.25) - 0.75 * np.log(0.75))


def test_mean_log_odds_is_that_of_all_sequences():
    latent = FiniteLatent([0.5, 0.2, 0.3], [[0.6, 0.1, 0.3], [0.4, 0.9, 0.7]])
    sequences = latent.sequences(3)
    odds = latent.posterior(sequences)
    odds = np.log(odds[1] / np.maximum(odds[0], odds[2]))
    given = latent.joint(sequences)[1] / latent.prior[1]
    assert latent.mean_log_odds(3, 1) == pytest.approx(given @ odds, rel=1e-12)


def test_merging_cells_of_a_redundant_partition_loses_nothing():
    latent = FiniteLatent([0.4, 0.6], [[0.5, 0.2], [0.25, 0.4], [0.25, 0.4]])
    sequences = latent.sequences(2)
    # Tokens 1 and 2 are alike, so type classes are finer than the posterior.
    types = cells(np.sort(sequences, 1).T)
    joint = latent.joint(sequences)
    assert least_loss(joint, types) == pytest.approx(0, abs=1e-14)
    assert cells(latent.posterior(sequences)).max() < types.max()
    assert least_loss(joint, cells(latent.posterior(sequences))) > 1e-4


def test_transfer_is_attained_and_infinite_where_pretraining_is_blind():
    rng = np.random.default_rng(4)
    emission, readout = rng.dirichlet(np.ones(4), size=3).T, rng.normal(size=(2, 3))
    found = transfer(emission, readout)
    assert found.direction.sum() == pytest.approx(0, abs=1e-12)
    ratio = np.linalg.norm(readout @ found.direction) / np.linalg.norm(emission @ found.direction)
    assert ratio == pytest.approx(found.factor, rel=1e-10)
    blind = np.column_stack([emission[:, 0], emission[:, 0], emission[:, 2]])
    assert transfer(blind, readout).factor == np.inf
    # A task that does not tell the two apart either is not hurt.
    assert np.isfinite(transfer(blind, np.array([[1.0, 1.0, 0.0]])).factor)
    # Fewer tokens than latents: some direction is always unseen.
    few = transfer(emission[:2] / emission[:2].sum(0), np.eye(3))
    assert (few.weakest, few.factor) == (pytest.approx(0, abs=1e-12), np.inf)


@pytest.mark.parametrize(
    ("prior", "emission", "message"),
    [
        ([0.5, 0.5], [[0.5, 0.5], [0.6, 0.5]], "emission must hold probabilities that sum to 1"),
        ([1.5, -0.5], [[0.5, 0.5], [0.5, 0.5]], "prior must hold probabilities"),
    ],
)
def test_what_are_no_probabilities_is_refused(prior, emission, message):
    with pytest.raises(ValueError, match=message):
        FiniteLatent(prior, emission)
