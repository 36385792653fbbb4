"""Pruning of heads: the theory's head scores against the accuracy lost without heads (THEORY sections 5 and 7).

Whatever its weights, a network is linear in its path inputs: f = sum_pi g^pi . xi^pi, with a readout g^pi of each path.
The readouts of a trained network follow from its weights; the readouts of the posterior's mean predictor are means over
the draws of U (`bayesattn.theory.predictor.readouts`). A head is removed by leaving out the paths that use it, without
training or sampling afterwards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy import stats

from bayesattn import theory
from bayesattn._util.checks import Checked, finite_array
from bayesattn._util.plain_values import PlainDict, PlainMapping
from bayesattn._util.settings import with_own_settings
from bayesattn.architecture import Architecture
from bayesattn.errors import BayesattnError
from bayesattn.models import Model
from bayesattn.models.draws import is_tree_or_run, order_parameters_of
from bayesattn.network import path_readouts
from bayesattn.questions.heads.removal import dispensable
from bayesattn.questions.heads.units import heads_of
from bayesattn.theory.predictor import readouts, right

Readout = Float[np.ndarray, "path feature"]
RANDOM_ORDERS = 200
READOUT_DRAWS = 400
"""Number of draws of U over which the mean predictor is averaged."""


@dataclass(frozen=True, eq=False)
class Pruned:
    """Accuracies of a network without some of its heads; heads are listed layer by layer, as in `theory.head_scores`.

    `drops` is the accuracy lost without each single head. `accuracies` maps each order of removal, by scores or by a
    baseline, to the accuracies after 0, 1, .. heads are removed; the last accuracy, without any head, is 0.5
    (guessing). The accuracies of random orders are means.
    """

    accuracy: float
    drops: Float[np.ndarray, " head"]
    accuracies: dict[str, Float[np.ndarray, " removed"]]

    def dispensable(self, order: str) -> int:
        """Number of heads that can be removed, in this order, before more than two points of accuracy are lost."""
        return dispensable(self.accuracies[order], self.accuracy)


def trained_readout(weights: PlainMapping, arch: Architecture) -> Readout:
    """Readout g^pi = V_0^T w^pi / sqrt(N_0 N_1 Pi) of a network with weights returned by `training.train`.

    Weights compacted by `training.compact` contain it as "readout".

    Raises:
        ValueError: missing weights, or weights whose shapes do not fit together.
    """
    if "readout" in weights:
        return finite_array("readout", weights["readout"], (arch.paths, "features"))
    for name in (wanted := ("V_0", *(f"V_{layer}" for layer in range(1, arch.depth + 1)), "a")):
        if name not in weights:
            raise BayesattnError(f"weights must hold {', '.join(wanted)}, got none of the name {name}")
    values, width = {"V_0": finite_array("V_0", weights["V_0"], ("width_1", "features"))}, len(weights["V_0"])
    for layer, heads in enumerate(arch.heads, 1):
        name = f"V_{layer}"
        values[name] = finite_array(name, weights[name], (heads, f"width_{layer + 1}", width))
        width = values[name].shape[1]
    values = {
        name: jnp.asarray(value) for name, value in (values | {"a": finite_array("a", weights["a"], (width,))}).items()
    }
    return np.asarray(path_readouts(values))


def posterior_readout(model: Model, order_parameters: Checked) -> Readout:
    """Readout g^pi of the mean predictor over draws of U.

    Args:
        model: the posterior.
        order_parameters: draws of U, shape (draw, Pi, Pi) (pass a saddle point as shape (1, Pi, Pi)); or the result of
            `bayesattn.sample`, a run or its folder.

    Raises:
        ValueError: draws of another model.
    """
    paths = model.architecture.paths
    if is_tree_or_run(order_parameters):
        order_parameters = order_parameters_of(order_parameters, model).reshape(-1, paths, paths)
    draws = finite_array("order_parameters", order_parameters, ("draws", paths, paths))
    per_draw = readouts(draws, model)
    return np.asarray(jnp.mean(per_draw, axis=0))


def accuracy_without(readout: Readout, model: Model, removed: Sequence[tuple[int, int]]) -> float:
    """Test accuracy of a network without the removed heads."""
    return float(np.mean(right_without(readout, model, removed)))


def right_without(
    readout: Readout, model: Model, removed: Sequence[tuple[int, int]]
) -> Float[np.ndarray, " test_example"]:
    """Score of each test example without the removed heads: 1 if right, 0 if wrong, 1/2 for an output of 0, a guess."""
    assert model.test_path_inputs is not None
    kept = [not any(heads[layer] == head for layer, head in removed) for heads in model.architecture.path_heads()]
    output = np.einsum("epf,pf->e", model.test_path_inputs[:, kept], readout[kept])
    return np.asarray(right(output, model.test_labels), float)


def require_prunable(model: Model) -> None:
    """Raise ValueError unless heads can be scored and removed: Gaussian labels, test examples, one output, no skips."""
    if model.test_path_inputs is None or model.test_labels is None:
        raise BayesattnError("pruning needs test_path_inputs and test_labels, got a model without them")
    if model.architecture.extensions:
        raise BayesattnError(f"pruning is of networks of one output and without skips, got {model.architecture!r}")
    model.require_theory()


@with_own_settings
def prune(readout: Readout, model: Model, scores: Mapping[str, Sequence[np.ndarray]], seed: int = 0) -> Pruned:
    """Remove each head alone, and heads cumulatively in order of increasing scores.

    Args:
        readout: g^pi of a network, by `trained_readout` or `posterior_readout`.
        model: model whose test examples measure the accuracy.
        scores: scores of all heads, layer by layer, by name; the heads with the lowest scores are removed first.
        seed: seed of the random orders.

    Raises:
        ValueError: no test examples and labels, scores that do not fit, several outputs or skips, class labels.
    """
    require_prunable(model)
    arch, heads = model.architecture, heads_of(model.architecture)
    for name, layers in scores.items():
        if tuple(map(len, layers)) != arch.heads:
            raise BayesattnError(
                f"scores[{name!r}] must hold {arch.heads} numbers per layer, got {tuple(map(len, layers))}"
            )
    known: dict[frozenset, float] = {}

    def accuracies(order: Checked) -> np.ndarray:
        removed = [frozenset(order[:count]) for count in range(len(order) + 1)]
        for gone in removed:
            if gone not in known:
                known[gone] = accuracy_without(readout, model, [heads[number] for number in gone])
        return np.array([known[gone] for gone in removed])

    rng, numbers = np.random.default_rng(seed), range(len(heads))
    by_order = {name: accuracies(np.argsort(np.concatenate(layers)).tolist()) for name, layers in scores.items()}
    by_order["random"] = np.mean([accuracies(rng.permutation(numbers).tolist()) for _ in range(RANDOM_ORDERS)], 0)
    full = by_order["random"][0]
    drops = np.array([full - accuracies([number])[1] for number in numbers])
    return Pruned(float(full), drops, by_order)


def value_magnitudes(weights: PlainMapping, arch: Architecture) -> list[np.ndarray]:
    """Baseline scores: norm of the values V_l^h of each head, layer by layer."""
    if "readout" in weights:
        return [np.asarray(weights[f"magnitude_{layer + 1}"]) for layer in range(arch.depth)]
    return [np.linalg.norm(weights[f"V_{layer + 1}"], axis=(1, 2)) for layer in range(arch.depth)]


def rank_correlation(scores: Sequence[np.ndarray], drops: np.ndarray) -> float:
    """Spearman's rank correlation of scores with the accuracy lost without each head; NaN if all losses are equal."""
    if np.ptp(drops) == 0:
        return float("nan")
    return float(np.asarray(stats.spearmanr(np.concatenate(scores), drops))[0])


