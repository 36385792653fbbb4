"""Results and kept kernels do not depend on JAX's global settings, which other libraries and users change."""

import ast
import contextlib
import pkgutil
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from threadpoolctl import threadpool_info, threadpool_limits

import bayesattn as ba
from bayesattn._util import run_once
from bayesattn._util.blas import one_blas_thread
from bayesattn._util.settings import with_own_settings
from bayesattn.checks import theory_predictions
from bayesattn.checks.theory_predictions import predicted
from bayesattn.questions import exchangeable
from tests.posteriors import tiny_model
from tests.zoo import LIGHT

ROOT = Path(__file__).parents[1]
OTHER_SETTINGS = {
    "float32": {"enable_x64": False},
    "NaN checked": {"debug_nans": True, "debug_infs": True},
    "older random bits": {"threefry_partitionable": False},
    "strict promotion": {"numpy_dtype_promotion": "strict", "numpy_rank_promotion": "raise"},
    "float32 and strict": {"enable_x64": False, "numpy_dtype_promotion": "strict"},
}
NO_NUMBERS_OF_JAX = {
    "bayesattn.checks.accuracy.gain": "counts with NumPy",
    "bayesattn.class_scores.class_accuracy": "counts with NumPy",
    "bayesattn.class_scores.class_scores": "counts with NumPy",
    "bayesattn.questions.exchangeable.sphere.uniform": "takes a NumPy generator",
}
"""Documented functions of modules that import JAX, and why they need no settings."""


@contextlib.contextmanager
def under(settings):
    with contextlib.ExitStack() as stack:
        for name, value in settings.items():
            stack.enter_context(getattr(jax, name)(value))
        yield


@pytest.fixture(scope="module")
def model():
    model = tiny_model(temperature=1e-4)  # Cold: float32 loses most digits.
    return model.replace(test_labels=np.sign(np.arange(len(model.test_path_inputs)) - 1.5))


def results(model):
    """What public functions say of a model: of fresh kernels, in this order."""
    model = model.replace(path_inputs=np.array(model.path_inputs), test_path_inputs=np.array(model.test_path_inputs))
    arch, inputs = model.architecture, np.random.default_rng(0).normal(size=(4, 3, 2))
    keys = inputs / np.linalg.norm(inputs, axis=-1, keepdims=True)
    draws = ba.sample(model, **LIGHT)
    saddle = ba.theory.solve(model)
    u = saddle.order_parameter
    kernel = ba.theory.kernel(u, model.path_inputs, model.path_inputs, arch)
    return {
        "path_inputs": ba.attention.path_inputs(inputs, [inputs[:2, :2]]),
        "matrices": ba.attention.matrices(inputs, [inputs[:2, :2]]),
        "sample": {name: node.to_dataset() for name, node in draws.children.items()},
        "weights": ba.weights(ba.from_vectors(inputs[:1, :2], model), model=model, seed=0),
        "predict": ba.predict(draws, model.test_path_inputs, keep_draws=True, model=model),
        "with_groups": ba.with_groups(draws, prior_draws=5)["prior"].to_dataset(),
        "solve": tuple(saddle),
        "action": ba.theory.action(saddle.order_parameters, model),
        "theory.predict": ba.theory.predict(u, model),
        "kernel": kernel,
        "alignment": ba.theory.alignment(kernel, model.labels),
        "kernel_target_alignment": ba.theory.kernel_target_alignment(kernel, model.labels),
        "gp_order_parameter": ba.theory.gp_order_parameter(arch),
        "gp_evidence": ba.theory.gp_evidence(model),
        "evidence": ba.theory.evidence(model, particles=8),
        "finite_width": tuple(ba.theory.finite_width(model)),
        "predicted": predicted(model),
        "validate": ba.validate(draws, model=model).to_dict(),
        "gp_mean": theory_predictions.gp_mean(model),
        "diagnose": ba.diagnose(draws).to_dict(),
        "cme_attention": exchangeable.cme_attention(keys[0], keys[1], inputs[1], ridge=1e-6, kernel="gaussian"),
        "softmax_attention": exchangeable.softmax_attention(keys[0], keys[1], inputs[1], bandwidth=0.1),
        "cme_covariance": exchangeable.cme_covariance(keys[0], keys[1], noise=0.1, prior=1.0, kernel="linear"),
        "latent_posterior": exchangeable.latent_posterior(keys[0], inputs[0], noise=1e-4, prior=1.0),
        "query_posterior": exchangeable.query_posterior(keys[0], inputs[0], keys[1], noise=1e-4, prior=1.0),
        "gram": exchangeable.gram("exponential", keys[0], keys[1], 0.1),
        "log_evidence": exchangeable.log_evidence(
            exchangeable.gram("linear", keys[0], keys[0]), inputs[0], noise=1e-3, prior=1.0
        ),
    }


