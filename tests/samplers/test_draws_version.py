"""Draws of short chains, stored: while they are the same, DRAWS_VERSIONS stay, and runs that were begun before go on.

uv run python -m tests.samplers.test_draws_version hmc   # stores those of HMC anew, after its version was raised
"""

import sys
from pathlib import Path

import numpy as np
import pytest

import bayesattn as ba
from bayesattn import tasks
from bayesattn.models import LatentModel
from bayesattn.samplers import DRAWS_VERSIONS, SAMPLERS
from reproductions.compiled import compile_quickly
from tests.conftest import SHIFT

STORED = Path(__file__).parents[1] / "data" / "draws.npz"
CLOSE = 1e-6
"""Relative deviation that rounding makes, which short chains enlarge."""
STEPS = {"options": {"steps": 2}}
SETTINGS = {
    "tempered": {"options": {"replicas": 2, "target_accept_prob": 0.8}},
    "sgld": {"options": {"steps": 2, "minibatch": 3}},
    **dict.fromkeys(("mala", "barker", "underdamped", "mclmc", "ula"), STEPS),
}
PAIRS = [
    *(("nuts", name) for name in ("collapsed", "path", "token", "latent")),
    *((sampler, "collapsed") for sampler in ("hmc", "tempered", "adjusted_mclmc")),
    *((sampler, "path") for sampler in SAMPLERS if sampler not in ("nuts", "hmc", "tempered")),
]
FAST = [("nuts", "collapsed"), ("nuts", "token"), ("mala", "path"), ("sgld", "path")]
"""Of HMC, tests/test_numbers.py has stored draws."""


def exact_model():
    """A model whose path inputs are means of four whole numbers: no compiler rounds them, and with them random keys."""
    rng = np.random.default_rng(5)
    data = tasks.TokenDataset(
        inputs=rng.integers(-3, 4, size=(6, 4, 3)).astype(float),
        labels=1.5 * rng.choice([-1.0, 1.0], size=6),
        test_inputs=rng.integers(-3, 4, size=(3, 4, 3)).astype(float),
        test_labels=np.array([1.0, -1.0, 1.0]),
        weights=[np.zeros((1, 3, 3))],
        head_names=(("head",),),
        path_groups={},
    )
    return ba.Model.from_tokens(data, (3, 4), (1.2, 0.9, 1.1), 0.5)


def draws_of(sampler, parameterisation):
    model = exact_model()
    if parameterisation == "latent":
        rng = np.random.default_rng(0)
        model = LatentModel(features=rng.normal(size=(4, 2)), values=rng.normal(size=(4, 1)), noise=0.5, prior=1.0)
    job = {"chains": 2, "warmup": 4, "draws": 3, "seed": 3, "chain_method": "parallel", "progress": False}
    tree = ba.sample(model, sampler, parameterisation, **job, **SETTINGS.get(sampler, {}))
    return {name: values.values for name, values in tree["posterior"].data_vars.items()}


@pytest.mark.skipif(bool(SHIFT), reason="stored draws are of the seeds themselves")
@pytest.mark.parametrize(
    ("sampler", "parameterisation"),
    [pytest.param(*pair, marks=[pytest.mark.heavy] * (pair not in FAST)) for pair in PAIRS],
)
def test_draws_are_those_of_this_version(sampler, parameterisation):
    with np.load(STORED, allow_pickle=False) as stored:
        assert stored[f"{sampler} version"] == DRAWS_VERSIONS[sampler], "the version was raised: store these draws anew"
        for name, values in draws_of(sampler, parameterisation).items():
            expected = stored[f"{sampler} {parameterisation} {name}"]
            same = values.shape == expected.shape and np.abs(values - expected).max() <= CLOSE * np.abs(expected).max()
            assert same, f"draws of {name} have changed: if they are meant to, raise their version and store them anew"


def main():
    compile_quickly(0)  # As the fast tests do.
    with np.load(STORED, allow_pickle=False) as stored:
        arrays = {name: values for name, values in stored.items() if name.split()[0] not in sys.argv[1:]}
    for sampler, parameterisation in PAIRS:
        if sampler in sys.argv[1:]:
            arrays[f"{sampler} version"] = DRAWS_VERSIONS[sampler]
            arrays |= {f"{sampler} {parameterisation} {n}": v for n, v in draws_of(sampler, parameterisation).items()}
    np.savez_compressed(STORED, **arrays)


if __name__ == "__main__":
    main()
