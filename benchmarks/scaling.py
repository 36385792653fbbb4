"""Time and memory of one collapsed gradient against examples, paths, features and width, and the exponents of both.

Run with `uv run python benchmarks/scaling.py`. Each case is a process of its own. From 10,000 examples on they come as
statistics; those of 10^6 and more are the statistics of 10^5, scaled.
"""

import json
import resource
import subprocess
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from timing import interleaved_seconds

import bayesattn as ba
from bayesattn.compressed import Compressed
from bayesattn.gather import gather
from bayesattn.kernels.forms import cheapest_form
from bayesattn.theory.bartlett import layer_shapes, unwhiten
from bayesattn.theory.potential import potential, problem_of

MOST_ARRAYS, MOST_GATHERED, BATCH = 10**4, 10**5, 10**4


class Case(NamedTuple):
    """Examples, heads of each of two layers, features, width."""

    examples: int = 1000
    heads: int = 2
    features: int = 50
    width: int = 10


TABLES = {
    "P": [Case(examples=10**power) for power in range(3, 8)],
    "paths": [Case(600, heads, 48) for heads in (2, 4, 6, 8, 10, 12, 13)],
    "N_0": [Case(600, 4, features) for features in (16, 64, 256, 1024)],
    "N": [Case(600, 4, 48, width) for width in (2, 10, 100, 1000)],
}


def batches(case: Case, examples: int):
    """Random examples, a batch at a time."""
    rng = np.random.default_rng(0)
    for start in range(0, examples, BATCH):
        size = min(BATCH, examples - start)
        yield rng.standard_normal((size, case.heads**2, case.features)), rng.choice([-1.0, 1.0], size)


def model_of(case: Case) -> ba.Model:
    """The posterior of a case, by its examples or by their statistics."""
    arch = ba.Architecture((case.heads,) * 2, (case.width,) * 3, (1.0,) * 4)
    settings = {"architecture": arch, "temperature": 0.1}
    if case.examples < MOST_ARRAYS:
        [(inputs, labels)] = batches(case, case.examples)
        return ba.Model(path_inputs=inputs, labels=labels, **settings)
    gathered = gather(batches(case, min(case.examples, MOST_GATHERED)), arch)
    times = case.examples // gathered.examples
    shape = (gathered.paths, gathered.features)
    return ba.Model(compressed=Compressed(np.sqrt(times) * gathered.triangle, case.examples, *shape), **settings)


def measured(case: Case) -> dict:
    """Form of the likelihood, seconds per gradient, peak memory in GiB, device."""
    model = model_of(case)
    shapes, problem = layer_shapes(model.architecture), problem_of(model.gaussian_process, model.architecture)
    examples, features, _ = model.gaussian_process.features.shape
    slope = jax.jit(jax.grad(potential), static_argnums=2)
    point = unwhiten(jnp.zeros(sum(shape.size for shape in shapes)), shapes, problem.widths)
    seconds = interleaved_seconds({"gradient": lambda: slope(point, problem, shapes)}, repeats=9)["gradient"]
    return {
        "form": cheapest_form(examples, features, model.architecture),
        "seconds": seconds,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "device": jax.devices()[0].device_kind,
    }


def main() -> None:
    """Print the tables."""
    for name, cases in TABLES.items():
        print(f"\n| P | paths | N_0 | N | form | ms per gradient | peak GiB |\n|{' --- |' * 7}")
        sizes, seconds = [], []
        for case in cases:
            command = [sys.executable, __file__, json.dumps(case)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            cells = (f"{case.examples:,}", case.heads**2, case.features, case.width, found["form"])
            print(f"| {' | '.join(map(str, cells))} | {1e3 * found['seconds']:.3g} | {found['peak']:.2f} |", flush=True)
            sizes.append({"P": case.examples, "paths": case.heads**2, "N_0": case.features, "N": case.width}[name])
            seconds.append(found["seconds"])
        half = len(sizes) // 2
        over = {f"all {len(sizes)}": slice(None), f"the last {len(sizes) - half}": slice(half, None)}
        for which, part in over.items():
            exponent = np.polyfit(np.log(sizes[part]), np.log(seconds[part]), 1)[0]
            print(f"\n{found['device']}: seconds grow as {name}^{exponent:.2f} over {which}")


if __name__ == "__main__":
    print(json.dumps(measured(Case(*json.loads(sys.argv[1]))))) if len(sys.argv) > 1 else main()
