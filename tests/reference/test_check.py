"""Checks of samplers, and the assertion for test suites; what they make of draws is in `test_reference.py`."""

from functools import partial
from types import SimpleNamespace

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import HMC, NUTS
from numpyro.infer.mcmc import MCMCKernel

import bayesattn as ba
from bayesattn.questions.reference import checking
from bayesattn.questions.reference.grading import BIASED, CANNOT_TELL, RIGHT
from bayesattn.testing import assert_right


def normal(starts, draws, key):
    """The law of no posterior."""
    return np.random.default_rng(0).normal(size=(len(starts), draws, starts.shape[1]))


def test_a_wrong_sampler_fails_with_what_is_off():
    assert ba.reference.check(normal, "two_heads", draws=500).verdict == BIASED
    with pytest.raises(AssertionError) as failure:
        assert_right(normal, "two_heads", draws=500)
    title, statement, head, *rows = str(failure.value).splitlines()
    assert title == "the sampler is not shown to be right (biased), seed 0:"
    assert statement.startswith("two_heads: biased: ")
    assert head.split() == ["mean", "truth", "bias", "error", "p", "p", "of", "shares", "ess"]
    assert len(rows) == 4  # The name of the rows, and three quantities.


def test_what_cannot_tell_fails_too():
    """Chains that stay where they start."""

    def stuck(starts, draws):
        return jnp.repeat(starts[:, None], draws, axis=1)

    with pytest.raises(AssertionError, match=r"not shown to be right \(cannot tell\).*\n.*no chain ever moves"):
        assert_right(stuck, "two_heads", draws=500)
    with pytest.raises(ValueError, match=r"arguments must be .*, got drawz; did you mean 'draws'\?"):
        assert_right(stuck, drawz=500)


def test_any_of_several_references_decides(monkeypatch):
    """The level is shared out among them."""
    levels, verdicts = [], iter([RIGHT, BIASED, RIGHT, RIGHT, CANNOT_TELL, RIGHT])

    def graded(tree, name, level):
        levels.append(level)
        return SimpleNamespace(verdict=next(verdicts))

    monkeypatch.setattr(checking, "_drawn", lambda *arguments, **job: None)
    monkeypatch.setattr(checking, "grade", graded)
    names = ["two_heads", "one_head", "narrow"]
    assert ba.reference.check(normal, names, level=0.03).verdict == BIASED
    assert ba.reference.check(normal, names, level=0.03).verdict == CANNOT_TELL
    assert levels == [0.01] * 6


KERNELS = {
    "class": (NUTS, lambda found: found is NUTS),
    "name": ("hmc", lambda found: found == "hmc"),
    "instance": (NUTS(lambda: None, dense_mass=True), lambda found: isinstance(found, NUTS)),
    "of_program": (lambda program: HMC(program), lambda found: isinstance(found, HMC)),
    "partial": (partial(NUTS, dense_mass=True), lambda found: isinstance(found, NUTS)),
    "pair": (
        lambda log_density, starts, key: blackjax.nuts(log_density, 0.3, jnp.ones(starts.shape[1])),
        lambda found: len(found) == 2 and callable(found.step),
    ),
}


@pytest.fixture
def seen(monkeypatch):
    """Arguments of those functions of the check that would draw, or take draws; nothing is graded."""
    seen = []
    for name in ("sample", "from_vectors", "from_numpyro"):
        monkeypatch.setattr(checking, name, lambda *arguments, **job: seen.append((arguments, job)))
    monkeypatch.setattr(checking, "grade", lambda tree, name, level: None)
    return seen


@pytest.mark.parametrize("kind", KERNELS)
def test_kernels_and_pairs_are_run_by_sample(kind, seen):
    (kernel, is_it), job = KERNELS[kind], {"chains": 3, "warmup": 7, "draws": 5, "seed": 9}
    ba.reference.check(kernel, "one_head", parameterisation="path", **job)
    (((model, found, parameterisation), settings),) = seen
    assert model.fingerprint == ba.reference.load("one_head").model.fingerprint
    assert is_it(found)
    assert parameterisation == "path"
    assert job.items() <= settings.items()


def test_arguments_with_defaults_are_given_too(seen):
    """A function has a key for each reference and seed."""
    given = []

    def mine(draws=4000, key=None, *, steps=3):
        given.append((draws, str(jax.random.key_data(key)), steps))
        return np.zeros((4, draws, 2))

    for seed in (0, 1):
        ba.reference.check(mine, ["one_head", "two_heads"], draws=50, seed=seed)
    assert {(draws, steps) for draws, _, steps in given} == {(50, 3)}
    assert len({key for _, key, _ in given}) == 4


class Run:
    """As `numpyro.infer.MCMC` after a run."""

    def get_samples(self):
        return {}


@pytest.mark.parametrize("found", [{"a": 1}, Run()], ids=["sites", "mcmc"])
def test_a_function_may_return_sites_or_what_has_them(found, seen):
    ba.reference.check(lambda draws: found, "one_head", parameterisation="path")
    (((given, _, parameterisation), _),) = seen
    assert given is found
    assert parameterisation == "path"


class Elsewhere(MCMCKernel):
    """A kernel that keeps its program under a name of its own."""

    def __init__(self, model):
        self.mine = model

    def init(self, *arguments):
        raise NotImplementedError

    sample = init


NOT_A_KERNEL = "kernel must be a name, a NumPyro kernel, or a function whose arguments are some of program, log_density"
BUILT_FOR = "kernel must be built for the program .*, got one of "
DRAWS = r"kernel must return a NumPyro kernel, .* draws of shape \(chain, draw, coordinate\), got 3"
REFUSED = [
    (max, {}, NOT_A_KERNEL),
    (3, {}, NOT_A_KERNEL + ".*, got 3"),
    (lambda x: x, {}, NOT_A_KERNEL + ".*, got a function of x; an algorithm of BlackJAX is built in one"),
    (lambda program: NUTS(lambda: None), {}, BUILT_FOR + "another program"),
    (lambda starts: NUTS(potential_fn=jnp.sum), {}, BUILT_FOR + "potential_fn"),
    (NUTS(potential_fn=jnp.sum), {}, "sampler must be built for a program, .*, got one of potential_fn"),
    (
        lambda program: Elsewhere(program),
        {},
        "kernel must keep its program in the attribute _model, .* got .*Elsewhere",
    ),
    (lambda draws: 3, {}, DRAWS),
    (lambda draws: ([1], [2, 3]), {}, "kernel must return a NumPyro kernel"),
    (lambda draws: np.zeros((4, 10, 3)), {}, r"vectors must have shape \(chains, draws, 2\), got \(4, 10, 3\)"),
    ("nutz", {}, "did you mean 'nuts'"),
    ("nuts", {"chains": 1}, "chains must be a whole number of at least 2, got 1"),
    ("nuts", {"level": 1.5}, r"level must be a probability below 1, got 1\.5"),
    ("nuts", {"names": []}, "names must hold at least one name of a reference posterior, got none"),
    ("nuts", {"names": "no_head"}, "name of a reference posterior must be one of"),
]


@pytest.mark.parametrize(("kernel", "settings", "message"), REFUSED)
def test_what_does_not_fit_is_refused(kernel, settings, message):
    with pytest.raises(ValueError, match=message):
        ba.reference.check(kernel, **{"names": "one_head"} | settings)
