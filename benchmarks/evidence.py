"""Evidence of forty random networks against an importance sampler that shares no code with it.

    uv run python benchmarks/evidence.py [--first 0] [--last 40] [--seeds 1]

Ten architectures, narrow and wide, with skips and several outputs, and four draws each of path inputs, of labels 0.5 to 2
times as large as the prior expects, of variances, and of T, one in each quarter of 0.003 to 10 in its logarithm. The
reference is by NumPy alone: prior draws where these suffice; else differential evolution (ter Braak 2006) from prior draws,
a mixture fitted to its draws, population Monte Carlo (Cappe et al. 2008), and importance sampling from the last mixture.
"""

import argparse
import importlib
import time
from typing import Any

import numpy as np
from scipy import special

import bayesattn as ba

FIRST = 44
ARCHITECTURES = [
    ((3, 1), (2, 5, 3), (0.0, 0.0), 1, 6, 2),
    ((2, 1), (2, 2, 3), (1.0, 0.0), 1, 8, 3),
    ((3,), (1, 5), (0.0,), 1, 10, 3),
    ((3,), (25, 30), (0.0,), 1, 8, 2),
    ((2,), (6, 1), (0.0,), 3, 6, 2),
    ((1, 2, 1), (12, 12, 20, 12), (1.0, 0.0, 0.0), 1, 8, 3),
    ((2,), (2, 2), (0.0,), 2, 6, 3),
    ((2,), (20, 30), (0.0,), 2, 6, 3),
    ((2, 2), (5, 2, 4), (0.0, 0.0), 1, 9, 4),
    ((1, 2, 1), (1, 6, 6, 1), (0.0, 0.5, 0.0), 1, 8, 2),
]
PER_ARCHITECTURE = 4
COLDEST, HOTTEST = 0.003, 10.0
DRAWS, ENOUGH, TOO_FEW = 6000, 2000, 500
STEPS, WARM_UP, COMPONENTS, ITERATIONS, BATCHES = 2500, 1000, 24, 10, 10