def leaves(value):
    if isinstance(value, xr.Dataset):
        value = {name: value[name].values for name in sorted(map(str, value.data_vars))}
    elif not isinstance(value, dict | list | tuple | str) and hasattr(value, "__dataclass_fields__"):
        value = {name: getattr(value, name) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in leaves(part)]
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in leaves(part)]
    return [value]


@pytest.fixture(scope="module")
def usual(model):
    return {name: leaves(value) for name, value in results(model).items()}


@pytest.mark.parametrize("settings", OTHER_SETTINGS.values(), ids=OTHER_SETTINGS)
def test_public_functions_give_the_same_bits_under_other_settings(model, usual, settings):
    with under(settings):
        found = {name: leaves(value) for name, value in results(model).items()}
    for name, expected in usual.items():
        for ours, theirs in zip(found[name], expected, strict=True):
            assert np.asarray(ours).dtype == np.asarray(theirs).dtype, name
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs), err_msg=name)


def test_kernels_made_in_float32_days_are_those_of_float64(model, usual):
    """The same model object is used with the flag off, then with the flag on."""
    fresh = model.replace(path_inputs=np.array(model.path_inputs))
    with jax.enable_x64(False):
        fresh.gaussian_process.features.block_until_ready()
        ba.theory.solve(fresh)
    solution = ba.theory.solve(fresh)
    assert fresh.gaussian_process.features.dtype == np.float64
    np.testing.assert_array_equal(np.asarray(solution.order_parameter), usual["solve"][0])


def documented():
    """Functions that the documentation's reference names, by module file and name."""
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        yield from re.findall(r"^::: (bayesattn\.\S+)$", page.read_text(), re.MULTILINE)


def test_documented_functions_that_use_jax_compute_under_own_settings():
    bare, decorated = [], 0
    for name in documented():
        thing = pkgutil.resolve_name(name)
        if isinstance(thing, type) or not callable(thing):
            continue
        nodes = ast.parse(Path(sys.modules[thing.__module__].__file__).read_text()).body
        imported = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        uses_jax = "jax" in [module.partition(".")[0] for module in imported]
        definition = next(node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == thing.__name__)
        under_settings = any(ast.unparse(each) == "with_own_settings" for each in definition.decorator_list)
        decorated += under_settings
        if uses_jax and not under_settings and name not in NO_NUMBERS_OF_JAX:
            bare.append(name)
    assert not bare
    assert decorated > 30


def blas_threads():
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


def test_public_functions_use_one_thread_of_blas_and_give_back_what_there_was():
    """Also if the first to come is the first to leave."""
    with threadpool_limits(2, user_api="blas"):
        assert with_own_settings(blas_threads)() == {1}
        assert blas_threads() == {2}
        first, second = one_blas_thread(), one_blas_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert blas_threads() == {1}
        second.__exit__(None, None, None)
        assert blas_threads() == {2}


def test_programs_that_run_once_are_the_same_functions(monkeypatch):
    """Compiled without optimisation, with it as with many numbers, and inside another program, which has its own options."""
    function, at = lambda x, power: jnp.sum(jnp.sin(x) ** power), jnp.linspace(0, 1, 7)
    once = run_once.jit_once(function, static_argnames="power")
    found = [once(at, 3), jax.jit(lambda x: once(x, 3))(at), jax.eval_shape(lambda x: once(x, 3), at)]
    monkeypatch.setattr(run_once, "MOST_ENTRIES", 0)
    np.testing.assert_allclose([found[0], found[1], once(at, 3)], np.sum(np.sin(np.linspace(0, 1, 7)) ** 3), rtol=1e-12)
    assert found[2].shape == ()
