"""Checks of EXCHANGEABILITY section 3: errors of both attentions against the number of tokens."""

from typing import Any

import numpy as np

from bayesattn import exchangeable as ex
from bayesattn.exchangeable import rates
from bayesattn.exchangeable.claims import STANDARD_ERRORS, Claim, Curve, Findings, law_slope, mean_of, slope
from bayesattn.exchangeable.simulation import NOISE, PRIOR, QUERIES, VALUES, Replicate, replicates, squared_errors

RIDGE = NOISE**2 / PRIOR**2
KAPPA = 2.0


def _cme(drawn: Replicate, ridge: float = RIDGE) -> Any:
    return ex.cme_attention(drawn.queries, drawn.keys, drawn.values, ridge=ridge, kernel="linear")


def _softmax(drawn: Replicate, bandwidth: float = 1 / KAPPA) -> Any:
    return ex.softmax_attention(drawn.queries, drawn.keys, drawn.values, bandwidth=bandwidth)


def conditional_mean_embedding(seed: int) -> Findings:
    """CME attention: exact error, its limit, effective dimension, the ridge of the published proof."""
    rng = np.random.default_rng(seed)
    features, query, latent, ridge = ex.uniform(rng, 20, 3), ex.uniform(rng, 3), rng.normal(size=(VALUES, 3)), 1.0
    noise = NOISE * rng.normal(size=(20000, 20, VALUES))
    found = ex.cme_attention(query[None], features, features @ latent.T + noise, ridge=ridge, kernel="linear")[:, 0]
    measured = mean_of(np.sum((np.asarray(found) - latent @ query) ** 2, -1))
    exact = rates.cme_error(features, query, latent, ridge, NOISE)
    claims = [
        Claim(
            3,
            "CME error, one z and one set of 20 keys",
            "lambda^2 |z M phi|^2 + d_v sigma^2 phi^T M Phi^T Phi M phi",
            exact,
            measured.value,
            error=measured.error,
        )
    ]
    latents = PRIOR * rng.normal(size=(20000, 3, VALUES))
    found = ex.cme_attention(query[None], features, features @ latents + noise, ridge=RIDGE, kernel="linear")[:, 0]
    measured = mean_of(np.sum((np.asarray(found) - query @ latents) ** 2, -1))
    exact = rates.mean_cme_error(features, query, RIDGE, NOISE, PRIOR, VALUES)
    claims.append(
        Claim(
            3,
            "CME error averaged over the prior, at lambda_B",
            "d_v sigma^2 phi^T M phi",
            exact,
            measured.value,
            error=measured.error,
        )
    )
    tokens = [4**power for power in range(3, 7)]
    squares = np.array([squared_errors(rng, 3000, n, 3, lambda d: _cme(d) - d.truth) for n in tokens])
    last = mean_of(tokens[-1] * squares[-1])
    claims.append(
        Claim(
            3,
            "n x MSE of CME, n = 4096, 3 features on S^2",
            "d_v d_phi sigma^2 = 2.25",
            VALUES * 3 * NOISE**2,
            last.value,
            error=last.error,
        )
    )
    law = [rates.isotropic_cme_error(n, 3, RIDGE, NOISE, PRIOR, VALUES) for n in tokens]
    found = slope(tokens[1:], squares[1:])
    claims.append(
        Claim(3, "RMS of CME, linear kernel, slope (n = 256 .. 4096)", "-1/2", -0.5, found.value, error=found.error)
    )
    panel = _curve("CME, lambda = sigma^2/tau^2", tokens, squares, law)
    claims += _effective_dimension(rng)
    squares = np.array([squared_errors(rng, 3000, n, 3, lambda d, n=n: _cme(d, n**0.75) - d.truth) for n in tokens])
    law = [_over_keys(rng, n, n**0.75) for n in tokens]
    found = slope(tokens, squares)
    claims.append(
        Claim(
            3,
            "ridge n^(3/4) of the published proof: slope at n = 64 .. 4096",
            "exact formula, mean over keys",
            law_slope(tokens, law),
            found.value,
            error=found.error,
        )
    )
    far = [1e15, 1e16]
    limit = law_slope(far, [rates.isotropic_cme_error(n, 3, n**0.75, NOISE, PRIOR, VALUES) for n in far])
    claims.append(
        Claim(
            3,
            "formula for many keys: its slope at n = 10^15, for it tends slowly",
            "-1/4",
            -0.25,
            limit,
            tolerance=1e-3,
        )
    )
    claims.append(
        Claim(
            3,
            "ridge n^(3/4) has slope -1/4 at n = 64 .. 4096",
            "-1/4",
            -0.25,
            found.value,
            error=found.error,
            literal=True,
        )
    )
    return Findings(claims, {"cme": [panel, _curve("CME, lambda = n^(3/4)", tokens, squares, law)]})


