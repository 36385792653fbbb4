"""Checks of a sampler: it draws from reference posteriors, and its draws are graded."""

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import xarray as xr

from bayesattn._util.checks import Checked, entries, positive_integer, probability, seed_number, shown
from bayesattn._util.random import stream
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described
from bayesattn.checks.thresholds import LEVEL
from bayesattn.errors import BayesattnError
from bayesattn.models.interface import from_numpyro, from_vectors
from bayesattn.models.model import Model
from bayesattn.questions.reference.grading import BIASED, CANNOT_TELL, RIGHT, Grade, grade
from bayesattn.questions.reference.posteriors import load
from bayesattn.samplers import sample
from bayesattn.samplers.external import is_kernel, is_pair, require_program

if TYPE_CHECKING:
    import pandas as pd

BY_DEFAULT = ("two_heads", "heavy_tail")
"""References that are used if none is named: one near a normal law, and one with curved, heavy tails."""
ARGUMENTS = ("program", "log_density", "starts", "draws", "key")
"""What a function that makes or runs a sampler can ask for."""


@dataclass(frozen=True, eq=False, repr=False)
class SamplerCheck(Described):
    """A sampler's draws of some reference posteriors, graded.

    Args:
        grades: grade on each reference posterior, by its name.
        seconds: time that the draws took, compilation included, by name.
    """

    grades: Mapping[str, Grade]
    seconds: Mapping[str, float]

    @property
    def verdict(self) -> str:
        """ "biased" if the draws of one posterior are, "right" if those of all are, else "cannot tell"."""
        verdicts = {found.verdict for found in self.grades.values()}
        return next(each for each in (BIASED, CANNOT_TELL, RIGHT) if each in verdicts)

    @property
    def table(self) -> "pd.DataFrame":
        """One row per reference posterior.

        Columns: verdict; quantity, the first of `Grade.suspects`; its bias and error, in posterior standard deviations, and
        z; the smallest p-value of its mean and shares; largest R-hat and smallest effective sample size of all quantities;
        seconds.
        """
        import pandas as pd

        rows = []
        for name, found in self.grades.items():
            worst = found.suspects[0]
            row = found.table.loc[worst]
            rows.append(
                {"verdict": found.verdict, "quantity": worst}
                | {column: row[column] for column in ("bias", "error", "z")}
                | {"p": found.smallest_p[worst], "rhat": found.table["rhat"].max(), "ess": found.table["ess"].min()}
                | {"seconds": self.seconds[name]}
            )
        return pd.DataFrame(rows, index=pd.Index(self.grades, name="reference"))

    def statement(self) -> str:
        """One line for each reference posterior."""
        return "\n".join(f"{name}: {found.statement()}" for name, found in self.grades.items())

    def _described(self) -> tuple[str, dict[str, str]]:
        return f"Sampler: {self.verdict}", {name: found.statement() for name, found in self.grades.items()}


