"""Reference posteriors: networks whose posterior is known to 1 % of its spread, against which samplers are graded.

>>> import bayesattn as ba
>>> "two_heads" in ba.reference.names()
True

`load(name)` gives the model and the truth, `bayesattn.grade(draws, name)` gives a grade, `check(kernel)` runs a sampler and
grades it, and `export` writes files for other tools. `benchmarks/reference_truths.py` made the truths.
"""

from bayesattn.questions.reference.checking import SamplerCheck, check
from bayesattn.questions.reference.formats import export
from bayesattn.questions.reference.posteriors import Reference, load, names
from bayesattn.questions.reference.truth import LEVELS, Estimates, Truth

__all__ = ["LEVELS", "Estimates", "Reference", "SamplerCheck", "Truth", "check", "export", "load", "names"]
