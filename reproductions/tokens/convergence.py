"""Checks of EXCHANGEABILITY section 3: errors of both attentions against the number of tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bayesattn.questions import exchangeable as ex
from bayesattn.questions.exchangeable import rates
from reproductions.claims import Claim, Curve, Findings, Mean, Panel, law_slope, mean_of, slope, worst
from reproductions.tokens.simulation import (
    NOISE,
    NUMBER,
    PRIOR,
    QUERIES,
    RIDGE,
    VALUES,
    Replicate,
    replicates,
    squared_errors,
)

KAPPA = 2.0
FAR = (10**6, 10**7)
"""Numbers of tokens at which formulas show their limits."""


def _cme(drawn: Replicate, ridge: float = RIDGE) -> np.ndarray:
    cme = ex.cme_attention(drawn.queries, drawn.keys, drawn.values, ridge=ridge, kernel="linear")
    return np.asarray(cme)


def _softmax(drawn: Replicate, bandwidth: float = 1 / KAPPA) -> np.ndarray:
    return np.asarray(ex.softmax_attention(drawn.queries, drawn.keys, drawn.values, bandwidth=bandwidth))


def conditional_mean_embedding(rng: np.random.Generator, fast: bool = False) -> Findings:
    """CME attention: exact error, its limit, effective dimension, the ridge of the published proof."""
    features, query, latent, ridge = ex.uniform(rng, 20, 3), ex.uniform(rng, 3), rng.normal(size=(VALUES, 3)), 1.0
    noise = NOISE * rng.normal(size=(20000, 20, VALUES))
    cme = ex.cme_attention(query[None], features, features @ latent.T + noise, ridge=ridge, kernel="linear")[:, 0]
    claims = [
        Claim(
            "CME error, one z and one set of 20 keys",
            "lambda^2 |z M phi|^2 + d_v sigma^2 phi^T M Phi^T Phi M phi",
            rates.cme_error(features, query, latent, ridge, NOISE),
            mean_of(np.sum((np.asarray(cme) - latent @ query) ** 2, -1)),
        )
    ]
    latents = PRIOR * rng.normal(size=(20000, 3, VALUES))
    cme = ex.cme_attention(query[None], features, features @ latents + noise, ridge=RIDGE, kernel="linear")[:, 0]
    claims.append(
        Claim(
            "CME error averaged over the prior, at lambda_B",
            "d_v sigma^2 phi^T M phi",
            rates.mean_cme_error(features, query, RIDGE, NOISE, PRIOR, VALUES),
            mean_of(np.sum((np.asarray(cme) - query @ latents) ** 2, -1)),
        )
    )
    tokens = [64, 256, 1024]

    def errors(drawn: Replicate) -> np.ndarray:
        published = drawn.keys.shape[1] ** 0.75
        return np.stack([_cme(drawn) - drawn.truth, _cme(drawn, published) - drawn.truth])

    drawn = np.array([squared_errors(rng, 3000, n, 3, errors) for n in tokens])
    curves = []
    for number, (ridge_name, ridge_at) in enumerate(
        (("sigma^2/tau^2", lambda n: RIDGE), ("n^(3/4)", lambda n: n**0.75))
    ):

        def law_at(n: float, ridge_at: Any = ridge_at) -> float:
            return rates.isotropic_cme_error(n, 3, ridge_at(n), NOISE, PRIOR, VALUES)

        squares, law = drawn[:, number], [law_at(n) for n in tokens]
        claims += _against_law(f"CME, linear kernel, lambda = {ridge_name}", "law to order 1/n^2", tokens, squares, law)
        curves.append(_curve(f"CME, lambda = {ridge_name}", tokens, squares, law))
        far, limit = ((1e7, 1e8), -0.5) if number == 0 else ((1e15, 1e16), -0.25)
        rate = law_slope(far, [law_at(n) for n in far])
        claims.append(Claim(f"its law: slope at n = {far[0]:.0e}", f"{limit:g}", limit, rate, tolerance=1e-3))
        if number == 0:
            product = far[0] * law_at(far[0])
            claims.append(
                Claim("its law: limit of n x MSE", "d_v d_phi sigma^2", VALUES * 3 * NOISE**2, product, tolerance=1e-5)
            )
    literal = slope(tokens, drawn[:, 1])
    claims.append(Claim("ridge n^(3/4) has slope -1/4 at n = 64 .. 1024", "-1/4", -0.25, literal, literal=True))
    panel = Panel("CME attention", NUMBER, "RMS error", curves)
    return Findings.of_row("tokens-rate", [*claims, *_effective_dimension(rng)], panel)


def _against_law(
    name: str, law_name: str, tokens: Sequence[int], squares: np.ndarray, law: Sequence[float]
) -> list[Claim]:
    """Mean squared errors and their slope against a law for any number of tokens."""
    span = f"n = {tokens[0]} .. {tokens[-1]}"
    measured = [mean_of(square / expected) for square, expected in zip(squares, law, strict=True)]
    return [
        worst(f"{name}: MSE / law, worst of {len(tokens)} n ({span})", law_name, [1.0] * len(tokens), measured),
        Claim(f"{name}: RMS slope ({span})", "slope of the law", law_slope(tokens, law), slope(tokens, squares)),
    ]


def _effective_dimension(rng: np.random.Generator) -> list[Claim]:
    """Posterior variance of a kernel of infinitely many features, by its Fourier features on the circle."""
    tokens, off, (spectrum, counts) = 2**12, np.nan, ex.eigenvalues(KAPPA, 2)
    eigenvalues = np.r_[spectrum, spectrum[1:]]
    variances = []
    for _ in range(60):
        angles = rng.uniform(0, 2 * np.pi, tokens)
        phases = np.outer(angles, np.arange(1, len(spectrum)))
        features = np.column_stack([np.ones(tokens), np.sqrt(2) * np.cos(phases), np.sqrt(2) * np.sin(phases)])
        features *= np.sqrt(eigenvalues)
        if not variances:
            points = np.column_stack([np.cos(angles[:50]), np.sin(angles[:50])])
            kernel = np.asarray(ex.gram("exponential", points, points, 1 / KAPPA))
            off = float(np.max(np.abs(features[:50] @ features[:50].T - kernel)))
        precision = features.T @ features + RIDGE * np.eye(len(eigenvalues))
        # Averaged over queries exactly: E phi phi^T is diagonal.
        variances.append(tokens * VALUES * NOISE**2 * np.sum(eigenvalues * np.diag(np.linalg.inv(precision))))
    law, _ = rates.spectral_cme_error(tokens, RIDGE, spectrum, counts, NOISE, PRIOR, VALUES)
    far, _ = rates.spectral_cme_error(1e9, RIDGE * 1e9 / tokens, spectrum, counts, NOISE, PRIOR, VALUES)
    limit = VALUES * NOISE**2 * ex.effective_dimension(spectrum, RIDGE / tokens, counts)
    return [
        Claim(
            "Fourier features with the eigenvalues Z a_l make the exponential kernel", "0", 0.0, off, tolerance=1e-10
        ),
        Claim(
            f"exponential kernel on the circle, n = {tokens}: n x posterior variance",
            "d_v sigma^2 N(lambda_B / n), with its next order",
            tokens * law,
            mean_of(variances),
        ),
        Claim(
            f"its law for many tokens at the same lambda / n = {RIDGE / tokens:.2g}",
            "d_v sigma^2 N(lambda / n)",
            limit,
            1e9 * far,
            tolerance=1e-6 * limit,
        ),
    ]


def fixed_bandwidth(rng: np.random.Generator, fast: bool = False) -> Findings:
    """Softmax attention at fixed bandwidth: what it converges to, and how fast."""
    dimension = 3
    kept, tokens = float(ex.bessel_ratio(1, KAPPA, dimension)), [64, 256, 1024]

    def errors(drawn: Replicate) -> np.ndarray:
        cme, softmax, truth = _cme(drawn), _softmax(drawn), drawn.truth
        return np.stack([cme - softmax / kept, cme - softmax, softmax - kept * truth, softmax - truth, softmax, truth])

    squares = np.array([squared_errors(rng, 3000, n, dimension, errors) for n in tokens])
    gaps, literal, about, whole, power, truth = np.moveaxis(squares, 1, 0)
    # <h, f> from |h - f|^2; a ratio of means, whose error is that of the residual.
    products, size = (power[-1] + truth[-1] - whole[-1]) / 2, np.mean(truth[-1])
    ratio = float(np.mean(products) / size)
    limit = Mean(ratio, *mean_of((products - ratio * truth[-1]) / size)[1:])
    last = tokens[-1]
    claims = [
        Claim(
            f"softmax, fixed gamma, linear f: regression on f (n = {last})",
            "a_1(kappa), exactly at this n",
            softmax_regression(last, dimension),
            limit,
        ),
        Claim(
            f"its law at n = {FAR[-1]:.0e}", "a_1(kappa)", kept, softmax_regression(FAR[-1], dimension), tolerance=1e-6
        ),
        Claim("softmax converges to f itself: regression on f", "1", 1.0, limit, literal=True),
    ]
    laws = {
        "about": lambda n: _law(n, dimension, kept),
        "whole": lambda n: _law(n, dimension, 1.0),
        # CME attention is the posterior mean, so the error of any other estimate is its own plus the gap (Pythagoras).
        "gap": lambda n: _law(n, dimension, kept) / kept**2 - _posterior_variance(n, dimension),
        "literal": lambda n: _law(n, dimension, 1.0) - _posterior_variance(n, dimension),
    }
    names = {
        "gap": ("gap |CME (linear kernel) - softmax / a_1|", gaps, "softmax's error / a_1^2 - CME's"),
        "about": ("softmax about S f", about, "exact at each n"),
        "whole": ("softmax about f, fixed gamma", whole, "exact at each n"),
    }
    for key, (name, squared, law_name) in names.items():
        claims += _against_law(name, law_name, tokens, squared, [laws[key](n) for n in tokens])
    for key in ("gap", "about"):
        rate = law_slope(FAR, [laws[key](n) for n in FAR])
        claims.append(Claim(f"law of {names[key][0]}: slope at n = 1e6", "-1/2", -0.5, rate, tolerance=1e-4))
    plateau = (1 - kept) ** 2 * VALUES * PRIOR**2
    flat = slope(tokens, literal)
    claims += [
        Claim("gap |CME - softmax|, constant 1, vanishes: RMS slope", "-1/2", -0.5, flat, literal=True),
        worst(
            "gap |CME - softmax|^2 / law, worst of 3 n (n = 64 .. 1024)",
            "softmax's error - CME's",
            [1.0] * len(tokens),
            [mean_of(square / laws["literal"](n)) for square, n in zip(literal, tokens, strict=True)],
        ),
        Claim(
            "its law at n = 1e7: a plateau", "(1 - a_1)^2 d_v tau^2", plateau, laws["literal"](FAR[-1]), tolerance=1e-5
        ),
        Claim(
            "law of softmax about S f: limit of n x MSE",
            "E[w^2 (|f - m|^2 + d_v sigma^2)] / (E w)^2",
            rates.softmax_variance(KAPPA, dimension, NOISE, PRIOR, VALUES),
            FAR[-1] * laws["about"](FAR[-1]),
            tolerance=1e-4,
        ),
    ]
    claims += _noise_part(rng, dimension) + _curved(rng, dimension)
    curves = [
        _curve("|CME - softmax|", tokens, literal, [laws["literal"](n) for n in tokens]),
        _curve("|CME - softmax / a_1|", tokens, gaps, [laws["gap"](n) for n in tokens]),
        _curve("|softmax - S f|", tokens, about, [laws["about"](n) for n in tokens]),
    ]
    return Findings.of_row("tokens-softmax", claims, Panel("Softmax, fixed bandwidth", NUMBER, "RMS", curves))


def _law(tokens: int, dimension: int, kept: float, noise: float = NOISE, prior: float = PRIOR) -> float:
    return rates.finite_softmax_error(tokens, 1 / KAPPA, dimension, noise, prior, VALUES, kept=kept)


def _posterior_variance(tokens: int, dimension: int) -> float:
    return rates.isotropic_cme_error(tokens, dimension, RIDGE, NOISE, PRIOR, VALUES)


def softmax_regression(tokens: int, dimension: int) -> float:
    """E<h, f> / E|f|^2 of softmax attention h: the error about c f is quadratic in c."""
    size = VALUES * PRIOR**2
    about_zero, about_one = (_law(tokens, dimension, kept) for kept in (0.0, 1.0))
    return (about_zero - about_one + size) / (2 * size)


def _noise_part(rng: np.random.Generator, dimension: int) -> list[Claim]:
    tokens = 256
    drawn = replicates(rng, 2000, tokens, dimension)
    softmax = _softmax(drawn._replace(values=NOISE * rng.normal(size=drawn.values.shape)))
    law = tokens * _law(tokens, dimension, 1.0, prior=1e-12)
    return [
        Claim(
            f"noise part of n x MSE of softmax (n = {tokens})",
            "exact at this n",
            law,
            mean_of(tokens * np.mean(np.sum(softmax**2, -1), -1)),
        ),
        Claim(
            "its law for many tokens (n = 1e7)",
            "d_v sigma^2 Z(2 kappa) / Z(kappa)^2",
            VALUES * NOISE**2 * ex.noise_factor(KAPPA, dimension),
            FAR[-1] * _law(FAR[-1], dimension, 1.0, prior=1e-12),
            tolerance=1e-5,
        ),
    ]


def _curved(rng: np.random.Generator, dimension: int) -> list[Claim]:
    """f with a part of degree 2: no constant c makes c x softmax converge to f."""
    tokens, weight, count = 2**10, 1.0, 1000
    keys, queries = ex.uniform(rng, count, tokens, dimension), ex.uniform(rng, count, QUERIES, dimension)
    latents = PRIOR * rng.normal(size=(count, dimension, 1))

    def truth(points: np.ndarray) -> np.ndarray:
        return points @ latents + weight * (3 * points[..., 2:] ** 2 - 1) / 2

    softmax = np.asarray(ex.softmax_attention(queries, keys, truth(keys), bandwidth=1 / KAPPA))[..., 0]
    # Powers of both parts; the constant c that is best leaves p1 (1 - c a_1)^2 + p2 (1 - c a_2)^2.
    powers, degrees = np.array([PRIOR**2, weight**2 / 5]), np.array([1, 2])
    kept, twice = (ex.bessel_ratio(degrees, factor * KAPPA, dimension) for factor in (1, 2))
    best = powers @ kept / (powers @ kept**2)
    left = float(powers @ (1 - best * kept) ** 2)
    # Variance, and bias times the bias of a ratio of means, as in `rates.softmax_error`.
    variance = best**2 * (1 - 2 * kept * twice + kept**2) - 2 * best * (1 - best * kept) * (twice - kept)
    finite = left + float(powers @ variance) * ex.noise_factor(KAPPA, dimension) / tokens
    measured = mean_of(np.mean((best * softmax - truth(queries)[..., 0]) ** 2, 1))
    return [
        Claim(
            f"f with a degree-2 part: best constant leaves (n = {tokens})",
            f"p1 (1 - c a_1)^2 + p2 (1 - c a_2)^2 (= {left:.4f}) + order 1/n",
            finite,
            measured,
        ),
        Claim(
            "f with a degree-2 part: some constant makes the limits agree",
            "order 1/n alone",
            finite - left,
            measured,
            literal=True,
        ),
    ]


def shrinking_bandwidth(rng: np.random.Generator, fast: bool = False) -> Findings:
    """Softmax attention at gamma_n = c n^(-2/(p+4)): converges to f at the rate -2/(p+4)."""
    claims, curves = [_cme_shrinking(rng)], []
    tokens = [64, 256, 1024, 4096]
    for dimension in (2, 3):
        rate, settings = -2 / (dimension + 3), (dimension, NOISE, PRIOR, dimension)
        bandwidths = [rates.shrinking_bandwidth(n, dimension) for n in tokens]
        squares = np.array(
            [
                squared_errors(rng, 600, n, dimension, lambda d, g=gamma: _softmax(d, g) - d.truth, dimension)
                for n, gamma in zip(tokens, bandwidths, strict=True)
            ]
        )
        law = [rates.finite_softmax_error(n, g, *settings) for n, g in zip(tokens, bandwidths, strict=True)]
        name = f"softmax, shrinking gamma, d = {dimension}"
        claims += _against_law(name, "exact at each n", tokens, squares, law)
        far = [1e14, 1e15]
        limit = law_slope(
            far, [rates.softmax_error(n, rates.shrinking_bandwidth(n, dimension), *settings) for n in far]
        )
        claims.append(
            Claim(
                f"its law to order 1/n: slope at n = 10^14, d = {dimension}",
                f"-2/(p+4) = {rate:.3f}",
                rate,
                limit,
                tolerance=5e-3,
            )
        )
        curves.append(_curve(name, tokens, squares, law))
    panel = Panel("Softmax, shrinking bandwidth", NUMBER, "RMS error", curves)
    return Findings.of_row("tokens-softmax", claims, panel)


def _cme_shrinking(rng: np.random.Generator) -> Claim:
    """CME attention with the exponential kernel at shrinking bandwidths converges to f too."""
    laws, measured = [], []
    for tokens, count in ((128, 800), (512, 150)):
        bandwidth = rates.shrinking_bandwidth(tokens, 2, 4.0)
        spectrum = ex.eigenvalues(1 / bandwidth, 2)
        laws.append(rates.spectral_cme_error(tokens, RIDGE, *spectrum, NOISE, PRIOR, 2)[1])

        def error(drawn: Replicate, bandwidth: float = bandwidth) -> np.ndarray:
            cme = ex.cme_attention(drawn.queries, drawn.keys, drawn.values, ridge=RIDGE, bandwidth=bandwidth)
            return np.asarray(cme) - drawn.truth

        measured.append(mean_of(squared_errors(rng, count, tokens, 2, error, 2) / laws[-1]))
    statement = (
        f"CME, exponential kernel, gamma = 4 n^(-2/5), d = 2: MSE / law, worst of n = 128 ({laws[0]:.4f}) and 512"
    )
    return worst(f"{statement} ({laws[1]:.4f})", "by the kernel's spectrum, to order 1/n^2", [1.0, 1.0], measured)


def _curve(label: str, tokens: Any, squares: Any, law: Any) -> Curve:
    """RMS errors with standard errors, and the square root of a law."""
    means = np.mean(squares, 1)
    errors = np.std(squares, 1, ddof=1) / np.sqrt(np.shape(squares)[1]) / (2 * np.sqrt(means))
    return Curve(label, np.asarray(tokens), np.sqrt(means), errors, np.sqrt(law))
