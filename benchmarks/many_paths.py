"""Effective sample sizes of the ten greatest diagonal entries of U: 144 paths, P = 1000, N_0 = 64, N = 10, T = 0.1.

Run with `uv run python benchmarks/many_paths.py planted 1400 1 adjusted_mclmc`: labels, draws of each of
two chains, seed, sampler; half an hour to an hour and a half.
Path inputs are independent normal numbers. Labels "planted" are the sign of a linear function of the inputs of ten paths,
the same function of each but for its size and sign; labels "random" are independent of the inputs, and fitted all the same.
"""

import sys
import time

import arviz_stats
import numpy as np
import xarray as xr

import bayesattn as ba

HEADS, EXAMPLES, FEATURES, WIDTH, STRONG = 12, 1000, 64, 10, 10
CHAINS, WARMUP = 2, 100
OPTIONS = {"hmc": {"num_steps": 24}, "adjusted_mclmc": {"length": 2.9, "step_size": 10.0}}
"""Of each sampler; the search for a step size begins at the one that is given."""


def model_of(labels: str, seed: int) -> ba.Model:
    """The posterior, for labels "planted" or "random"."""
    rng = np.random.default_rng(seed)
    path_inputs = rng.standard_normal((EXAMPLES, HEADS**2, FEATURES))
    strong = rng.choice(HEADS**2, STRONG, replace=False)
    sizes = rng.choice([-1, 1], STRONG) * rng.uniform(0.6, 1.6, STRONG)
    signs = {
        "planted": np.sign(path_inputs[:, strong] @ rng.standard_normal(FEATURES) @ sizes),
        "random": rng.choice([-1.0, 1.0], EXAMPLES),
    }
    arch = ba.Architecture((HEADS,) * 2, (WIDTH,) * 3, (1.0,) * 4)
    return ba.Model(path_inputs=path_inputs, labels=signs[labels], architecture=arch, temperature=0.1)


def main(labels: str, draws: int, seed: int, sampler: str) -> None:
    """Print what was drawn in what time."""
    model, began = model_of(labels, seed), time.perf_counter()
    settings = {"chains": CHAINS, "warmup": WARMUP, "draws": draws, "seed": seed, "options": OPTIONS[sampler]}
    tree = ba.sample(model, sampler, keep=("order_parameter",), **settings)
    minutes = (time.perf_counter() - began) / 60
    entries = xr.DataArray(np.einsum("cdpp->cdp", tree["posterior"]["order_parameter"]), dims=("chain", "draw", "path"))
    greatest = entries[..., np.argsort(-entries.mean(("chain", "draw")).values)[:10]]
    effective = arviz_stats.ess(greatest).values
    statistics = tree["sample_stats"].to_dataset().mean()
    print(f"{minutes:.1f} minutes, preparation and {WARMUP} steps of warm-up included; {CHAINS} x {draws} draws")
    print("U", " ".join(f"{value:.2f}" for value in greatest.mean(("chain", "draw")).values))
    print("effective sample size", " ".join(f"{value:.0f}" for value in effective))
    least, rhat = arviz_stats.ess(entries).values.min(), arviz_stats.rhat(greatest).values.max()
    print(f"all 144: least {least:.0f}; R-hat of the ten {rhat:.3f}")
    print(f"gradients a draw {statistics['n_steps']:.0f}, acceptance {statistics['acceptance_rate']:.2f}", end="")
    print(f", step size {statistics['step_size']:.3f}, divergent {statistics['diverging']:.3f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
