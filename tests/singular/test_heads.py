"""Learning coefficients of single heads, and of networks without a head."""

import re

import numpy as np
import pytest

import bayesattn as ba
from bayesattn import theory
from bayesattn.questions.singular import head_capacities, without_head
from tests.conftest import model_of
from tests.dense import outputs
from tests.singular.networks import network
from tests.statistics import near

SHORT = {"chains": 2, "warmup": 200, "draws": 250}


@pytest.mark.parametrize("skips", [(), (0.0, 0.6)])
def test_without_a_head_the_other_paths_keep_their_prior(skips):
    """K of the rest is that of the whole network with the head's path inputs at 0."""
    rng, arch = np.random.default_rng(0), ba.Architecture((3, 2), (4, 5, 5), (1.0, 1.3, 0.8, 1.1), skips=skips)
    inputs = rng.normal(size=(5, arch.paths, 3))
    model = model_of(inputs, rng.normal(size=5), arch, 0.1)
    uses = np.array([head == 1 for head, _ in np.ndindex(*arch.ways)])
    gone = model.replace(path_inputs=np.where(uses[:, None], 0.0, inputs))
    rest = without_head(model, 1, 1)
    assert rest.architecture.heads == (2, 2)
    kernels = [each.gaussian_process.kernel_of(theory.gp_order_parameter(each.architecture)) for each in (gone, rest)]
    np.testing.assert_allclose(*kernels, rtol=1e-12)
    assert theory.gp_evidence(rest) == pytest.approx(theory.gp_evidence(gone), rel=1e-12)


def test_labels_that_only_the_head_explains_stay_labels_of_gathered_examples():
    rng, arch = np.random.default_rng(0), ba.Architecture((2,), (4, 5), (1.0, 1.3, 0.8))
    inputs = rng.normal(size=(40, 2, 3))
    labels = inputs[:, 1, 0] + 0.3 * rng.normal(size=40)
    gathered = ba.Model(dataset=ba.Dataset.gather((inputs, labels), arch), architecture=arch, temperature=0.1)
    rests = [without_head(each, 1, 1) for each in (gathered, model_of(inputs, labels, arch, 0.1))]
    assert [rest.examples for rest in rests] == [40, 40]
    evidence = [theory.gp_evidence(rest) for rest in rests]
    assert evidence[0] == pytest.approx(evidence[1], rel=1e-12)


def test_a_head_alone_by_finite_differences():
    """f is linear in the values of heads: the Gram matrix of its derivatives by a head's, times their variance."""
    rng = np.random.default_rng(1)
    model = network((2,), (2, 3), 2, temperature=0.2, variances=(1.0, 1.7, 1.0))
    model = model.replace(labels=np.array([1.0, -1.0, 1.0, 1.0]))
    weights = {"V_0": rng.normal(size=(2, 2)), "V_1": rng.normal(size=(2, 3, 2)), "a": rng.normal(size=3)}
    found = head_capacities(model, weights=weights, **SHORT)
    for head in range(2):
        values = np.zeros((6, 2, 3, 2))
        values[:, head] = np.eye(6).reshape(6, 3, 2)
        slopes = np.array([outputs(model.architecture, weights | {"V_1": each}, model.path_inputs) for each in values])
        gram = 1.7 * slopes.T @ slopes
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
    near(table["used"].iloc[1], 0, table["used_error"].iloc[1], finds=0.015)
    assert table["used"].iloc[0] > 0.8
    np.testing.assert_allclose(table["misfit"], [model.labels @ model.labels, 0], atol=1e-12)
    assert "whole network" in repr(found)


def test_bad_input_is_named():
    model, two_heads, weights = network((2, 1), (2, 2, 2), 2), network((2,), (2, 3), 2), {"V_0": np.zeros((2, 2))}
    for call, text in (
        (lambda: without_head(model, 2, 0), "head must not be the only one of its layer, got layer 2 of heads (2, 1)"),
        (lambda: without_head(model, 1, 2), "head must be one of heads (2, 1), got head 2 of layer 1"),
        (
            lambda: head_capacities(two_heads, weights=weights, **SHORT),
            "weights must hold V_0, V_1, a, got none of the",
        ),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            call()
