"""Numbers of small posteriors, stored before the package was reshaped: what they say does not depend on where code stands.

uv run pytest -m heavy tests/test_numbers.py             # all of them
uv run python -m tests.test_numbers                       # writes those that are not stored yet; replaces none
"""

import sys
from pathlib import Path

import numpy as np
import pytest

import bayesattn as ba

STORED = Path(__file__).parent / "data" / "numbers.npz"
CLOSE = 1e-12
"""Relative deviation that rounding makes, of numbers that no search and no chain stands behind."""
SEARCHED = 1e-9
"""Of minima, whose searches end when a gradient is small, and of short chains."""
NETWORKS = {  # heads, widths, skips, outputs, examples, features, T
    "one_layer": ((2,), (6, 4), (0.0,), 1, 8, 3, 0.1),
    "two_layers": ((2, 2), (8, 6, 5), (0.0, 0.0), 1, 10, 3, 0.05),
    "three_layers": ((1, 2, 1), (6, 6, 5, 6), (0.0, 0.0, 0.0), 1, 7, 3, 0.2),
    "narrow": ((3, 1), (2, 5, 3), (0.0, 0.0), 1, 6, 2, 0.01),
    "width_one": ((3,), (1, 1), (0.0,), 1, 5, 3, 0.1),
    "skip": ((2, 1), (4, 4, 3), (1.0, 0.0), 1, 8, 3, 0.1),
    "two_skips": ((1, 1), (2, 2, 2), (1.0, 0.5), 2, 7, 3, 0.1),
    "three_outputs": ((2,), (6, 5), (0.0,), 3, 6, 3, 0.1),
    "skip_outputs": ((2,), (20, 20), (1.0,), 3, 9, 3, 0.05),
    "many_examples": ((2,), (10, 10), (0.0,), 1, 60, 3, 0.1),
    "many_features": ((2,), (10, 10), (0.0,), 1, 4, 40, 0.1),
    "many_examples_outputs": ((2,), (6, 6), (0.0,), 2, 40, 3, 0.1),
    "one_example": ((2, 1), (5, 5, 5), (0.0, 0.0), 1, 1, 3, 0.1),
    "cold": ((2,), (10, 10), (0.0,), 1, 8, 3, 0.003),
    "hot": ((2,), (10, 10), (0.0,), 1, 8, 3, 10.0),
    "two_classes": ((2,), (6, 4), (0.0,), 1, 8, 3, 0.3),
    "three_classes": ((2,), (6, 4), (0.0,), 3, 8, 3, 0.3),
    "statistics": ((2,), (6, 4), (0.0,), 1, 60, 3, 0.1),
    "statistics_outputs": ((2,), (6, 4), (0.0,), 2, 60, 3, 0.1),
}
VERDICTS = ("one_layer", "skip_outputs")
FAST = {"one_layer": ("collapsed", "path"), "three_classes": ("collapsed",)}
"""Networks whose numbers are compared each time, without verdicts, and parameterisations of their chains."""


def model_of(name):
    number = list(NETWORKS).index(name)
    heads, widths, skips, outputs, examples, features, temperature = NETWORKS[name]
    random = np.random.default_rng([45, number])
    variances = tuple(random.uniform(0.7, 1.5, len(heads) + 2).tolist())
    arch = ba.Architecture(heads=heads, widths=widths, variances=variances, skips=skips, outputs=outputs)
    path_inputs = random.normal(size=(examples, arch.paths, features))
    shape = (examples, outputs) if outputs > 1 else (examples,)
    labels = random.normal(size=shape)
    data = {"path_inputs": path_inputs, "labels": labels}
    if "classes" in name:
        labels = random.integers(0, max(2, outputs), examples)
        data["labels"] = ba.one_hot(labels).labels if outputs > 1 else 2.0 * labels - 1
    data["test_path_inputs"] = random.normal(size=(3, arch.paths, features))
    if "statistics" in name:
        batches = [(data.pop("path_inputs"), data.pop("labels"))]
        data = {"dataset": ba.Dataset.gather(batches, arch, **data)}
    likelihood = (ba.Categorical if "classes" in name else ba.Gaussian)(temperature)
    return ba.Model(**data, architecture=arch, likelihood=likelihood)


def numbers(name, parameterisations=("collapsed", "path"), verdicts=VERDICTS):
    """What is asked of a model: (exact numbers, numbers that a search or a chain found)."""
    model, exact, searched = model_of(name), {}, {}
    for kind in parameterisations if "statistics" not in name else ("collapsed",):
        # A short chain: what it starts from, its gradients and what is made of its sites all enter.
        draws = ba.sample(model, sampler="hmc", parameterisation=kind, chains=1, warmup=3, draws=3, seed=1)
        for site in ("order_parameter", "prediction"):
            searched[f"{kind}_{site}"] = draws["posterior"][site].values
    if "classes" in name:
        return exact, searched
    prior = ba.theory.gp_order_parameter(model.architecture)
    sizes = model.architecture.order_parameter_sizes
    if len(sizes) == 1 or not any(model.architecture.skips):  # Else U_1 has a block that U_2 decides.
        exact["action"] = np.array(ba.theory.action([np.eye(size) for size in sizes], model)[:2])
    predicted = ba.theory.predict(np.asarray(prior), model)
    exact["mean"], exact["variance"] = np.asarray(predicted.mean), np.asarray(predicted.variance)
    solved = ba.theory.solve(model)
    searched["order_parameter"] = np.asarray(solved.order_parameter)
    searched["energy"], searched["entropy"] = np.asarray(solved.energy), np.asarray(solved.entropy)
    if name in verdicts:
        draws = ba.sample(model, sampler="hmc", chains=2, warmup=3, draws=8, seed=0)
        checked = ba.validate(draws, model=model)
        searched["expected"], searched["deviation"] = np.asarray(checked.expected), np.asarray(checked.deviation)
    return exact, searched


@pytest.mark.parametrize(
    ("name", "kinds", "verdicts"),
    [
        *((name, kinds, ()) for name, kinds in FAST.items()),
        *(pytest.param(name, ("collapsed", "path"), VERDICTS, marks=pytest.mark.heavy) for name in NETWORKS),
    ],
)
def test_numbers_are_those_stored(name, kinds, verdicts):
    found = numbers(name, kinds, verdicts)
    assert all(found) or "classes" in name
    with np.load(STORED, allow_pickle=False) as stored:
        for numbers_of, most in zip(found, (CLOSE, SEARCHED), strict=True):
            for key, value in numbers_of.items():
                expected = stored[f"{name}/{key}"]
                np.testing.assert_allclose(value, expected, rtol=0, atol=most * np.abs(expected).max(), err_msg=key)


def main():
    known = dict(np.load(STORED, allow_pickle=False)) if STORED.exists() else {}
    for name in sys.argv[1:] or NETWORKS:
        if not any(key.startswith(f"{name}/") for key in known):
            exact, searched = numbers(name)
            known |= {f"{name}/{key}": value for key, value in (exact | searched).items()}
            print(name, *(exact | searched), flush=True)
            np.savez_compressed(STORED, **known)


if __name__ == "__main__":
    main()
