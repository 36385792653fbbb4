"""Checks of EXCHANGEABILITY section 2: the posterior's covariance by attention, for features and a Gaussian process."""

import numpy as np
from scipy import linalg

from bayesattn.models import LatentModel
from bayesattn.questions import exchangeable as ex
from bayesattn.samplers import sample
from reproductions.claims import Claim, Curve, Findings, Mean, Panel, curve_of, mean_of, worst
from reproductions.tokens.bayes import CHAINS, EXACT
from reproductions.tokens.simulation import NOISE, PRIOR, RIDGE, answers

TOKENS, QUERIES, VALUES = 12, 3, 2
KERNELS = {"linear": 1.0, "exponential": 0.5}
"""Kernels and their bandwidths; keys on the circle for the exponential one."""
LEAST_EIGENVALUE = 1e-12
"""Smallest eigenvalue of the Fourier features that stand for the exponential kernel."""


def covariance(rng: np.random.Generator, fast: bool = False) -> Findings:
    """Covariances between queries: attention against the closed form, conditioning, and NUTS draws."""
    claims, curves = [], []
    for kernel, bandwidth in KERNELS.items():
        part, curve = _kernel(rng, kernel, bandwidth, draws=200 if fast else 1000)
        claims += part
        curves.append(curve)
    panel = Panel("Covariance by attention", "posterior covariance by attention", "drawn", curves)
    return Findings.of_row("tokens-covariance", [*claims, _softmax(rng)], panel)


def _kernel(rng: np.random.Generator, kernel: str, bandwidth: float, draws: int) -> tuple[list[Claim], Curve]:
    dimension = 2 if kernel == "exponential" else 3
    keys = ex.uniform(rng, TOKENS, dimension)
    queries = ex.uniform(rng, dimension) + 0.2 * rng.normal(size=(QUERIES, dimension))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    points = np.concatenate([keys, queries])
    features = points if kernel == "linear" else fourier(points, bandwidth)
    values = features[:TOKENS] @ (PRIOR * rng.normal(size=(features.shape[1], VALUES)))
    values += NOISE * rng.normal(size=values.shape)
    attended, doubled = (
        np.asarray(ex.cme_covariance(queries, keys, noise=noise, prior=PRIOR, kernel=kernel, bandwidth=bandwidth))
        for noise in (NOISE, 2 * NOISE)
    )
    gram = np.asarray(ex.gram(kernel, points, points, bandwidth))
    known = PRIOR**2 * gram + NOISE**2 * np.diag(np.arange(len(points)) < TOKENS)
    gain = np.linalg.solve(known[:TOKENS, :TOKENS], known[:TOKENS, TOKENS:])
    conditioned = known[TOKENS:, TOKENS:] - known[TOKENS:, :TOKENS] @ gain
    latent = ex.latent_posterior(features[:TOKENS], values, NOISE, PRIOR)
    by_features = features[TOKENS:] @ np.asarray(latent.covariance) @ features[TOKENS:].T
    claims = [
        _entry(f"posterior covariance of queries by attention, {kernel} kernel: {route}", law, exact, attended, doubled)
        for route, law, exact in (
            ("by features", "sigma^2 phi^T M phi'", by_features),
            ("by conditioning", "S_qq - S_qk S_kk^-1 S_kq", conditioned),
        )
    ]
    model = LatentModel(
        features=features[:TOKENS], values=values, noise=NOISE, prior=PRIOR, query_features=features[TOKENS:]
    )
    settings = {"chains": CHAINS, "warmup": 300, "draws": draws, "seed": int(rng.integers(2**31)), "progress": False}
    drawn = sample(model, parameterisation="latent", **settings)["posterior"]["prediction"].values
    mean = ex.cme_attention(queries, keys, values, ridge=RIDGE, kernel=kernel, bandwidth=bandwidth)
    off = drawn - np.asarray(mean)
    return [*claims, *_drawn(kernel, off, attended, doubled)], _curve(kernel, off, attended)


def _entry(statement: str, law: str, exact: np.ndarray, attended: np.ndarray, wrong: np.ndarray) -> Claim:
    """The entry that is most off."""
    at = np.unravel_index(np.argmax(np.abs(exact - attended)), exact.shape)
    statement = f"{statement}, worst of {exact.size} pairs"
    return Claim(statement, law, exact[at], attended[at], tolerance=EXACT, planted=wrong[at], wrong="twice the noise")


