"""Alignment of the kernel with the labels, at finite width and in the GP limit."""

import dataclasses
from dataclasses import dataclass

import arviz_stats
import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from bayesattn import theory
from bayesattn._util.checks import Checked
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.settings import with_own_settings
from bayesattn._util.slow_loops import watched
from bayesattn._util.text import rounded, with_error
from bayesattn.checks.accuracy import Outcome, outcome_of, plain_values
from bayesattn.checks.mixing import FEWEST_DRAWS
from bayesattn.checks.theory_predictions import gp_of_group
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.models import Model
from bayesattn.models.draws import order_parameters_of
from bayesattn.theory.arguments import gaussian_density

MOST_ALIGNED_LABELS = 2000
ALIGNED_DRAWS = 100
"""Number of draws of U at which the alignment is computed: each needs the eigenvectors of a matrix of P rows."""
ALIGNED_EIGENVECTORS = 100
ROUNDING = 1e-12
"""Relative difference of two alignments that is rounding."""


@dataclass(frozen=True, eq=False)
class Alignment:
    """Alignment of the kernel with the labels: over draws of U with its Monte Carlo error, by theory, and in the GP limit.

    The numbers are kernel-target alignments (`theory.kernel_target_alignment`). Y is spread over several of the leading
    eigenvectors, whose order changes from draw to draw; the kernel-target alignment includes all of them, weighted by their
    eigenvalues. `eigenvectors`, `eigenvectors_error` and `gp_eigenvectors` are the alignments |u_k . Y| / |Y| of the leading
    eigenvectors (`theory.alignment`): mean and Monte Carlo error over the draws, and in the GP limit.
    """

    draws: float
    error: float
    theory: float
    gp: float
    eigenvectors: Float[np.ndarray, " eigenvector"]
    eigenvectors_error: Float[np.ndarray, " eigenvector"]
    gp_eigenvectors: Float[np.ndarray, " eigenvector"]

    @property
    def outcome(self) -> Outcome:
        """Whether the alignment is higher or lower than in the GP limit, at a level of 1 %.

        With one path the kernel has one direction, and draws differ from the limit by rounding alone.
        """
        if abs(self.draws - self.gp) <= ROUNDING * abs(self.gp):
            return "cannot tell"
        return outcome_of(self.draws - self.gp, self.error)

    def verdict(self) -> str:
        """Outcome in words, with its error."""
        words = {"higher": "is higher than", "lower": "is lower than", "cannot tell": "cannot be distinguished from"}
        return (
            f"kernel-target alignment {with_error(self.draws, self.error)} {words[self.outcome]}"
            f" {rounded(self.gp, self.error)} in the GP limit"
        )

    def to_dict(self) -> PlainDict:
        """All fields as plain numbers and lists, for JSON."""
        return plain_values(dataclasses.asdict(self) | {"outcome": self.outcome})


@with_own_settings
def why_unaligned(labels: Checked, compressed: bool) -> str:
    """Reason why a kernel gets no alignment with the labels of a dataset, or of a compressed one; empty if it gets one."""
    if compressed:
        return "the dataset holds no single examples"
    if np.size(labels) > MOST_ALIGNED_LABELS:
        return f"more than {MOST_ALIGNED_LABELS} labels"
    return "" if np.any(labels) else "all labels are 0"


def alignment_over_draws(
    model: Model, saddle: Float[np.ndarray | Array, "path path"], order_parameters: Checked
) -> Alignment | None:
    """Alignment of the kernel with the labels, at finite width and in the GP limit; None if it is not available.

    Labels that are all zero have no alignment. The alignment is not computed for a compressed dataset, whose kernel is that
    of other examples. Nor is it computed for more than `MOST_ALIGNED_LABELS` labels, because each draw needs the
    eigenvectors of its kernel.

    Args:
        model: the posterior.
        saddle: U at the saddle point.
        order_parameters: draws of U, shape (chain, draw, Pi, Pi), of which at most 100 are used; or the result of
            `bayesattn.sample`, a run or its folder.

    Raises:
        ValueError: draws of another model, or that are not finite.
    """
    labels, process = model.labels.ravel(), gaussian_density(model)
    if why_unaligned(labels, model.compressed is not None):
        return None

    def aligned(kernel: Checked) -> np.ndarray:
        """Kernel-target alignment, followed by the alignments of the leading eigenvectors."""
        leading = theory.alignment(kernel, labels)[:ALIGNED_EIGENVECTORS]
        return np.append(theory.kernel_target_alignment(kernel, labels), leading)

    order_parameters = order_parameters_of(order_parameters, model)
    chains, draws = order_parameters.shape[:2]
    kept = np.linspace(0, draws - 1, min(draws, max(FEWEST_DRAWS, ALIGNED_DRAWS // chains))).astype(int)
    chosen = order_parameters[:, kept].reshape(-1, *order_parameters.shape[2:])
    values = [aligned(_kernel(process, u)) for u in watched(chosen, "aligning kernels", "draws")]
    alignments = xr.DataArray(np.reshape(values, (chains, len(kept), -1)), dims=("chain", "draw", "quantity"))
    mean, error = alignments.mean(("chain", "draw")).values, arviz_stats.mcse(alignments).values
    gp = aligned(gp_kernel(model))
    by_theory = theory.kernel(saddle, model.path_inputs, model.path_inputs, model.architecture)
    return Alignment(
        draws=float(mean[0]),
        error=float(error[0]),
        theory=float(theory.kernel_target_alignment(by_theory, labels)),
        gp=float(gp[0]),
        eigenvectors=mean[1:],
        eigenvectors_error=error[1:],
        gp_eigenvectors=gp[1:],
    )


@with_own_settings
def gp_kernel(model: Model, paths: Checked = None) -> Float[np.ndarray, "example example"]:
    """K at infinite width on the training examples, for the whole network or for a group of its paths alone."""
    return np.asarray(_kernel(gaussian_density(model), gp_of_group(model, paths)))


@jax.jit
def _kernel(process: GaussianProcess, order_parameter: Checked) -> Float[Array, "label label"]:
    return process.kernel_of(order_parameter)
