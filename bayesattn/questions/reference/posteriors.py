"""The reference posteriors, and their truths."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from bayesattn._util.checks import one_of
from bayesattn._util.random import digest, rounded
from bayesattn._util.text import Described
from bayesattn.architecture import Architecture
from bayesattn.classes import one_hot
from bayesattn.errors import BayesattnError
from bayesattn.likelihoods import Categorical, Gaussian, Likelihood, Poisson, StudentT
from bayesattn.models.model import Model
from bayesattn.questions.reference.truth import Truth
from bayesattn.tasks.load import load_model

FOLDER = Path(__file__).parent / "truths"
NEW_EXAMPLES = 4
"""Number of test examples that are not training examples."""
PRIOR, PATH = "importance sampling from the prior", "path parameterisation"
"""Independent routes to the truth, besides collapsed chains."""


class Definition(NamedTuple):
    """Recipe of a reference posterior: its network, the sizes of its random data, and the second route to its truth.

    The ready model hidden_markov has a network and data of its own; its entry only describes it.
    """

    about: str
    heads: tuple[int, ...]
    widths: tuple[int, ...]
    likelihood: Likelihood
    examples: int
    features: int = 3
    skips: tuple[float, ...] = ()
    outputs: int = 1
    labels: str = "planted"
    route: str = PRIOR


POSTERIORS = {
    "one_head": Definition("one head, one layer", (1,), (6, 6), Gaussian(0.1), 8),
    "two_heads": Definition("two heads in one layer", (2,), (10, 10), Gaussian(0.1), 8),
    "two_layers": Definition("two layers of two heads, four paths", (2, 2), (10, 10, 10), Gaussian(0.1), 8),
    "three_layers": Definition("three layers, four paths", (2, 1, 2), (6, 5, 4, 6), Gaussian(0.2), 8),
    "narrow": Definition("three paths in layers of widths 2 and 3", (3, 1), (2, 3, 2), Gaussian(0.2), 6),
    "width_one": Definition("three paths of width 1: modes of either sign", (3,), (1, 1), Gaussian(0.2), 6),
    "wide": Definition("widths of 100, near the Gaussian process", (2,), (100, 100), Gaussian(0.1), 8),
    "cold": Definition("T = 0.003: steep in weight space", (2,), (10, 10), Gaussian(0.003), 6),
    "hot": Definition("T = 3: near the prior", (2, 2), (6, 6, 6), Gaussian(3.0), 10),
    "heavy_tail": Definition("three paths of width 2: U has a heavy tail", (3,), (2, 2), Gaussian(0.2), 4, 2),
    "sixteen_paths": Definition("two layers of four heads: more paths than width", (4, 4), (8, 8, 8), Gaussian(0.2), 8),
    "skip": Definition("a skip connection", (2,), (6, 6), Gaussian(0.1), 8, skips=(1.0,)),
    "two_skips": Definition(
        "two skips and outputs, width 2: chains hardly mix", (1, 1), (2, 2, 2), Gaussian(0.1), 5, 2, (1.0, 0.5), 2
    ),
    "three_classes": Definition("three classes", (2,), (6, 4), Categorical(0.3), 6, outputs=3, labels="classes"),
    "outliers": Definition("Student-t likelihood, one outlier", (2,), (6, 6), StudentT(0.5, 5.0), 6, labels="outlier"),
    "counts": Definition("Poisson likelihood", (2,), (6, 6), Poisson(), 6, labels="counts"),
    "hidden_markov": Definition(
        "the built-in task of 100 examples at N = 10", (2, 2), (10, 10, 10), Gaussian(0.01), 100, 231, route=PATH
    ),
    "three_weights": Definition("three weights, for samplers of few dimensions", (1,), (1, 1), Gaussian(0.5), 4, 1),
}
"""Reference posteriors by name."""


@dataclass(frozen=True, eq=False, repr=False)
class Reference(Described):
    """A reference posterior and its truth.

    Args:
        name: name of the reference posterior.
        about: description in a few words.
        model: the posterior; its test examples are the training examples and `NEW_EXAMPLES` more.
        truth: means, standard deviations and quantiles with their errors.
    """

    name: str
    about: str
    model: Model
    truth: Truth

    def _described(self) -> tuple[str, dict[str, str]]:
        truth = self.truth
        return f"Reference posterior {self.name!r}: {self.about}", {
            "quantities": f"{len(truth.names)}, with errors of {100 * truth.largest_error:.2g} % of a deviation or less",
            "routes": f"collapsed chains; {truth.route}, which differs by {truth.agreement.largest:.1f} errors at most"
            f" of {truth.agreement.count} numbers",
            "made by": f"benchmarks/reference_truths.py {self.name}",
        }


def names() -> list[str]:
    """Names of the reference posteriors whose truth is known."""
    return [name for name in POSTERIORS if (FOLDER / f"{name}.npz").exists()]


def load(name: str) -> Reference:
    """Reference posterior of a name.

    Raises ValueError for an unknown name, or if NumPy generates other data from the seed than those of the truth.
    """
    one_of("name of a reference posterior", name, names())
    model, truth = model_of(name), Truth.open(FOLDER / f"{name}.npz")
    if truth.data != data_digest(model):
        raise BayesattnError(
            f"reference posterior {name!r} must have the data of its truth, got other data: this version of"
            " NumPy generates other numbers from the same seed"
        )
    return Reference(name, POSTERIORS[name].about, model, truth)


def data_digest(model: Model) -> str:
    """SHA-256 of the settings and of the data, rounded, because their last digits depend on the processor."""
    return digest(
        model.table() | {"task": None}, *map(rounded, (model.path_inputs, model.labels, model.test_path_inputs))
    )


def model_of(name: str) -> Model:
    """Model of a reference posterior; its test inputs begin with the training inputs."""
    if name == "hidden_markov":
        model = load_model(name, width=10)
        inputs, new = model.path_inputs, model.test_path_inputs[:NEW_EXAMPLES]
        return model.replace(test_path_inputs=np.concatenate([inputs, new]), test_labels=None)
    definition, number = POSTERIORS[name], [*POSTERIORS].index(name)
    rng = np.random.default_rng([46, number])
    arch = Architecture(
        heads=definition.heads,
        widths=definition.widths,
        variances=(1.0,) * (len(definition.heads) + 2),
        skips=definition.skips,
        outputs=definition.outputs,
    )
    test_path_inputs = rng.normal(size=(definition.examples + NEW_EXAMPLES, arch.paths, definition.features))
    path_inputs = test_path_inputs[: definition.examples]
    return Model(
        path_inputs=path_inputs,
        labels=_labels(definition, path_inputs, rng),
        architecture=arch,
        likelihood=definition.likelihood,
        test_path_inputs=test_path_inputs,
        name=name,
    )


def _labels(definition: Definition, path_inputs: Float[np.ndarray, "example path feature"], rng: Any) -> Any:
    """Noisy labels of a planted readout, in which the first path weighs three times as much as every other path."""
    examples, paths, features = path_inputs.shape
    weights = rng.normal(size=(paths, features, definition.outputs)) / np.sqrt(features)
    weights[1:] /= 3
    outputs = np.einsum("epf,pfo->eo", path_inputs, weights) + 0.3 * rng.normal(size=(examples, definition.outputs))
    if definition.labels == "classes":
        return one_hot(outputs.argmax(1)).labels
    labels = outputs[:, 0] if definition.outputs == 1 else outputs
    if definition.labels == "counts":
        return rng.poisson(np.exp(labels)).astype(float)
    if definition.labels == "outlier":
        labels[0] += 2.0
    return labels