def _drawn(kernel: str, off: np.ndarray, attended: np.ndarray, doubled: np.ndarray) -> list[Claim]:
    """Draws less attention's mean (chain, draw, query, value), turned so that attention's covariance is the identity."""
    root, size, name = linalg.cholesky(attended, lower=True), len(attended), f"NUTS draws, {kernel} kernel"
    white = np.einsum("pq,cdqv->cdpv", linalg.inv(root), off)
    moments = np.einsum("cdpv,cdqv->cpq", white, white) / (white.shape[1] * white.shape[3])
    above = np.triu_indices(size)
    whitened = linalg.solve(root, linalg.solve(root, doubled).T)
    deviations = np.sqrt(np.diag(attended))
    scaled = np.einsum("cdpv,cdqv->cpq", off, off) / (off.shape[1] * off.shape[3]) / np.outer(deviations, deviations)
    pairs = np.triu_indices(size, 1)
    correlation = (attended / np.outer(deviations, deviations))[pairs].mean()
    law = "tau^2 (K(q,q') - attention to K(k,q'))"
    return [
        worst(
            f"{name}: covariance turned by attention's, worst of {len(above[0])} entries",
            f"I, by {law}",
            np.eye(size)[above].tolist(),
            [mean_of(entry) for entry in moments[:, *above].T],
        ),
        Claim(
            f"{name}: mean variance of {size} directions over attention's",
            law,
            1.0,
            mean_of(np.trace(moments, axis1=1, axis2=2) / size),
            planted=np.trace(whitened) / size,
            wrong="twice the noise",
        ),
        Claim(
            f"{name}: mean covariance of two queries, in attention's deviations",
            law,
            correlation,
            mean_of(scaled[:, *pairs].mean(1)),
            planted=0.0,
            wrong="variances alone",
        ),
    ]


def _curve(kernel: str, off: np.ndarray, attended: np.ndarray) -> Curve:
    """Drawn covariances against attention's."""
    pairs = np.triu_indices(len(attended))
    order = np.argsort(attended[pairs])
    moments = (np.einsum("cdpv,cdqv->cpq", off, off) / (off.shape[1] * off.shape[3]))[:, *pairs][:, order]
    means = [mean_of(entry) for entry in moments.T]
    exact = attended[pairs][order]
    return curve_of(f"{kernel} kernel", exact, means, exact)


def fourier(points: np.ndarray, bandwidth: float) -> np.ndarray:
    """Features of the exponential kernel on the circle, shape (point, feature): eigenvalues Z a_l, sines and cosines."""
    spectrum, _ = ex.eigenvalues(1 / bandwidth, 2)
    spectrum = spectrum[spectrum > LEAST_EIGENVALUE]
    phases = np.outer(np.arctan2(points[:, 1], points[:, 0]), np.arange(1, len(spectrum)))
    waves = np.sqrt(2 * spectrum[1:])
    constant = np.full((len(points), 1), np.sqrt(spectrum[0]))
    return np.concatenate([constant, waves * np.cos(phases), waves * np.sin(phases)], axis=1)


def _softmax(rng: np.random.Generator) -> Claim:
    """The literal reading: values spread under softmax weights as the predictive does."""
    keys, queries = ex.uniform(rng, 80, 20, 3), ex.uniform(rng, 80, QUERIES, 3)
    values, _ = answers(rng, keys, queries, VALUES, NOISE, PRIOR)
    first, second = (ex.softmax_attention(queries, keys, power, bandwidth=0.5) for power in (values, values**2))
    precision = np.einsum("snd,sne->sde", keys, keys) + RIDGE * np.eye(3)
    solved = np.einsum("sqd,sde,sqe->sq", queries, np.linalg.inv(precision), queries)
    spread = np.asarray(second - first**2).mean(-1) / (NOISE**2 * (1 + solved))
    measured: Mean = mean_of(spread.mean(1))
    statement = "variance of values under softmax weights is the predictive variance: ratio, mean of 80 sequences"
    return Claim(statement, "1", 1.0, measured, literal=True)
