"""Truth of a reference posterior, made anew: collapsed chains, and importance-weighted prior draws or chains of weights.

python benchmarks/reference_truths.py two_heads --out truths
"""

import argparse
import io
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Key

from bayesattn._util.files import replace_file, require_new
from bayesattn._util.random import stream
from bayesattn.errors import BayesattnError
from bayesattn.models import Path as PathPosterior
from bayesattn.models.model import Model
from bayesattn.network import effective_weights, network
from bayesattn.questions.reference.posteriors import PATH, POSTERIORS, PRIOR, data_digest, model_of
from bayesattn.questions.reference.quantities import names_of, quantities_of, quantities_of_draws
from bayesattn.questions.reference.truth import LEVELS, Estimates, Truth
from bayesattn.samplers import sample

LARGEST_ERROR = 0.01
"""Largest error of a mean, standard deviation or quantile, in posterior standard deviations."""
CHAINS, WARMUP, DRAWS = 8, 1000, 10_000
MOST_DRAWS = 400_000
"""Largest number of draws per chain."""
BATCH = 4096
PRIOR_DRAWS = 20_000_000
"""Largest number of draws from the prior."""
ENOUGH_EFFECTIVE_DRAWS = 400_000
"""Effective number of prior draws at which drawing stops, about that of the chains."""
MOST_NETWORK_WEIGHTS = 2e10
"""Largest number of network weights drawn from the prior in all."""
PATH_DRAWS = 4000