@with_own_settings
def check(
    kernel: object,
    names: str | Sequence[str] | None = None,
    *,
    parameterisation: str = "collapsed",
    chains: int = 4,
    warmup: int = 1000,
    draws: int = 4000,
    level: float = LEVEL,
    seed: int = 0,
) -> SamplerCheck:
    """Does a sampler draw from the right distribution? It runs on reference posteriors, whose truth is known, and is graded.

    Judged are U, f and the energy (`bayesattn.grade`), whatever is drawn. A fault that leaves these as they are, such as in
    the signs of weights that are equivalent, is not seen.

    Args:
        kernel: a sampler as `bayesattn.sample` takes it, a name or a NumPyro kernel, such as `numpyro.infer.NUTS`; or a
            function whose arguments are some of

            - program: the posterior as a NumPyro program without arguments;
            - log_density: its log density, a function of one vector;
            - starts: draws of the prior to start from, shape (chain, coordinate);
            - draws: the number of draws of each chain;
            - key: a JAX random key;

            and which returns a NumPyro kernel; an (init, step) pair, as BlackJAX's algorithms are; a `numpyro.infer.MCMC`
            that has run; or draws, an array of shape (chain, draw, coordinate).
        names: names of reference posteriors, of `bayesattn.reference.names()`; by default two_heads and heavy_tail.
        parameterisation: "collapsed", or "path" for all weights.
        chains: number of chains, at least 2.
        warmup: adaptation steps of each chain; a function that returns draws has its own.
        draws: draws of each chain.
        level: largest probability that a right sampler is called biased, all references together; below 1.
        seed: seed of the draws.

    Returns:
        `.verdict` ("right", "biased" or "cannot tell"), `.statement()`, `.table`, and `.grades` by name.

    Raises:
        ValueError: a kernel of another kind, an unknown name, draws of another shape or that are not finite.
    """
    probability("level", level)
    chains = positive_integer("chains", chains, 2)
    warmup, draws = positive_integer("warmup", warmup), positive_integer("draws", draws)
    seed_number("seed", seed)
    chosen = (names,) if isinstance(names, str) else names
    chosen = BY_DEFAULT if chosen is None else entries("names", chosen, "a list of names of reference posteriors")
    if not chosen:
        raise BayesattnError("names must hold at least one name of a reference posterior, got none")
    if isinstance(kernel, partial) and isinstance(kernel.func, type):
        kernel = _of_program(kernel)
    job = {"chains": chains, "warmup": warmup, "draws": draws, "seed": seed}
    asked, references = _asked(kernel), {name: load(name) for name in chosen}
    grades, seconds = {}, {}
    for name, reference in references.items():
        begun = time.perf_counter()
        tree = _drawn(kernel, asked, reference.model, parameterisation, **job)
        seconds[name] = time.perf_counter() - begun
        grades[name] = grade(tree, name, level=level / len(references))
    return SamplerCheck(grades, seconds)


def _asked(kernel: Checked) -> tuple[str, ...] | None:
    """Names of those arguments of a function that it is given; None of what `bayesattn.sample` takes."""
    if isinstance(kernel, str | type) or is_kernel(kernel) or is_pair(kernel):
        return None
    advice = f"a name, a NumPyro kernel, or a function whose arguments are some of {', '.join(ARGUMENTS)}"
    try:
        parameters = inspect.signature(kernel).parameters.values()
    except (TypeError, ValueError):
        raise BayesattnError(f"kernel must be {advice}, got {shown(kernel)}") from None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    given = tuple(each.name for each in parameters if each.name in ARGUMENTS and each.kind in by_name)
    needed = [each.name for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
    if not given or not {*needed} <= {*given}:
        raise BayesattnError(
            f"kernel must be {advice}, got a function of {', '.join(needed) or 'none of them'}; an algorithm of BlackJAX is"
            " built in one: lambda log_density: blackjax.nuts(log_density, ..)"
        )
    return given


def _of_program(kind: Callable) -> Callable:
    """Function of a program, from a class of kernels with some of its options."""
    return lambda program: kind(program)


def _drawn(
    kernel: Checked, asked: tuple[str, ...] | None, model: Model, parameterisation: str, **job: Any
) -> xr.DataTree:
    """Draws of a reference posterior."""
    found = kernel
    if asked is not None:
        key, start_key = jax.random.split(stream(job["seed"], "check", model.fingerprint))
        given: dict[str, Any] = {"draws": job["draws"], "key": key}
        if "program" in asked:
            given["program"] = model.numpyro(parameterisation)
        if {"log_density", "starts"} & {*asked}:
            density = model.log_density(parameterisation)
            starts = jax.jit(jax.vmap(density.initial))(jax.random.split(start_key, job["chains"]))
            given |= {"log_density": density.function, "starts": starts}
        found = kernel(**{name: given[name] for name in asked})
        if isinstance(found, Mapping) or hasattr(found, "get_samples"):
            return from_numpyro(found, model, parameterisation)
        if is_kernel(found):
            require_program(found, given.get("program"))
        elif not is_pair(found):
            return from_vectors(_array(found), model, parameterisation)
    return sample(model, found, parameterisation, keep=("order_parameter", "prediction"), progress=False, **job)


def _array(found: Checked) -> Checked:
    """Draws that a function returned; raises ValueError for what is none of what it may return."""
    try:
        axes = np.ndim(found)
    except (TypeError, ValueError):  # Parts of different shapes, or keys.
        axes = None
    if axes != 3:
        raise BayesattnError(
            "kernel must return a NumPyro kernel, an (init, step) pair, an MCMC that has run, or draws of shape (chain,"
            f" draw, coordinate), got {shown(found)}"
        )
    return found
