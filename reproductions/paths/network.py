"""Sum over paths, U, kernel and predictor: exact algebra, against loops that share no code with the package."""

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np

from bayesattn import theory
from bayesattn.models import Model, token
from bayesattn.models.weights import weights as weights_of_draws
from bayesattn.samplers import sample
from bayesattn.tasks import TokenDataset
from reproductions.claims import Claim, Findings, mean_of
from reproductions.experiment import Settings

ROUNDING = 1e-10
"""Largest relative difference of two ways to the same number."""
SHAPES: dict[tuple[int, ...], tuple[int, ...]] = {(1,): (3, 4), (2, 2): (5, 3, 2), (2, 3, 1): (8, 5, 4, 6)}
"""Heads and widths of the networks."""
VARIANCES = (1.2, 0.8, 1.1, 0.9, 1.3)
TEMPERATURE = 0.5
EXAMPLES, TEST_EXAMPLES, TOKENS, FEATURES = 8, 3, 5, 4
DRAWN = (2, 3, 1)
"""Heads of the network whose posterior is drawn."""
LOOKED_AT = 20
"""Draws whose weights are made."""


def run(settings: Settings) -> Findings:
    """Rows paths-1a, paths-1b, paths-kernel, paths-predictor."""
    findings = Findings()
    for heads in SHAPES:
        settings.progress(f"network of {_named(heads)}: sum over paths, kernel, predictor")
        rng = np.random.default_rng([settings.seed, *heads])
        model = random_model(heads, rng)
        weights = random_weights(model, rng)
        findings.add("paths-1a", sum_over_paths(model, weights))
        findings.add("paths-kernel", *kernel(model, weights))
        findings.add("paths-predictor", *predictor(model, weights))
    settings.progress(f"network of {_named(DRAWN)}: draws")
    model = random_model(DRAWN, np.random.default_rng([settings.seed, *DRAWN]))
    draws = sample(model, warmup=200, draws=250 if settings.fast else 2000, seed=settings.seed, progress=False)
    findings.add("paths-1b", order_parameter_of_weights(model, draws, settings.seed))
    findings.add("paths-predictor", *drawn_outputs(model, draws))
    return findings


def random_model(heads: tuple[int, ...], rng: np.random.Generator) -> Model:
    """A small network with random heads, tokens and labels."""
    names = tuple(tuple(f"{layer}{head}" for head in range(count)) for layer, count in enumerate(heads, 1))
    data = TokenDataset(
        inputs=rng.normal(size=(EXAMPLES, TOKENS, FEATURES)),
        labels=rng.choice([-1.0, 1.0], size=EXAMPLES),
        test_inputs=rng.normal(size=(TEST_EXAMPLES, TOKENS, FEATURES)),
        test_labels=rng.choice([-1.0, 1.0], size=TEST_EXAMPLES),
        weights=[rng.normal(size=(count, FEATURES, FEATURES)) / 2 for count in heads],
        head_names=names,
        path_groups={},
    )
    variances = (*VARIANCES[: len(heads) + 1], VARIANCES[-1])
    return Model.from_tokens(data, SHAPES[heads], variances, TEMPERATURE, name=f"{_named(heads)}")


