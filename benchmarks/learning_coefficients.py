"""How wrong are estimates of the learning coefficient? Stochastic gradients and weight-space chains against exact values.

    uv run python benchmarks/learning_coefficients.py [--only PART ..]

Three networks with labels 0 and n = 1,000 or 1,000,000 normal path inputs, n beta = n / log n, so T = log n. The prior is
Gaussian around the best weights w* = 0, of precision gamma: the localisation of the published estimator (Lau, Furman, Wang,
Murfet and Wei 2023), so exact value and estimate are of one and the same posterior. SGLD starts at w*, or at a prior draw:

    w <- w - step / 2 (n beta grad L_n(w) + gamma w) + Normal(0, step),

with the gradient of all examples, or of a minibatch; with preconditioning as by Li, Chen, Carlson and Carin (2016).
Estimates are n beta (mean L_n - L_n(w*)).
"""

import argparse
import math
import time
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import bayesattn as ba
from bayesattn.models import Path
from bayesattn.network import network

CHAINS, BATCH = 10, 512
ARCHITECTURES = {
    "two heads, widths 2 and 6": ((2,), (2, 6), 1),
    "two layers of two heads, width 4": ((2, 2), (4, 4, 4), 1),
    "deep linear, widths 3, 3, two outputs": ((1,), (3, 3), 2),
}
FEATURES = 5
SIZES = (10**3, 10**6)
Estimate = tuple[float, float]
"""Value and Monte Carlo error."""


class Setting(NamedTuple):
    """Settings of a stochastic gradient chain."""

    step: float
    steps: int
    batch: int | None
    preconditioned: bool
    from_prior: bool

    def __str__(self) -> str:
        words = ["pSGLD" if self.preconditioned else "SGLD", f"step {self.step:g}", f"{self.steps:,} steps"]
        words += ["all examples" if self.batch is None else f"batches of {self.batch}"]
        return ", ".join([*words, "from the prior" if self.from_prior else "from w*"])


def posterior(name: str, examples: int, gamma: float) -> ba.Model:
    """Model at T = log n with prior variances 1 / gamma."""
    heads, widths, outputs = ARCHITECTURES[name]
    arch = ba.Architecture(heads, widths, (1 / gamma,) * (len(heads) + 2), outputs=outputs)
    rng = np.random.default_rng(examples)
    inputs = rng.normal(size=(examples, arch.paths, FEATURES))
    labels = np.zeros((examples, outputs)) if outputs > 1 else np.zeros(examples)
    return ba.Model(path_inputs=inputs, labels=labels, architecture=arch, temperature=math.log(examples))


def settings() -> Iterator[Setting]:
    """A short chain from w*, and sweeps over step size, length, batches, preconditioning and start."""
    yield Setting(1e-4, 100, BATCH, False, False)
    for batch in (None, BATCH):
        for step in (1e-5, 1e-4, 1e-3, 1e-2):
            yield Setting(step, 20_000, batch, False, True)
    for steps in (2_000, 200_000):
        yield Setting(1e-3, steps, None, False, True)
    for step in (1e-4, 1e-3):
        yield Setting(step, 20_000, BATCH, True, True)


