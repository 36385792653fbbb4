"""Which training examples carry a prediction, a head, an uncertainty: derivatives of posterior means by their weights.

Give example i the weight beta_i in the log likelihood, 1 in the posterior and 0 if it is left out. Then

    d E[q] / d beta_i = Cov(q, l_i),   l_i = log p(Y_i | w),

under the posterior (Giordano and Broderick 2023; Bayesian influence functions, Kreer et al. 2025, and susceptibilities,
Baker et al. 2025, are such covariances). With Gaussian labels, the covariance given U is in closed form, and only U is
averaged over draws; with other likelihoods the outputs are averaged too.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from bayesattn._util.checks import Checked, entries, labels_array, one_of, require_memory, seed_number, shown
from bayesattn._util.random import stream
from bayesattn._util.settings import with_own_settings
from bayesattn.errors import BayesattnError
from bayesattn.likelihoods import require_by_example
from bayesattn.models.arviz import axes, axis_names
from bayesattn.models.conditional import conditional_of, new_inputs
from bayesattn.models.draws import Draws, opened_with_network
from bayesattn.models.given_draw import Conditional, Examples
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.over_draws import by_draw, variables_of
from bayesattn.questions.heads.units import exchangeability_note, units_of
from bayesattn.questions.influence.covariances import Estimate, Given, Posterior, covariances
from bayesattn.questions.influence.groups import members_of
from bayesattn.questions.influence.left_out import LeftOut, left_out

if TYPE_CHECKING:
    import xarray as xr

OF = ("outputs", "losses", "order_parameter", "head_scores", "left_out")
"""What can be asked for."""
ALSO = {"scores": "head_scores"}
MOST_DRAWS = 500
"""Draws that are used unless `thin` is given."""
ARGUMENTS = ("order_parameter", "outputs")
"""What a quantity of a user's own can be a function of."""
AXES = ("example", "other_example", "test_example", "output", "path", "layer_head", "group")
RESERVED = (*OF, *AXES, "log_likelihoods", "pareto_k", "refitted")
"""Names that quantities of a user's own cannot have."""


