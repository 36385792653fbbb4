"""Settings of a sampling job: sampler and its options, parameterisation, number of draws, and quantities that are kept."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bayesattn._util.checks import one_of, positive_integer, seed_number, shown
from bayesattn._util.plain_values import PlainDict, PlainMapping
from bayesattn.errors import BayesattnError
from bayesattn.models.posterior import Posterior
from bayesattn.models.registry import NAMES, names_where
from bayesattn.samplers import external, hmc, langevin, tempered
from bayesattn.samplers.auto import suited_sampler
from bayesattn.samplers.options import checked_options

SAMPLERS = {"nuts": hmc.Nuts, "hmc": hmc.Hmc, "tempered": tempered.Tempered, **langevin.KERNELS}
AUTO = "auto"
"""Name of the choice by `suited_sampler`."""
BIASED = [name for name, kernel in SAMPLERS.items() if issubclass(kernel, langevin.Unadjusted)]
MINIBATCHED = [name for name, kernel in SAMPLERS.items() if issubclass(kernel, langevin.Sgld)]
WITH_REPLICAS = [name for name, kernel in SAMPLERS.items() if issubclass(kernel, tempered.Tempered)]
"""Samplers whose transition depends on more than the last draw: on replicas that have sampled with the same labels."""
PRESETS = tomllib.loads((Path(__file__).parent / "presets.toml").read_text())
FOREIGN_ARGUMENTS = {
    "num_samples": "draws",
    "iter_sampling": "draws",
    "num_warmup": "warmup",
    "iter_warmup": "warmup",
    "tune": "warmup",
    "num_chains": "chains",
    "rng_key": "seed",
    "random_seed": "seed",
    "thinning": "thin",
    "progress_bar": "progress",
    "progressbar": "progress",
}
"""Arguments of NumPyro, PyMC and Stan, and their names here."""
QUANTITIES = ("order_parameter", "latent", "prediction", "queries_keys", "weights")


@dataclass(frozen=True, kw_only=True)
class Job:
    """All settings that, together with the model, determine the draws.

    Args:
        sampler: "nuts", "hmc", "tempered" or one of the Langevin samplers, see `SAMPLERS`; or a NumPyro kernel, such as
            `numpyro.infer.BarkerMH`, a class or an instance, or an (init, step) pair of BlackJAX's form. A class of
            `numpyro.infer` becomes its name. "auto" is replaced by `for_model`, which every function that samples calls.
        parameterisation: "collapsed", "path" or "token"; "latent" for a LatentModel.
        chains: number of chains.
        warmup: adaptation steps of each chain, discarded.
        draws: draws of each chain after warm-up.
        seed: same seed, same draws.
        keep: quantities of a draw that are kept, among "order_parameter" (or "latent", for a LatentModel),
            "prediction", "queries_keys" (of an AttentionModel) and "weights"; the last two can be large.
        thin: every thin-th draw is kept; divides `draws`.
        chain_method: "parallel" runs chains in threads, "vectorised" in one batch; by default the first on a CPU, the
            second elsewhere.
        options: further options of the sampler, such as {"max_tree_depth": 8}; they override presets.toml.

    Raises:
        ValueError: an unknown name, a sampler that does not support the parameterisation, an invalid count or option.
    """

    sampler: Any = AUTO
    parameterisation: str = "collapsed"
    chains: int = 4
    warmup: int = 500
    draws: int = 1000
    seed: int = 0
    keep: Sequence[str] = ("order_parameter", "latent", "prediction")
    thin: int = 1
    chain_method: str | None = None
    options: PlainMapping = field(default_factory=dict)

    def __post_init__(self):
        put = partial(object.__setattr__, self)
        for name, own in SAMPLERS.items():
            if self.sampler is own:
                put("sampler", name)
            elif type(self.sampler) is own:
                raise BayesattnError(
                    f"sampler must be the name {name!r}, its settings options=, got {own.__name__}(..)"
                )
        kernel = self.kernel
        if kernel is not None and not (isinstance(self.sampler, str) and self.sampler in SAMPLERS):
            put("sampler", external.checked_sampler(kernel))
        one_of("parameterisation", self.parameterisation, NAMES)
        for name, minimum in (("chains", 1), ("warmup", 0), ("draws", 1), ("thin", 1)):
            put(name, positive_integer(name, getattr(self, name), minimum))
        put("seed", seed_number("seed", self.seed))
        if self.draws % self.thin:
            raise BayesattnError(f"thin must divide draws = {self.draws}, got {self.thin}")
        put("keep", _checked_keep(self.keep))
        if self.chain_method is None:
            put("chain_method", "parallel" if jax.default_backend() == "cpu" else "vectorised")
        one_of("chain_method", self.chain_method, ("parallel", "vectorised"))
        if kernel is not None:
            self._complete_options(kernel)

    @property
    def kernel(self) -> Any:
        """The sampler itself: a class of kernels, an instance of one, or an (init, step) pair; None for "auto"."""
        if not isinstance(self.sampler, str):
            return self.sampler
        if self.sampler == AUTO:
            return None
        known = SAMPLERS.get(self.sampler) or external.class_named(self.sampler)
        return known or SAMPLERS[one_of("sampler", self.sampler, [AUTO, *SAMPLERS])]

    @property
    def sampler_name(self) -> str:
        """Name of the sampler; of one without a name, that of its class."""
        return external.name_of(self.sampler)

    @property
    def table(self) -> PlainDict:
        """Settings as plain values."""
        return vars(self) | {"sampler": self.sampler_name}

    def _complete_options(self, kernel: Any) -> None:
        options = checked_options(self.sampler_name, kernel, self.options)
        presets = PRESETS.get(self.sampler_name, {})
        serving = names_where("minibatches")
        if self.sampler in MINIBATCHED and self.parameterisation not in serving:
            raise BayesattnError(
                f"sampler {self.sampler!r} serves parameterisations {', '.join(serving)}, in which labels are independent,"
                f" got {self.parameterisation!r}"
            )
        usual = presets.get(self.parameterisation, {})
        if "num_steps" in options:
            usual = {name: value for name, value in usual.items() if name != "trajectory_length"}
        object.__setattr__(self, "options", usual | options)

    @classmethod
    def of(cls, **settings: Any) -> "Job":
        """Job with these settings; raises ValueError also for an unknown setting."""
        for name in settings:
            if name in FOREIGN_ARGUMENTS:
                raise BayesattnError(f"{FOREIGN_ARGUMENTS[name]}= must be given, as it is called here, got {name}=")
            one_of("setting of a job", name, [each.name for each in fields(cls)])
        return cls(**settings)

    def for_model(self, model: Posterior) -> "Job":
        """This job, with the sampler that suits a model in place of "auto"; raises ValueError if that is no model."""
        if not isinstance(model, Posterior):
            advice = ": bayesattn.load_model makes ready models" if isinstance(model, str) else ""
            raise BayesattnError(f"model must be a bayesattn.Model, got {shown(model)}{advice}")
        return self if self.sampler != AUTO else replace(self, sampler=suited_sampler(model))

    @classmethod
    def restored(cls, table: PlainMapping) -> "Job":
        """Job from stored settings, with the stored options: later changes of the presets do not affect it."""
        job = cls(**table)
        object.__setattr__(job, "options", dict(table.get("options", {})))
        return job

    @property
    def kept(self) -> int:
        """Number of draws kept of each chain."""
        return self.draws // self.thin

    @property
    def draw_numbers(self) -> np.ndarray:
        """Indices, from 0, of the kept draws among all draws of their chain: the last of every `thin`."""
        return np.arange(self.thin - 1, self.draws, self.thin)

    @property
    def transitions(self) -> int:
        """Steps of each chain, warm-up included."""
        return self.warmup + self.draws


def _checked_keep(keep: object) -> tuple[str, ...]:
    """Quantities kept, in the order of `QUANTITIES`; raises ValueError for anything else than a list of some of them."""
    if isinstance(keep, str) or not isinstance(keep, Sequence) or not keep:
        raise BayesattnError(f"keep must be a list of some of {', '.join(QUANTITIES)}, got {shown(keep)}")
    for name in keep:
        one_of("keep", name, QUANTITIES)
    return tuple(name for name in QUANTITIES if name in keep)