def make(name: str, folder: Path, *, seed: int = 0, progress: Callable[[str], None] = print) -> Truth:
    """Truth of a reference posterior, written to a new file in `folder`.

    Raises ValueError if the two routes differ or the errors are too large, and FileExistsError if there is a truth already.
    In these cases nothing is written.
    """
    file = folder / f"{name}.npz"
    require_new("truth", file)
    model, route = model_of(name), POSTERIORS[name].route
    values, draws = _chains(model, "collapsed", DRAWS, seed), DRAWS
    truth = _first(model, values)
    while (error := truth.largest_error) > LARGEST_ERROR and draws < MOST_DRAWS:
        draws = min(MOST_DRAWS, int(1.2 * draws * (error / LARGEST_ERROR) ** 2))
        progress(f"{name}: errors of {100 * error:.2g} % of a standard deviation; {CHAINS} chains of {draws} draws")
        values = _chains(model, "collapsed", draws, seed)
        truth = _first(model, values)
    if truth.largest_error > LARGEST_ERROR:
        raise BayesattnError(
            f"errors must be at most {100 * LARGEST_ERROR:g} % of a standard deviation, got"
            f" {100 * truth.largest_error:.2g} % of {name} after {CHAINS} chains of {draws} draws"
        )
    if route == PRIOR:
        progress(f"{name}: errors of {100 * truth.largest_error:.2g} % after {CHAINS} chains of {draws} draws")
        second, size = by_prior_draws(model, truth, seed=seed)
        route = f"{PRIOR}, {size:.0f} effective draws"
    else:
        second = _of_chains(_chains(model, "path", PATH_DRAWS, seed), truth.quantiles)
        route = f"chains of the {PATH}"
    truth = replace(truth, second=second, route=route)
    agreement = truth.agreement
    progress(f"{name}: {route}; largest difference {agreement.largest:.2f} errors of {agreement.count} numbers")
    if not agreement.holds:
        worst = np.abs(truth.first.z_scores(second)).max(1).argmax()
        raise BayesattnError(
            f"routes must agree within {agreement.bound:.1f} errors, got {agreement.largest:.1f} for"
            f" {truth.names[worst]} of {name}"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    _save(truth, file)
    return truth


def _save(truth: Truth, file: Path) -> None:
    """Write a truth, in place of an earlier one."""
    arrays = {"names": np.array(truth.names), "route": np.array(truth.route), "data": np.array(truth.data)}
    arrays |= {name: getattr(truth, name) for name in ("quantiles", "quantile_error", "ess")}
    for route in ("first", "second"):
        arrays |= {f"{route}_{each.name}": getattr(getattr(truth, route), each.name) for each in fields(Estimates)}
    packed = io.BytesIO()
    np.savez_compressed(packed, allow_pickle=False, **arrays)
    replace_file(file, packed.getvalue())


def _of_chains(
    values: Float[np.ndarray, "chain draw quantity"], quantiles: Float[np.ndarray, "quantity level"]
) -> Estimates:
    """Estimates from chains, with errors from effective sample sizes."""
    drawn = xr.DataArray(values, dims=("chain", "draw", "quantity"))
    under = drawn <= xr.DataArray(quantiles, dims=("quantity", "level"))
    return Estimates(
        mean=values.mean((0, 1)),
        mean_error=arviz_stats.mcse(drawn).values,
        sd=values.std((0, 1)),
        sd_error=arviz_stats.mcse(drawn, method="sd").values,
        below=under.mean(("chain", "draw")).values,
        below_error=arviz_stats.mcse(under.astype(float)).values,
    )


def _chains(model: Model, parameterisation: str, draws: int, seed: int) -> Float[np.ndarray, "chain draw quantity"]:
    """Quantities of chains in a parameterisation."""
    kept = ("order_parameter", "prediction")
    job = {"chains": CHAINS, "warmup": WARMUP, "draws": draws, "seed": seed, "keep": kept, "progress": False}
    posterior = sample(model, "nuts", parameterisation, **job)["posterior"].to_dataset()
    return quantities_of_draws(posterior["order_parameter"].values, posterior["prediction"].values, model)


def _first(model: Model, values: Float[np.ndarray, "chain draw quantity"]) -> Truth:
    """Truth from collapsed chains alone."""
    quantiles = np.quantile(values, LEVELS, axis=(0, 1)).T
    drawn = xr.DataArray(values, dims=("chain", "draw", "quantity"))
    errors = [arviz_stats.mcse(drawn, method="quantile", prob=level).values for level in LEVELS]
    estimates = _of_chains(values, quantiles)
    return Truth(
        names=names_of(model),
        first=estimates,
        quantiles=quantiles,
        quantile_error=np.stack(errors, axis=1),
        second=estimates,
        route="none",
        ess=arviz_stats.ess(drawn).values,
        data=data_digest(model),
    )


def by_prior_draws(model: Model, truth: Truth, *, seed: int = 0, draws: int = PRIOR_DRAWS) -> tuple[Estimates, float]:
    """Estimates from importance-weighted draws of the prior, and their effective number.

    Network weights are drawn from the prior. With Gaussian labels the input projection is integrated out: a draw has the
    importance weight p(Y | U), and f follows from the prior's f by Matheron's rule. Otherwise the weight is p(Y | f).
    This route uses no chain, no coordinates of the collapsed parameterisation, and no fast form of the kernel.
    """
    posterior = PathPosterior.of(model)
    count = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(posterior.draw_prior, jax.random.key(0))))
    batches = int(min(draws, MOST_NETWORK_WEIGHTS / count)) // BATCH
    centre, scale = jnp.asarray(truth.first.mean), jnp.asarray(truth.first.sd)
    weighted_draw = _conjugate_draw(model, posterior) if model.likelihood.conjugate else _prior_draw(model, posterior)
    limits = (jnp.asarray(truth.quantiles) - centre[:, None]) / scale[:, None]

    @jax.jit
    def weighted(key: Key[Array, ""]) -> tuple[Array, Array]:
        # One draw after another: batches of factorisations are split among threads, which can wait for each other forever.
        log_weights, quantities = jax.lax.map(weighted_draw, jax.random.split(key, BATCH))
        return log_weights, (quantities - centre) / scale

    @jax.jit
    def sums(key: Key[Array, ""], shift: float) -> tuple[Array, ...]:
        """Sums of importance weights w and of w^2, times powers of standardised quantities and indicators of quantiles."""
        log_weights, values = weighted(key)
        weights = jnp.exp(log_weights - shift)
        powers = jnp.stack([jnp.ones_like(values), values, values**2, values**3, values**4])
        under = (values[:, :, None] <= limits).astype(float)
        moments = (jnp.einsum("d,kdq->kq", each, powers) for each in (weights, weights**2))
        shares = (jnp.einsum("d,dql->ql", each, under) for each in (weights, weights**2))
        return *moments, *shares

    keys = jax.random.split(stream(seed, "prior draws of a reference posterior"), batches)
    shift = jax.device_get(weighted(keys[0])[0]).max()
    added = jax.device_get(sums(keys[0], shift))
    for key in keys[1:]:
        if added[0][0, 0] ** 2 / added[1][0, 0] > ENOUGH_EFFECTIVE_DRAWS:
            break
        added = jax.tree.map(np.add, added, jax.device_get(sums(key, shift)))
    once, twice, share, share_twice = added
    total, total_twice = once[0, 0], twice[0, 0]
    mean = once[1] / total
    variance = once[2] / total - mean**2
    # Squared error of a weighted mean: sum w^2 (x - mean)^2 / (sum w)^2; it is divided below.
    mean_square = twice[2] - 2 * mean * twice[1] + mean**2 * total_twice
    # ((x - mean)^2 - variance)^2 as a polynomial in x: a quadratic x^2 + b x + c, squared.
    b, c = -2 * mean, mean**2 - variance
    variance_square = (
        twice[4] + 2 * b * twice[3] + (b**2 + 2 * c) * twice[2] + 2 * b * c * twice[1] + c**2 * total_twice
    )
    below = share / total
    below_square = share_twice * (1 - 2 * below) + below**2 * total_twice
    sd = np.sqrt(variance)
    centre, scale = truth.first.mean, truth.first.sd
    estimates = Estimates(
        mean=centre + scale * mean,
        mean_error=scale * np.sqrt(mean_square) / total,
        sd=scale * sd,
        sd_error=scale * np.sqrt(np.maximum(variance_square, 0)) / (2 * sd * total),
        below=below,
        below_error=np.sqrt(np.maximum(below_square, 0)) / total,
    )
    return estimates, float(total**2 / total_twice)