def random_weights(model: Model, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Weights of unit variance: V_0 (N_1, N_0), V_l (H_l, N_{l+1}, N_l), a (N_a,)."""
    arch = model.architecture
    weights = {"V_0": rng.normal(size=(arch.widths[0], FEATURES)), "a": rng.normal(size=arch.widths[-1])}
    for layer, (heads, inward) in enumerate(zip(arch.heads, arch.widths, strict=False), 1):
        outward = arch.widths[layer] if layer < arch.depth else arch.widths[-1]
        weights[f"V_{layer}"] = rng.normal(size=(heads, outward, inward))
    return weights


def path_vectors(weights: dict[str, np.ndarray], first_fastest: bool = False) -> np.ndarray:
    """w^pi = a V_L^{h_L} .. V_1^{h_1} / sqrt(N_a N_L .. N_2), a path at a time; or in an order that puts h_1 fastest."""
    depth = len(weights) - 2
    heads = [range(len(weights[f"V_{layer}"])) for layer in range(1, depth + 1)]
    paths = list(itertools.product(*heads))
    if first_fastest:
        paths = [path[::-1] for path in itertools.product(*heads[::-1])]
    rows = []
    for path in paths:
        row = weights["a"] / np.sqrt(len(weights["a"]))
        for layer in range(depth, 0, -1):
            values = weights[f"V_{layer}"][path[layer - 1]]
            row = row @ values / np.sqrt(values.shape[1] if layer > 1 else 1)
        rows.append(row)
    return np.array(rows)


def network_by_tokens(model: Model, weights: dict[str, np.ndarray]) -> np.ndarray:
    """Output of the network as it is defined, token by token."""
    data = token.Token.of(model)
    arrays = {name: jnp.asarray(value) for name, value in weights.items()}
    return np.asarray(token.network(arrays, data.inputs, data.matrices, data.read))


def sum_over_paths(model: Model, weights: dict[str, np.ndarray]) -> Claim:
    """f = sum_pi w^pi . (V_0 xi^pi) / sqrt(N_0 N_1 Pi), with a path left out as the wrong law."""
    by_tokens, xi = network_by_tokens(model, weights), np.asarray(model.path_inputs)
    scale = np.sqrt(FEATURES * weights["V_0"].shape[0] * xi.shape[1])
    terms = np.array([xi[:, path] @ weights["V_0"].T @ w / scale for path, w in enumerate(path_vectors(weights))])
    return Claim(
        f"{model.name}: token-by-token output less the sum over {len(terms)} paths, relative to the output",
        "0",
        0.0,
        _apart(by_tokens, terms.sum(0)),
        tolerance=ROUNDING,
        planted=_apart(terms[:-1].sum(0), terms.sum(0)),
        wrong="one path left out",
    )


def kernel(model: Model, weights: dict[str, np.ndarray]) -> list[Claim]:
    """K of pairs of paths one by one, and as the covariance of the network's outputs over V_0 with all else as it is."""
    arch, paths = model.architecture, path_vectors(weights)
    u = paths @ paths.T / paths.shape[1]
    by_package = np.asarray(theory.kernel(u, model.path_inputs, model.path_inputs, arch))
    by_pairs = kernel_by_pairs(u, model.path_inputs, model.path_inputs, arch.variances[0])
    diagonal = kernel_by_pairs(np.diag(np.diag(u)), model.path_inputs, model.path_inputs, arch.variances[0])
    # The output is linear in V_0, one of whose entries is 1 at a time.
    units = np.eye(weights["V_0"].size).reshape(-1, *weights["V_0"].shape)
    outputs = np.array([network_by_tokens(model, weights | {"V_0": unit}) for unit in units])
    ways = {
        "theory's less that of all pairs of paths": by_pairs,
        "theory's less s_0^2 sum of products of outputs, one entry of V_0 at a time": arch.variances[0]
        * (outputs.T @ outputs),
    }
    # With one path there is no cross term: then U itself is left out.
    wrong, without = ("without cross terms", diagonal) if len(u) > 1 else ("without U", by_pairs / u[0, 0])
    return [
        Claim(
            f"{model.name}: kernel, {said}, relative to the kernel",
            "0",
            0.0,
            _apart(by_package, other),
            tolerance=ROUNDING,
            planted=_apart(without, by_pairs),
            wrong=wrong,
        )
        for said, other in ways.items()
    ]


def kernel_by_pairs(u: np.ndarray, path_inputs: Any, other: Any, input_variance: float) -> np.ndarray:
    """K = s_0^2 / (N_0 Pi) sum_{pi pi'} U^{pi pi'} xi^pi . xi^pi', by a loop over pairs of paths."""
    xi, others = np.asarray(path_inputs), np.asarray(other)
    total = np.zeros((len(xi), len(others)))
    for first, second in itertools.product(range(len(u)), repeat=2):
        total += u[first, second] * xi[:, first] @ others[:, second].T
    return input_variance * total / (xi.shape[2] * xi.shape[1])


def predictor(model: Model, weights: dict[str, np.ndarray]) -> list[Claim]:
    """Mean and variance of f on the test inputs, by conditioning the joint Gaussian of all f and Y."""
    arch, paths = model.architecture, path_vectors(weights)
    u = paths @ paths.T / paths.shape[1]
    everything = np.concatenate([model.path_inputs, model.test_path_inputs])
    joint = kernel_by_pairs(u, everything, everything, arch.variances[0])
    count = len(model.labels)

    def conditioned(temperature: float) -> tuple[np.ndarray, np.ndarray]:
        """By the precision of the joint law: the block of f on the test inputs is the inverse of their covariance."""
        precision = np.linalg.inv(joint + np.diag([temperature] * count + [0.0] * (len(joint) - count)))
        variance = np.linalg.inv(precision[count:, count:])
        return -variance @ precision[count:, :count] @ model.labels, np.diag(variance)

    mean, variance = conditioned(model.temperature)
    wrong_mean, wrong_variance = conditioned(model.temperature / 2)
    by_package = theory.predict(u, model)
    return [
        Claim(
            f"{model.name}: {name} of f on test inputs, theory's less that by conditioning the joint Gaussian",
            "0",
            0.0,
            _apart(np.asarray(found), exact),
            tolerance=ROUNDING,
            planted=_apart(wrong, exact),
            wrong="half the temperature",
        )
        for name, found, exact, wrong in (
            ("mean", by_package.mean, mean, wrong_mean),
            ("variance", by_package.variance, variance, wrong_variance),
        )
    ]


def order_parameter_of_weights(model: Model, draws: Any, seed: int) -> Claim:
    """U = w^pi . w^pi' / N_1 of weights made from draws, against the U that were drawn."""
    every = max(1, draws["posterior"].sizes["draw"] // LOOKED_AT)
    weights = weights_of_draws(draws, model=model, seed=seed, thin=every).isel(chain=0)
    drawn = draws["posterior"]["order_parameter"].isel(chain=0).sel(draw=weights["draw"].values).values

    def largest(first_fastest: bool) -> float:
        made = []
        for place in range(weights.sizes["draw"]):
            paths = path_vectors({str(name): weights[name].values[place] for name in weights}, first_fastest)
            made.append(paths @ paths.T / paths.shape[1])
        return max(_apart(u, other) for u, other in zip(made, drawn, strict=True))

    return Claim(
        f"{model.name}: U of the weights of {len(drawn)} draws less the U drawn, largest relative difference",
        "0",
        0.0,
        largest(first_fastest=False),
        tolerance=ROUNDING,
        planted=largest(first_fastest=True),
        wrong="paths with the first layer's head fastest",
    )


def drawn_outputs(model: Model, draws: Any) -> list[Claim]:
    """Draws of f given U, less the mean and over the deviation of the predictor at this U: independent standard normals."""
    posterior = draws["posterior"]
    flat = posterior["order_parameter"].values.reshape(-1, *posterior["order_parameter"].shape[2:])
    outputs = posterior["prediction"].values.reshape(len(flat), -1)
    arch, everything = model.architecture, np.concatenate([model.path_inputs, model.test_path_inputs])
    count = len(model.labels)
    joint = np.array([kernel_by_pairs(u, everything, everything, arch.variances[0]) for u in flat])
    solved = np.linalg.solve(joint[:, :count, :count] + model.temperature * np.eye(count), joint[:, :count, count:])
    mean = np.einsum("dpt,p->dt", solved, model.labels)
    variance = np.einsum("dtt->dt", joint[:, count:, count:] - np.swapaxes(joint[:, :count, count:], 1, 2) @ solved)
    scores = (outputs - mean) / np.sqrt(variance)
    # Where the wrong laws are furthest from the right one.
    place = int(np.argmax(np.abs(np.mean(mean / np.sqrt(variance), 0))))
    ratios, own = (mean / np.sqrt(variance))[:, place], scores[:, place]
    law = "k_*^T (K + T I)^-1 Y, k_** - k_*^T (K + T I)^-1 k_*"
    return [
        Claim(
            f"{model.name}: drawn f on test input {place + 1} less its mean given U, in its deviations",
            law,
            0.0,
            mean_of(own),
            planted=-float(ratios.mean()),
            wrong="f of mean 0",
        ),
        Claim(
            f"{model.name}: the square of that",
            law,
            1.0,
            mean_of(own**2),
            planted=float(np.mean(1 + model.temperature / variance[:, place])),
            wrong="the variance of a label, T included",
        ),
    ]


def _apart(first: np.ndarray, second: np.ndarray) -> float:
    """Largest difference relative to the largest entry of the second."""
    return float(np.max(np.abs(first - second)) / np.max(np.abs(second)))


def _named(heads: tuple[int, ...]) -> str:
    return "1 head" if heads == (1,) else f"{' x '.join(map(str, heads))} heads"
