"""Entry of posteriordb for a reference posterior: a Stan program of all weights, its data, and 10,000 draws.

    python benchmarks/posteriordb.py two_heads --out posteriordb

Stan 2.35 compiled the programs of four references; their log density equals bayesattn's to 3e-13.
"""

import argparse
import io
import json
import zipfile
from pathlib import Path
from textwrap import indent
from typing import NamedTuple

import arviz_stats
import numpy as np
import xarray as xr
from scipy import stats

import bayesattn as ba
from bayesattn._util.files import replace_file, require_new
from bayesattn._util.plain_values import PlainDict
from bayesattn.errors import BayesattnError
from bayesattn.likelihoods import Categorical, Gaussian, Poisson, StudentT
from bayesattn.models.model import Model
from bayesattn.models.weights import weights
from bayesattn.questions.reference import Reference

CHAINS, DRAWS, THIN = 10, 1000, 20
"""Draws of an entry of posteriordb: 10 chains of 1000, one of every `THIN` draws."""
LARGEST_RHAT, LARGEST_LAG = 1.01, 0.05
"""Limits of posteriordb on R-hat and on the autocorrelation of neighbouring draws."""
INDEPENDENT_SETS = 200
"""Number of sets of independent draws by which the bounds of the effective sample size are estimated."""
KEYWORDS = ["bayesian neural network", "attention", "bayesattn"]