def _over_keys(rng: np.random.Generator, tokens: int, ridge: float) -> float:
    """Exact error of CME attention, averaged over 300 sets of keys and a query each."""
    sets = [(ex.uniform(rng, tokens, 3), ex.uniform(rng, 3)) for _ in range(300)]
    return float(np.mean([rates.mean_cme_error(keys, query, ridge, NOISE, PRIOR, VALUES) for keys, query in sets]))


def _effective_dimension(rng: np.random.Generator) -> list[Claim]:
    """MSE of a kernel of infinitely many features, by its Fourier features on the circle."""
    tokens, off, (spectrum, counts) = 2**16, np.nan, ex.eigenvalues(KAPPA, 2)
    dimension = ex.effective_dimension(spectrum, RIDGE / tokens, counts)
    found = []
    for _ in range(20):
        angles = rng.uniform(0, 2 * np.pi, tokens + QUERIES)
        degrees = np.arange(1, len(spectrum))
        waves = np.concatenate([np.cos(np.outer(angles, degrees)), np.sin(np.outer(angles, degrees))], 1) * np.sqrt(2)
        features = np.column_stack([np.ones_like(angles), waves]) * np.sqrt(np.r_[spectrum, spectrum[1:]])
        if not found:
            points = np.column_stack([np.cos(angles[:50]), np.sin(angles[:50])])
            kernel = np.asarray(ex.gram("exponential", points, points, 1 / KAPPA))
            off = float(np.max(np.abs(features[:50] @ features[:50].T - kernel)))
        keys, queries = features[:tokens], features[tokens:]
        precision = keys.T @ keys + RIDGE * np.eye(keys.shape[1])
        found.append(VALUES * NOISE**2 * np.mean(np.sum(queries * np.linalg.solve(precision, queries.T).T, 1)))
    measured = mean_of(found)
    predicted = VALUES * NOISE**2 * dimension / tokens
    return [
        Claim(
            3, "Fourier features with the eigenvalues Z a_l make the exponential kernel", "0", 0.0, off, tolerance=1e-10
        ),
        Claim(
            3,
            f"exponential kernel on the circle, n = 65536: n x posterior variance (N = {dimension:.2f})",
            "d_v sigma^2 N(lambda_B / n)",
            tokens * predicted,
            tokens * measured.value,
            error=tokens * measured.error,
        ),
    ]


