"""Reference posteriors for other tools: arrays, a NumPyro program, or an entry of posteriordb with a Stan program."""

import io
import json
import zipfile
from pathlib import Path
from textwrap import dedent

import arviz_stats
import numpy as np
import xarray as xr
from scipy import stats

from bayesattn._util.checks import one_of, seed_number
from bayesattn._util.files import replace_file, require_new, user_path
from bayesattn._util.plain import PlainDict
from bayesattn._util.settings import with_own_settings
from bayesattn.likelihoods import Categorical, Gaussian, Poisson, StudentT, settings_of
from bayesattn.models.weights import weights
from bayesattn.questions.reference.posteriors import Reference, load
from bayesattn.questions.reference.stan import stan_data, stan_program
from bayesattn.questions.reference.truth import LEVELS
from bayesattn.samplers import sample

FORMATS = ("npz", "numpyro", "posteriordb")
CHAINS, DRAWS, THIN = 10, 1000, 20
"""Draws of an entry of posteriordb: 10 chains of 1000, one of every `THIN` draws."""
LARGEST_RHAT, LARGEST_LAG = 1.01, 0.05
"""Limits of posteriordb on R-hat and on the autocorrelation of neighbouring draws."""
INDEPENDENT_SETS = 200
"""Number of sets of independent draws by which the bounds of the effective sample size are estimated."""
KEYWORDS = ["bayesian neural network", "attention", "bayesattn"]