def _prior_draw(model: Model, posterior: PathPosterior) -> Callable:
    """Function that draws from the prior: (log p(Y | f), quantities)."""
    both = jnp.asarray(model.test_path_inputs)

    def draw(key: Key[Array, ""]) -> tuple[Array, Array]:
        weights = posterior.draw_prior(key)
        paths = effective_weights(weights, posterior.skips)
        outputs = network(weights, both, posterior.skips)
        log_weight = model.likelihood.log_prob(outputs[: model.examples], posterior.labels).sum()
        return log_weight, quantities_of(paths @ paths.T / paths.shape[1], outputs, model)

    return draw


def _conjugate_draw(model: Model, posterior: PathPosterior) -> Callable:
    """Function that draws U from the prior, and f given U and Y: (log p(Y | U) up to a constant, quantities)."""
    arch, temperature = model.architecture, model.temperature
    both, training = jnp.asarray(model.test_path_inputs), model.examples
    paths, outputs = arch.paths, arch.outputs
    products = jnp.einsum("xpf,yqf->pqxy", both, both) * arch.variances[0] / (both.shape[2] * math.prod(arch.heads))
    labels = posterior.labels.reshape(-1)

    def draw(key: Key[Array, ""]) -> tuple[Array, Array]:
        weights_key, noise_key = jax.random.split(key)
        weights = posterior.draw_prior(weights_key)
        rows = effective_weights(weights, posterior.skips)
        u = rows @ rows.T / rows.shape[1]
        blocks = u.reshape(paths, outputs, paths, outputs)
        kernel = jnp.einsum("pmqn,pqxy->xmyn", blocks, products).reshape(len(both) * outputs, -1)
        count = training * outputs
        factor = jnp.linalg.cholesky(kernel[:count, :count] + temperature * jnp.eye(count))
        whitened = jax.scipy.linalg.solve_triangular(factor, labels, lower=True)
        log_weight = -0.5 * whitened @ whitened - jnp.log(jnp.diag(factor)).sum()
        # Matheron's rule: a prior f plus K_* (K + T I)^-1 (Y - f - noise) is a draw of f given Y.
        prior = network(weights, both, posterior.skips).reshape(-1)
        noise = jnp.sqrt(temperature) * jax.random.normal(noise_key, (count,))
        missed = jax.scipy.linalg.cho_solve((factor, True), labels - prior[:count] - noise)
        f = (prior + kernel[:, :count] @ missed).reshape(len(both), *arch.output_axes)
        return log_weight, quantities_of(u, f, model)

    return draw


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*POSTERIORS])
    parser.add_argument("--out", type=Path, default=Path("truths"))
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    make(asked.name, asked.out, seed=asked.seed)