@dataclass(frozen=True, eq=False)
class Comparison:
    """Scores of all heads by the saddle point and by draws, and the pruned networks "posterior" and "trained"."""

    model: Model
    scores: dict[str, list[np.ndarray]]
    networks: dict[str, Pruned]

    def correlation(self, network: str, score: str) -> float:
        """Spearman's rank correlation of a score with the accuracy that the network loses without each head."""
        return rank_correlation(self.scores[score], self.networks[network].drops)

    def to_dict(self) -> PlainDict:
        """All fields as plain numbers and lists, for JSON."""
        return {
            "temperature": self.model.temperature,
            "heads": heads_of(self.model.architecture),
            "scores": {name: np.concatenate(layers).tolist() for name, layers in self.scores.items()},
            "networks": {
                name: {
                    "accuracy": pruned.accuracy,
                    "drops": pruned.drops.tolist(),
                    "accuracies": {order: values.tolist() for order, values in pruned.accuracies.items()},
                    "dispensable": {order: pruned.dispensable(order) for order in pruned.accuracies},
                    "correlation": {
                        score: None if np.ptp(pruned.drops) == 0 else self.correlation(name, score)
                        for score in self.scores
                    },
                }
                for name, pruned in self.networks.items()
            },
        }


@with_own_settings
def compare(model: Model, order_parameters: Checked, weights: PlainMapping | None = None, seed: int = 0) -> Comparison:
    """Prune the posterior's mean predictor, and a network trained with the same attention, by scores of theory and draws.

    Args:
        model: model with test examples and labels.
        order_parameters: draws of U, shape (chain, draw, Pi, Pi); or the result of `bayesattn.sample`, a run or its folder.
        weights: weights of the trained network, as returned by `training.train`.
        seed: seed of the random orders.

    Raises:
        ValueError: no test examples, shapes that do not fit, draws of another model, several outputs, skips, class labels.
        NotConverged: the saddle point was not found.
    """
    require_prunable(model)
    arch = model.architecture
    draws = order_parameters_of(order_parameters, model)
    saddle = theory.solve(model).order_parameter
    scores = {
        "theory": theory.head_scores(saddle, arch),
        "draws": theory.head_scores(draws.mean((0, 1)), arch),
    }
    flat = draws.reshape(-1, arch.paths, arch.paths)
    chosen = flat[np.linspace(0, len(flat) - 1, min(len(flat), READOUT_DRAWS)).astype(int)]
    networks = {"posterior": prune(posterior_readout(model, chosen), model, scores, seed)}
    if weights is not None:
        magnitude = {"magnitude": value_magnitudes(weights, arch)}
        networks["trained"] = prune(trained_readout(weights, arch), model, scores | magnitude, seed)
    return Comparison(model, scores, networks)
