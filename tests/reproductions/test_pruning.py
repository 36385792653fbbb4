"""Removing heads: the same as setting their values to zero in a trained network; the readout of posterior draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayesattn as ba
from bayesattn.models import path
from reproductions.one_shot import pruning
from tests.conftest import relative_error
from tests.posteriors import tiny_model


@pytest.fixture(scope="module")
def model():
    return tiny_model(heads=(2, 3), widths=(5, 4, 3), variances=(1.3, 0.7, 1.1, 0.9))


@pytest.fixture(scope="module")
def weights(model):
    return {name: np.array(value) for name, value in path.Path.of(model).draw_prior(jax.random.key(1)).items()}


@pytest.fixture(scope="module")
def readout(model, weights):
    return pruning.trained_readout(weights, model.architecture)


def test_removing_heads_is_setting_their_values_to_zero(model, weights, readout):
    fewer = {name: value.copy() for name, value in weights.items()}
    fewer["V_1"][1] = fewer["V_2"][0] = 0
    whole, without = (
        path.network(jax.tree.map(jnp.asarray, each), jnp.asarray(model.test_path_inputs)) for each in (weights, fewer)
    )
    assert relative_error(np.einsum("epf,pf->e", model.test_path_inputs, readout), whole) < 1e-12
    expected = np.mean(np.sign(without) == model.test_labels)
    assert pruning.accuracy_without(readout, model, [(0, 1), (1, 0)]) == pytest.approx(expected)


def test_the_posterior_readout_gives_the_mean_predictor(model):
    factors = np.random.default_rng(0).normal(size=(3, 6, 6))
    draws = factors @ factors.transpose(0, 2, 1)
    found = np.einsum("epf,pf->e", model.test_path_inputs, pruning.posterior_readout(model, draws))
    assert relative_error(found, np.mean([ba.theory.predict(u, model).mean for u in draws], 0)) < 1e-12


def test_orders_of_removal(model, readout):
    scores = {"given": [np.array([0.1, 0.9]), np.array([0.5, 0.2, 0.3])]}
    found = pruning.prune(readout, model, scores)
    heads = [(0, 0), (1, 1), (1, 2), (1, 0), (0, 1)]
    expected = [pruning.accuracy_without(readout, model, heads[:count]) for count in range(6)]
    np.testing.assert_array_equal(found.accuracies["given"], expected)
    assert found.accuracies["given"][-1] == found.accuracies["random"][-1] == 0.5
    np.testing.assert_allclose(found.drops[0], found.accuracy - pruning.accuracy_without(readout, model, [(0, 0)]))


def test_dispensable_heads_end_where_two_points_are_lost():
    orders = {"late": np.array([0.9, 0.89, 0.885, 0.87, 0.9]), "never": np.array([0.9, 0.9, 0.9, 0.9, 0.9])}
    found = pruning.Pruned(0.9, np.zeros(4), orders)
    assert (found.dispensable("late"), found.dispensable("never")) == (2, 4)
    # 0.98 - 0.96 is more than 0.02 by rounding alone.
    assert pruning.dispensable(np.array([0.98, 0.96, 0.959]), 0.98) == 1


def test_bad_input_is_named(model, readout):
    with pytest.raises(ValueError, match=r"scores\['given'\] must hold \(2, 3\) numbers per layer, got \(3, 2\)"):
        pruning.prune(readout, model, {"given": [np.ones(3), np.ones(2)]})
    with pytest.raises(ValueError, match="pruning needs test_path_inputs and test_labels"):
        pruning.prune(readout, model.replace(test_labels=None), {})