@with_own_settings
def influence(
    draws: Draws,
    of: Sequence[str] | None = None,
    *,
    groups: Checked = None,
    quantities: Mapping[str, Callable[..., Any]] | None = None,
    new_path_inputs: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    examples: tuple[ArrayLike, ArrayLike] | None = None,
    refit: bool = True,
    thin: int | None = None,
    model: NetworkPosterior | None = None,
    seed: int = 0,
) -> "xr.Dataset":
    """Influence of each training example on the posterior: derivatives by its weight in the log likelihood.

    The derivative of a posterior mean E[q] by the weight of example i is Cov(q, log p(Y_i | w)) under the posterior
    (THEORY section 10). Leaving the example out takes its weight from 1 to 0, which changes E[q] by minus the
    influence, to first order; "left_out" is the change itself.

    - outputs (test_example, example): of the mean of f at the test inputs, or at `new_path_inputs`.
    - losses (example, other_example): of the mean of the loss -log p(Y_i | w) of each training example; negative on the
      diagonal, because an example of more weight is fitted better.
    - order_parameter (path, example): of the mean of U's diagonal.
    - head_scores (layer_head, example): of the mean score of each head (`bayesattn.heads`).
    - left_out: of the mean of f at the same inputs, the change if an example is left out: outputs_left_out
      (test_example, example), accuracy_left_out and log_score_left_out (example) where labels of the test inputs are known,
      pareto_k (example) of the weights that draws get, and refitted (example), whether the posterior without the example
      was sampled because Pareto k is above 0.7.

    Influences, and outputs_left_out, have their Monte Carlo standard error beside them, in a variable whose name ends in
    "_error", from means over batches of neighbouring draws; NaN with fewer than four batches. With more than 500 examples,
    what varies given a draw is of every other draw. With several outputs, outputs have a further axis "output". The result's
    `.influence.table()` lists the examples that a prediction rests on; of a dataset that was read from a file, once
    `bayesattn.questions.influence` is imported.

    Args:
        draws: result of `bayesattn.sample`, a `bayesattn.runs.Run`, or a run's folder.
        of: names from the list above; by default outputs, if the model has test inputs, and losses.
        groups: examples whose influence is added up: a class or source for each example, shape (P,), or a dictionary of
            lists of examples by name. The last axis is then "group"; left_out is of single examples always.
        quantities: further functions by name, of one argument called `order_parameter`, a U of shape (row, row), or
            `outputs`, f at the test inputs of shape (test_example,) or (test_example, output). They return a number or an
            array. Functions of f are of drawn f, and have a larger Monte Carlo error.
        new_path_inputs: inputs in place of the test inputs, as for `bayesattn.predict`.
        mask: mask of `new_path_inputs` where these are token sequences.
        examples: inputs and labels of examples in place of those of training, and the mask of padded sequences. A
            compressed dataset, which holds no single examples, needs them. The influence of an example that is not in the
            data is that of adding it.
        refit: whether "left_out" samples the posterior without each example whose Pareto k is above 0.7, which takes
            about as long as `bayesattn.sample` each.
        thin: use every thin-th draw; by default as many as leave about 500 draws of all chains.
        model: model of the draws, if they do not record it.
        seed: seed of draws of f, and of posteriors that are sampled.

    Returns:
        Dataset with a variable for each name, and its error.

    Raises:
        ValueError: another name; outputs of a model without test inputs; a compressed dataset without examples; examples,
            groups or inputs that do not fit; draws as for `bayesattn.predict`.
        RunError: a folder that is not a readable run.
    """
    seed_number("seed", seed)
    options = {"new_path_inputs": new_path_inputs, "mask": mask, "examples": examples, "groups": groups, "thin": thin}
    chosen = _names(of)
    model, whole, names = posterior_of(draws, model, **options, leaves_out="left_out" in chosen)
    has_inputs = new_path_inputs is not None or _has_test(model)
    functions = _functions(quantities, has_inputs)
    for name in ("outputs", "left_out") if not has_inputs else ():
        if name in chosen and of is not None:
            raise BayesattnError(f"of={name!r} needs a model with test inputs, or new_path_inputs, got neither")
    chosen = chosen if has_inputs else tuple(name for name in chosen if name != "outputs")
    if "left_out" in chosen:
        require_by_example(model.reference.likelihood, np.asarray(model.labels), "examples left out")
    given = whole.given()
    if not all(np.isfinite(each).all() for each in given):
        raise FloatingPointError(
            "a log likelihood or an output is not finite: labels may be too large, or K + T I of a draw singular in float64"
        )
    count = given.log_likelihoods.shape[1]
    if "losses" in chosen:
        last = count if names is None else len(names)
        require_memory("influences on losses", 4 * 8 * count * last, "give groups, or fewer examples")
    if "left_out" in chosen:
        # Sums over draws, and what one draw adds to them.
        require_memory("examples left out", 12 * 8 * count * given.outputs[0].size, "ask for fewer new_path_inputs")
    asked: dict[str, np.ndarray] = {}
    if "outputs" in chosen:
        asked["outputs"] = given.outputs
    if "losses" in chosen:
        asked["log_likelihoods"] = given.log_likelihoods
    order_parameters = whole.draws["order_parameter"]
    if "order_parameter" in chosen:
        asked["order_parameter"] = np.diagonal(order_parameters, axis1=1, axis2=2)
    if "head_scores" in chosen:
        asked["head_scores"] = units_of(model).scores(order_parameters, model.architecture)
    for name, function in functions["order_parameter"].items():
        asked[name] = _values(name, function, order_parameters)
    found = covariances(whole, given, asked)
    if functions["outputs"]:
        found |= _of_drawn_outputs(model, whole, functions["outputs"], seed)
    if "log_likelihoods" in found:
        value, error = found.pop("log_likelihoods")
        found["losses"] = Estimate(-value, error)
    out = None
    if "left_out" in chosen:
        labels = model.test_labels if new_path_inputs is None else None
        out = left_out(model, whole, given, None if labels is None else np.asarray(labels), refit, seed)
    return _dataset(model, found, out, names)


