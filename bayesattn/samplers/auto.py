"""Choice of the sampler that "auto" stands for."""

from bayesattn.models import Model
from bayesattn.models.posterior import Posterior
from bayesattn.theory.bartlett import may_have_modes_apart


def suited_sampler(model: Posterior) -> str:
    """Sampler that "auto" stands for: "tempered" for networks that may have modes apart, "nuts" for all others.

    Networks whose queries and keys are sampled too have too many coordinates for tempering by default.
    """
    return "tempered" if isinstance(model, Model) and may_have_modes_apart(model.architecture) else "nuts"