def network(number):
    """Path inputs, labels, architecture and temperature of one of the networks."""
    random = np.random.default_rng([FIRST, number])
    heads, widths, skips, outputs, examples, features = ARCHITECTURES[number // PER_ARCHITECTURE]
    variances = tuple(float(each) for each in random.uniform(0.7, 1.5, len(heads) + 2))
    arch = ba.Architecture(heads, widths, variances, skips, outputs)
    path_inputs = random.normal(size=(examples, arch.paths, features))
    quarter = (number % PER_ARCHITECTURE + random.random()) / PER_ARCHITECTURE
    temperature = float(COLDEST * (HOTTEST / COLDEST) ** quarter)
    shape = (examples, outputs) if outputs > 1 else (examples,)
    squares = np.einsum("epf,p->e", path_inputs**2, np.array(arch.path_variances)) / (arch.paths * features)
    expected = np.sqrt(arch.input_variance * squares.mean() + temperature)
    return path_inputs, random.normal(size=shape) * random.uniform(0.5, 2) * expected, arch, temperature


class Posterior:
    """Density of a posterior in Bartlett coordinates, by NumPy."""

    def __init__(self, path_inputs, labels, arch, temperature):
        _, paths, features = path_inputs.shape
        self.arch, self.temperature, self.labels = arch, temperature, np.ravel(labels)
        self.features = path_inputs * np.sqrt(arch.input_variance / (features * paths))
        self.layers, columns, size = [], 1, 0
        heads, skips = (*arch.heads, arch.outputs), (*arch.skips, 0.0)
        layers = []
        for layer in reversed(range(len(heads))):
            rows, copied, width = heads[layer] * columns, columns if skips[layer] else 0, arch.widths[layer]
            columns = min(copied + rows, width)
            signed = columns > copied and rows > 1 and width - columns + 1 == 1
            diagonal = [(row, copied + row) for row in range(columns - copied)]
            below = [(row, column) for row in range(rows) for column in range(columns) if column - copied < row]
            layers.insert(0, (heads[layer], width, skips[layer], rows, columns, copied, signed, diagonal, below))
        for layer in layers:
            self.layers.append((*layer, size))
            size += len(layer[7]) + len(layer[8])
        self.size = size

    def factors(self, points):
        """F_1 of each point, and the log of the prior density."""
        factor, log_prior = np.ones((len(points), 1, 1)), np.zeros(len(points))
        for number in reversed(range(len(self.layers))):
            heads, width, skip, rows, columns, copied, signed, diagonal, below, start = self.layers[number]
            matrix = np.zeros((len(points), rows, columns))
            for index, (row, column) in enumerate(diagonal):
                value = points[:, start + index]
                if signed and index == len(diagonal) - 1:
                    matrix[:, row, column] = value
                    log_prior -= value**2 / 2 + np.log(2 * np.pi) / 2
                else:
                    freedom = width - copied - index
                    matrix[:, row, column] = np.exp(value)
                    log_prior += freedom * value - np.exp(2 * value) / 2
                    log_prior -= special.gammaln(freedom / 2) + (freedom / 2 - 1) * np.log(2)
            for index, (row, column) in enumerate(below, start + len(diagonal)):
                matrix[:, row, column] = points[:, index]
                log_prior -= points[:, index] ** 2 / 2 + np.log(2 * np.pi) / 2
            matrix *= np.sqrt(self.arch.variances[number + 1] / width)
            blocks = [factor @ block for block in np.split(matrix, heads, axis=1)]
            if skip:
                unseen = np.zeros((len(points), factor.shape[1], columns - factor.shape[2]))
                blocks.insert(0, np.concatenate([np.sqrt(heads) * skip * factor, unseen], axis=2))
            factor = np.concatenate(blocks, axis=1)
        return factor, log_prior

    def log_likelihoods(self, factor):
        """log p(Y | U) of each F_1."""
        paths, outputs, labels = self.features.shape[1], self.arch.outputs, len(self.labels)
        by_path = factor.reshape(len(factor), paths, outputs, -1)
        mixed = np.einsum("epf,dpmc->demfc", self.features, by_path, optimize=True).reshape(len(factor), labels, -1)
        values, vectors = np.linalg.eigh(mixed @ mixed.swapaxes(1, 2))
        values = np.maximum(values, 0) + self.temperature
        squares = (vectors.swapaxes(1, 2) @ self.labels) ** 2
        return -np.sum(squares / values + np.log(2 * np.pi * values), axis=1) / 2

    def log_densities(self, points):
        """log of prior density times likelihood of each point."""
        with np.errstate(all="ignore"):
            factor, log_prior = self.factors(points)
            fine = np.isfinite(factor).all(axis=(1, 2)) & (np.abs(factor).max(axis=(1, 2)) < 1e6)
            result = np.full(len(points), -np.inf)
            result[fine] = log_prior[fine] + self.log_likelihoods(factor[fine])
        return np.where(np.isfinite(result), result, -np.inf)

    def prior_draws(self, random, count):
        """Points drawn from the prior."""
        points = random.normal(size=(count, self.size))
        for _, width, _, _, _, copied, signed, diagonal, _, start in self.layers:
            for index in range(len(diagonal) - signed):
                points[:, start + index] = np.log(random.chisquare(width - copied - index, count)) / 2
        return points


class Mixture:
    """Student distributions with 8 degrees of freedom."""

    def __init__(self, weights, centres, scales):
        self.weights, self.centres, self.scales = np.array(weights) / np.sum(weights), centres, scales

    def log_densities(self, points):
        """log of weight times density of each component."""
        size = points.shape[1]
        constant = special.gammaln(4 + size / 2) - special.gammaln(4) - size / 2 * np.log(8 * np.pi)
        result = []
        for weight, centre, scale in zip(self.weights, self.centres, self.scales, strict=True):
            squares = np.sum(np.linalg.solve(scale, (points - centre).T) ** 2, axis=0)
            tail = (4 + size / 2) * np.log1p(squares / 8) + np.linalg.slogdet(scale)[1]
            result.append(np.log(weight) + constant - tail)
        return np.array(result)

    def draws(self, random, count):
        """Points of it."""
        chosen = random.choice(len(self.weights), count, p=self.weights)
        students = random.normal(size=(count, len(self.centres[0]))) / np.sqrt(random.chisquare(8, (count, 1)) / 8)
        return np.array(
            [self.centres[each] + self.scales[each] @ student for each, student in zip(chosen, students, strict=True)]
        )


def mean_of(log_weights):
    """log of the mean weight, its standard error, and the effective number of draws."""
    weights = np.exp(log_weights - log_weights.max())
    effective = weights.sum() ** 2 / np.sum(weights**2)
    return log_weights.max() + np.log(weights.mean()), np.sqrt(1 / effective - 1 / len(weights)), effective


def reference(path_inputs, labels, arch, temperature, seed=0):
    """log p(Y), its standard error, the effective number of draws, and by which method."""
    random, posterior = np.random.default_rng([seed, 7]), Posterior(path_inputs, labels, arch, temperature)
    batches = [posterior.factors(posterior.prior_draws(random, 10_000))[0] for _ in range(10)]
    found = mean_of(np.concatenate([posterior.log_likelihoods(batch) for batch in batches]))
    if found[2] > ENOUGH:
        return *found, "prior draws"
    drawn = evolved(posterior, random)
    proposal = fitted(drawn, posterior, random)
    for _ in range(ITERATIONS):
        proposal, effective = adapted(proposal, posterior, random)
        if effective > DRAWS / 2:
            break
    points = [proposal.draws(random, DRAWS) for _ in range(BATCHES)]
    log_weights = [
        posterior.log_densities(each) - special.logsumexp(proposal.log_densities(each), axis=0) for each in points
    ]
    return *mean_of(np.concatenate(log_weights)), "mixture"


def evolved(posterior, random):
    """Draws of chains that learn steps from each other; the likelihood sets in slowly."""
    size, count = posterior.size, max(60, 6 * posterior.size)
    points = posterior.prior_draws(random, count)
    values, kept = posterior.log_densities(points), []
    for step in range(STEPS):
        power = min(1.0, (step / 600) ** 2 + 1e-4)
        one, other = random.integers(count, size=(2, count))
        length = 1.0 if step % 7 == 0 else 2.38 / np.sqrt(2 * size) * random.uniform(0.3, 1.1, (count, 1))
        some = random.random((count, size)) < random.choice([1.0, 0.3])
        proposed = points + some * (length * (points[one] - points[other]) + 1e-3 * random.normal(size=points.shape))
        there = posterior.log_densities(proposed)
        accepted = np.log(random.random(count)) < power * (there - values)
        points[accepted], values[accepted] = proposed[accepted], there[accepted]
        if step > WARM_UP and step % 25 == 0:
            kept.append(points.copy())
    return np.concatenate(kept)


def fitted(drawn, posterior, random):
    """A mixture of parts of draws, found by Lloyd's iteration, and of the prior."""
    size = posterior.size
    whitened = np.linalg.solve(np.linalg.cholesky(np.cov(drawn.T) + 1e-9 * np.eye(size)), drawn.T).T
    centres = whitened[random.choice(len(whitened), COMPONENTS, replace=False)]
    part = np.zeros(len(whitened), int)
    for _ in range(10):
        part = np.argmin([np.sum((whitened - centre) ** 2, axis=1) for centre in centres], axis=0)
        centres = np.array([whitened[part == each].mean(axis=0) for each in np.unique(part)])
    parts = [drawn[part == each] for each in np.unique(part) if np.sum(part == each) > size + 2]
    prior = posterior.prior_draws(random, 5000)
    weights = [0.95 * len(each) / sum(map(len, parts)) for each in parts]
    scales = [np.linalg.cholesky(1.3 * np.cov(each.T) + 1e-8 * np.eye(size)) for each in [*parts, prior]]
    return Mixture([*weights, 0.05], [each.mean(axis=0) for each in [*parts, prior]], scales)


def adapted(proposal, posterior, random):
    """One step of population Monte Carlo, and the effective number of its draws."""
    points = proposal.draws(random, DRAWS)
    of_each = proposal.log_densities(points)
    total = special.logsumexp(of_each, axis=0)
    log_weights = posterior.log_densities(points) - total
    weights = special.softmax(log_weights)
    shares = np.exp(of_each - total) * np.minimum(weights, 50 / DRAWS)
    centres, scales = [], []
    for share, centre, scale in zip(shares, proposal.centres, proposal.scales, strict=True):
        effective = share.sum() ** 2 / (np.sum(share**2) + 1e-300)
        if effective > posterior.size + 5:
            centre = share @ points / share.sum()
            covariance = ((points - centre).T * share) @ (points - centre) / share.sum()
            shrinkage = posterior.size / (posterior.size + effective)
            mixed = (1 - shrinkage) * covariance + shrinkage * scale @ scale.T
            scale = np.linalg.cholesky(mixed + 1e-10 * np.eye(posterior.size))
        centres.append(centre)
        scales.append(scale)
    masses = shares.sum(axis=1)
    weights = 0.97 * masses / masses.sum() + 0.03 / len(masses)
    return Mixture(weights, centres, scales), mean_of(log_weights)[2]


def main():
    """Print a line for each network and seed, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=PER_ARCHITECTURE * len(ARCHITECTURES))
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    module: Any = importlib.import_module("bayesattn.theory.evidence")
    from_prior = []
    anneal = module.anneal

    def watched(*args, **named):
        for temperature, cooled in anneal(*args, **named):
            from_prior.append(cooled)
            yield temperature, cooled

    module.anneal = watched
    counts = np.zeros(4, int)
    for number in range(arguments.first, arguments.last):
        problem = network(number)
        path_inputs, labels, arch, temperature = problem
        model = ba.Model(path_inputs=path_inputs, labels=labels, architecture=arch, temperature=temperature)
        begun = time.process_time()
        exact, exact_error, effective, by = reference(*problem)
        taken = time.process_time() - begun
        known = effective > TOO_FEW
        print(
            f"{number}: heads {arch.heads}, widths {arch.widths}, skips {arch.skips}, {arch.outputs} outputs,"
            f" T {problem[3]:.4f}: {exact:.3f} +- {exact_error:.3f} by {by}"
            f" ({effective:.0f} effective draws, {taken:.0f} s CPU){'' if known else ', NOT known'}",
            flush=True,
        )
        for seed in range(arguments.seeds):
            from_prior.clear()
            begun = time.process_time()
            found = ba.theory.evidence(model, seed=seed)
            off = (found.log_evidence - exact) / np.hypot(found.error, exact_error)
            counts += [1, known, found.reliable, known and found.reliable and abs(off) > 4]
            before = "".join(f"; from the prior {each.log_evidence:.3f} +- {each.error:.3f}" for each in from_prior)
            print(
                f"  {found.log_evidence:.3f} +- {found.error:.3f} {found.method}, reliable: {found.reliable},"
                f" {off:+.1f} errors, {time.process_time() - begun:.1f} s CPU{before}",
                flush=True,
            )
    print(
        f"{counts[0]} evidences, {counts[1]} with a reference, {counts[2]} reliable, {counts[3]} of these wrong by 4 errors"
    )


if __name__ == "__main__":
    main()
