"""Checks of EXCHANGEABILITY section 6: what is learnt by masked tokens, and what it is worth downstream."""

import numpy as np
from scipy import linalg

from bayesattn.questions import exchangeable as ex
from reproductions.claims import Claim, Curve, Findings, Mean, Panel, curve_of, exponent, mean_of
from reproductions.tokens import pretraining
from reproductions.tokens.simulation import PRIOR

VALUES = 2
CONDITION, EXCESS = "condition number of C", "excess risk"
"""Labels of axes."""
CONDITIONS = (1.0, 10.0, 100.0, 1e3, 1e4, 1e8, 1e10)
MASKED = {"tokens": 64, "noise": 0.3, "prior": PRIOR}
PRETRAINING_SEQUENCES = 40
"""Few, so that what is not learnt outweighs what linear attention cannot express."""
REPLICATES = 500
"""Pretrainings at each condition number, and four times as many at the greatest."""
SEQUENCES, LENGTHS = (200, 800, 3200), (16, 64, 256)
"""m and n over which what is not learnt is followed."""
RIDGES = np.r_[0.0, 10.0 ** np.arange(-6, 4)]
"""Ridges of the learners: least squares first."""


def pretrained(rng: np.random.Generator, fast: bool = False) -> Findings:
    """Section 6: what a condition number makes of masked-token pretraining downstream, and for which learner."""
    weak = np.zeros((VALUES, 3))
    weak[0, 2] = 1.0
    squares: dict[str, list[Mean]] = {name: [] for name in ("pretraining", "downstream", "best ridge")}
    zero, bayes = [], []
    for condition in CONDITIONS:
        variances = pretraining.key_variances(condition)
        known = pretraining.moments(rng, variances=variances, **MASKED)
        settings = {"variances": variances, "value_features": VALUES} | MASKED
        learnt = np.array(
            [
                pretraining.learn(pretraining.draw(rng, PRETRAINING_SEQUENCES, **settings), RIDGES)
                for _ in range((4 if condition >= 1e8 else 1) * REPLICATES)
            ]
        )
        excess = pretraining.pretraining_excess(learnt, variances, known, VALUES)
        downstream = pretraining.downstream_excess(learnt, weak, known)
        best = int(np.argmin(excess.mean(0)))
        for name, excesses in (("pretraining", excess[:, 0]), ("downstream", downstream[:, 0])):
            squares[name].append(mean_of(excesses))
        squares["best ridge"].append(mean_of(downstream[:, best]))
        zero.append(Mean(known.posterior[2, 2], known.posterior_error[2, 2]))
        bayes.append(MASKED["prior"] ** 2 - known.posterior[2, 2])
    growth = {
        name: [exponent(CONDITIONS[i : i + 2], means[i : i + 2]) for i in range(len(CONDITIONS) - 1)]
        for name, means in squares.items()
    }
    at = CONDITIONS.index(1e4)
    least_squares, ridge = (squares[name][at].value for name in ("downstream", "best ridge"))
    claims = [
        *_closed_forms(rng, weak),
        *_bound(weak),
        Claim(
            "least squares: exponent of the pretraining excess in the condition number, 10^8 .. 10^10",
            "0",
            0.0,
            growth["pretraining"][-1],
        ),
        Claim(
            "least squares: exponent of the downstream excess in the weak direction, 10^8 .. 10^10",
            "1: the bound's",
            1.0,
            growth["downstream"][-1],
        ),
        Claim(
            "least squares: exponent 1 at condition numbers 1 .. 10", "1", 1.0, growth["downstream"][0], literal=True
        ),
        Claim(
            f"least squares downstream at 10^4: excess at most that of predicting zero (Bayes risk {bayes[at]:.3f})",
            "excess of zero",
            zero[at],
            squares["downstream"][at],
            "<=",
            literal=True,
        ),
        Claim(
            f"the condition number rules every learner: at 10^4 the best ridge suffers as least squares ({ridge:.2g})",
            f"excess of least squares ({least_squares:.2g})",
            squares["downstream"][at],
            squares["best ridge"][at],
            literal=True,
        ),
        Claim(
            "downstream excess of the best ridge grows with the condition number: exponent, 10^8 .. 10^10",
            "1",
            1.0,
            growth["best ridge"][-1],
            literal=True,
        ),
    ]
    x = np.array(CONDITIONS)
    bound = np.array([mean.value for mean in squares["pretraining"]]) * x
    curves = [
        curve_of("least squares: pretraining excess", x, squares["pretraining"]),
        curve_of("least squares: downstream, weak direction (line: bound)", x, squares["downstream"], bound),
        curve_of("best ridge for pretraining: downstream", x, squares["best ridge"]),
        curve_of("predicting zero: downstream", x, zero),
        Curve("Bayes risk downstream", x, np.array(bayes)),
    ]
    panel = Panel("Masked tokens", CONDITION, EXCESS, curves)
    return Findings.of_row("tokens-masked", [*claims, *_finite(rng)], panel)