def fixed_bandwidth(seed: int) -> Findings:
    """Softmax attention at fixed bandwidth: what it converges to, and how fast."""
    rng, dimension = np.random.default_rng(seed), 3
    kept, curved = (float(ex.bessel_ratio(degree, KAPPA, dimension)) for degree in (1, 2))
    drawn = replicates(rng, 200, 2**14, dimension)
    found = np.asarray(_softmax(drawn))
    power = np.mean(np.sum(drawn.truth**2, (1, 2)))
    measured = mean_of(np.sum(found * drawn.truth, (1, 2)) / power)
    # A ratio of means: its error is that of the residual.
    error = mean_of(np.sum((found - measured.value * drawn.truth) * drawn.truth, (1, 2)) / power).error
    claims = [
        Claim(
            3,
            "softmax, fixed gamma, linear f: limit over f (n = 16384)",
            "a_1(kappa)",
            kept,
            measured.value,
            error=error,
        ),
        Claim(3, "softmax converges to f itself: limit over f", "1", 1.0, measured.value, error=error, literal=True),
    ]
    tokens = [4**power for power in range(3, 8)]

    def errors(drawn: Replicate) -> np.ndarray:
        cme, softmax = np.asarray(_cme(drawn)), np.asarray(_softmax(drawn))
        return np.stack([cme - softmax / kept, cme - softmax, softmax - kept * drawn.truth])

    squares = np.array([squared_errors(rng, 1000, n, dimension, errors) for n in tokens])
    gaps, literal, about = np.moveaxis(squares, 1, 0)
    found = slope(tokens[1:], gaps[1:])
    claims.append(
        Claim(
            3,
            "gap |CME (linear kernel) - softmax / a_1|: RMS slope (n = 256 .. 16384)",
            "-1/2",
            -0.5,
            found.value,
            error=found.error,
        )
    )
    plateau = (1 - kept) ** 2 * VALUES * PRIOR**2
    flat = slope(tokens[-3:], literal[-3:])
    claims.append(
        Claim(
            3,
            "gap |CME - softmax|, constant 1, vanishes: RMS slope",
            "-1/2",
            -0.5,
            flat.value,
            error=flat.error,
            literal=True,
        )
    )
    last = mean_of(literal[-1])
    remaining = rates.softmax_variance(KAPPA, dimension, NOISE, PRIOR, VALUES) / tokens[-1]
    claims.append(
        Claim(
            3,
            "gap |CME - softmax|^2 has a plateau (n = 16384)",
            "(1 - a_1)^2 d_v tau^2",
            plateau,
            last.value,
            error=last.error,
            tolerance=remaining,
        )
    )
    variance = rates.softmax_variance(KAPPA, dimension, NOISE, PRIOR, VALUES)
    last = mean_of(tokens[-1] * about[-1])
    claims.append(
        Claim(
            3,
            "n x MSE of softmax about S f (n = 16384)",
            "E[w^2 (|f - m|^2 + d_v sigma^2)] / (E w)^2",
            variance,
            last.value,
            error=last.error,
        )
    )
    whole = mean_of(squared_errors(rng, 4000, 256, dimension, lambda d: _softmax(d) - d.truth))
    law = rates.softmax_error(256, 1 / KAPPA, dimension, NOISE, PRIOR, VALUES)
    claims.append(
        Claim(
            3,
            "MSE of softmax about f, fixed gamma (n = 256)",
            "bias^2 + (variance + 2 x bias x ratio's bias) / n",
            law,
            whole.value,
            error=whole.error,
        )
    )
    claims += _noise_part(rng, dimension) + _curved(rng, dimension, kept, curved)
    panel = [
        _curve("|CME - softmax|", tokens, literal, np.full(len(tokens), plateau)),
        _curve("|CME - softmax / a_1|", tokens, gaps, None),
        _curve("|softmax - S f|", tokens, about, variance / np.array(tokens)),
    ]
    return Findings(claims, {"fixed": panel})


def _noise_part(rng: np.random.Generator, dimension: int) -> list[Claim]:
    tokens = 2**12
    drawn = replicates(rng, 1000, tokens, dimension)
    noise = NOISE * rng.normal(size=drawn.values.shape)
    found = np.asarray(_softmax(drawn._replace(values=noise)))
    measured = mean_of(tokens * np.mean(np.sum(found**2, -1), -1))
    law = VALUES * NOISE**2 * ex.noise_factor(KAPPA, dimension)
    return [
        Claim(
            3,
            "noise part of n x MSE of softmax (n = 4096)",
            "d_v sigma^2 Z(2 kappa) / Z(kappa)^2",
            law,
            measured.value,
            error=measured.error,
        )
    ]


