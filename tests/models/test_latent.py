"""The latent of exchangeable tokens through the package's samplers and runs."""

import dataclasses

import numpy as np
import pytest

import bayesattn as ba
from bayesattn import exchangeable as ex
from bayesattn import runs
from bayesattn.models import LatentModel
from bayesattn.samplers import BIASED, SAMPLERS
from tests.statistics import agree

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
    at_queries = ex.query_posterior(model.features, model.values, model.query_features, model.noise, model.prior)
    if sampler not in BIASED:
        agree(draws["posterior"]["prediction"], np.asarray(at_queries.mean))
    assert draws["posterior"]["prediction"].dims == ("chain", "draw", "query", "value_feature")
    diagnostics = ba.diagnostics.diagnose(draws)
    assert diagnostics.ess > 100
    assert np.isfinite(diagnostics.bias) == (sampler in BIASED)


def test_runs_store_and_resume_it(model, tmp_path):
    done = []

    def stop(event):
        done.append(event)
        if len(done) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.sample(model, tmp_path / "run", progress=stop, **JOB)
    run = runs.sample(runs.Run(tmp_path / "run").model, tmp_path / "run", **JOB)
    whole = ba.sample(model, **JOB)
    for name in ("latent", "prediction"):
        np.testing.assert_array_equal(run.draws()["posterior"][name], whole["posterior"][name])
    assert run.overview()["width"] is None
    assert run.model.name == "latent"
    other = dataclasses.replace(model, noise=0.7)
    with pytest.raises(runs.RunError, match=r"noise = 0\.6, got 0\.7"):
        runs.sample(other, tmp_path / "run", **JOB)
    other = dataclasses.replace(model, values=model.values + 1)
    with pytest.raises(runs.RunError, match="its values differ"):
        runs.sample(other, tmp_path / "run", **JOB)


def test_parameterisations_belong_to_models(model):
    with pytest.raises(ValueError, match="parameterisation of a LatentModel must be one of 'latent', got 'collapsed'"):
        ba.sample(model)
    with pytest.raises(ValueError, match="sampler 'sgld' serves parameterisations token, path"):
        ba.sample(model, "sgld", "latent")


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="noise must be a finite number above 0, got 0"):
        LatentModel(features=np.ones((2, 2)), values=np.ones((2, 1)), noise=0, prior=1)
    with pytest.raises(ValueError, match=r"values must have shape \(2, value_features\), got \(3, 1\)"):
        LatentModel(features=np.ones((2, 2)), values=np.ones((3, 1)), noise=1, prior=1)
    with pytest.raises(ValueError, match=r"query_features must have shape \(queries, 2\)"):
        LatentModel(features=np.ones((2, 2)), values=np.ones((2, 1)), noise=1, prior=1, query_features=np.ones((2, 3)))
