"""The latent of exchangeable tokens through the package's samplers and runs."""

import dataclasses

import numpy as np
import pytest

import bayesattn as ba
from bayesattn import runs
from bayesattn.models import LatentModel
from bayesattn.questions import exchangeable as ex
from bayesattn.samplers import BIASED, SAMPLERS
from tests.statistics import agree
from tests.test_runs import StopAfter

JOB = {"parameterisation": "latent", "chains": 2, "warmup": 200, "draws": 400, "seed": 1}


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(5)
    features, values = rng.normal(size=(9, 2)), rng.normal(size=(9, 2))
    return LatentModel(features=features, values=values, noise=0.6, prior=1.1, query_features=rng.normal(size=(3, 2)))


HEAVY = [name for name in SAMPLERS if name not in ("nuts", "ula", "sgld")]


@pytest.mark.parametrize("sampler", ["nuts", "ula", *(pytest.param(name, marks=pytest.mark.heavy) for name in HEAVY)])
def test_draws_are_those_of_the_closed_form(model, sampler):
    """After the bias that the sampler states, where it is biased."""
    draws = ba.sample(model, sampler, **JOB | {"draws": 1000})
    exact = ex.latent_posterior(model.features, model.values, model.noise, model.prior)
    latent = draws["posterior"]["latent"]
    unbiased = latent - draws["step_size_bias"]["latent"] if sampler in BIASED else latent
    agree(unbiased, np.asarray(exact.mean))
    if sampler not in BIASED:
        exact = ex.query_posterior(model.features, model.values, model.query_features, model.noise, model.prior)
        agree(draws["posterior"]["prediction"], np.asarray(exact.mean))
    assert draws["posterior"]["prediction"].dims == ("chain", "draw", "query", "value_feature")
    diagnostics = ba.diagnose(draws)
    assert diagnostics.ess > 100
    assert np.isfinite(diagnostics.bias) == (sampler in BIASED)


def test_runs_store_and_resume_it(model, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        runs.sample(model, tmp_path / "run", progress=StopAfter(450), **JOB)
    run = runs.sample(runs.Run(tmp_path / "run").model, tmp_path / "run", **JOB)
    whole = ba.sample(model, **JOB)
    for name in ("latent", "prediction"):
        np.testing.assert_array_equal(run.draws()["posterior"][name], whole["posterior"][name])
    assert run.overview()["width"] is None
    with pytest.raises(runs.RunError, match=r"noise = 0\.6, got 0\.7"):
        runs.sample(dataclasses.replace(model, noise=0.7), tmp_path / "run", **JOB)
    with pytest.raises(runs.RunError, match="its values differ"):
        runs.sample(dataclasses.replace(model, values=model.values + 1), tmp_path / "run", **JOB)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (ba.sample, "parameterisation of a LatentModel must be one of 'latent', got 'collapsed'"),
        (lambda model: ba.sample(model, "sgld", "latent"), "sampler 'sgld' serves parameterisations token, path"),
        (lambda model: dataclasses.replace(model, noise=0), "noise must be a finite number above 0, got 0"),
        (
            lambda model: dataclasses.replace(model, values=np.ones((3, 1))),
            r"values must have shape \(9, value_features\)",
        ),
        (lambda model: dataclasses.replace(model, query_features=np.ones((2, 3))), r"must have shape \(queries, 2\)"),
    ],
)
def test_what_does_not_fit_is_named(model, call, message):
    with pytest.raises(ValueError, match=message):
        call(model)
