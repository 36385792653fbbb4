"""Layers narrower than their path suffixes: collapsed draws against quadrature and other labellings.

Labels follow one path alone, so that rows of a Bartlett factor are as unequal as they get. Compared are correlations
U^{pi pi'} / sqrt(U^{pi pi} U^{pi' pi'}) and log U^{pi pi}, whose Monte Carlo errors are finite where U has heavy tails.
Densities are those of test_dense.py; here, chains must reach all of U. Light cases are by NUTS, which crosses in these
coordinates by itself or not at all: exchanges of replicas would hide a cut.
"""

import arviz_stats
import numpy as np
import pytest
import xarray as xr

import bayesattn as ba
from tests.posteriors import narrow_model
from tests.statistics import agree

NETWORKS = {
    # heads, widths, the path that labels follow
    "two heads, N = 1": ((2,), (1, 1), 1),
    "three heads, N = 2": ((3,), (2, 2), 2),
    "four heads, N = 1": ((4,), (1, 1), 2),
    "four heads, N = 3": ((4,), (3, 3), 3),
    "four heads, N = 4": ((4,), (4, 4), 3),
    "two layers, N = 1": ((2, 2), (1, 1, 1), 3),
    "two layers, N = 2": ((2, 2), (2, 2, 2), 3),
    "two layers, N = 3": ((2, 2), (3, 3, 3), 2),
    "two layers, N = 4": ((2, 2), (4, 4, 4), 1),
    "three and two heads, N = 2": ((3, 2), (2, 2, 2), 5),
    "three and two heads, N = 4": ((3, 2), (4, 4, 4), 5),
    "three and two heads, unequal widths": ((3, 2), (2, 1, 3), 4),
}
LIGHT = "three heads, N = 2"


def bounded(draws, order=None):
    """Correlations of U and logarithms of its diagonal, dimensions chain, draw, entry; paths in another order if given."""
    values = draws["posterior"]["order_parameter"].values
    back = np.argsort(np.arange(values.shape[-1]) if order is None else order)
    values = values[:, :, back][..., back]
    diagonal = np.einsum("cdii->cdi", values)
    rows, columns = np.tril_indices(values.shape[-1], -1)
    correlations = values[:, :, rows, columns] / np.sqrt(diagonal[..., rows] * diagonal[..., columns])
    if np.allclose(np.abs(correlations), 1):
        # Of rank one: signs, whose draws of one value have no Monte Carlo error.
        correlations = np.sign(correlations)
    both = np.concatenate([correlations, np.log(diagonal)], axis=-1)
    return xr.DataArray(both, dims=("chain", "draw", "entry"))


@pytest.mark.parametrize(
    ("sampler", "seed"), [*(("nuts", seed) for seed in range(3)), pytest.param("auto", 0, marks=pytest.mark.heavy)]
)
def test_a_layer_of_one_neuron_against_quadrature(sampler, seed):
    """N = 1 and two heads: U = c c^T with density exp(-|c|) / (2 pi |c|) of c, a normal variable times a normal vector.

    The mean correlation of both entries of c is a sum over a grid of 800 x 800 points, by NumPy. Chains in coordinates that
    were cut in two gave +1.000 with a clean R-hat.
    """
    model = narrow_model((2,), (1, 1), 1, temperature=0.01)
    draws = ba.sample(model, sampler, chains=2, warmup=300, draws=2000 if sampler == "auto" else 6000, seed=seed)
    found = bounded(draws).isel(entry=slice(1))
    agree(found, 0.0932, 1e-4)
    assert float(arviz_stats.rhat(found).max()) < 1.01
    assert float(arviz_stats.mcse(found).max()) < 0.05


def test_groups_of_draws_add_up_to_the_density_that_was_sampled():
    """lp = log prior + log likelihood + a constant, where rows are reordered; in their own order the rest varies by nats."""
    drawn = ba.sample(narrow_model(*NETWORKS[LIGHT], 0.01), "nuts", chains=2, warmup=400, draws=25)
    found = ba.with_groups(drawn, "log_prior", "log_likelihood", joint=True)
    parts = found["log_prior"]["bartlett"].values + found["log_likelihood"]["labels"].values
    assert np.ptp(drawn["sample_stats"]["lp"].values - parts) < 1e-8


def without_stuck_chains(draws):
    """Weight-space chains, but for one at most that sits e^15 below the others in probability: a metastable place.

    One of eight did so on "three and two heads, N = 2" at T = 0.01, 28 nats below, where the weak paths make up the labels.
    """
    height = draws["sample_stats"]["lp"].mean("draw")
    kept = np.flatnonzero(height > height.max() - 15)
    assert len(kept) >= draws["posterior"].sizes["chain"] - 1
    return draws.isel(chain=kept)


@pytest.mark.parametrize(
    ("name", "temperature"),
    [
        pytest.param(name, temperature, marks=[pytest.mark.heavy] * ((name, temperature) != (LIGHT, 0.01)))
        for name in NETWORKS
        for temperature in (0.01, 0.3)
    ],
)
def test_relabelled_paths_and_weight_space_chains_give_the_same_draws(name, temperature):
    model = narrow_model(*NETWORKS[name], temperature)
    # The heads of the first layer the other way round, and the old numbers of the new paths.
    order = np.arange(model.architecture.paths).reshape(model.architecture.heads)[::-1].ravel()
    other = model.replace(path_inputs=model.path_inputs[:, order])
    settings = {"sampler": "nuts", "draws": 6000} if name == LIGHT else {"draws": 2000}
    plain = bounded(ba.sample(model, warmup=400, seed=1, **settings))
    turned = bounded(ba.sample(other, warmup=400, seed=2, **settings), order)
    for found in (plain, turned):
        assert float(arviz_stats.rhat(found).max()) < 1.01
    agree(plain, turned)
    if name != LIGHT:
        drawn = ba.sample(model, parameterisation="path", warmup=1000, draws=3000, seed=3)
        weights = bounded(without_stuck_chains(drawn))
        assert float(arviz_stats.rhat(weights).max()) < 1.01
        agree(plain, weights)
        agree(turned, weights)