def export(name: str, folder: Path, seed: int = 0) -> list[Path]:
    """Write the entry of a reference posterior; raises FileExistsError, before anything is drawn, for a file that exists."""
    reference, paths = ba.reference.load(name), [folder / file for file in files_of(name)]
    for path in paths:
        require_new("file", path)
    for path, content in zip(paths, _contents(reference, seed), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    return paths


def _names(name: str) -> tuple[str, str, str]:
    """Names of posterior, program and data."""
    program, data = f"attention_{name}", f"attention_{name}_data"
    return f"{data}-{program}", program, data


def files_of(name: str) -> list[str]:
    """Paths of the files of an entry, in the folders of posteriordb."""
    posterior, program, data = _names(name)
    return [
        f"posteriors/{posterior}.json",
        f"models/info/{program}.info.json",
        f"models/stan/{program}.stan",
        f"data/info/{data}.info.json",
        f"data/data/{data}.json.zip",
        f"reference_posteriors/draws/info/{posterior}.info.json",
        f"reference_posteriors/draws/draws/{posterior}.json.zip",
    ]


def _contents(reference: Reference, seed: int) -> list[bytes]:
    """Contents of the files of an entry of posteriordb, in the order of `files_of`."""
    model, about = reference.model, f"bayesattn reference posterior: {reference.about}"
    name, program, data_name = _names(reference.name)
    untested = model.replace(test_path_inputs=None)
    drawn = ba.sample(
        untested,
        "nuts",
        chains=CHAINS,
        warmup=1000,
        draws=DRAWS * THIN,
        thin=THIN,
        seed=seed,
        progress=False,
    )
    by_entry = _entries(weights(drawn, seed))
    diagnostics, checks = _diagnostics(by_entry)
    draws = [{entry: values[chain].tolist() for entry, values in by_entry.items()} for chain in range(CHAINS)]
    sites = {entry.partition("[")[0] for entry in by_entry}
    posterior = {
        "name": name,
        "keywords": KEYWORDS,
        "model_name": program,
        "data_name": data_name,
        "reference_posterior_name": name,
        "dimensions": {site: sum(entry.startswith(f"{site}[") for entry in by_entry) for site in sorted(sites)},
    }
    told = {"keywords": KEYWORDS, "description": about, "title": about}
    reference_info = {
        "name": name,
        "inference": {
            "method": "analytical",  # The other name that posteriordb knows is "stan_sampling".
            "method_arguments": {
                "by": "draws of the order parameter, weights exactly given it: bayesattn.collapsed.weights",
                "chains": CHAINS,
                "thin": THIN,
                "seed": seed,
            },
        },
        "diagnostics": diagnostics,
        "checks_made": checks,
        "comments": f"signs and rotations of hidden units are drawn uniformly; {reference.truth.route} agrees",
    }
    model_info = {"name": program, **told, "model_code": {"stan": f"models/stan/{program}.stan"}}
    data_info = {"name": data_name, **told, "data_file": f"data/data/{data_name}.json"}
    return [
        _json(posterior),
        _json(model_info),
        stan_program(model).encode(),
        _json(data_info),
        _zipped(f"{data_name}.json", _json(stan_data(model))),
        _json(reference_info),
        _zipped(f"{name}.json", json.dumps(draws).encode()),
    ]


def _entries(drawn: xr.Dataset) -> dict[str, np.ndarray]:
    """Entries of the weights by their names in Stan, such as V_1[1,2,3], each (chain, draw)."""
    result = {}
    for name, values in drawn.data_vars.items():
        array = values.transpose("chain", "draw", ...).values
        for index in np.ndindex(array.shape[2:]):
            result[f"{name}[{','.join(str(place + 1) for place in index)}]"] = array[(..., *index)]
    return result


def _diagnostics(by_entry: dict[str, np.ndarray]) -> tuple[PlainDict, PlainDict]:
    """Diagnostics of posteriordb, and which of its requirements hold."""
    values = np.stack([*by_entry.values()], axis=-1)
    drawn = xr.DataArray(values, dims=("chain", "draw", "entry"))
    bulk, tail = arviz_stats.ess(drawn).values, arviz_stats.ess(drawn, method="tail").values
    rhat = arviz_stats.rhat(drawn).values
    centred = values - values.mean((0, 1))
    lag = (centred[:, 1:] * centred[:, :-1]).mean((0, 1)) / (centred**2).mean((0, 1))
    independent = xr.DataArray(
        np.random.default_rng(0).normal(size=(*values.shape[:2], INDEPENDENT_SETS)), dims=("chain", "draw", "entry")
    )
    within = True
    for found, method in ((bulk, "bulk"), (tail, "tail")):
        sizes, bound = arviz_stats.ess(independent, method=method).values, stats.norm.isf(0.025 / len(found))
        within &= bool((np.abs(found - sizes.mean()) <= bound * sizes.std()).all())
    diagnostics = {
        "diagnostic_information": {"names": [*by_entry]},
        "ndraws": values.shape[0] * values.shape[1],
        "nchains": len(values),
        "effective_sample_size_bulk": bulk.tolist(),
        "effective_sample_size_tail": tail.tolist(),
        "r_hat": rhat.tolist(),
        "lag_1_autocorrelation": lag.tolist(),
    }
    checks = {
        "ndraws_is_10k": values.shape[0] * values.shape[1] == 10_000,
        "nchains_is_gte_4": len(values) >= 4,
        "ess_within_bounds": within,
        "r_hat_below_1_01": bool((rhat < LARGEST_RHAT).all()),
        "lag_1_autocorrelation_below_0_05": bool((np.abs(lag) < LARGEST_LAG).all()),
    }
    return diagnostics, checks


def _json(content: PlainDict) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _zipped(name: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return packed.getvalue()


STAN = """\
// Deep attention network with fixed attention, as a function of its path inputs (bayesattn).
data {
  int<lower=1> examples;
  int<lower=1> paths;
  int<lower=1> features;
  int<lower=1> outputs;
  SIZES
  array[examples] matrix[paths, features] path_inputs;
  LABELS
}
parameters {
  WEIGHTS
}
transformed parameters {
  READOUT
  // One row for each path and output, outputs fastest.
  LAYERS
  matrix[paths * outputs, features] readouts = w_1 * V_0 / sqrt(features * widths[1] * prod(to_vector(heads)));
  matrix[examples, outputs] f = rep_matrix(0, examples, outputs);
  for (e in 1:examples) {
    for (p in 1:paths) {
      f[e] += path_inputs[e, p] * readouts[((p - 1) * outputs + 1):(p * outputs)]';
    }
  }
}
model {
  PRIORS
  LIKELIHOOD
}
"""
"""Template: lines in capitals are replaced by code that depends on the architecture or the likelihood."""


class Labels(NamedTuple):
    """Labels in Stan: their declaration, the line of the likelihood, and further data."""

    declared: str
    likelihood: str
    data: PlainDict


def stan_program(model: Model) -> str:
    """Stan program whose parameters are all weights of the network; its data are path inputs."""
    arch, labels = model.architecture, _stan_labels(model)
    depth, single = arch.depth, not arch.output_axes
    readout = f"vector[widths[{depth + 1}]] a;" if single else f"matrix[outputs, widths[{depth + 1}]] a;"
    values, layers, priors = [], [], []
    rows, above = "outputs", f"w_{depth + 1}"
    for layer in range(depth, 0, -1):
        values.insert(0, f"array[heads[{layer}]] matrix[widths[{layer + 1}], widths[{layer}]] V_{layer};")
        priors.insert(
            0, f"for (h in 1:heads[{layer}]) to_vector(V_{layer}[h]) ~ normal(0, sqrt(variances[{layer + 1}]));"
        )
        skip, scale = int(arch.skips[layer - 1] > 0), "" if layer == 1 else f" / sqrt(widths[{layer}])"
        ways = f"(heads[{layer}] + {skip})" if skip else f"heads[{layer}]"
        layers.append(f"matrix[{ways} * {rows}, widths[{layer}]] w_{layer};")
        if skip:
            layers.append(
                f"w_{layer}[1:{rows}] = skips[{layer}] * sqrt(heads[{layer}] * widths[{layer}]) * {above}{scale};"
            )
        first = f"(h - 1) * {rows}" if not skip else f"h * {rows}"
        layers.append(
            f"for (h in 1:heads[{layer}]) w_{layer}[({first} + 1):({first} + {rows})] = {above} * V_{layer}[h]{scale};"
        )
        rows, above = f"{ways} * {rows}", f"w_{layer}"
    lines = {
        "SIZES": f"array[{depth}] int<lower=1> heads;\narray[{depth + 1}] int<lower=1> widths;\n"
        f"array[{depth + 2}] real<lower=0> variances;\narray[{depth}] real<lower=0> skips;\n",
        "LABELS": labels.declared,
        "WEIGHTS": "\n".join(["matrix[widths[1], features] V_0;", *values, readout, ""]),
        "READOUT": f"matrix[outputs, widths[{depth + 1}]] w_{depth + 1}"
        f" = {'to_matrix(a, 1, size(a))' if single else 'a'} / sqrt(widths[{depth + 1}]);\n",
        "LAYERS": "\n".join([*layers, ""]),
        "PRIORS": "\n".join(
            [
                "to_vector(V_0) ~ normal(0, sqrt(variances[1]));",
                *priors,
                f"{'a' if single else 'to_vector(a)'} ~ normal(0, sqrt(variances[{depth + 2}]));",
                "",
            ]
        ),
        "LIKELIHOOD": labels.likelihood,
    }
    program = STAN
    for name, text in lines.items():
        program = program.replace(f"  {name}\n", indent(text, "  "))
    return program


def _stan_labels(model: Model) -> Labels:
    """Labels of a model in Stan."""
    likelihood, single = model.likelihood, not model.architecture.output_axes
    real = "vector[examples] y;\n" if single else "matrix[examples, outputs] y;\n"
    left, right = ("y", "f[, 1]") if single else ("to_vector(y)", "to_vector(f)")
    whole = [*map(int, np.ravel(model.labels))]
    match likelihood:
        case Gaussian(temperature=temperature):
            declared = f"{real}real<lower=0> temperature;\n"
            return Labels(
                declared,
                f"{left} ~ normal({right}, sqrt(temperature));\n",
                {"y": model.labels, "temperature": temperature},
            )
        case StudentT(scale=scale, freedom=freedom):
            declared = f"{real}real<lower=0> scale;\nreal<lower=0> freedom;\n"
            data = {"y": model.labels, "scale": scale, "freedom": freedom}
            return Labels(declared, f"{left} ~ student_t(freedom, {right}, scale);\n", data)
        case Poisson() if single:
            return Labels("array[examples] int<lower=0> y;\n", "y ~ poisson_log(f[, 1]);\n", {"y": whole})
        case Categorical(temperature=temperature):
            if single:
                classes, line = [int(label > 0) for label in whole], "y ~ bernoulli_logit(f[, 1] / temperature);\n"
            else:
                classes = (np.argmax(model.labels, 1) + 1).tolist()
                line = "for (e in 1:examples) y[e] ~ categorical_logit(to_vector(f[e]) / temperature);\n"
            declared = "array[examples] int<lower=0> y;\nreal<lower=0> temperature;\n"
            return Labels(declared, line, {"y": classes, "temperature": temperature})
    raise BayesattnError(f"likelihood must be one that Stan has, got {likelihood!r}")


def stan_data(model: Model) -> PlainDict:
    """Data of the Stan program, as plain values for JSON."""
    arch, (examples, paths, features) = model.architecture, model.path_inputs.shape
    data = {"examples": examples, "paths": paths, "features": features, "outputs": arch.outputs}
    data |= {name: list(getattr(arch, name)) for name in ("heads", "widths", "variances", "skips")}
    data |= {"path_inputs": model.path_inputs} | _stan_labels(model).data
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in data.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=ba.reference.names())
    parser.add_argument("--out", type=Path, default=Path("posteriordb"))
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for path in export(asked.name, asked.out, asked.seed):
        print(path)