@with_own_settings
def export(name: str, folder: str | Path, *, format: str = "npz", seed: int = 0) -> list[Path]:
    """Write a reference posterior for another tool.

    Args:
        name: name of the reference posterior.
        folder: where its files are written; none of them may exist.
        format: "npz", arrays of data and truth; "numpyro", these and a NumPyro program that needs no bayesattn;
            "posteriordb", a Stan program, data and 10,000 draws of the weights, in the folders of posteriordb.
        seed: seed of the draws; used by "posteriordb" only.

    Returns:
        The files written.

    Raises:
        ValueError: another name or format.
        FileExistsError: a file that exists.
    """
    reference, folder = load(name), user_path("folder", folder)
    one_of("format", format, FORMATS)
    seed_number("seed", seed)
    paths = [folder / file for file in _files(name, format)]
    for path in paths:
        require_new("file", path)
    if format == "posteriordb":
        contents = _posteriordb(reference, seed)
    else:
        contents = [_arrays(reference)]
        if format == "numpyro":
            contents.append(numpyro_program(reference).encode())
    for path, content in zip(paths, contents, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    return paths


def _names_in_posteriordb(name: str) -> tuple[str, str, str]:
    """Names of posterior, program and data."""
    program, data = f"attention_{name}", f"attention_{name}_data"
    return f"{data}-{program}", program, data


def _files(name: str, format: str) -> list[str]:
    """Paths of the files of a format."""
    if format != "posteriordb":
        return [f"{name}.npz", f"{name}.py"][: FORMATS.index(format) + 1]
    posterior, program, data = _names_in_posteriordb(name)
    return [
        f"posteriors/{posterior}.json",
        f"models/info/{program}.info.json",
        f"models/stan/{program}.stan",
        f"data/info/{data}.info.json",
        f"data/data/{data}.json.zip",
        f"reference_posteriors/draws/info/{posterior}.info.json",
        f"reference_posteriors/draws/draws/{posterior}.json.zip",
    ]


def _arrays(reference: Reference) -> bytes:
    """Data and truth as an npz file."""
    model, truth = reference.model, reference.truth
    arch = model.architecture
    arrays = {"path_inputs": model.path_inputs, "labels": model.labels, "test_path_inputs": model.test_path_inputs}
    arrays |= {name: np.array(getattr(arch, name)) for name in ("heads", "widths", "variances", "skips", "outputs")}
    arrays |= {name: np.array(value) for name, value in settings_of(model.likelihood).items()}
    arrays |= {"quantities": np.array(truth.names), "levels": np.array(LEVELS), "quantiles": truth.quantiles}
    arrays |= {"quantiles_error": truth.quantile_error}
    arrays |= {name: getattr(truth.combined, name) for name in ("mean", "mean_error", "sd", "sd_error")}
    packed = io.BytesIO()
    np.savez_compressed(packed, allow_pickle=False, **arrays)
    return packed.getvalue()


def numpyro_program(reference: Reference) -> str:
    """NumPyro program of all weights, a script that needs NumPyro and the npz file alone."""
    model = reference.model
    arch = model.architecture
    single = not arch.output_axes
    likelihoods = {
        Gaussian: 'dist.Normal(f, jnp.sqrt(data["temperature"]))',
        Categorical: 'dist.Categorical(logits=f / data["temperature"])'
        if not single
        else 'dist.Bernoulli(logits=f / data["temperature"])',
        StudentT: 'dist.StudentT(data["freedom"], f, data["scale"])',
        Poisson: "dist.Poisson(jnp.exp(f))",
    }
    observed = {
        Categorical: 'data["labels"].argmax(1)' if not single else '(data["labels"] > 0).astype(int)',
        Poisson: 'data["labels"].astype(int)',
    }
    kind = type(model.likelihood)
    return dedent(
        f'''\
        """Reference posterior "{reference.name}" of bayesattn: {reference.about}.

        A NumPyro program of all weights of the network; {reference.name}.npz holds data and true moments.
        """

        from pathlib import Path

        import jax
        import jax.numpy as jnp
        import numpy as np
        import numpyro
        import numpyro.distributions as dist

        jax.config.update("jax_enable_x64", True)
        data = dict(np.load(Path(__file__).with_suffix(".npz")))
        heads, widths, skips = data["heads"].tolist(), data["widths"].tolist(), data["skips"].tolist()
        scales = np.sqrt(data["variances"])


        def weight(name, scale, *shape):
            return numpyro.sample(name, dist.Normal(0.0, scale).expand(shape).to_event(len(shape)))


        def model():
            """Network on path inputs (example, path, feature), and its labels."""
            features, outputs = data["path_inputs"].shape[2], int(data["outputs"])
            v_0 = weight("V_0", scales[0], widths[0], features)
            values = [
                weight(f"V_{{l + 1}}", scales[l + 1], heads[l], widths[l + 1], widths[l]) for l in range(len(heads))
            ]
            a = weight("a", scales[-1], {"widths[-1]" if single else "outputs, widths[-1]"})
            paths = jnp.atleast_2d(a) / np.sqrt(widths[-1])
            for l in reversed(range(len(heads))):
                scale = 1.0 if l == 0 else 1 / np.sqrt(widths[l])
                below = [paths @ value * scale for value in values[l]]
                if skips[l]:
                    below.insert(0, skips[l] * np.sqrt(heads[l] * widths[l]) * scale * paths)
                paths = jnp.concatenate(below)
            readouts = (paths @ v_0 / np.sqrt(features * widths[0] * np.prod(heads))).reshape(-1, outputs, features)

            def network(path_inputs):
                return jnp.einsum("epf,pof->eo", path_inputs, readouts){".squeeze(-1)" if single else ""}

            f = network(data["path_inputs"])
            numpyro.deterministic("order_parameter", paths @ paths.T / widths[0])
            numpyro.deterministic("prediction", network(data["test_path_inputs"]))
            numpyro.sample("labels", {likelihoods[kind]}, obs={observed.get(kind, 'data["labels"]')})


        if __name__ == "__main__":
            from numpyro.infer import MCMC, NUTS

            mcmc = MCMC(NUTS(model), num_warmup=1000, num_samples=1000, num_chains=4, chain_method="sequential")
            mcmc.run(jax.random.key(0))
            found = mcmc.get_samples()["order_parameter"]
            print("U 1,1:", float(found[:, 0, 0].mean()), "; truth:", data["mean"][0])
        '''
    )


def _posteriordb(reference: Reference, seed: int) -> list[bytes]:
    """Contents of the files of an entry of posteriordb, in the order of `_files`."""
    model, about = reference.model, f"bayesattn reference posterior: {reference.about}"
    name, program, data_name = _names_in_posteriordb(reference.name)
    untested = model.replace(test_path_inputs=None)
    drawn = sample(
        untested,
        "nuts",
        chains=CHAINS,
        warmup=1000,
        draws=DRAWS * THIN,
        thin=THIN,
        seed=seed,
        progress=False,
    )
    by_entry = _entries(weights(drawn, untested, seed=seed))
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
