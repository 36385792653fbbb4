"""Learning coefficients of single heads, and of networks without a head."""

import re

import numpy as np
import pytest

import bayesattn as ba
from bayesattn import theory
from bayesattn.singular import head_capacities, without_head
from tests.singular.networks import network
from tests.statistics import near

SHORT = {"chains": 2, "warmup": 200, "draws": 250}


@pytest.mark.parametrize("skips", [(), (0.0, 0.6)])
def test_without_a_head_the_other_paths_keep_their_prior(skips):
    """K of the rest is that of the whole network with the head's path inputs at 0."""
    rng = np.random.default_rng(0)
    arch = ba.Architecture((3, 2), (4, 5, 5), (1.0, 1.3, 0.8, 1.1), skips=skips)
    inputs = rng.normal(size=(5, arch.paths, 3))
    model = ba.Model(path_inputs=inputs, labels=rng.normal(size=5), architecture=arch, temperature=0.1)
    uses = np.array([head == 1 for head, _ in np.ndindex(*arch.ways)])
    gone = model.replace(path_inputs=np.where(uses[:, None], 0.0, inputs))
    rest = without_head(model, 1, 1)
    assert rest.architecture.heads == (2, 2)
    kernels = [
        np.asarray(each.kernels.kernel_of(theory.gp_order_parameter(each.architecture))) for each in (gone, rest)
    ]
    np.testing.assert_allclose(*kernels, rtol=1e-12)
    assert theory.gp_evidence(rest) == pytest.approx(theory.gp_evidence(gone), rel=1e-12)


def test_a_head_alone_by_finite_differences():
    """f is linear in the head's values: the Gram matrix of its derivatives, times their variance."""
    rng = np.random.default_rng(1)
    model = network((2,), (2, 3), 2, temperature=0.2, variances=(1.0, 1.7, 1.0))
    model = model.replace(labels=np.array([1.0, -1.0, 1.0, 1.0]))
    weights = {"V_0": rng.normal(size=(2, 2)), "V_1": rng.normal(size=(2, 3, 2)), "a": rng.normal(size=3)}
    found = head_capacities(model, weights=weights, **SHORT)

    def outputs(values):
        readout = np.einsum("a,ham,mf->hf", weights["a"], values, weights["V_0"])
        return np.einsum("ehf,hf->e", model.path_inputs, readout) / np.sqrt(2 * 2 * 2 * 3)

    for head in range(2):
        slopes = []
        for place in np.ndindex(3, 2):
            moved = weights["V_1"].copy()
            moved[(head, *place)] += 1
            slopes.append(outputs(moved) - outputs(weights["V_1"]))
        gram = 1.7 * np.array(slopes).T @ np.array(slopes)
        exact = np.trace(gram @ np.linalg.inv(gram + 0.2 * np.eye(4))) / 2
        assert found.alone[head] == pytest.approx(exact)
    assert np.isnan(found.alone_error).all()


def test_table_of_heads():
    """A head with labels of its own uses more than one whose path inputs are 0, which uses nothing."""
    model = network((2,), (2, 3), 2, temperature=0.01)
    inputs = model.path_inputs.copy()
    inputs[:, 1] = 0
    model = model.replace(path_inputs=inputs, labels=inputs[:, 0] @ np.array([-1.5, 0.4]))
    found = head_capacities(model, **SHORT)
    table = found.summary()
    assert table.index.tolist() == [(1, "1"), (1, "2")]
    assert found.alone[1] == pytest.approx(0)
    assert found.alone[0] > 0.5
    near(table["used"].iloc[1], 0, table["used_error"].iloc[1], finds=0.4)
    assert table["used"].iloc[0] > 0.8
    np.testing.assert_allclose(table["misfit"], [model.labels @ model.labels, 0], atol=1e-12)
    assert "whole network" in repr(found)


def test_the_only_head_of_a_layer_cannot_go():
    model = network((2, 1), (2, 2, 2), 2, temperature=0.1)
    text = "head must not be the only one of its layer, got layer 2 of heads (2, 1)"
    with pytest.raises(ValueError, match=re.escape(text)):
        without_head(model, 2, 0)
    with pytest.raises(ValueError, match=re.escape("head must be one of heads (2, 1), got head 2 of layer 1")):
        without_head(model, 1, 2)


def test_weights_must_be_complete():
    model = network((2,), (2, 3), 2, temperature=0.2)
    with pytest.raises(ValueError, match="weights must hold V_0, V_1, a, got none of the name V_1"):
        head_capacities(model, weights={"V_0": np.zeros((2, 2))}, **SHORT)