def posterior_of(
    draws: Draws,
    model: NetworkPosterior | None,
    *,
    groups: Checked = None,
    new_path_inputs: Checked = None,
    mask: Checked = None,
    examples: Checked = None,
    thin: Checked = None,
    leaves_out: bool = False,
) -> tuple[NetworkPosterior, Posterior, list[str] | None]:
    """Model of draws, its posterior with every thin-th draw, and names of the groups; arguments as for `influence`."""
    model, tree = opened_with_network(draws, model)
    inputs, chosen = _inputs(model, new_path_inputs, mask), _examples(model, examples, leaves_out)
    conditional = conditional_of(model)
    conditional = conditional if examples is None else conditional.compressed(model.architecture)
    sizes = tree["posterior"].to_dataset().sizes
    thin = max(1, -(-sizes["chain"] * sizes["draw"] // MOST_DRAWS)) if thin is None else thin
    drawn = variables_of(tree, model, conditional.variables, thin)
    names, members = members_of(groups, model.examples if chosen is None else len(chosen[1]))
    flat = {name: values.reshape(-1, *values.shape[2:]) for name, values in drawn.items()}
    chains = len(drawn["order_parameter"])
    return (
        model,
        Posterior(conditional, flat, chains, inputs, chosen, None if members is None else jnp.asarray(members)),
        names,
    )


def _names(of: Checked) -> tuple[str, ...]:
    """Names of what is asked for, checked."""
    if of is None:
        return ("outputs", "losses")
    names = (of,) if isinstance(of, str) else entries("of", of, f"a list of some of {', '.join(OF)}")
    if not names:
        raise BayesattnError(f"of must name at least one of {', '.join(OF)}, got none")
    return tuple(one_of("of", ALSO.get(name, name) if isinstance(name, str) else name, OF) for name in names)


def _functions(quantities: Checked, has_inputs: bool) -> dict[str, dict[str, Callable[..., Any]]]:
    """Functions by name, by what they are functions of."""
    functions: dict[str, dict[str, Callable[..., Any]]] = {name: {} for name in ARGUMENTS}
    if quantities is None:
        return functions
    if not isinstance(quantities, Mapping):
        raise BayesattnError(f"quantities must be a dictionary of functions by name, got {shown(quantities)}")
    for name, function in quantities.items():
        arguments: list[str] = []
        with suppress(TypeError, ValueError):  # Neither a function nor one whose arguments have names.
            arguments = [*inspect.signature(function).parameters]
        if len(arguments) != 1 or arguments[0] not in ARGUMENTS:
            raise BayesattnError(
                f"quantities[{name!r}] must be a function of one argument called order_parameter or outputs, got"
                f" {shown(function) if not arguments else 'one of ' + ', '.join(arguments)}"
            )
        if arguments[0] == "outputs" and not has_inputs:
            raise BayesattnError(
                f"quantities[{name!r}] needs a model with test inputs, or new_path_inputs, got neither"
            )
        if name in RESERVED or str(name).endswith(("_error", "_left_out")):
            raise BayesattnError(f"quantities must have names of their own, got {name!r}")
        functions[arguments[0]][name] = function
    return functions


def _values(name: str, function: Callable[..., Any], drawn: np.ndarray) -> np.ndarray:
    """Values of a function of a user's own of each draw, which it may change."""
    values = [function(each.copy()) for each in drawn]
    try:
        found = np.asarray(values, float)
    except (TypeError, ValueError):
        found = np.array(np.nan)
    if not np.isfinite(found).all():
        raise BayesattnError(
            f"quantities[{name!r}] must return finite real numbers of one shape for all draws, got {shown(values[0])}, .."
        )
    return found


def _own(model: NetworkPosterior, prefix: str = "") -> tuple[Any, Any]:
    """Training inputs and their mask, or those of test; None where there are none."""
    return getattr(model, f"{prefix}{type(model).posterior_names[1]}"), getattr(model, f"{prefix}mask", None)


def _inputs(model: NetworkPosterior, new: Checked, mask: Checked) -> Any:
    """Inputs at which f is wanted: new ones, or those of test; one of training stands for them if there are none."""
    if new is not None:
        return new_inputs(model, new, mask)
    if mask is not None:
        raise BayesattnError("mask must be None without new_path_inputs, got one")
    if _has_test(model):
        return new_inputs(model, *_own(model, "test_"))
    return new_inputs(model, *_own(model))[np.arange(1)]


def _has_test(model: NetworkPosterior) -> bool:
    return _own(model, "test_")[0] is not None


def _examples(model: NetworkPosterior, examples: Checked, leaves_out: bool) -> Examples | None:
    """Examples in place of those of training, checked."""
    compressed = getattr(model, "compressed", None) is not None
    if leaves_out and (compressed or examples is not None):
        got = "a compressed dataset, which holds none" if compressed else "examples=, which stand in place of them"
        raise BayesattnError(f"of='left_out' leaves out single examples of training, got {got}")
    if examples is None:
        if compressed:
            raise BayesattnError(
                "examples must be path inputs and labels for a compressed dataset, which holds no single examples, got None"
            )
        return None
    if not isinstance(examples, tuple | list) or len(examples) not in (2, 3):
        raise BayesattnError(
            f"examples must be inputs and labels, and the mask of padded sequences, got {shown(examples)}"
        )
    if len(examples) == 2 and getattr(model, "mask", None) is not None:
        raise BayesattnError("examples must be inputs, labels and a mask for a model with a mask, got no mask")
    values, labels, mask = (*examples, None)[:3]
    inputs = new_inputs(model, values, mask, "inputs of examples")
    labels = labels_array("labels of examples", labels, len(inputs), model.architecture.outputs)
    model.reference.likelihood.check_labels("labels of examples", labels)
    require_by_example(model.reference.likelihood, labels, "influences of examples")
    return inputs, jnp.asarray(labels)


def _of_drawn_outputs(
    model: NetworkPosterior, posterior: Posterior, functions: Mapping[str, Callable[..., Any]], seed: int
) -> dict[str, Estimate]:
    """Influences on functions of f, from one joint draw of f for each draw."""
    examples = posterior.examples
    if examples is None:
        examples = new_inputs(model, *_own(model)), jnp.asarray(model.labels)
    keys = jax.random.split(stream(seed, "influence", model.fingerprint), len(posterior.draws["order_parameter"]))
    drawn = partial(_drawn, posterior.conditional, inputs=posterior.inputs, examples=examples)
    log_likelihoods, outputs = by_draw(lambda part: drawn(*part), (dict(posterior.draws), keys), "draws of f")
    asked = {name: _values(name, function, outputs) for name, function in functions.items()}
    return covariances(posterior, Given(log_likelihoods, outputs), asked)


@jax.jit
def _drawn(conditional: Conditional, draws, keys, inputs, examples):
    """Log likelihoods of examples and f at inputs, by one draw of the readout, which the key determines."""

    def of_draw(pair):
        draw, key = pair
        own, of_inputs = (conditional.outputs(draw, each, key)[2] for each in (examples[0], inputs))
        assert own is not None
        return conditional.log_prob(draw, own, examples[1]), of_inputs

    return jax.lax.map(of_draw, (draws, keys))


def _dataset(
    model: NetworkPosterior, found: Mapping[str, Estimate], out: LeftOut | None, groups: list[str] | None
) -> "xr.Dataset":
    """Estimates as named arrays."""
    import xarray

    last = "example" if groups is None else "group"
    own = axes(model)
    leading = {
        "outputs": own["prediction"],
        "losses": ["example"],
        "order_parameter": ["path"],
        "head_scores": ["layer_head"],
    }
    variables: dict[str, Any] = {}
    for name, (value, error) in found.items():
        dims = leading.get(name, [f"{name}_{axis}" for axis in range(value.ndim - 1)])
        ending = "other_example" if name == "losses" and groups is None else last
        variables |= {name: ([*dims, ending], value), f"{name}_error": ([*dims, ending], error)}
    if out is not None:
        dims = [*own["prediction"], "example"]
        variables |= {"outputs_left_out": (dims, out.outputs), "outputs_left_out_error": (dims, out.outputs_error)}
        variables |= {
            name: (["example"], value)
            for name, value in (
                ("accuracy_left_out", out.accuracy),
                ("log_score_left_out", out.log_score),
                ("pareto_k", out.pareto_k),
                ("refitted", out.refitted),
            )
            if value is not None
        }
    names = {name: list(values) for name, values in axis_names(model).items() if name in ("path", "output")}
    names |= {"layer_head": [f"{layer}: {head}" for layer, head in units_of(model).names], "group": groups}
    used = {dim for dims, _ in variables.values() for dim in dims}
    coords = {name: values for name, values in names.items() if name in used and values is not None}
    kinds = [of for axis, of in (("path", "paths"), ("layer_head", "heads")) if axis in used]
    note = next(filter(None, (exchangeability_note(model, units_of(model, of)) for of in kinds)), "")
    return xarray.Dataset(
        variables, coords, {"model": f"{model.name}, {model.size}"} | ({"note": note} if note else {})
    )
