"""Reference posteriors for other tools: arrays, and a NumPyro program that needs no bayesattn."""

import io
from pathlib import Path
from textwrap import dedent

import numpy as np

from bayesattn._util.checks import one_of
from bayesattn._util.files import replace_file, require_new, user_path
from bayesattn.likelihoods import Categorical, Gaussian, Poisson, StudentT, settings_of
from bayesattn.questions.reference.posteriors import Reference, load
from bayesattn.questions.reference.truth import LEVELS

FORMATS = ("npz", "numpyro")


def export(name: str, folder: str | Path, *, format: str = "npz") -> list[Path]:
    """Write a reference posterior for another tool.

    Args:
        name: name of the reference posterior.
        folder: where its files are written; none of them may exist.
        format: "npz", arrays of data and truth; "numpyro", these and a NumPyro program that needs no bayesattn.

    Returns:
        The files written.

    Raises:
        ValueError: another name or format.
        FileExistsError: a file that exists.
    """
    reference, folder = load(name), user_path("folder", folder)
    one_of("format", format, FORMATS)
    contents = {folder / f"{name}.npz": _arrays(reference)}
    if format == "numpyro":
        contents[folder / f"{name}.py"] = numpyro_program(reference).encode()
    for path in contents:
        require_new("file", path)
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        replace_file(path, content)
    return [*contents]


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
