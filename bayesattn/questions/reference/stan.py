"""Stan program and data of a network with its path inputs."""

from textwrap import indent
from typing import NamedTuple

import numpy as np

from bayesattn._util.errors import BayesattnError
from bayesattn._util.plain import PlainDict
from bayesattn.likelihoods import Categorical, Gaussian, Poisson, StudentT
from bayesattn.models.model import Model

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
