"""Posterior of a network whose queries and keys have priors too (docs/theory.md, section 9)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from bayesattn import fixed_attention
from bayesattn._util.checks import Checked, entries, is_prior, not_negative, one_of, owned, positive_integer, truth
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.types import LayersOfHeads
from bayesattn.dataset import SequenceDataset
from bayesattn.errors import BayesattnError
from bayesattn.models import hyperpriors
from bayesattn.models.hyperpriors import QUERIES_AND_KEYS
from bayesattn.models.model import Model
from bayesattn.models.network_posterior import (
    NO_FIXED_ATTENTION,
    NetworkPosterior,
    dataset_property,
    listed,
    with_signature,
)
from bayesattn.models.tokens import Tokens

ATTENTION_ON = ("inputs", "hidden")
VALUES = ("linear", "relu", "gelu")


@dataclass(frozen=True, eq=False, repr=False, init=False)
class AttentionModel(NetworkPosterior):
    """Posterior p(all weights | labels) of a network whose queries and keys have Gaussian priors, like its values.

    A head has logits (K x_key).(Q x_query) / sqrt(G), where x are the tokens of the input, as for the pairs (Q, K) of
    `bayesattn.attention.path_inputs`. For fixed queries and keys, `given` returns the posterior as a `bayesattn.Model`.

    Args:
        dataset: training and test sequences (`bayesattn.models.SequenceDataset`); or its fields by name, as follows.
        inputs: training sequences, shape (P, T, N_0).
        labels: Y of shape (P,), or (P, m) for m > 1 outputs.
        heads: H_1..H_L, heads of each layer.
        key_width: G, rows of each Q and K.
        widths: N_1..N_L, N_a; one number if all are equal.
        variances: s_0^2, s_1^2..s_L^2, s_a^2; 1 by default.
        query_variance: s_q^2, prior variance of the entries of all Q, or one for each layer; 0 means uniform attention. It
            may have a prior itself, each layer an independent one.
        key_variance: s_k^2, the same for K.
        temperature: T of the Gaussian likelihood, if no other likelihood is given.
        likelihood: distribution of the labels given the outputs.
        readout: "last", "first" or "mean".
        causal: whether tokens attend to no later tokens.
        mask: shape (P, T), True for tokens and False for padding.
        skips: rho_1..rho_L, strengths of the skip connections.
        outputs: m, the number of outputs.
        architecture: in place of heads, widths, variances, skips and outputs.
        test_inputs: sequences at which to predict, shape (P_test, T_test, N_0).
        test_mask: their mask.
        test_labels: their labels.
        attention_on: input of a layer's logits: "inputs", the tokens x, or "hidden", the layer's own input
            z^{l-1} / sqrt(N_l), as in a transformer.
        values: activation phi of each entry of the values: "linear" (none), "relu" or "gelu".
        values_strength: share alpha of the activation: values are v + alpha (phi(v) - v), with v = V_l^h z / sqrt(N_l).
        watched: indices of the test sequences whose attention is kept with each draw.
        head_names: names of the heads of each layer.
        output_names: names of several outputs, or of the classes -1 and +1 of one.
        name: name shown in tables.
        task: origin of the data, as a [task] of a model file; recorded only.

    Raises:
        ValueError: shapes that do not fit, entries that are not finite, a negative variance, a sequence of padding alone.

    Arrays are copied, and the arrays of a model are read-only.
    """

    dataset_class: ClassVar[type[SequenceDataset]] = SequenceDataset
    weight_space: ClassVar[str] = "token"
    posterior_names: ClassVar[tuple[str, ...]] = ("labels", "inputs", "mask")
    data_names: ClassVar[tuple[str, ...]] = (*posterior_names, "test_inputs", "test_mask", "watched")

    key_width: int
    query_variance: Any = 1.0
    key_variance: Any = 1.0
    readout: str = "last"
    causal: bool = False
    attention_on: str = "inputs"
    values: str = "linear"
    values_strength: float = 1.0
    watched: Sequence[int] | np.ndarray | None = None

    inputs = dataset_property("inputs", "Training sequences, shape (P, T, N_0).")
    mask = dataset_property("mask", "Mask of the training sequences, or None.")
    test_inputs = dataset_property("test_inputs", "Test sequences, or None.")
    test_mask = dataset_property("test_mask", "Mask of the test sequences, or None.")

    def _check(self) -> None:
        put, depth = partial(object.__setattr__, self), self.architecture.depth
        put("key_width", positive_integer("key_width", self.key_width))
        put("query_variance", _by_layer("query_variance", self.query_variance, depth))
        put("key_variance", _by_layer("key_variance", self.key_variance, depth))
        one_of("readout", self.readout, fixed_attention.READOUTS)
        put("causal", truth("causal", self.causal))
        one_of("attention_on", self.attention_on, ATTENTION_ON)
        one_of("values", self.values, VALUES)
        put("values_strength", not_negative("values_strength", self.values_strength))
        put("watched", self._checked_watched(self.watched))
        super()._check()

    def _checked_watched(self, watched: Checked) -> np.ndarray | None:
        """Indices of test sequences, or None if there are none."""
        chosen = () if watched is None else entries("watched", watched, "a list of test sequences, by index")
        if not chosen:
            return None
        if self.test_inputs is None:
            raise BayesattnError("watched need test_inputs, got None for the latter")
        last = self.test_examples - 1
        return owned(np.array([positive_integer(f"watched[{n}]", each, 0, last) for n, each in enumerate(chosen)]))

    @property
    def is_linear(self) -> bool:
        """Whether the network is linear in its values given queries and keys, so that it has path inputs."""
        return self.attention_on == "inputs" and (self.values == "linear" or self.values_strength == 0)

    def require_linear(self, what: str) -> None:
        """Raise ValueError unless the network has path inputs, which `what` needs."""
        if not self.is_linear:
            raise BayesattnError(
                f"{what} needs attention on the inputs and linear values, got attention_on={self.attention_on!r} and"
                f" values={self.values!r}"
            )

    def require_theory(self) -> None:
        """Always raise ValueError, because the theory applies only to networks with fixed attention."""
        raise BayesattnError(NO_FIXED_ATTENTION)

    @property
    def identifying_arrays(self) -> list[np.ndarray]:
        """Labels and sequences, and the mask if there is one."""
        return [array for array in super().identifying_arrays if array is not None]

    @property
    def _of_heads(self) -> PlainDict:
        """Prior variances of queries and of keys, an entry for each layer."""
        return {name: getattr(self, name) for name in QUERIES_AND_KEYS}

    @property
    def _vectors(self) -> PlainDict:
        """Prior variances that may have priors themselves, by name, an entry for each layer."""
        return super()._vectors | self._of_heads

    def table(self) -> PlainDict:
        """Settings that, together with the arrays, determine the posterior."""
        settings: PlainDict = {
            "key_width": self.key_width,
            **{name: None if any(map(is_prior, each)) else list(each) for name, each in self._of_heads.items()},
            "readout": self.readout,
            "causal": self.causal,
        }
        if self.attention_on != "inputs":
            settings["attention_on"] = self.attention_on
        if self.values != "linear":
            settings |= {"values": self.values, "values_strength": self.values_strength}
        return super().table() | {"attention": settings}

    def checked_heads(self, queries_and_keys: LayersOfHeads) -> tuple[Any, ...]:
        """Queries and keys, or bilinear heads, of each layer as arrays; raises ValueError as `given` does."""
        self.require_linear("a model with fixed attention")
        heads, arch = fixed_attention.checked_heads(queries_and_keys, self.features), self.architecture
        counts = tuple(len(layer[0] if isinstance(layer, tuple) else layer) for layer in heads)
        if counts != arch.heads:
            raise BayesattnError(f"queries_and_keys must have {arch.heads} heads per layer, got {counts}")
        return heads

    def given(self, queries_and_keys: LayersOfHeads) -> Model:
        """Model with fixed queries and keys: posterior of values, input projection and readout, which has a theory.

        Args:
            queries_and_keys: for each layer a pair (Q, K), each of shape (H_l, G, N_0), as
                `bayesattn.attention.path_inputs` takes them; or an array of bilinear heads.

        Raises:
            ValueError: other shapes or numbers of heads, a network that is not linear given queries and keys.
        """
        heads, arch = self.checked_heads(queries_and_keys), self.architecture
        skips = [skip > 0 for skip in arch.skips]
        path_inputs = partial(
            fixed_attention.path_inputs, weights=heads, readout=self.readout, causal=self.causal, skips=skips
        )
        test = None if self.test_inputs is None else path_inputs(self.test_inputs, mask=self.test_mask)
        matrices = partial(fixed_attention.matrices, self.inputs, heads, "softmax", self.causal, self.mask)
        return Model(
            path_inputs=path_inputs(self.inputs, mask=self.mask),
            labels=self.labels,
            test_path_inputs=test,
            test_labels=self.test_labels,
            output_names=self.output_names,
            architecture=arch,
            likelihood=self.likelihood,
            head_names=self.head_names,
            tokens=Tokens(self.inputs, matrices, self.readout, self.mask),
            name=self.name,
        )

    def _described(self) -> tuple[str, dict[str, str]]:
        (examples, tokens, features), arch = self.inputs.shape, self.architecture
        test = "" if self.test_inputs is None else f"; {len(self.test_inputs)} to test"
        rows = {
            "examples": f"{examples} of {tokens} tokens and {features} features{test}",
            "heads": f"{arch.layers_text}, queries and keys of width {self.key_width} with prior variances"
            f" {listed(self.query_variance)} and {listed(self.key_variance)}",
            **({} if self.is_linear else {"blocks": self._blocks()}),
            **self._described_network(),
        }
        return f"AttentionModel {self.name!r}", rows

    def _blocks(self) -> str:
        """Settings of attention and values, as text."""
        strength = (
            "" if self.values == "linear" or self.values_strength == 1 else f" of strength {self.values_strength:g}"
        )
        return f"attention on {self.attention_on}, values {self.values}{strength}"


def _by_layer(name: str, value: Checked, depth: int) -> tuple[float, ...]:
    """Variance of each layer, from one number for all layers or one number per layer; or priors in their place."""
    if is_prior(value):
        return (hyperpriors.usable(name, value),) * depth
    if not isinstance(value, Sequence) and np.ndim(value) == 0:
        return (not_negative(name, value),) * depth
    listed = entries(name, value, f"a number, or one for each of {depth} layers")
    if len(listed) != depth:
        raise BayesattnError(f"{name} must be a number, or one for each of {depth} layers, got {len(listed)}")
    named = [(f"{name}[{place}]", each) for place, each in enumerate(listed)]
    return tuple((hyperpriors.usable if is_prior(each) else not_negative)(which, each) for which, each in named)


with_signature(AttentionModel)