def _curved(rng: np.random.Generator, dimension: int, linear: float, curved: float) -> list[Claim]:
    """f with a part of degree 2: no constant c makes softmax / c converge to f."""
    tokens, weight = 2**14, 1.0
    keys, queries = ex.uniform(rng, 400, tokens, dimension), ex.uniform(rng, 400, QUERIES, dimension)
    latents = PRIOR * rng.normal(size=(400, dimension, 1))

    def truth(points: np.ndarray) -> np.ndarray:
        return points @ latents + weight * (3 * points[..., 2:] ** 2 - 1) / 2

    found = np.asarray(ex.softmax_attention(queries, keys, truth(keys), bandwidth=1 / KAPPA))[..., 0]
    wanted = truth(queries)[..., 0]
    # Powers of both parts; the constant 1 / c that is best leaves p1 (1 - a_1 / c)^2 + p2 (1 - a_2 / c)^2.
    powers, kept = np.array([PRIOR**2, weight**2 / 5]), np.array([linear, curved])
    best = powers @ kept / (powers @ kept**2)
    left = float(powers @ (1 - best * kept) ** 2)
    measured = mean_of(np.mean((best * found - wanted) ** 2, 1))
    noise = best**2 * ex.noise_factor(KAPPA, dimension) * powers.sum() / tokens
    return [
        Claim(
            3,
            "f with a degree-2 part: best constant leaves (n = 16384)",
            "p1 (1 - c a_1)^2 + p2 (1 - c a_2)^2",
            left,
            measured.value,
            error=measured.error,
            tolerance=noise,
        ),
        Claim(
            3,
            "f with a degree-2 part: some constant makes the limits agree",
            "0",
            0.0,
            measured.value,
            error=measured.error,
            tolerance=noise,
            literal=True,
        ),
    ]


def shrinking_bandwidth(seed: int) -> Findings:
    """Softmax attention at gamma_n = c n^(-2/(p+4)): converges to f at the rate -2/(p+4)."""
    rng, claims, curves = np.random.default_rng(seed), [_cme_shrinking(seed)], []
    tokens = [4**power for power in range(5, 9)]
    for dimension in (2, 3):
        rate = -2 / (dimension + 3)
        bandwidths = [rates.shrinking_bandwidth(n, dimension) for n in tokens]
        squares = np.array(
            [
                squared_errors(rng, 600, n, dimension, lambda d, g=gamma: _softmax(d, g) - d.truth, dimension)
                for n, gamma in zip(tokens, bandwidths, strict=True)
            ]
        )
        law = [
            rates.softmax_error(n, g, dimension, NOISE, PRIOR, dimension)
            for n, g in zip(tokens, bandwidths, strict=True)
        ]
        found = slope(tokens, squares)
        claims.append(
            Claim(
                3,
                f"softmax, shrinking gamma, d = {dimension}: RMS slope (n = 1024 .. 65536)",
                "bias^2 + variance / n",
                law_slope(tokens, law),
                found.value,
                error=found.error,
            )
        )
        far = [1e14, 1e15]
        limit = law_slope(
            far,
            [
                rates.softmax_error(n, rates.shrinking_bandwidth(n, dimension), dimension, NOISE, PRIOR, dimension)
                for n in far
            ],
        )
        claims.append(
            Claim(
                3,
                f"formula: its slope at n = 10^14, d = {dimension}",
                f"-2/(p+4) = {rate:.3f}",
                rate,
                limit,
                tolerance=5e-3,
            )
        )
        curves.append(_curve(f"softmax, shrinking gamma, d = {dimension}", tokens, squares, law))
    return Findings(claims, {"shrinking": curves})


def _cme_shrinking(seed: int) -> Claim:
    """CME attention with the exponential kernel at the same bandwidths converges to f too."""
    rng, rms = np.random.default_rng(seed), []
    for tokens in (64, 1024):
        bandwidth = rates.shrinking_bandwidth(tokens, 2)
        error = lambda d, g=bandwidth: ex.cme_attention(d.queries, d.keys, d.values, ridge=RIDGE, bandwidth=g) - d.truth  # noqa: E731
        rms.append(mean_of(squared_errors(rng, 60, tokens, 2, error, 2)))
    least_fall = STANDARD_ERRORS * float(np.hypot(rms[0].error, rms[1].error))
    statement = "CME, exponential kernel, shrinking gamma, d = 2: MSE at n = 1024 below that at 64"
    return Claim(3, statement, "below, by 3 errors", rms[0].value - least_fall, rms[1].value, "<=")


def _curve(label: str, tokens: Any, squares: Any, law: Any) -> Curve:
    """RMS errors with standard errors, and the square root of a law."""
    means = np.mean(squares, 1)
    errors = np.std(squares, 1, ddof=1) / np.sqrt(np.shape(squares)[1]) / (2 * np.sqrt(means))
    return Curve(label, np.asarray(tokens), np.sqrt(means), errors, None if law is None else np.sqrt(law))