def stochastic(model: ba.Model, gamma: float, setting: Setting, key: jax.Array) -> np.ndarray:
    """S of each of up to 2,000 draws of each chain, after the first tenth of the steps."""
    path, temperature = Path.of(model), model.temperature
    start, unravel = ravel_pytree(path.draw_prior(key))
    # Sums over all examples follow from their triangle.
    compressed = ba.Dataset.gather((model.path_inputs, model.labels), model.architecture)
    rows = jnp.asarray(compressed.path_inputs)
    inputs, count = path.path_inputs, len(model.path_inputs)

    def square(vector: jax.Array, inputs: jax.Array) -> jax.Array:
        return jnp.sum(network(unravel(vector), inputs) ** 2)

    def gradient(vector: jax.Array, key: jax.Array) -> jax.Array:
        if setting.batch is None:
            return jax.grad(square)(vector, rows) / (2 * temperature)
        chosen = inputs[jax.random.randint(key, (setting.batch,), 0, count)]
        return count / setting.batch * jax.grad(square)(vector, chosen) / (2 * temperature)

    def step(carry: tuple[jax.Array, jax.Array], key: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        vector, average = carry
        batch_key, noise_key = jax.random.split(key)
        slope = gradient(vector, batch_key)
        average = 0.99 * average + 0.01 * slope**2
        scale = 1 / (1e-2 + jnp.sqrt(average)) if setting.preconditioned else jnp.ones_like(vector)
        noise = jnp.sqrt(setting.step * scale) * jax.random.normal(noise_key, vector.shape)
        vector = vector - setting.step / 2 * scale * (slope + gamma * vector) + noise
        return (vector, average), square(vector, rows)

    @jax.jit
    @jax.vmap
    def chain(key: jax.Array) -> jax.Array:
        start_key, key = jax.random.split(key)
        begin = ravel_pytree(path.draw_prior(start_key))[0] if setting.from_prior else jnp.zeros_like(start)
        squares = jax.lax.scan(step, (begin, jnp.zeros_like(begin)), jax.random.split(key, setting.steps))[1]
        kept = squares[setting.steps // 10 if setting.from_prior else 0 :]
        return kept[:: max(1, len(kept) // 2000)]

    return np.asarray(chain(jax.random.split(key, CHAINS)))


HEADINGS = "network", "n", "gamma", "estimator", "estimate", "exact", "off by", "seconds"


def print_row(case: tuple[str, int, float], method: str, estimate: Estimate, exact: Estimate, seconds: float) -> None:
    """One row of the table."""
    (name, examples, gamma), (value, error) = case, estimate
    cells = [name, f"{examples:,}", f"{gamma:g}", method]
    if np.isfinite(value):
        cells += [
            f"{value:.3f} ± {error:.3f}",
            f"{exact[0]:.3f} ± {exact[1]:.3f}",
            f"{100 * (value / exact[0] - 1):+.0f} %",
        ]
    else:
        cells += ["diverges", f"{exact[0]:.3f} ± {exact[1]:.3f}", ""]
    print(f"| {' | '.join([*cells, f'{seconds:.1f}'])} |", flush=True)


def compare(name: str, examples: int, gamma: float) -> None:
    """Rows of one network."""
    case, model = (name, examples, gamma), posterior(name, examples, gamma)
    start = time.perf_counter()
    found = ba.learning_coefficient(model, model.temperature, best_fit=0.0)
    exact = float(found.value[0]), float(found.error[0])
    print_row(case, "exact: chains of U", exact, exact, time.perf_counter() - start)
    for number, setting in enumerate(settings()):
        start = time.perf_counter()
        squares = stochastic(model, gamma, setting, jax.random.key(number))
        estimate = float("nan"), float("nan")
        if np.isfinite(squares).all():
            by_chain = squares.mean(1) / (2 * model.temperature)
            estimate = float(by_chain.mean()), float(by_chain.std(ddof=1) / np.sqrt(CHAINS))
        print_row(case, str(setting), estimate, exact, time.perf_counter() - start)
    compressed = model.replace(dataset=ba.Dataset.gather((model.path_inputs, model.labels), model.architecture))
    for sampler in ("mala", "mclmc", "nuts"):
        start = time.perf_counter()
        draws = ba.sample(
            compressed, sampler, "path", chains=4, warmup=1000, draws=2000, keep=["weights"], progress=False
        )
        weights = draws["posterior"].to_dataset()
        names = [each for each in weights if each in ("V_0", "a") or str(each).startswith("V_")]
        flat = {str(each): jnp.asarray(weights[each].values).reshape(-1, *weights[each].shape[2:]) for each in names}
        rows = jnp.asarray(compressed.path_inputs)
        squares = jax.lax.map(lambda draw: jnp.sum(network(draw, rows) ** 2), flat)  # noqa: B023
        estimate = ba.learning_coefficient_of(np.asarray(squares).reshape(4, -1), compressed, best_fit=0.0)
        value = float(estimate.value), float(estimate.error)
        print_row(case, f"{sampler} of the weights", value, exact, time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", choices=[*ARCHITECTURES], default=[*ARCHITECTURES], metavar="NETWORK")
    chosen = parser.parse_args().only
    print(f"| {' | '.join(HEADINGS)} |\n| {' | '.join(['---'] * len(HEADINGS))} |")
    for name in chosen:
        for examples in SIZES:
            for gamma in (1.0, 100.0):
                compare(name, examples, gamma)


if __name__ == "__main__":
    main()