def _closed_forms(rng: np.random.Generator, weak: np.ndarray) -> list[Claim]:
    """Both excess risks of a fixed Theta: closed forms against drawn z_hat - z_bar."""
    claims = []
    for condition in (CONDITIONS[0], 1000.0):
        variances = pretraining.key_variances(condition)
        known = pretraining.moments(rng, variances=variances, **MASKED)
        theta = 1.2 * pretraining.best(known)
        batch = pretraining.draw(rng, 20000, variances=variances, value_features=VALUES, **MASKED)
        precision = batch.keys.transpose(0, 2, 1) @ batch.keys
        precision += (MASKED["noise"] / MASKED["prior"]) ** 2 * np.eye(len(variances))
        difference = batch.covariances @ theta - MASKED["tokens"] * batch.covariances @ np.linalg.inv(precision)
        drawn = {
            "pretraining": np.sum(difference**2 * variances, (1, 2)),
            "downstream": np.einsum("vf,svf->s", weak, difference) ** 2,
        }
        errors = np.diag(known.posterior_error)
        closed = {
            # Entries of the posterior's moment come from the same draws, so their errors are added, not their squares.
            "pretraining": Mean(
                float(pretraining.pretraining_excess(theta, variances, known, VALUES)),
                float(VALUES * variances @ errors),
            ),
            "downstream": Mean(
                float(pretraining.downstream_excess(theta, weak, known)), float(np.sum(weak**2 @ errors))
            ),
        }
        for name, law in closed.items():
            statement = f"{name} excess of a fixed Theta, condition number {condition:g}: z_hat - z_bar drawn"
            claims.append(Claim(statement, "closed form", law, mean_of(drawn[name])))
    return claims


def _bound(weak: np.ndarray) -> list[Claim]:
    """An error of the latent along C^-1 b attains the bound on the downstream excess."""
    variances = pretraining.key_variances(1000.0)
    ratios = []
    for readout in (weak[:1], np.array([[0.7, -0.4, 0.2]])):
        along = readout[0] / variances
        nothing = np.zeros((3, 3))
        known = pretraining.Moments(nothing, nothing, np.outer(along, along), nothing)
        excess = pretraining.pretraining_excess(nothing, variances, known, 1)
        downstream = pretraining.downstream_excess(nothing, readout, known)
        ratios.append(downstream / pretraining.transfer_coefficient(readout, variances) / excess)
    off = max(ratios, key=lambda ratio: abs(ratio - 1))
    law = "downstream <= tr(B C^-1 B^T) x pretraining"
    return [Claim("the bound is attained by an error of z along C^-1 b", law, 1.0, off, tolerance=1e-12)]


