"""The latent of exchangeable tokens, as a posterior of its own (EXCHANGEABILITY section 1).

v_i = z phi(k_i) + noise, with noise ~ N(0, sigma^2 I) and entries of z ~ N(0, tau^2). The posterior is known in closed form
(`bayesattn.exchangeable.posterior`); here it is sampled, as any other posterior of this package is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Key

from bayesattn._checks import OwnsArrays, finite_array, owned, positive
from bayesattn._random import fingerprint
from bayesattn._text import Described

Sites = dict[str, Array]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class LatentModel(OwnsArrays, Described):
    """The posterior p(z | tokens); `bayesattn.sample(model, parameterisation="latent")` draws from it.

    Args:
        features: phi(k_i) of shape (n, d_phi).
        values: v_i of shape (n, d_v).
        noise: sigma.
        prior: tau.
        query_features: phi(q) of shape (m, d_phi) at which predictions z phi(q) are wanted.
        name: shown in tables.

    Arrays are copied, and those that a model hands out cannot be written to.

    Raises:
        ValueError: shapes that do not fit, no tokens, entries that are not finite, a noise or prior that is not above 0.
    """

    parameterisations: ClassVar[tuple[str, ...]] = ("latent",)
    posterior_names: ClassVar[tuple[str, ...]] = ("values", "features")
    data_names: ClassVar[tuple[str, ...]] = (*posterior_names, "query_features")
    """Arrays that decide the posterior, and the draws."""

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

    def table(self) -> dict[str, Any]:
        """Settings that, with the arrays, make the model."""
        return {"noise": self.noise, "prior": self.prior}

    def dims(self) -> dict[str, list[str]]:
        """Names of the axes of each variable in ArviZ's groups, without chain and draw."""
        return {
            "latent": ["value_feature", "feature"],
            "prediction": ["query", "value_feature"],
            "values": ["token", "value_feature"],
            "features": ["token", "feature"],
            "query_features": ["query", "feature"],
        }

    def coords(self) -> dict[str, list[str]]:
        """Axes have no names along them."""
        return {}

    def groups(self, tokens: bool = False) -> dict[str, dict[str, np.ndarray]]:
        """ArviZ's observed_data and constant_data."""
        names = ("features", "query_features", "noise", "prior")
        constant = {"fingerprint": fingerprint(self)} | {name: getattr(self, name) for name in names}
        return {
            "observed_data": {"values": self.values},
            "constant_data": {name: np.asarray(value) for name, value in constant.items() if value is not None},
        }

    def about(self, tokens: bool = False) -> dict[str, Any]:
        """What, besides `table` and the arrays of `groups`, makes the model; plain values."""
        return {"name": self.name}

    @classmethod
    def restored(cls, table: Mapping[str, Any], about: Mapping[str, Any], arrays: Mapping[str, Any]) -> "LatentModel":
        """The model of which `table`, `about` and the arrays of `groups` were stored."""
        given = {name: arrays[name] for name in cls.data_names if name in arrays}
        return cls(**given, noise=table["noise"], prior=table["prior"], name=about["name"])


def structure(model: LatentModel) -> tuple[int, int]:
    """Shape (d_v, d_phi) of the latent."""
    return model.values.shape[1], model.features.shape[1]


def options(structure: tuple[int, int]) -> dict[str, Any]:
    """Samplers keep their own."""
    return {}


def prepare(model: LatentModel) -> dict[str, Any]:
    """Nothing has to be computed before sampling begins."""
    return {}


def data(model: LatentModel) -> dict[str, Any]:
    """Arrays that the program conditions on."""
    queries = None if model.query_features is None else jnp.asarray(model.query_features)
    given = {name: jnp.asarray(getattr(model, name)) for name in ("features", "values", "noise", "prior")}
    return given | {"query_features": queries}


def program(structure: tuple[int, int]):
    """NumPyro program of `data`: latent z under its prior, values under the noise."""

    def latent_program(data: dict[str, Any]):
        latent = numpyro.sample("latent", dist.Normal(0.0, data["prior"]).expand(structure).to_event(2))
        mean = data["features"] @ jnp.asarray(latent).T
        numpyro.sample("values", dist.Normal(mean, data["noise"]).to_event(2), obs=data["values"])

    return latent_program


def initial(key: Key[Array, ""], data: dict[str, Any], structure: tuple[int, int]) -> Sites:
    """A draw from the prior."""
    return {"latent": data["prior"] * jax.random.normal(key, structure)}


def quantities(sites: Sites, data: dict[str, Any], structure: tuple[int, int], key: Any) -> Sites:
    """The latent and, where there are queries, z phi(q)."""
    if data["query_features"] is None:
        return dict(sites)
    return dict(sites) | {"prediction": data["query_features"] @ sites["latent"].T}


def network_weights(sites: Sites, data: dict[str, Any], structure: Any, widths: Any, key: Any) -> Sites:
    """There is no network."""
    return {}
