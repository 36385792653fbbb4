"""Posteriors with known answers."""

from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy import special, stats

import bayesattn as ba
from bayesattn import tasks
from tests.statistics import agree


def tiny_model(temperature=0.5, heads=(1,), widths=(3, 4), variances=(1.2, 0.9, 1.1), examples=6, features=4, tokens=5):
    """A network small enough for every parameterisation to be sampled in seconds; token data included."""
    rng = np.random.default_rng(3)
    data = tasks.TokenDataset(
        inputs=rng.normal(size=(examples, tokens, features)),
        labels=1.5 * rng.choice([-1.0, 1.0], size=examples),
        test_inputs=rng.normal(size=(3, tokens, features)),
        test_labels=np.array([1.0, -1.0, 1.0]),
        weights=[rng.normal(size=(count, features, features)) / 2 for count in heads],
        head_names=tuple(tuple(f"head{h}" for h in range(count)) for count in heads),
        path_groups={},
    )
    return ba.Model.from_tokens(data, widths, variances, temperature)


def two_modes():
    """One neuron in each layer, a skip, two outputs: NUTS stays where V_2 < 0; exact values by importance sampling.

    The exact values have errors below 0.006 (probabilities and scores) and 0.007 (losses).
    """
    with np.load(Path(__file__).parent / "data" / "narrow_skip.npz") as file:
        exact = dict(file)
    arch = ba.Architecture((2,), (1, 1), (1.0,) * 3, (1.0,), 2)
    data = {name: exact[name] for name in ("path_inputs", "labels")}
    return ba.Model(**data, architecture=arch, temperature=float(exact["temperature"])), exact


def narrow_model(heads, widths, strong, temperature, examples=20, features=5):
    """Random path inputs, and labels that are a linear function of one path's alone: paths as unequal as they get."""
    arch = ba.Architecture(heads, widths, (1.0,) * (len(heads) + 2))
    rng = np.random.default_rng(0)
    path_inputs = rng.normal(size=(examples, arch.paths, features))
    labels = path_inputs[:, strong] @ rng.normal(size=features) / np.sqrt(features)
    return ba.Model(path_inputs=path_inputs, labels=labels, architecture=arch, temperature=temperature)


def random_network(heads, skips, outputs, width, temperature, seed, examples=30):
    """Independent normal path inputs of 8 features and labels that know nothing of them, all variances 1."""
    depth, rng = len(heads), np.random.default_rng(seed)
    arch = ba.Architecture(heads, (width,) * (depth + 1), (1.0,) * (depth + 2), skips, outputs)
    return ba.Model(
        path_inputs=rng.normal(size=(examples, arch.paths, 8)),
        labels=rng.normal(size=(examples, outputs) if outputs > 1 else examples),
        test_path_inputs=rng.normal(size=(20, arch.paths, 8)),
        architecture=arch,
        temperature=temperature,
    )


def weighed_mean(log_weights, values, least):
    """Mean of values by draws of weights that are worth so many draws at least, and its standard error."""
    weights = special.softmax(log_weights)
    assert 1 / np.sum(weights**2) > least
    mean = np.tensordot(weights, values, 1)
    return mean, np.sqrt(np.tensordot(weights**2, (values - mean) ** 2, 1))


def exact_scalar_posterior(model, points=400):
    """Posterior mean of U and of f on the test inputs for one layer of one head, by quadrature over both chi-squared laws.

    U = s_1^2 s_a^2 x y / (N_1 N_a), x ~ chi^2(N_1), y ~ chi^2(N_a).
    """
    arch = model.architecture
    assert arch.heads == (1,)
    # The trapezoidal rule in log x and log y, whose integrand and derivatives vanish at both ends.
    grids = [np.linspace(*np.log(stats.chi2(width).ppf([1e-13, 1 - 1e-13])), points) for width in arch.widths]
    prior = np.outer(
        *(
            stats.chi2(width).pdf(np.exp(grid)) * np.exp(grid) * (grid[1] - grid[0])
            for grid, width in zip(grids, arch.widths, strict=True)
        )
    ).ravel()
    values = np.exp(np.add.outer(*grids)).ravel() * np.prod(arch.variances[1:]) / np.prod(arch.widths)
    unit = np.asarray(ba.theory.kernel([[1.0]], model.path_inputs, model.path_inputs, arch))
    eigenvalues, eigenvectors = np.linalg.eigh(unit)
    variances = values[:, None] * eigenvalues + model.temperature
    projected = eigenvectors.T @ model.labels
    log_likelihood = -0.5 * np.sum(np.log(2 * np.pi * variances) + projected**2 / variances, axis=1)
    probability = prior * np.exp(log_likelihood)
    evidence = probability.sum()
    probability /= evidence
    cross = np.asarray(ba.theory.kernel([[1.0]], model.path_inputs, model.test_path_inputs, arch))
    f_given_u = values[:, None] * ((projected / variances) @ eigenvectors.T @ cross)
    return probability @ values, probability @ f_given_u, np.log(evidence)


def by_prior_draws(model, count, seed=0):
    """U of prior draws, of weights drawn one by one, and log p(Y | U); without skips, of one output."""
    rng, arch, size = np.random.default_rng(seed), model.architecture, min(count, 20_000)
    features = model.path_inputs * np.sqrt(np.prod(arch.variances) / (model.features * np.prod(arch.heads)))
    order_parameters, log_likelihoods = [], []
    for _ in range(count // size):
        vectors = rng.normal(size=(size, 1, arch.widths[-1]))
        for heads, (above, width) in zip(arch.heads[::-1], pairwise(arch.widths[::-1]), strict=True):
            values = rng.normal(size=(size, heads, above, width))
            vectors = np.einsum("dkn,dhnm->dhkm", vectors, values, optimize=True) / np.sqrt(above)
            vectors = vectors.reshape(size, -1, width)
        order_parameters.append(vectors @ np.swapaxes(vectors, 1, 2) / width)
        kernels = np.einsum("epf,dpq,nqf->den", features, order_parameters[-1], features, optimize=True)
        lower = np.linalg.cholesky(kernels + model.temperature * np.eye(model.examples))
        solved = np.linalg.solve(lower, np.broadcast_to(model.labels[:, None], (size, model.examples, 1)))[..., 0]
        logs = np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(1)
        log_likelihoods.append(-(solved**2).sum(1) / 2 - logs - model.examples * np.log(2 * np.pi) / 2)
    return np.prod(arch.variances[1:]) * np.concatenate(order_parameters), np.concatenate(log_likelihoods)


def evidence_of(log_likelihoods):
    """log p(Y) by prior draws, and its error."""
    weights = np.exp(log_likelihoods - log_likelihoods.max())
    error = weights.std() / weights.mean() / np.sqrt(len(weights))
    return special.logsumexp(log_likelihoods) - np.log(len(weights)), error


def require_exact_means(posterior, model):
    """Means of U and f are those of quadrature."""
    exact_u, exact_f, _ = exact_scalar_posterior(model)
    agree(posterior["order_parameter"], exact_u)
    agree(posterior["prediction"], exact_f)