def sizes(rng: np.random.Generator, fast: bool = False) -> Findings:
    """Section 6: what masked tokens have not taught yet, against the numbers of sequences m and of tokens n."""
    replicates, variances = 40 if fast else 200, pretraining.key_variances(1.0)
    unlearnt = {
        tokens: [_unlearnt(rng, variances, tokens, sequences, replicates) for sequences in SEQUENCES]
        for tokens in LENGTHS
    }
    few, *_, many = LENGTHS
    claims = [
        Claim(
            f"masked tokens, n = {tokens}: exponent of the pretraining excess over that of the best Theta, in m ="
            f" {SEQUENCES[0]} .. {SEQUENCES[-1]}",
            "-1, up to the next order",
            -1.0,
            exponent(SEQUENCES, means),
            planted=-0.5,
            wrong="a slow rate, m^(-1/2)",
            # Of a series c / m (1 + r m_min / m) the slope is off by at most r / log(m_max / m_min), r of order D^2 / m_min.
            allowance=len(variances) ** 2 / SEQUENCES[0] / np.log(SEQUENCES[-1] / SEQUENCES[0]),
        )
        for tokens, means in unlearnt.items()
    ]
    claims.append(
        Claim(
            f"masked tokens, m = {SEQUENCES[-1]}: that excess at n = {many} at most that at n = {few}",
            "no growth with n",
            unlearnt[few][-1],
            unlearnt[many][-1],
            "<=",
            planted=unlearnt[few][-1].times(many / few),
            wrong="in proportion to n",
            wrong_relation=">=",
        )
    )
    x = np.array(SEQUENCES, float)
    curves = [curve_of(f"n = {tokens}", x, means, means[-1].value * x[-1] / x) for tokens, means in unlearnt.items()]
    panel = Panel("Masked tokens: what is not learnt", "sequences m", "excess over the best", curves)
    return Findings.of_row("tokens-pretraining", claims, panel)


def _unlearnt(rng: np.random.Generator, variances: np.ndarray, tokens: int, sequences: int, replicates: int) -> Mean:
    """Pretraining excess of least squares over that of the best Theta, both of the same population."""
    settings = MASKED | {"tokens": tokens, "variances": variances}
    known = pretraining.moments(rng, **settings)
    drawn = (pretraining.draw(rng, sequences, value_features=VALUES, **settings) for _ in range(replicates))
    learnt = np.array([pretraining.learn(batch) for batch in drawn])
    least = pretraining.pretraining_excess(pretraining.best(known), variances, known, VALUES)
    return mean_of(pretraining.pretraining_excess(learnt, variances, known, VALUES) - least)


def _finite(rng: np.random.Generator) -> list[Claim]:
    """Finite latents: what masked prediction identifies."""
    emission, readout = rng.dirichlet(np.ones(5), size=4).T, rng.normal(size=(2, 4))
    transfer = ex.transfer(emission, readout)
    # The same maximum over changes that sum to 0 as a generalised eigenvalue, with another basis of them.
    basis = np.eye(4)[:, :3] - np.eye(4)[:, 1:]
    largest = linalg.eigh(*((matrix @ basis).T @ (matrix @ basis) for matrix in (readout, emission)), eigvals_only=True)
    most = float(np.sqrt(largest[-1]))
    attained = np.linalg.norm(readout @ transfer.direction) / np.linalg.norm(emission @ transfer.direction)
    blind = emission.copy()
    blind[:, 3] = blind[:, 2]
    unseen = ex.transfer(blind, readout).direction
    law = "|H Q (T Q)^+|"
    return [
        Claim(
            "finite z: largest |H d| / |T d|, as a generalised eigenvalue",
            law,
            transfer.factor,
            most,
            tolerance=1e-8 * most,
        ),
        Claim("the worst direction by SVD attains it", law, transfer.factor, attained, tolerance=1e-8 * most),
        Claim(
            "sigma_min(T Q) = 0: masked prediction is blind to a change of pi",
            "|T d| = 0",
            0.0,
            np.linalg.norm(blind @ unseen),
            tolerance=1e-10,
        ),
        Claim(
            "that change moves the downstream task by |H d|: no pretraining helps",
            "|h_3 - h_4| / 2^(1/2)",
            np.linalg.norm(readout[:, 2] - readout[:, 3]) / np.sqrt(2),
            np.linalg.norm(readout @ unseen),
            tolerance=1e-10,
        ),
    ]
