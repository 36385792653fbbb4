"""Exports of reference posteriors: programs of others have the log density that they should."""

import json
import runpy
import zipfile
from collections import defaultdict

import jax
import numpy as np
import pytest
from numpyro.infer.util import log_density

import bayesattn as ba
from bayesattn.questions.reference.posteriors import POSTERIORS, model_of
from benchmarks import posteriordb
from benchmarks.posteriordb import stan_data, stan_program
from tests import dense
from tests.reference import stan


def points(model, count=3):
    """Weights from the prior, and their log density by plain NumPy, which is ours too (tests/models/test_dense.py)."""
    rng, arch = np.random.default_rng(0), model.architecture
    weights = [dense.random_weights(arch, model.path_inputs.shape[2], rng) for _ in range(count)]
    outputs = [dense.outputs(arch, each, model.path_inputs) for each in weights]
    priors = [dense.log_prior_of_weights(arch, each) for each in weights]
    return weights, [prior + dense.log_likelihood(model, f) for prior, f in zip(priors, outputs, strict=True)]


def same_up_to_a_constant(values, others):
    return np.ptp(np.subtract(values, others)) < 1e-9 * np.abs(values).max()


@pytest.mark.parametrize("name", [name for name in POSTERIORS if name != "hidden_markov"])
def test_stan_program_has_the_log_density(name):
    """Real Stan (2.35, by httpstan) compiled two_skips' program and agreed to 2e-13; here its text is read by NumPy."""
    model = model_of(name)
    weights, ours = points(model)
    program, data = stan_program(model), json.loads(json.dumps(stan_data(model)))
    theirs = [stan.log_density(program, data, each) for each in weights]
    assert same_up_to_a_constant(ours, theirs)
    assert np.ptp(ours) > 1


@pytest.mark.parametrize("name", ["two_layers", "two_skips", "three_classes", "outliers", "counts"])
def test_numpyro_program_has_the_log_density_and_needs_no_bayesattn(name, tmp_path):
    files = {path.suffix: path for path in ba.reference.export(name, tmp_path, format="numpyro")}
    script, arrays = files[".py"], files[".npz"]
    assert "import bayesattn" not in script.read_text()
    program = runpy.run_path(str(script))["model"]
    weights, ours = points(ba.reference.load(name).model)
    theirs = [float(one) for one in map(jax.jit(lambda each: log_density(program, (), {}, each)[0]), weights)]
    assert same_up_to_a_constant(ours, theirs)
    with np.load(arrays) as stored:
        truth = ba.reference.load(name).truth
        assert stored["quantities"].tolist() == truth.names
        np.testing.assert_array_equal(stored["mean"], truth.combined.mean)
    with pytest.raises(FileExistsError, match="file must not exist yet"):
        ba.reference.export(name, tmp_path, format="numpyro")


@pytest.mark.parametrize("name", [pytest.param("three_classes", marks=pytest.mark.heavy), "one_head"])
def test_an_entry_of_posteriordb_meets_its_rules(name, tmp_path, monkeypatch):
    if name == "one_head":  # Its draws do so already with fewer between those that are kept.
        monkeypatch.setattr(posteriordb, "THIN", 5)

    def packed(file):
        with zipfile.ZipFile(tmp_path / f"{file}.zip") as archive:
            return json.loads(archive.read(file.rpartition("/")[2]))

    posteriordb.export(name, tmp_path, seed=5)
    data_name, program = f"attention_{name}_data", f"attention_{name}"
    posterior = json.loads((tmp_path / f"posteriors/{data_name}-{program}.json").read_text())
    references = "reference_posteriors/draws"
    info = json.loads((tmp_path / references / f"info/{posterior['name']}.info.json").read_text())
    # The bounds of ESS have a level of 5 %, so draws of another processor may miss them.
    within = info["checks_made"].pop("ess_within_bounds")
    assert all(info["checks_made"].values()), info["checks_made"]
    assert within or min(info["diagnostics"]["effective_sample_size_bulk"]) > 9000
    draws = packed(f"{references}/draws/{posterior['name']}.json")
    assert len(draws) == 10
    assert {len(values) for chain in draws for values in chain.values()} == {1000}
    assert sum(posterior["dimensions"].values()) == len(draws[0]) == len(info["diagnostics"]["r_hat"])
    assert (tmp_path / "models/stan" / f"{program}.stan").read_text() == stan_program(model_of(name))
    assert packed(f"data/data/{data_name}.json")["examples"] == model_of(name).examples
    # The weights are draws of the posterior: the moments that they give are the truth's.
    sites = defaultdict(dict)
    for entry in draws[0]:
        site, _, place = entry.rstrip("]").partition("[")
        sites[site][tuple(int(number) - 1 for number in place.split(","))] = [chain[entry] for chain in draws]
    arrays = {site: np.zeros((10, 1000, *(1 + np.max([*places], axis=0)))) for site, places in sites.items()}
    for site, places in sites.items():
        for index, values in places.items():
            arrays[site][(..., *index)] = values
    model = ba.reference.load(name).model
    assert ba.grade(ba.from_numpyro(arrays, model, "path"), name).verdict == "right"


def test_a_file_that_exists_and_another_format_are_refused_before_drawing(tmp_path, monkeypatch):
    (tmp_path / "models/stan").mkdir(parents=True)
    (tmp_path / "models/stan/attention_one_head.stan").write_text("mine")
    monkeypatch.setattr(ba, "sample", None)
    with pytest.raises(FileExistsError, match=r"attention_one_head\.stan"):
        posteriordb.export("one_head", tmp_path)
    with pytest.raises(ValueError, match="format must be one of 'npz', 'numpyro', got 'csv'"):
        ba.reference.export("two_heads", tmp_path, format="csv")
