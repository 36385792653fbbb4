"""Student-t likelihood, for labels with outliers."""

import jax
from jaxtyping import Array, Float, Key

from bayesattn.likelihoods.likelihood import Labels, Likelihood, Outputs, positive_field


class StudentT(Likelihood):
    """Likelihood of labels with outliers: (Y - f) / scale has Student's t distribution.

    Args:
        scale: scale of the noise, in units of the labels.
        freedom: degrees of freedom; the fewer, the heavier the tails.

    Raises:
        ValueError: a number that is not above 0.
    """

    scale: float | Array = positive_field("scale")
    freedom: float | Array = positive_field("freedom")

    def log_prob(self, outputs: Outputs, labels: Labels) -> Float[Array, "*examples"]:
        """Log density of the labels of each example."""
        each = jax.scipy.stats.t.logpdf(labels, self.freedom, outputs, self.scale)
        return each if each.ndim < 2 else each.sum(-1)

    def sample(self, key: Key[Array, ""], outputs: Outputs) -> Labels:
        """Outputs plus scaled noise of Student's t distribution."""
        return outputs + self.scale * jax.random.t(key, self.freedom, outputs.shape)

    @property
    def description(self) -> str:
        """Description of the labels in a few words."""
        return f"real numbers, Student-t with {self.freedom:g} degrees of freedom and scale {self.scale:g}"
