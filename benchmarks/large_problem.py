"""Cost of one collapsed gradient where P, paths and features are many, each case in a process of its own.

Run with `uv run python benchmarks/large_problem.py`.
"""

import resource
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.util import potential_energy
from timing import interleaved_seconds

import bayesattn as ba
from bayesattn.models import collapsed

CASES = ((600, 4, 512), (2000, 2, 231))


def one_case(examples: int, heads: int, features: int) -> None:
    """Print the form of the kernels, milliseconds per gradient and peak memory."""
    rng = np.random.default_rng(0)
    model = ba.Model(
        path_inputs=rng.normal(size=(examples, heads**2, features)),
        labels=rng.choice([-1.0, 1.0], size=examples),
        architecture=ba.Architecture((heads, heads), (100,) * 3, (1.0,) * 4),
        temperature=0.1,
    )
    data = collapsed.data(model, **collapsed.prepare(model, whitening="prior"))
    program = collapsed.program(collapsed.structure(model))
    value_and_grad = jax.jit(lambda z, data: jax.value_and_grad(lambda s: potential_energy(program, (data,), {}, s))(z))
    sites = {"whitened": jnp.zeros(data["centre"].shape)}
    seconds = interleaved_seconds({"gradient": lambda: value_and_grad(sites, data)})["gradient"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    form = "pairs" if data["kernels"].pairs is not None else "features"
    print(f"{form} {1e3 * seconds:.0f} {peak:.2f}")


def main() -> None:
    """Print the table."""
    print("| P | paths | N_0 | kernels held as | ms per gradient | peak GiB |\n| --- | --- | --- | --- | --- | --- |")
    for examples, heads, features in CASES:
        command = [sys.executable, __file__, str(examples), str(heads), str(features)]
        cells = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        print(f"| {examples} | {heads**2} | {features} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    one_case(*map(int, sys.argv[1:])) if len(sys.argv) > 1 else main()
