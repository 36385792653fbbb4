"""Reference posteriors for other tools: arrays, and a NumPyro program that needs no bayesattn."""

import io
from pathlib import Path
from string import Template

import numpy as np

from bayesattn._util.checks import one_of
from bayesattn._util.files import replace_file, require_new, user_path
from bayesattn.likelihoods import Categorical, Gaussian, Poisson, StudentT, settings_of
from bayesattn.questions.reference.posteriors import Reference, load
from bayesattn.questions.reference.truth import LEVELS

FORMATS = ("npz", "numpyro")
PROGRAM = Path(__file__).parent / "program.py.txt"
"""Text of the NumPyro program, with places for what differs between references."""


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
    single = not reference.model.architecture.output_axes
    logits, labels = 'logits=f / data["temperature"]', 'data["labels"]'
    likelihood, observed = {
        Gaussian: ('Normal(f, jnp.sqrt(data["temperature"]))', labels),
        Categorical: (f"Bernoulli({logits})", f"({labels} > 0).astype(int)")
        if single
        else (f"Categorical({logits})", f"{labels}.argmax(1)"),
        StudentT: ('StudentT(data["freedom"], f, data["scale"])', labels),
        Poisson: ("Poisson(jnp.exp(f))", f"{labels}.astype(int)"),
    }[type(reference.model.likelihood)]
    return Template(PROGRAM.read_text()).substitute(
        name=reference.name,
        about=reference.about,
        readout_shape="widths[-1]" if single else "outputs, widths[-1]",
        squeezed=".squeeze(-1)" if single else "",
        likelihood=f"dist.{likelihood}",
        labels=observed,
    )
