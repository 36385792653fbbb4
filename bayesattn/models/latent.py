"""Posterior of the latent of exchangeable tokens (EXCHANGEABILITY section 1).

The model is v_i = z phi(k_i) + noise, with noise ~ N(0, sigma^2 I) and entries of z ~ N(0, tau^2). The posterior is known in
closed form (`bayesattn.questions.exchangeable.posterior`); here it is sampled like any other posterior of this package.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, Key

from bayesattn._util.checks import finite_array, owned, positive
from bayesattn._util.plain_values import PlainDict
from bayesattn.models.parameterisation import VECTORS_PER_CHAIN, Parameterisation, Sites
from bayesattn.models.posterior import Posterior


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class LatentModel(Posterior):
    """Posterior p(z | tokens), sampled by `bayesattn.sample(model, parameterisation="latent")`.

    Args:
        features: phi(k_i) of shape (n, d_phi).
        values: v_i of shape (n, d_v).
        noise: sigma, standard deviation of each entry of a value.
        prior: tau, standard deviation of each entry of z.
        query_features: phi(q) of shape (m, d_phi), at which z phi(q) is predicted.
        name: name shown in tables.

    Arrays are copied, and the model's arrays are read-only.

    Raises:
        ValueError: shapes that do not fit, no tokens, entries that are not finite, a noise or prior that is not above 0.
    """

    weight_space: ClassVar[str] = "latent"
    posterior_names: ClassVar[tuple[str, ...]] = ("values", "features")
    data_names: ClassVar[tuple[str, ...]] = (*posterior_names, "query_features")

    features: Any
    values: Any
    noise: float
    prior: float
    query_features: Any = None
    name: str = "latent"

    def __post_init__(self):
        features = finite_array("features", self.features, ("tokens", "features"))
        checked = {
            "features": features,
            "values": finite_array("values", self.values, (len(features), "value_features")),
            "noise": positive("noise", self.noise),
            "prior": positive("prior", self.prior),
        }
        if self.query_features is not None:
            checked["query_features"] = finite_array(
                "query_features", self.query_features, ("queries", features.shape[1])
            )
        for name, value in checked.items():
            object.__setattr__(self, name, owned(value) if isinstance(value, np.ndarray) else value)

    def _described(self) -> tuple[str, dict[str, str]]:
        (tokens, features), queries = self.features.shape, self.query_features
        rows = {
            "tokens": f"{tokens}, with values of {self.values.shape[1]} features"
            + ("" if queries is None else f"; {len(queries)} queries"),
            "latent": f"z of shape {(self.values.shape[1], features)}",
            "noise": f"sigma = {self.noise:g}",
            "prior": f"tau = {self.prior:g}",
        }
        return f"LatentModel {self.name!r}", rows

    def table(self) -> PlainDict:
        """Settings that, together with the arrays, determine the model."""
        return {"noise": self.noise, "prior": self.prior}


class Latent(Parameterisation):
    """Latent z under its prior, values under the noise.

    Args:
        features, values, query_features: arrays of the model, the last one or None.
        noise, prior: sigma and tau.
    """

    features: Float[Array, "token feature"]
    values: Float[Array, "token value_feature"]
    query_features: Float[Array, "query feature"] | None
    noise: Float[Array, ""]
    prior: Float[Array, ""]

    @classmethod
    def of(
        cls, model: LatentModel, *, weights: bool = False, all_examples: bool = False, **prepared: Array | np.ndarray
    ) -> "Latent":
        """Posterior of a model."""
        queries = None if model.query_features is None else jnp.asarray(model.query_features)
        return cls(
            jnp.asarray(model.features),
            jnp.asarray(model.values),
            queries,
            jnp.asarray(model.noise),
            jnp.asarray(model.prior),
        )

    @classmethod
    def bytes_needed(cls, model: LatentModel, chains: int) -> int:
        """Lower bound on the memory in bytes: features, and the vectors of each chain."""
        return 8 * (chains * VECTORS_PER_CHAIN * model.values.shape[1] * model.features.shape[1] + model.features.size)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (d_v, d_phi) of the latent."""
        return self.values.shape[1], self.features.shape[1]

    def program(self) -> None:
        """NumPyro program: the latent, and the values given the latent."""
        latent = numpyro.sample("latent", dist.Normal(0.0, self.prior).expand(self.shape).to_event(2))
        mean = self.features @ jnp.asarray(latent).T
        numpyro.sample("values", dist.Normal(mean, self.noise).to_event(2), obs=self.values)

    def initial(self, key: Key[Array, ""]) -> Sites:
        """Draw from the prior."""
        return self.draw_prior(key)

    def draw_prior(self, key: Key[Array, ""]) -> Sites:
        """Latent drawn from the prior."""
        return {"latent": self.prior * jax.random.normal(key, self.shape)}

    def quantities(self, sites: Sites, key: Key[Array, ""]) -> Sites:
        """Latent z and, if there are queries, z phi(q)."""
        if self.query_features is None:
            return dict(sites)
        return dict(sites) | {"prediction": self.query_features @ sites["latent"].T}
